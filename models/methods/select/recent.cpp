// Attention sinks and a sliding window: Xiao et al., "Efficient Streaming Language Models with
// Attention Sinks" (StreamingLLM), section 3.2. Needs no scores, so flash attention is untouched.

#include <limits>

#include "models/methods/axes.hpp"

namespace kvsim {
namespace {

class RecentSelector final : public Selector {
 public:
  explicit RecentSelector(std::int64_t sinks) : sinks_{sinks} {}
  void learn_prompt(PromptScores& /*scores*/) override {}
  void observe(const AttentionRow& /*row*/) override {}
  void merge_scores(std::int32_t /*into*/, std::int32_t /*from*/, bool /*take_max*/) override {}

 public:
  double score(std::int32_t /*id*/) const override { return 0.0; }

 private:
  double importance(std::int32_t id, std::int32_t /*newest*/, bool /*at_prefill*/) const override {
    return id < sinks_ ? std::numeric_limits<double>::infinity() : static_cast<double>(id);
  }
  std::int64_t sinks_;
};

class RecentRule final : public SelectRule {
 public:
  explicit RecentRule(const RecentSettings& settings) : settings_{settings} {}
  std::unique_ptr<Selector> start(std::int32_t /*tokens*/) const override {
    return std::make_unique<RecentSelector>(settings_.sinks);
  }
  MethodNeeds needs() const override { return {}; }
  Bytes side_bytes_per_entry(Dtype /*recorded*/) const override { return Bytes{0}; }
  std::int64_t protected_entries() const override { return settings_.sinks + 1; }
  void add_step(StepTraffic& /*traffic*/, double /*attended*/, std::int32_t /*group*/,
                Dtype /*recorded*/) const override {}

 private:
  RecentSettings settings_;
};

}  // namespace

std::shared_ptr<const SelectRule> make_select_recent(const RecentSettings& settings) {
  return std::make_shared<RecentRule>(settings);
}

}  // namespace kvsim
