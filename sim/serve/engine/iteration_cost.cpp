#include "sim/serve/engine/iteration_cost.hpp"

#include <vector>

namespace kvsim {
namespace {

class Mixed : public IterationCost {
 public:
  Mixed(const CostInput& in, const Roofline& roofline, const LayerRange& layers)
      : cost_{in, roofline, layers} {
    for (const MixedStepCost::LayerClass& layer_class : cost_.layer_classes()) {
      layer_classes_.push_back({.layer = layer_class.layer, .layers = layer_class.layers});
    }
  }
  MixedCost cost(const MixedStep& step) override { return cost_.cost(step); }
  std::span<const LayerSpan> layer_classes() const override { return layer_classes_; }

 private:
  MixedStepCost cost_;
  std::vector<LayerSpan> layer_classes_;
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
