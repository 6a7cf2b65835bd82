// Keyformer (Adnan et al. 2024): accumulated attention with rows regularised by Gumbel noise and a
// temperature that increases per step, so that scores do not freeze on early entries.
//
//   s_i <- s_i + softmax_i((l_i + z_i) / tau),   z_i ~ Gumbel(0, 1) drawn for every (step, entry)
//   tau  = tau_init + step * delta_tau,          the prompt's rows at tau_init
//
// The output uses the plain softmax over the entries held.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "models/math/counter_random.hpp"
#include "models/math/lanes.hpp"
#include "models/methods/params.hpp"
#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

struct GumbelSettings {
  double tau_init = 1.0, tau_end = 2.0;
  bool whole_difference =
      false;  // every step adds tau_end - tau_init, as in the evaluation harness
  std::int64_t max_new_tokens = 0;
  bool noise = true;
  bool per_layer = false;
  std::int64_t recent = 1;
  ScoreExec score_exec = ScoreExec::kEager;
};

class GumbelSelector final : public Selector {
 public:
  GumbelSelector(const GumbelSettings& settings, const SessionPlace& place)
      : settings_{settings}, place_{place}, score_(static_cast<std::size_t>(place.tokens), 0.0) {}

  void learn_prompt(PromptScores& scores) override {
    prompt_ = scores.prompt();
    all_ids_.resize(static_cast<std::size_t>(prompt_));
    std::iota(all_ids_.begin(), all_ids_.end(), 0);
    scores.each_row(0, [this](const PromptScores::Row& row) {
      regularise(row.logits, row.probabilities, std::span{all_ids_}.first(row.logits.size()),
                 static_cast<std::int32_t>(row.t), settings_.tau_init,
                 static_cast<std::int32_t>(row.head) * place_.group + row.g);
      for (std::size_t i = 0; i < weight_.size(); ++i) score_[i] += weight_[i];
    });
  }
  void observe(const StepView& step) override {
    const double tau = settings_.tau_init + (step.newest - prompt_ + 1) * delta();
    for (std::size_t h = 0; h < step.heads.size(); ++h) {
      for (std::int32_t g = 0; g < place_.group; ++g) {
        const GroupAttention& attention = step.heads[h].attention;
        regularise(attention.logits(g), attention.probabilities(g), step.ids, step.newest, tau,
                   static_cast<std::int32_t>(h) * place_.group + g);
        for (std::size_t slot = 0; slot < weight_.size(); ++slot) {
          score_[static_cast<std::size_t>(step.ids[slot])] += weight_[slot];
        }
      }
    }
  }
  double score(std::int32_t id) const override { return score_[static_cast<std::size_t>(id)]; }
  void merge_scores(std::int32_t into, std::int32_t from, bool take_max) override {
    double& to = score_[static_cast<std::size_t>(into)];
    to = take_max ? std::max(to, score(from)) : to + score(from);
  }
  double importance(std::int32_t id, std::int32_t newest, bool /*at_prefill*/) const override {
    return id > newest - settings_.recent ? std::numeric_limits<double>::infinity() : score(id);
  }

 private:
  double delta() const {
    const double whole = settings_.tau_end - settings_.tau_init;
    if (settings_.whole_difference) return whole;
    const std::int64_t steps = settings_.max_new_tokens > 0
                                   ? settings_.max_new_tokens
                                   : std::max<std::int64_t>(place_.tokens - prompt_, 1);
    return whole / static_cast<double>(steps);
  }
  /// Sets weight_ to softmax((logits + noise) / tau) over the tokens `ids`. With noise -ln w, where
  /// w = -ln u, this is softmax((logits - ln w) / tau): at tau = 1 the probabilities divided by w.
  void regularise(std::span<const double> logits, std::span<const double> probabilities,
                  std::span<const std::int32_t> ids, std::int32_t step, double tau,
                  std::int32_t query_head) {
    const std::size_t n = logits.size();
    const std::size_t padded = (n + 3) / 4 * 4;
    weight_.resize(padded);
    wait_.resize(padded, 1.0);
    draw(ids, step, query_head);
    double sum = 0;
    if (tau == 1.0) {
      for (std::size_t i = 0; i < n; ++i) {
        weight_[i] = probabilities[i] / wait_[i];
        sum += weight_[i];
      }
    } else {
      std::copy(logits.begin(), logits.end(), weight_.begin());
      std::fill(weight_.begin() + static_cast<std::ptrdiff_t>(n), weight_.end(),
                -std::numeric_limits<double>::infinity());
      for (std::size_t i = 0; i < padded; i += 4) {
        lanes::D4 x = lanes::load(&weight_[i]);
        if (settings_.noise) x -= lanes::log_positive(lanes::load(&wait_[i]));
        lanes::store(&weight_[i], x / tau);
      }
      const double highest = *std::max_element(weight_.begin(), weight_.end());
      for (std::size_t i = 0; i < padded; i += 4) {
        const lanes::D4 weight = lanes::exp_nonpositive(lanes::load(&weight_[i]) - highest);
        lanes::store(&weight_[i], weight);
        sum += lanes::fold(weight);
      }
    }
    weight_.resize(n);
    const double inverse = 1.0 / sum;
    for (double& weight : weight_) weight *= inverse;
  }
  /// Sets wait_ to -ln u for each id in `ids`, or to 1 without noise.
  void draw(std::span<const std::int32_t> ids, std::int32_t step, std::int32_t query_head) {
    if (!settings_.noise) {
      std::fill(wait_.begin(), wait_.end(), 1.0);
      return;
    }
    const auto word = [](std::int32_t x) { return static_cast<std::uint64_t>(x); };
    const std::uint64_t key = counter_key(
        {place_.seed, word(place_.layer), word(place_.first_query_head + query_head), word(step)});
    while (static_cast<std::int32_t>(mixed_.size()) <= step) mixed_.push_back(mix64(mixed_.size()));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      wait_[i] = uniform_of(key, mixed_[static_cast<std::size_t>(ids[i])]);
    }
    for (std::size_t i = ids.size(); i < wait_.size(); ++i) wait_[i] = 0.5;
    for (std::size_t i = 0; i < wait_.size(); i += 4) {
      lanes::store(&wait_[i], -lanes::log_positive(lanes::load(&wait_[i])));
    }
  }

  GumbelSettings settings_;
  SessionPlace place_;
  std::vector<double> score_;  // by id
  std::vector<double> weight_;
  std::vector<std::uint64_t> mixed_;  // by id: its mixed counter
  std::vector<double> wait_;          // for one row: -ln u, exponentially distributed
  std::vector<std::int32_t> all_ids_;
  std::int32_t prompt_ = 0;
};

class GumbelRule final : public SelectRule {
 public:
  explicit GumbelRule(const GumbelSettings& settings) : settings_{settings} {}

  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<GumbelSelector>(settings_, place);
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.prompt_scores = PromptScoreClass::kColumnSums;
    needs.score_exec = settings_.score_exec;
    needs.score_copies = 3;  // logits, their cast softmax, the regularised softmax
    needs.decode_rows = true;
    return needs;
  }
  bool shared_by_layer() const override { return settings_.per_layer; }
  std::int64_t min_entries() const override { return std::max<std::int64_t>(settings_.recent, 1); }
  Bytes side_bytes(std::int64_t entries, const HeadShape& /*shape*/) const override {
    return Bytes{4} * entries;
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    traffic.score_row_write += shape.group * events.attended * 4.0;
    traffic.score_row_read += shape.group * events.attended * 4.0;
    traffic.side_read += events.attended * 4.0;
    traffic.side_write += events.attended * 4.0;
    traffic.extra_flops += events.attended * (shape.group * kSoftmaxFlops + 2.0);
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    const auto s = static_cast<double>(prompt);
    return {.flops = shape.n_heads * s * (s + 1.0) / 2.0 * kSoftmaxFlops};
  }

 private:
  // Two logarithms, sum, division by tau, exponential, normalisation: one operation each.
  static constexpr double kSoftmaxFlops = 6.0;

  GumbelSettings settings_;
};

std::shared_ptr<const SelectRule> resolve_gumbel(MethodResolver& resolver) {
  const double tau_init = resolver.number("tau_init");
  const double tau_end = resolver.number("tau_end");
  if (tau_end < tau_init) {
    resolver.refuse(fmt::format(
        "parameter tau_end: expected at least tau_init = {} (Keyformer: the temperature "
        "rises), got {}",
        tau_init, tau_end));
  }
  const std::int64_t entries = resolver.budget_entries(0.6);
  resolver.set_entries(entries);
  const std::int64_t recent = share_or_count(resolver.number("recent"), entries);
  if (recent > entries) {
    resolver.refuse(
        fmt::format("a budget of {} entries has no room for {} recent ones", entries, recent));
  }
  resolver.resolve("recent", recent);
  const bool harness = resolver.word("delta_tau") == "harness";
  return std::make_shared<GumbelRule>(
      GumbelSettings{.tau_init = tau_init,
                     .tau_end = tau_end,
                     .whole_difference = harness,
                     .max_new_tokens = harness ? 0 : resolver.integer("max_new_tokens"),
                     .noise = resolver.word("noise") == "gumbel",
                     .per_layer = resolver.word("accumulate") == "per_layer",
                     .recent = recent,
                     .score_exec = score_exec_of(resolver.word("score_exec"))});
}

}  // namespace

AxisChoice select_gumbel() {
  return {.axis = "select",
          .name = "gumbel",
          .params = {number_param("recent", "w", 0.3, 0, kManyEntries,
                                  "a fraction of the budget below 1, or entries",
                                  "last tokens kept regardless of their score",
                                  "Keyformer, released scripts"),
                     number_param("tau_init", "", 1.0, 1e-6, 1e9, "a number > 0",
                                  "temperature of the prompt's rows", "Keyformer, section 3"),
                     number_param("tau_end", "", 2.0, 1e-6, 1e9, "a number >= tau_init",
                                  "temperature at the last step", "Keyformer, section 3"),
                     word_param("delta_tau", {"per_step", "harness"},
                                "rise of the temperature per step: its share of the difference, or "
                                "the whole difference each time",
                                "Keyformer's paper against its evaluation harness"),
                     integer_param("max_new_tokens", "", 0, 0, kManyEntries,
                                   "an integer >= 1, or 0 for the number of decode steps",
                                   "steps from tau_init to tau_end", "Keyformer, section 3"),
                     word_param("accumulate", {"per_head", "per_layer"},
                                "scores of each stored head, or one for all heads of a layer",
                                "Keyformer's released code against its text"),
                     word_param("noise", {"gumbel", "none"}, "noise that is added to the logits",
                                "Keyformer's ablation of the regularisation"),
                     score_exec_param()},
          .make = &resolve_gumbel};
}

}  // namespace kvsim
