// CaM (Zhang et al. 2024): the value of an evicted token is spread over the m kept values after it,
// with a probability that increases with its attention; keys do not change.
//
//   p = clamp(A_i / mean(A_j ... A_{j+m-1}), 0, 1),   v_k <- v_k + M v_i / m,   M ~ Bernoulli(p)

#include "models/math/attention/value_spread.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "models/math/counter_random.hpp"
#include "models/methods/merge/merge.hpp"

namespace kvsim {
namespace {

struct Settings {
  std::int32_t window = 32;
  bool cumulative = false;
  bool expectation = false;
};

class ValueSpreadMerger final : public Merger {
 public:
  ValueSpreadMerger(const Settings& settings, const SessionPlace& place)
      : settings_{settings},
        place_{place},
        attention_(static_cast<std::size_t>(place.tokens), 0.0) {}

  void learn_prompt(PromptScores& /*scores*/, std::size_t head) override { head_ = head; }
  // The prompt is fed token by token, so tokens are not dropped together.
  void absorb_prompt(EntryTable& /*entries*/, Selector& /*selector*/,
                     std::span<const std::int32_t> /*losers*/, std::span<const float> /*keys*/,
                     std::span<const float> /*values*/) override {}
  void observe(const StepView& step, std::size_t head) override {
    newest_ = step.newest;
    const HeadStep& mine = step.heads[head];
    for (std::size_t slot = 0; slot < step.ids.size(); ++slot) {
      double seen = 0;
      for (std::int32_t g = 0; g < place_.group; ++g) seen += mine.attention.probabilities(g)[slot];
      double& at = attention_[static_cast<std::size_t>(step.ids[slot])];
      at = (settings_.cumulative ? at : 0.0) + seen / place_.group;
    }
  }
  std::int32_t absorb(EntryTable& entries, Selector& /*selector*/,
                      std::span<const std::int32_t> leaving) override {
    touched_.clear();
    std::int32_t merged = 0;
    for (const std::int32_t id : leaving) {
      if (spread(entries, id, leaving)) ++merged;
      entries.erase(entries.slot_of(id));
    }
    merged_ += merged;
    left_ += static_cast<double>(leaving.size());
    return merged;
  }
  std::span<const std::int32_t> touched() const override { return touched_; }
  void report(Counts& counts) const override {
    counts["cam_left"] += left_;
    counts["cam_merged"] += merged_;
  }

 private:
  bool spread(EntryTable& entries, std::int32_t id, std::span<const std::int32_t> leaving) {
    takers_.clear();
    double sum = 0;
    for (std::int32_t next = id + 1;
         next <= newest_ && static_cast<std::int32_t>(takers_.size()) < settings_.window; ++next) {
      if (entries.slot_of(next) < 0) continue;
      if (std::binary_search(leaving.begin(), leaving.end(), next)) continue;
      takers_.push_back(next);
      sum += attention_[static_cast<std::size_t>(next)];
    }
    const double own = attention_[static_cast<std::size_t>(id)];
    const auto m = std::ssize(takers_);
    const double p = spread_probability(own, sum, m);
    if (p == 0) return false;
    double share = p;
    if (!settings_.expectation) {
      const auto word = [](auto n) { return static_cast<std::uint64_t>(n); };
      const std::uint64_t key = counter_key(
          {place_.seed, word(place_.layer),
           word(place_.first_query_head) + word(head_) * word(place_.group), word(newest_)});
      const double u = counter_uniform(key, word(id));
      if (u >= p) return false;
      share = 1.0;
    }
    const auto from = entries.value(entries.slot_of(id));
    for (const std::int32_t taker : takers_) {
      spread_value(entries.mutable_value(entries.slot_of(taker)), from, share, m);
      touched_.push_back(taker);
    }
    return true;
  }

  Settings settings_;
  SessionPlace place_;
  std::size_t head_ = 0;
  std::int32_t newest_ = -1;
  std::vector<double> attention_;  // by id, mean over the group
  std::vector<std::int32_t> takers_, touched_;
  double merged_ = 0, left_ = 0;
};

class ValueSpreadRule final : public MergeRule {
 public:
  explicit ValueSpreadRule(const Settings& settings) : settings_{settings} {}
  std::unique_ptr<Merger> start(const SessionPlace& place) const override {
    return std::make_unique<ValueSpreadMerger>(settings_, place);
  }
  bool merges() const override { return true; }
  bool prompt_one_by_one() const override { return true; }
  bool prompt_attends() const override { return true; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.decode_rows = true;
    // Uses all rows of the prompt, like column sums.
    needs.prompt_scores = PromptScoreClass::kColumnSums;
    needs.score_copies = 2;
    return needs;
  }
  double bias(std::int32_t /*count*/, double /*weight*/) const override { return 0.0; }
  Bytes side_bytes(std::int64_t entries, const HeadShape& /*shape*/) const override {
    return Bytes{settings_.cumulative ? 4 : 0} * entries;
  }
  Compaction compaction() const override { return Compaction::kSwap; }
  std::int32_t launches() const override { return 6; }
  // Read of the value; mean, division, clamp and draw; three for the sum; a write; three for the
  // slot.
  std::int32_t operators() const override { return 12; }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    const double row = shape.group * events.attended * 4.0;
    traffic.score_row_write += row;
    traffic.score_row_read += row;
    if (settings_.cumulative) {
      traffic.side_read += events.attended * 4.0;
      traffic.side_write += events.attended * 4.0;
      traffic.extra_flops += events.attended;
    }
    const double values = events.merged * settings_.window * shape.row_bytes() / 2.0;
    traffic.move_read += values + events.merged * shape.row_bytes() / 2.0;
    traffic.move_write += values;
    traffic.extra_flops += events.merged * settings_.window * shape.head_dim;
  }

 private:
  Settings settings_;
};

std::shared_ptr<const MergeRule> resolve_value_spread(MethodResolver& resolver) {
  std::int64_t recent = resolver.entries();
  if (resolver.choice("select") == "recent") recent = resolver.integer("window");
  if (resolver.choice("select") == "accumulated") recent = resolver.integer("recent");
  const std::int64_t window =
      std::min(resolver.integer("merge_window"), std::max<std::int64_t>(recent, 1));
  resolver.resolve("merge_window", window);
  return std::make_shared<ValueSpreadRule>(
      Settings{.window = static_cast<std::int32_t>(window),
               .cumulative = resolver.word("attention") == "cumulative",
               .expectation = resolver.flag("expectation")});
}

}  // namespace

AxisChoice merge_value_spread() {
  return {
      .axis = "merge",
      .name = "value_spread",
      .params = {integer_param("merge_window", "m", 32, 1, kManyEntries, "an integer >= 1",
                               "kept values after the evicted token that receive a part of its "
                               "value; at most the recent window",
                               "CaM, released code"),
                 word_param("attention", {"current", "cumulative"},
                            "attention that sets a merge's probability: the step's, or the sum "
                            "over steps. A step's row covers the entries held at that step, also "
                            "in the prompt, which is fed token by token",
                            "CaM's variant for Hugging Face models against its streaming one"),
                 flag_param("expectation", false,
                            "merge the expected part instead of all or nothing at random", "ours")},
      .make = &resolve_value_spread};
}

}  // namespace kvsim
