// Observed attention (kvpress): accumulated attention over the number of queries that could have
// paid it, so that age alone earns nothing. The prompt is cut once, decode appends.
//
//   score_i = (1 / (s - i)) sum over t >= i and the group of a_{t,i}

#include <vector>

#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

class ObservedSelector final : public Selector {
 public:
  void learn_prompt(PromptScores& scores) override {
    const auto sums = scores.column_sums(1.0);
    score_.resize(sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      score_[i] = sums[i] / static_cast<double>(sums.size() - i);
    }
  }
  double score(std::int32_t id) const override {
    const auto at = static_cast<std::size_t>(id);
    return at < score_.size() ? score_[at] : 0.0;
  }
  double importance(std::int32_t id, std::int32_t /*newest*/, bool /*at_prefill*/) const override {
    return score(id);
  }
  void leaving(const EntryTable& /*entries*/, std::int32_t /*newest*/, std::int64_t /*room*/,
               std::vector<std::int32_t>& /*out*/) override {}

 private:
  std::vector<double> score_;
};

class ObservedRule final : public SelectRule {
 public:
  explicit ObservedRule(ScoreExec exec) : exec_{exec} {}

  std::unique_ptr<Selector> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<ObservedSelector>();
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.prompt_scores = PromptScoreClass::kColumnSums;
    needs.score_exec = exec_;
    needs.score_copies = 2;  // logits, and the fp32 softmax cast back
    return needs;
  }
  bool leaves_in_decode() const override { return false; }
  std::optional<std::int64_t> held(std::int64_t budget, std::int64_t prompt,
                                   std::int64_t tokens) const override {
    return held_by_appending(budget, prompt, tokens);
  }
  Compaction compaction(Compaction /*of_merge*/) const override { return Compaction::kAppend; }
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{0};
  }
  void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                const HeadShape& /*shape*/) const override {}
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    return {.flops = static_cast<double>(prompt) * shape.n_heads};  // the division
  }

 private:
  ScoreExec exec_;
};

std::shared_ptr<const SelectRule> make(Settling& settling) {
  settling.set_entries(settling.budget_entries(0.2));
  return std::make_shared<ObservedRule>(score_exec_of(settling.word("score_exec")));
}

}  // namespace

AxisChoice select_observed() {
  return {.axis = "select", .name = "observed", .params = {score_exec_param()}, .make = &make};
}

}  // namespace kvsim
