// Keeps everything: the full cache.

#include <limits>

#include "models/methods/axes.hpp"

namespace kvsim {
namespace {

class AllSelector final : public Selector {
 public:
  void learn_prompt(PromptScores& /*scores*/) override {}
  void observe(const AttentionRow& /*row*/) override {}
  void merge_scores(std::int32_t /*into*/, std::int32_t /*from*/, bool /*take_max*/) override {}

 public:
  double score(std::int32_t /*id*/) const override { return 0.0; }

 private:
  double importance(std::int32_t /*id*/, std::int32_t /*newest*/,
                    bool /*at_prefill*/) const override {
    return std::numeric_limits<double>::infinity();
  }
};

class AllRule final : public SelectRule {
 public:
  std::unique_ptr<Selector> start(std::int32_t /*tokens*/) const override {
    return std::make_unique<AllSelector>();
  }
  MethodNeeds needs() const override { return {}; }
  Bytes side_bytes_per_entry(Dtype /*recorded*/) const override { return Bytes{0}; }
  std::int64_t protected_entries() const override { return 0; }
  void add_step(StepTraffic& /*traffic*/, double /*attended*/, std::int32_t /*group*/,
                Dtype /*recorded*/) const override {}
};

}  // namespace

std::shared_ptr<const SelectRule> make_select_all() { return std::make_shared<AllRule>(); }

}  // namespace kvsim
