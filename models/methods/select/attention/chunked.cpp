// ChunkKV (Liu et al. 2025; kvpress, ChunkKVPress): selects whole chunks of neighbouring tokens,
// the same in every head of a layer.
//
//   score of a chunk = mean over its tokens of their scores summed over heads
//
// The int(#chunks (1 - ratio)) highest chunks are kept, at least one; a shorter last chunk counts
// as one. A prompt shorter than a chunk is selected token by token.

#include <algorithm>

#include <fmt/format.h>

#include "models/methods/select/scored.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

class ChunkedSelector final : public ScoredSelector {
 public:
  ChunkedSelector(std::shared_ptr<const Scorer> scorer, const SessionPlace& place,
                  std::int64_t chunk)
      : ScoredSelector{std::move(scorer), place}, chunk_{static_cast<std::size_t>(chunk)} {}

  void learn_prompt(PromptScores& scores) override {
    score_.assign(static_cast<std::size_t>(scores.prompt()), 0.0);
    for (std::size_t h = 0; h < scores.heads().size(); ++h) {
      std::vector<double> one = score_prompt(scorer(), scores, h, place());
      make_finite(one, scorer());
      for (std::size_t i = 0; i < one.size(); ++i) score_[i] += one[i];
    }
    if (score_.size() < chunk_) return;
    for (std::size_t first = 0; first < score_.size(); first += chunk_) {
      const std::size_t last = std::min(first + chunk_, score_.size());
      double sum = 0;
      for (std::size_t i = first; i < last; ++i) sum += score_[i];
      chunks_.push_back(sum / static_cast<double>(last - first));
      for (std::size_t i = first; i < last; ++i) score_[i] = chunks_.back();
    }
  }
  std::vector<std::int32_t> plan(std::int32_t prompt, const EntryBudget& allotted) const override {
    KVSIM_CHECK(allotted.entries >= 1, "{} entries of {} tokens", allotted.entries, prompt);
    if (allotted.entries >= prompt || chunks_.empty()) return highest(score_, allotted.entries);
    const auto chunk = static_cast<std::int64_t>(chunk_);
    // If the shorter last chunk is kept, one more chunk may fit into the budget.
    std::int64_t count = allotted.entries / chunk;
    if (tokens_of(highest(chunks_, count + 1)) <= allotted.entries) ++count;
    std::vector<std::int32_t> kept;
    for (const std::int32_t each : highest(chunks_, count)) {
      const std::size_t first = static_cast<std::size_t>(each) * chunk_;
      for (std::size_t i = first; i < std::min(first + chunk_, score_.size()); ++i) {
        kept.push_back(static_cast<std::int32_t>(i));
      }
    }
    return kept;
  }

 private:
  [[nodiscard]] std::int64_t tokens_of(const std::vector<std::int32_t>& chunks) const {
    std::int64_t tokens = 0;
    for (const std::int32_t each : chunks) {
      const std::size_t first = static_cast<std::size_t>(each) * chunk_;
      tokens += static_cast<std::int64_t>(std::min(chunk_, score_.size() - first));
    }
    return tokens;
  }

  std::size_t chunk_;
  std::vector<double> chunks_;  // scores of chunks; the last chunk may be shorter
};

class ChunkedRule final : public ScoredRule {
 public:
  ChunkedRule(std::shared_ptr<const Scorer> scorer, std::int64_t chunk)
      : ScoredRule{std::move(scorer)}, chunk_{chunk} {}
  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<ChunkedSelector>(scorer(), place, chunk_);
  }
  bool shared_by_layer() const override { return true; }
  std::optional<std::int64_t> held(std::int64_t budget, std::int64_t prompt,
                                   std::int64_t tokens) const override {
    // Whether a shorter last chunk is kept depends on the data.
    if (budget >= prompt || prompt < chunk_) return ScoredRule::held(budget, prompt, tokens);
    if (prompt % chunk_ != 0) return std::nullopt;
    return ScoredRule::held(budget / chunk_ * chunk_, prompt, tokens);
  }

 private:
  std::int64_t chunk_;
};

std::shared_ptr<const SelectRule> resolve_chunked(MethodResolver& resolver) {
  const std::int64_t chunk = resolver.integer("chunk");
  const std::int64_t prompt = resolver.prompt();
  const std::int64_t chunks = (prompt + chunk - 1) / chunk;
  // A ratio applies to chunks, at least one of which is kept; if the prompt is shorter than a
  // chunk, it applies to tokens.
  const auto kept = [=](double ratio) {
    const auto of = [ratio](std::int64_t n) {
      return static_cast<std::int64_t>(static_cast<double>(n) * (1.0 - ratio));
    };
    if (prompt < chunk || of(prompt) >= prompt) return of(prompt);
    return std::min(std::max<std::int64_t>(of(chunks), 1) * chunk, prompt);
  };
  const auto whole = [=](std::int64_t entries) {
    return prompt >= chunk && entries < prompt ? entries / chunk * chunk : entries;
  };
  const std::int64_t entries = resolve_ratio(resolver, kept, whole);
  if (resolver.slots() > 0) {
    resolver.refuse("whole chunks leave no room for merged entries: expected merge=drop");
  }
  if (prompt >= chunk && entries < prompt) {
    if (resolver.budget() && entries < chunk) {
      resolver.refuse(
          fmt::format("a budget of {} entries is less than a whole chunk of {} tokens (ChunkKV)",
                      entries, chunk));
    }
    if (resolver.budget() && !resolver.given("ratio")) {
      resolver.resolve("ratio", ratio_keeping(entries / chunk, chunks));
    }
  }
  return std::make_shared<ChunkedRule>(make_wrapped_scorer(resolver, entries), chunk);
}

}  // namespace

AxisChoice select_chunked() {
  std::vector<ParamInfo> params = wrapped_scorer_params("last-window");
  params.push_back(integer_param("chunk", "", 20, 1, kManyEntries, "an integer >= 1",
                                 "neighbouring tokens that are kept or dropped together",
                                 "kvpress, ChunkKVPress chunk_length", {"chunk_length"}));
  return scored_choice("chunked", std::move(params), &resolve_chunked);
}

}  // namespace kvsim
