// SnapKV (Li et al. 2024): the prompt's last queries vote for the tokens before them. Votes are
// pooled, so that neighbours of a selected token are also kept. Decode appends.
//
//   vote_i  = sum over the group and over t in the last w queries of a_{t,i},   i < s - w
//   score_i = max (or mean) of vote over i - k/2 … i + k/2
//
// The group is reduced before pooling. SnapStream (arXiv 2511.03092) then keeps the selected prompt
// tokens and a ring of the last `ring` generated tokens, so that the cache has a constant size.

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "models/methods/select/attention/prompt_cut.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kRingOfCap = -1;  // of `ring`: the number of kept prompt tokens

struct WindowSettings {
  std::int32_t window = 32;
  std::int32_t kernel = 7;
  bool pool_max = true;
  std::int64_t ring = 0;  // generated tokens that stay; 0: all
};

class WindowSelector final : public PromptCutSelector {
 public:
  explicit WindowSelector(const WindowSettings& settings) : settings_{settings} {}

  void learn_prompt(PromptScores& scores) override {
    const WindowRows& rows = scores.window(settings_.window);
    prompt_ = scores.prompt();
    const std::int32_t prefix = prompt_ - rows.rows;
    std::vector<double> votes(static_cast<std::size_t>(prefix), 0.0);
    for (std::size_t h = 0; h < scores.heads().size(); ++h) {
      for (std::int32_t g = 0; g < rows.group; ++g) {
        for (std::int32_t r = 0; r < rows.rows; ++r) {
          const auto row = rows.row(rows.probabilities, h, g, r);
          for (std::size_t i = 0; i < votes.size(); ++i) votes[i] += row[i];
        }
      }
    }
    score_.resize(votes.size());
    const std::int32_t half = settings_.kernel / 2;
    for (std::int32_t i = 0; i < prefix; ++i) {
      const auto first = static_cast<std::size_t>(std::max(i - half, 0));
      const auto last = static_cast<std::size_t>(std::min(i + half, prefix - 1));
      double pooled = votes[first];
      for (std::size_t j = first + 1; j <= last; ++j) {
        pooled = settings_.pool_max ? std::max(pooled, votes[j]) : pooled + votes[j];
      }
      // Outside the range a mean includes zeros, like the released code's padding.
      score_[static_cast<std::size_t>(i)] = settings_.pool_max ? pooled : pooled / settings_.kernel;
    }
  }

  double importance(std::int32_t id, std::int32_t /*newest*/, bool /*at_prefill*/) const override {
    return has_score(id) ? score(id) : std::numeric_limits<double>::infinity();
  }
  std::vector<std::int32_t> plan(std::int32_t prompt, const EntryBudget& allotted) const override {
    if (allotted.entries > settings_.window || allotted.entries >= prompt) {
      return Selector::plan(prompt, allotted);
    }
    // The budget only covers the window, which shrinks to fit.
    KVSIM_CHECK(allotted.entries >= 1, "{} entries of {} tokens", allotted.entries, prompt);
    std::vector<std::int32_t> last(static_cast<std::size_t>(allotted.entries));
    std::iota(last.begin(), last.end(), prompt - static_cast<std::int32_t>(allotted.entries));
    return last;
  }
  void allow(const EntryBudget& /*allotted*/, std::int64_t room) override {
    degenerate_ = room <= settings_.window && room < prompt_;
  }
  void leaving(const EntryTable& entries, std::int32_t newest, std::int64_t /*room*/,
               std::vector<std::int32_t>& out) override {
    if (settings_.ring == 0) return;
    const auto oldest = static_cast<std::int32_t>(newest - settings_.ring);
    if (oldest >= prompt_ && entries.slot_of(oldest) >= 0) out.push_back(oldest);
  }
  void report(Counts& counts) const override {
    if (degenerate_) counts["degenerate"] += 1;
  }

 private:
  WindowSettings settings_;
  std::int32_t prompt_ = 0;
  bool degenerate_ = false;
};

class WindowRule final : public PromptCutRule {
 public:
  explicit WindowRule(const WindowSettings& settings) : settings_{settings} {}

  std::unique_ptr<Selector> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<WindowSelector>(settings_);
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.prompt_scores = PromptScoreClass::kLastWindow;
    needs.prompt_window = settings_.window;
    return needs;
  }
  bool leaves_in_decode() const override { return settings_.ring > 0; }
  std::optional<std::int64_t> held(std::int64_t budget, std::int64_t prompt,
                                   std::int64_t tokens) const override {
    const std::int64_t generated = decode_steps(prompt, tokens);
    return held_by_appending(budget, prompt, tokens) - generated +
           (settings_.ring > 0 ? std::min(generated, settings_.ring) : generated);
  }
  Compaction compaction(Compaction of_merge) const override {
    return settings_.ring > 0 ? Compaction::kRing : PromptCutRule::compaction(of_merge);
  }
  // Sum over queries and pooling, in addition to the window's rows.
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    const auto s = static_cast<double>(prompt);
    return {.flops = s * (static_cast<double>(shape.n_heads) * settings_.window +
                          static_cast<double>(shape.n_kv_heads) * settings_.kernel)};
  }

 private:
  WindowSettings settings_;
};

std::shared_ptr<const SelectRule> resolve_window(MethodResolver& resolver) {
  const std::int64_t kernel = resolver.integer("kernel");
  if (kernel % 2 == 0) {
    resolver.refuse(
        fmt::format("parameter kernel: expected an odd integer, so that the pooling has a middle "
                    "(SnapKV, released code), got {}",
                    kernel));
  }
  resolve_size(resolver, "cap");
  std::int64_t ring = resolver.integer("ring");
  if (ring == kRingOfCap) {
    ring = resolver.entries();
    resolver.resolve("ring", ring);
  }
  if (ring > 0 && resolver.choice("merge") != "drop") {
    resolver.refuse(fmt::format("ring drops generated tokens: expected merge=drop, got merge={}",
                                resolver.choice("merge")));
  }
  return std::make_shared<WindowRule>(
      WindowSettings{.window = static_cast<std::int32_t>(resolver.integer("window")),
                     .kernel = static_cast<std::int32_t>(kernel),
                     .pool_max = resolver.word("pool") == "max",
                     .ring = ring});
}

}  // namespace

AxisChoice select_window() {
  return {
      .axis = "select",
      .name = "window",
      .params = {integer_param("window", "w", 32, 1, kManyEntries, "an integer >= 1",
                               "last prompt queries that vote; their tokens are kept",
                               "SnapKV, LongBench configurations"),
                 integer_param("kernel", "k", 7, 1, kManyEntries, "an odd integer >= 1",
                               "width of the pooling over positions; 1: none",
                               "SnapKV, LongBench configurations; 5 in its class"),
                 word_param("pool", {"max", "avg"}, "pooling of the votes over positions",
                            "SnapKV: max in the LongBench configurations, avg in the class"),
                 integer_param("cap", "", 1024, 1, kManyEntries, "an integer >= 1",
                               "entries kept of the prompt if no budget is given",
                               "SnapKV, LongBench configurations; PyramidKV's 512", {"capacity"}),
                 integer_param(
                     "ring", "", 0, kRingOfCap, kManyEntries,
                     "an integer >= 0, 0 for all, or -1 for the number kept of the prompt",
                     "newest generated tokens that are kept",
                     "SnapStream, which publishes no size; SnapKV keeps all"),
                 prompt_positions_param()},
      .make = &resolve_window};
}

}  // namespace kvsim
