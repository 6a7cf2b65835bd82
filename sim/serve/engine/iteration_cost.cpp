#include "sim/serve/engine/iteration_cost.hpp"

#include <vector>

namespace kvsim {
namespace {

class Mixed : public IterationCost {
 public:
  Mixed(const CostInput& in, const Roofline& roofline, const LayerRange& layers)
      : cost_{in, roofline, layers} {
    for (const MixedStepCost::Law& law : cost_.law_layers()) {
      laws_.push_back({.layer = law.layer, .layers = law.layers});
    }
  }
  MixedCost cost(const MixedStep& step) override { return cost_.cost(step); }
  std::span<const LawLayers> laws() const override { return laws_; }

 private:
  MixedStepCost cost_;
  std::vector<LawLayers> laws_;
};

}  // namespace

std::unique_ptr<IterationCost> mixed_iteration_cost(const CostInput& in, const Roofline& roofline) {
  return mixed_iteration_cost(in, roofline, all_layers(*in.llm));
}

std::unique_ptr<IterationCost> mixed_iteration_cost(const CostInput& in, const Roofline& roofline,
                                                    const LayerRange& layers) {
  return std::make_unique<Mixed>(in, roofline, layers);
}

}  // namespace kvsim
