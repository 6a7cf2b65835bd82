// Keeps all entries: the full cache.

#include <limits>

#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

class AllSelector final : public Selector {
 public:
  void learn_prompt(PromptScores& /*scores*/) override {}
  double score(std::int32_t /*id*/) const override { return 0.0; }
  double importance(std::int32_t /*id*/, std::int32_t /*newest*/,
                    bool /*at_prefill*/) const override {
    return std::numeric_limits<double>::infinity();
  }
};

class AllRule final : public SelectRule {
 public:
  std::unique_ptr<Selector> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<AllSelector>();
  }
  MethodNeeds needs() const override { return {}; }
  bool bounded() const override { return false; }
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{0};
  }
  void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                const HeadShape& /*shape*/) const override {}
};

std::shared_ptr<const SelectRule> resolve_all(MethodResolver& resolver) {
  // If a reader takes the budget, it limits the entries read.
  if (resolver.budget() && resolver.choice("read") == "all")
    resolver.refuse("it keeps every token and takes no budget");
  return std::make_shared<AllRule>();
}

}  // namespace

AxisChoice select_all() {
  return {
      .axis = "select", .name = "all", .params = {}, .make = &resolve_all, .takes_budget = false};
}

}  // namespace kvsim
