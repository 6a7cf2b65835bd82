// A scorer that is applied to parts of the prompt (kvpress, ChunkPress and BlockPress).
//
//   within-chunks  the ratio harness inside each run of `chunk_tokens` tokens: a run of m keeps its
//                  max(1, int(m (1 - ratio))) highest scores, computed within the run
//   block-wise     a streaming top-k: the first n_kept tokens, then `block` more at a time; all
//                  tokens present are scored together, and the n_kept highest continue
//
// Only scorers of keys and values are allowed: the queries of a part are not representative of the
// whole.

#include <algorithm>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "models/methods/select/scored.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

std::shared_ptr<const Scorer> content_scorer(MethodResolver& resolver) {
  const std::string& name = resolver.word("scorer");
  if (name == "knorm") return make_knorm(resolver);
  if (name == "lagkv") return make_lagkv(resolver);
  if (name == "random") return make_random(resolver);
  KVSIM_CHECK(name == "keydiff", "no scorer {} of keys and values", name);
  return make_keydiff(resolver);
}

std::vector<ParamInfo> content_scorer_params() {
  std::vector<ParamInfo> params = lagkv_params();
  params.insert(params.begin(),
                word_param("scorer", {"keydiff", "knorm", "lagkv", "random"},
                           "scorer of the tokens", "kvpress, any ScorerPress without queries"));
  return params;
}

/// Scores the tokens `ids` (ascending) on their own.
std::vector<double> score_part(const Scorer& scorer, const HeadVectors& head, std::int32_t kv_head,
                               std::span<const std::int32_t> ids, const SessionPlace& place) {
  std::vector<float> keys;
  std::vector<float> values;
  for (const std::int32_t id : ids) {
    const auto key = head.key(id);
    const auto value = head.value(id);
    keys.insert(keys.end(), key.begin(), key.end());
    values.insert(values.end(), value.begin(), value.end());
  }
  std::vector<double> all = scorer.score({.head = head,
                                          .positions = ids,
                                          .keys = keys,
                                          .values = values,
                                          .first_query = ids.front(),
                                          .tokens = ids.back() + 1,
                                          .kv_head = kv_head},
                                         place);
  KVSIM_CHECK(all.size() == ids.size(), "{} scores of {} tokens", all.size(), ids.size());
  return all;
}

/// Number of entries that each run of the prompt keeps.
struct Quotas {
  std::int64_t chunk = 1;
  std::optional<double> share{};  // share kept per run, if a ratio was given
  std::int64_t requested = 0;     // entries within the budget
  std::int64_t entries = 0;       // total number that the runs keep

  [[nodiscard]] std::int64_t of(std::int64_t run, std::int64_t budget, std::int64_t prompt) const {
    std::int64_t count = 0;
    if (budget == entries && share) {
      count = static_cast<std::int64_t>(static_cast<double>(run) * *share);
    } else {
      // Integer arithmetic, so that one run of the whole prompt keeps exactly the budget.
      count = run * std::min(budget == entries ? requested : budget, prompt) / prompt;
    }
    return std::clamp<std::int64_t>(count, 1, run);
  }
  [[nodiscard]] std::int64_t total(std::int64_t budget, std::int64_t prompt) const {
    std::int64_t sum = 0;
    for (std::int64_t first = 0; first < prompt; first += chunk) {
      sum += of(std::min(chunk, prompt - first), budget, prompt);
    }
    return sum;
  }
};

class ChunksSelector final : public ScoredSelector {
 public:
  ChunksSelector(std::shared_ptr<const Scorer> scorer, const SessionPlace& place,
                 const Quotas& quotas)
      : ScoredSelector{std::move(scorer), place}, quotas_{quotas} {}

  void learn_prompt(PromptScores& scores) override {
    const HeadVectors& head = scores.heads()[0];
    score_.clear();
    for (std::int64_t first = 0; first < head.prompt; first += quotas_.chunk) {
      std::vector<std::int32_t> ids(
          static_cast<std::size_t>(std::min(quotas_.chunk, head.prompt - first)));
      std::iota(ids.begin(), ids.end(), static_cast<std::int32_t>(first));
      const auto part = score_part(scorer(), head, scores.head_number(0), ids, place());
      score_.insert(score_.end(), part.begin(), part.end());
    }
  }
  std::vector<std::int32_t> plan(std::int32_t prompt, const EntryBudget& allotted) const override {
    KVSIM_CHECK(allotted.entries >= 1, "{} entries of {} tokens", allotted.entries, prompt);
    std::vector<std::int32_t> kept;
    for (std::int64_t first = 0; first < prompt; first += quotas_.chunk) {
      const std::int64_t run = std::min(quotas_.chunk, prompt - first);
      const auto of_run =
          std::span{score_}.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(run));
      for (const std::int32_t i : highest(of_run, quotas_.of(run, allotted.entries, prompt))) {
        kept.push_back(static_cast<std::int32_t>(first) + i);
      }
    }
    return kept;
  }

 private:
  const Quotas& quotas_;
};

class ChunksRule final : public ScoredRule {
 public:
  ChunksRule(std::shared_ptr<const Scorer> scorer, const Quotas& quotas)
      : ScoredRule{std::move(scorer)}, quotas_{quotas} {}
  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<ChunksSelector>(scorer(), place, quotas_);
  }
  std::optional<std::int64_t> held(std::int64_t budget, std::int64_t prompt,
                                   std::int64_t tokens) const override {
    return quotas_.total(budget, prompt) + std::max<std::int64_t>(tokens - prompt, 0);
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    // Each run is scored separately, with two launches.
    PrefillExtra extra = ScoredRule::prefill_extra(shape, recorded, prompt);
    extra.launches *= static_cast<std::int32_t>((prompt + quotas_.chunk - 1) / quotas_.chunk);
    return extra;
  }

 private:
  Quotas quotas_;
};

class BlocksSelector final : public ScoredSelector {
 public:
  BlocksSelector(std::shared_ptr<const Scorer> scorer, const SessionPlace& place,
                 std::int64_t block)
      : ScoredSelector{std::move(scorer), place}, block_{block} {}

  void learn_prompt(PromptScores& scores) override {
    ScoredSelector::learn_prompt(scores);  // for budgets that compare heads
    head_ = scores.heads()[0];
    kv_head_ = scores.head_number(0);
  }
  std::vector<std::int32_t> plan(std::int32_t prompt, const EntryBudget& allotted) const override {
    KVSIM_CHECK(allotted.entries >= 1, "{} entries of {} tokens", allotted.entries, prompt);
    std::vector<std::int32_t> kept(
        static_cast<std::size_t>(std::min<std::int64_t>(allotted.entries, prompt)));
    std::iota(kept.begin(), kept.end(), 0);
    for (std::int64_t next = std::ssize(kept); next < prompt; next += block_) {
      for (std::int64_t id = next; id < std::min<std::int64_t>(next + block_, prompt); ++id) {
        kept.push_back(static_cast<std::int32_t>(id));
      }
      const auto scores = score_part(scorer(), head_, kv_head_, kept, place());
      std::vector<std::int32_t> best;
      for (const std::int32_t i : highest(scores, allotted.entries)) {
        best.push_back(kept[static_cast<std::size_t>(i)]);
      }
      kept = std::move(best);
    }
    return kept;
  }

 private:
  std::int64_t block_;
  HeadVectors head_{};
  std::int32_t kv_head_ = 0;
};

class BlocksRule final : public ScoredRule {
 public:
  BlocksRule(std::shared_ptr<const Scorer> scorer, std::int64_t block, std::int64_t entries)
      : ScoredRule{std::move(scorer)}, block_{block}, entries_{entries} {}
  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<BlocksSelector>(scorer(), place, block_);
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    if (entries_ >= prompt) return {};
    // Per block: the kept entries and the block are gathered, scored and ranked.
    const std::int64_t at_hand = std::min(entries_ + block_, prompt);
    const std::int64_t n_blocks = (prompt - entries_ + block_ - 1) / block_;
    const auto blocks = static_cast<double>(n_blocks);
    PrefillExtra one = ScoredRule::prefill_extra(shape, recorded, at_hand);
    const Bytes rows = bytes_of(2 * at_hand * shape.n_kv_heads * shape.head_dim, recorded);
    const auto gathered = static_cast<double>(rows.count());
    return {.flops = one.flops * blocks,
            .read = (one.read + gathered) * blocks,
            .written = (one.written + gathered) * blocks,
            .transient = one.transient + rows,
            .launches = 3 * static_cast<std::int32_t>(n_blocks),
            .prefill_repeats = 0};
  }

 private:
  std::int64_t block_, entries_;
};

void refuse_slots(MethodResolver& resolver) {
  if (resolver.slots() > 0) {
    resolver.refuse(
        "parts are cut before the whole is known, which leaves no room for merged "
        "entries: expected merge=drop");
  }
}

std::shared_ptr<const SelectRule> make_chunks(MethodResolver& resolver) {
  const std::int64_t prompt = resolver.prompt();
  const std::int64_t chunk = resolver.integer("chunk_tokens");
  const auto kept = [=](double ratio) {
    return Quotas{.chunk = chunk, .share = 1.0 - ratio}.total(0, prompt);
  };
  const auto by_runs = [=](std::int64_t entries) {
    return Quotas{.chunk = chunk, .requested = entries, .entries = entries}.total(entries, prompt);
  };
  const std::int64_t entries = resolve_ratio(resolver, kept, by_runs);
  refuse_slots(resolver);
  Quotas quotas{.chunk = chunk, .requested = entries, .entries = entries};
  if (!resolver.budget() || resolver.given("ratio")) quotas.share = 1.0 - resolver.number("ratio");
  // 1 - entries / prompt may round differently for a run than for the prompt.
  if (resolver.budget() && !resolver.given("ratio") &&
      kept(resolver.number("ratio")) != by_runs(entries)) {
    resolver.resolve("ratio", resolver.number("ratio") - kRatioRounding);
  }
  const std::int64_t total = quotas.total(entries, prompt);
  if (total > entries && resolver.budget()) {
    resolver.refuse(
        fmt::format("a budget of {} entries is less than one for each run of {} tokens "
                    "(ChunkPress keeps {} of {})",
                    entries, quotas.chunk, total, prompt));
  }
  quotas.entries = total;
  resolver.set_entries(total);
  return std::make_shared<ChunksRule>(content_scorer(resolver), quotas);
}

std::shared_ptr<const SelectRule> make_blocks(MethodResolver& resolver) {
  const std::int64_t entries = resolve_ratio(resolver);
  refuse_slots(resolver);
  return std::make_shared<BlocksRule>(content_scorer(resolver), resolver.integer("block"), entries);
}

}  // namespace

AxisChoice select_within_chunks() {
  std::vector<ParamInfo> params = content_scorer_params();
  params.push_back(integer_param("chunk_tokens", "", 1024, 1, kManyEntries, "an integer >= 1",
                                 "tokens of a run that is scored and cut separately",
                                 "kvpress, ChunkPress chunk_length"));
  return scored_choice("within-chunks", std::move(params), &make_chunks);
}

AxisChoice select_block_wise() {
  std::vector<ParamInfo> params = content_scorer_params();
  params.push_back(integer_param("block", "", 128, 1, kManyEntries, "an integer >= 1",
                                 "tokens added to the kept tokens at a time",
                                 "kvpress, BlockPress block_size"));
  return scored_choice("block-wise", std::move(params), &make_blocks);
}

}  // namespace kvsim
