// TOVA (Oren et al. 2024): keeps the entries that the newest query attends to. At every step (the
// prompt counts as one) the B entries with the largest attention of the current query, averaged
// over all heads of the layer, are kept. The newest token is not protected.

#include <algorithm>
#include <limits>
#include <vector>

#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

struct LastRowSettings {
  bool head_mean = true;  // one decision per layer; otherwise one per stored head
  bool protect_last = false;
};

class LastRowSelector final : public Selector {
 public:
  LastRowSelector(const LastRowSettings& settings, std::int32_t tokens)
      : settings_{settings}, row_(static_cast<std::size_t>(tokens), 0.0) {}

  void learn_prompt(PromptScores& scores) override {
    const WindowRows& last = scores.window(1);
    for (std::size_t h = 0; h < scores.heads().size(); ++h) {
      for (std::int32_t g = 0; g < last.group; ++g) {
        const auto row = last.row(last.probabilities, h, g, 0);
        for (std::size_t i = 0; i < row.size(); ++i) row_[i] += row[i];
      }
    }
  }
  // A sum gives the same ranking as the mean.
  void observe(const StepView& step) override {
    for (std::size_t slot = 0; slot < step.ids.size(); ++slot) {
      row_[static_cast<std::size_t>(step.ids[slot])] = step.group_sum[slot];
    }
  }
  double score(std::int32_t id) const override { return row_[static_cast<std::size_t>(id)]; }
  void merge_scores(std::int32_t into, std::int32_t from, bool take_max) override {
    double& to = row_[static_cast<std::size_t>(into)];
    to = take_max ? std::max(to, score(from)) : to + score(from);
  }
  double importance(std::int32_t id, std::int32_t newest, bool /*at_prefill*/) const override {
    if (settings_.protect_last && id == newest) return std::numeric_limits<double>::infinity();
    return score(id);
  }

 private:
  LastRowSettings settings_;
  std::vector<double> row_;  // of the newest query, by id
};

class LastRowRule final : public SelectRule {
 public:
  explicit LastRowRule(const LastRowSettings& settings) : settings_{settings} {}

  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<LastRowSelector>(settings_, place.tokens);
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.prompt_scores = PromptScoreClass::kLastWindow;
    needs.prompt_window = 1;
    needs.decode_rows = true;
    return needs;
  }
  bool shared_by_layer() const override { return settings_.head_mean; }
  std::int32_t operators() const override { return 3; }  // mean, unprotected entries, minimum
  // The row is used in the step that produced it, so nothing is carried.
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{0};
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    traffic.score_row_write += shape.group * events.attended * 4.0;
    traffic.score_row_read += shape.group * events.attended * 4.0;
    traffic.extra_flops += events.attended * (shape.group + 1.0);  // mean over heads, compare
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    return {.flops = static_cast<double>(prompt) * (shape.n_heads + 1.0)};
  }

 private:
  LastRowSettings settings_;
};

std::shared_ptr<const SelectRule> resolve_last_row(MethodResolver& resolver) {
  resolver.set_entries(resolver.budget_entries(0.2));
  return std::make_shared<LastRowRule>(
      LastRowSettings{.head_mean = resolver.word("decide_by") == "layer",
                      .protect_last = resolver.flag("protect_last")});
}

}  // namespace

AxisChoice select_last_row() {
  return {
      .axis = "select",
      .name = "last-row",
      .params = {word_param("decide_by", {"layer", "stored_head"},
                            "one kept set for all heads of a layer, by their mean attention, or "
                            "one per stored head",
                            "TOVA, section 4"),
                 flag_param("protect_last", false,
                            "whether the newest token stays regardless of its attention",
                            "kvpress protects it, TOVA does not")},
      .make = &resolve_last_row};
}

}  // namespace kvsim
