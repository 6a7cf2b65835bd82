// Observed attention (kvpress): accumulated attention divided by the number of queries that could
// attend, so that older tokens have no advantage. The prompt is cut once; decode appends.
//
//   score_i = (1 / (s - i)) sum over t >= i and the group of a_{t,i}

#include <vector>

#include "models/methods/select/attention/prompt_cut.hpp"

namespace kvsim {
namespace {

class ObservedSelector final : public PromptCutSelector {
 public:
  void learn_prompt(PromptScores& scores) override {
    const auto sums = scores.column_sums(1.0);
    score_.resize(sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      score_[i] = sums[i] / static_cast<double>(sums.size() - i);
    }
  }
  double importance(std::int32_t id, std::int32_t /*newest*/, bool /*at_prefill*/) const override {
    return score(id);
  }
};

class ObservedRule final : public PromptCutRule {
 public:
  explicit ObservedRule(ScoreExec exec) : exec_{exec} {}

  std::unique_ptr<Selector> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<ObservedSelector>();
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.prompt_scores = PromptScoreClass::kColumnSums;
    needs.score_exec = exec_;
    needs.score_copies = 2;  // logits and the cast fp32 softmax
    return needs;
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    return {.flops = static_cast<double>(prompt) * shape.n_heads};  // the division
  }

 private:
  ScoreExec exec_;
};

std::shared_ptr<const SelectRule> resolve_observed(MethodResolver& resolver) {
  resolver.set_entries(resolver.budget_entries(0.2));
  return std::make_shared<ObservedRule>(score_exec_of(resolver.word("score_exec")));
}

}  // namespace

AxisChoice select_observed() {
  return {.axis = "select",
          .name = "observed",
          .params = {score_exec_param(), prompt_positions_param()},
          .make = &resolve_observed};
}

}  // namespace kvsim
