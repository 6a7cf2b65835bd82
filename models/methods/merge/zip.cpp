// KeepKV's merge (Tian et al. 2025): an evicted entry is merged into the kept entry with the most
// similar key. Votes, key and value are determined so that the current attention output does not
// change (ZIP, eqs. (6), (7), (25) to (27)).

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "models/math/merging/cosine_search.hpp"
#include "models/math/merging/zip_merge.hpp"
#include "models/methods/learn/logit_average.hpp"
#include "models/methods/merge/merge.hpp"
#include "models/methods/merge/nearest.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

struct ZipSettings {
  ZipRule rule;
  double threshold = 0.8;
  bool merge_first = false;
  std::int64_t refresh_period = 0;
  std::optional<LogitAverageSettings> own_average;  // set if the selector does not keep averages
  std::int64_t budget = 0;                          // mean entries per head, for the prompt's cost
};

class ZipMerger final : public Merger {
 public:
  ZipMerger(const ZipSettings& settings, const SessionPlace& place)
      : settings_{settings},
        place_{place},
        q_(static_cast<std::size_t>(place.head_dim), 0.0),
        scale_range_(static_cast<std::size_t>(place.tokens), {1.0, 1.0}) {
    if (settings.own_average) own_.emplace(*settings.own_average, place.group, place.tokens);
  }

  void learn_prompt(PromptScores& scores, std::size_t head) override {
    if (own_) own_->learn_prompt(scores, head);
    const HeadVectors& vectors = scores.heads()[head];
    for (std::int32_t g = 0; g < vectors.group; ++g) {
      add_query(vectors.query(g, vectors.prompt - 1), g == 0);
    }
  }
  void observe(const StepView& step, std::size_t head) override {
    const HeadStep& mine = step.heads[head];
    if (own_) own_->observe(mine, step.newest);
    const std::size_t d = q_.size();
    for (std::size_t g = 0; g * d < mine.q.size(); ++g) add_query(mine.q.subspan(g * d, d), g == 0);
  }

  void absorb_prompt(EntryTable& entries, Selector& selector, std::span<const std::int32_t> losers,
                     std::span<const float> keys, std::span<const float> values) override {
    const std::size_t d = q_.size();
    const auto bring_back = [&](std::int32_t id) {
      const std::size_t row = static_cast<std::size_t>(id) * d;
      entries.append(id, keys.subspan(row, d), values.subspan(row, d));
    };
    if (settings_.merge_first) {
      const std::int32_t budget = entries.size();
      for (const std::int32_t id : losers) bring_back(id);
      merge_then_evict(entries, selector, budget, static_cast<std::int32_t>(keys.size() / d) - 1);
      return;
    }
    pairs_ = search_.of_prompt(entries, losers, keys);
    for (const NearestKept& pair : pairs_) {
      if (joins(pair)) bring_back(pair.id);
    }
    merge_pairs(entries, selector);
  }

  std::int32_t absorb(EntryTable& entries, Selector& selector,
                      std::span<const std::int32_t> leaving) override {
    pairs_ = search_.of_leaving(entries, leaving);
    return merge_pairs(entries, selector);
  }

  void report(Counts& counts) const override {
    counts["zip_merged"] += merged_;
    counts["zip_dropped"] += dropped_;
    counts["zip_fallbacks"] += fallbacks_;
  }

 private:
  struct Range {
    double low, high;
  };
  [[nodiscard]] bool joins(const NearestKept& pair) const {
    return pair.into >= 0 && pair.cosine >= settings_.threshold;
  }
  void add_query(std::span<const float> q, bool first) {
    if (first) std::fill(q_.begin(), q_.end(), 0.0);
    for (std::size_t j = 0; j < q.size(); ++j) q_[j] += static_cast<double>(q[j]) / place_.group;
  }
  LogitAverage& average(Selector& selector) {
    if (own_) return *own_;
    LogitAverage* shared = selector.logit_average();
    KVSIM_CHECK(shared != nullptr, "the selector keeps no averages of logits");
    return *shared;
  }

  /// Drops the entry `id`; dropped tokens of the prompt may be missing in the table.
  void drop(EntryTable& entries, std::int32_t id) {
    const std::int32_t slot = entries.slot_of(id);
    dropped_ += slot >= 0 ? entries.count(slot) : 1;
    if (slot >= 0) entries.erase(slot);
  }

  /// Merges pairs above the threshold, all pairs of a target together, and drops the rest.
  std::int32_t merge_pairs(EntryTable& entries, Selector& selector) {
    const auto kept = std::stable_partition(pairs_.begin(), pairs_.end(),
                                            [this](const NearestKept& p) { return joins(p); });
    for (auto each = kept; each != pairs_.end(); ++each) {
      drop(entries, each->id);
    }
    pairs_.erase(kept, pairs_.end());
    std::stable_sort(pairs_.begin(), pairs_.end(),
                     [](const auto& a, const auto& b) { return a.into < b.into; });
    for (std::size_t i = 0; i < pairs_.size();) {
      from_.clear();
      const std::int32_t into = pairs_[i].into;
      for (; i < pairs_.size() && pairs_[i].into == into; ++i) from_.push_back(pairs_[i].id);
      merge_set(entries, selector, into);
    }
    return static_cast<std::int32_t>(pairs_.size());
  }

  /// Merges the entries from_ into `into`.
  void merge_set(EntryTable& entries, Selector& selector, std::int32_t into) {
    LogitAverage& scores = average(selector);
    members_.clear();
    votes_.clear();
    const auto add = [&](std::int32_t id) {
      const std::int32_t slot = entries.slot_of(id);
      const Range& range = scale_range_[static_cast<std::size_t>(id)];
      members_.push_back({.key = entries.key(slot),
                          .value = entries.value(slot),
                          .votes = entries.weight(slot),
                          .log_score = scores.log_mean(id),
                          .scale_low = range.low,
                          .scale_high = range.high});
      votes_.push_back(entries.weight(slot));
    };
    add(into);
    for (const std::int32_t id : from_) add(id);
    const ZipMerged merged = zip_merge(members_, settings_.rule, q_, place_.scale);
    scale_range_[static_cast<std::size_t>(into)] = {merged.scale_low, merged.scale_high};
    scores.merge(into, from_, votes_, merged.log_score);
    for (const std::int32_t id : from_) selector.merge_scores(into, id, /*take_max=*/false);
    entries.merge_into(entries.slot_of(into), from_, merged.key, merged.value, merged.votes);
    merged_ += static_cast<double>(from_.size());
    if (merged.fell_back) ++fallbacks_;
  }

  /// The order of the paper's table 3: unprotected tokens are merged into a sufficiently similar
  /// partner, the least important first, until the budget is met. Entries that still exceed it are
  /// dropped.
  void merge_then_evict(EntryTable& entries, Selector& selector, std::int32_t budget,
                        std::int32_t newest) {
    std::vector<std::int32_t> ids(entries.ids().begin(), entries.ids().end());
    std::sort(ids.begin(), ids.end());
    std::vector<float> rows;
    std::vector<double> importance;
    for (const std::int32_t id : ids) {
      const auto row = entries.key(entries.slot_of(id));
      rows.insert(rows.end(), row.begin(), row.end());
      importance.push_back(selector.importance(id, newest, /*at_prefill=*/true));
    }
    const auto best = best_cosines(rows, rows, place_.head_dim, /*same=*/true);
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (importance[i] < std::numeric_limits<double>::infinity()) order.push_back(i);
    }
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return importance[a] != importance[b] ? importance[a] < importance[b] : a > b;
    });
    std::vector<std::size_t> joined(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) joined[i] = i;
    const auto root = [&joined](std::size_t i) {
      while (joined[i] != i) i = joined[i];
      return i;
    };
    auto remaining = static_cast<std::int32_t>(ids.size());
    for (const std::size_t i : order) {
      if (remaining <= budget) break;
      if (best[i].index < 0 || best[i].cosine < settings_.threshold) continue;
      const std::size_t into = root(static_cast<std::size_t>(best[i].index));
      if (into == i) continue;  // its partner was already merged into it
      joined[i] = into;
      --remaining;
    }
    pairs_.clear();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (joined[i] != i) pairs_.push_back({ids[i], ids[root(i)], 1.0});
    }
    merge_pairs(entries, selector);
    for (const std::size_t i : order) {
      if (entries.size() <= budget) break;
      if (joined[i] != i) continue;
      drop(entries, ids[i]);
    }
    KVSIM_CHECK(entries.size() <= budget, "{} entries for a budget of {}", entries.size(), budget);
  }

  ZipSettings settings_;
  SessionPlace place_;
  std::vector<double> q_;           // newest query, mean over the group
  std::vector<Range> scale_range_;  // by id
  std::optional<LogitAverage> own_;
  NearestSearch search_;
  std::vector<NearestKept> pairs_;
  std::vector<std::int32_t> from_;
  std::vector<ZipMember> members_;
  std::vector<double> votes_;
  double merged_ = 0;     // entries merged into another
  double fallbacks_ = 0;  // merges that used the fallback
  double dropped_ = 0;    // dropped tokens
};

class ZipMergeRule final : public MergeRule {
 public:
  explicit ZipMergeRule(const ZipSettings& settings) : settings_{settings} {}
  std::unique_ptr<Merger> start(const SessionPlace& place) const override {
    return std::make_unique<ZipMerger>(settings_, place);
  }
  bool merges() const override { return true; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.decode_rows = true;
    if (settings_.own_average) {
      needs.prompt_scores = PromptScoreClass::kLastWindow;
      needs.prompt_window = settings_.own_average->prompt_rows();
    }
    return needs;
  }
  double bias(std::int32_t /*count*/, double weight) const override { return std::log(weight); }
  std::int64_t refresh_period() const override { return settings_.refresh_period; }
  Bytes host_bytes(std::int64_t tokens, const HeadShape& shape) const override {
    return settings_.refresh_period > 0 ? bytes_of(2 * tokens * shape.head_dim, shape.recorded)
                                        : Bytes{0};
  }
  Bytes side_bytes(std::int64_t entries, const HeadShape& /*shape*/) const override {
    Bytes each{4};  // votes
    if (settings_.own_average) each += settings_.own_average->entry_bytes();
    return each * entries;
  }
  Compaction compaction() const override { return Compaction::kSwap; }
  std::int32_t launches() const override { return 8; }  // search, test, merge, two moves, averages
  // Norms and division, product, maximum; two entries read; six for votes; four each for key and
  // value; four writes; four moves of the slot; two for the mean score.
  std::int32_t operators() const override { return 31; }

  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    const double row = shape.row_bytes();
    traffic.side_read += events.attended * 4.0;
    if (settings_.own_average) {
      const bool rows = settings_.own_average->rows;
      traffic.side_read +=
          events.attended *
          (rows ? static_cast<double>(settings_.own_average->entry_bytes().count()) : 4.0);
      traffic.side_write += events.attended * 4.0;
      traffic.extra_flops += events.attended * (rows ? settings_.own_average->window + 1.0 : 6.0);
    }
    // The search reads every key: products and norms.
    traffic.move_read += events.left * events.attended * row / 2.0;
    traffic.extra_flops += events.left * events.attended * 3.0 * shape.head_dim;
    traffic.move_read += events.merged * 2.0 * row;
    traffic.move_write += events.merged * row;
    traffic.extra_flops += events.merged * 4.0 * shape.head_dim;
    if (settings_.refresh_period > 0) {
      const double token = 2.0 * shape.head_dim * bits_of(shape.recorded) / 8.0;
      traffic.link_write += token;
      traffic.link_read += events.refreshed * token;
      traffic.move_write += events.refreshed * row;
    }
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    PrefillExtra extra;
    const double lost = static_cast<double>(std::max<std::int64_t>(prompt - settings_.budget, 0));
    if (lost == 0) return extra;
    const auto s = static_cast<double>(prompt);
    const double compared = settings_.merge_first ? s * s : lost * (s - lost);
    extra.flops = shape.n_kv_heads * 2.0 * compared * shape.head_dim;
    extra.read = shape.n_kv_heads * s * shape.head_dim * bits_of(recorded) / 8.0;
    extra.launches = 4;
    return extra;
  }

 private:
  ZipSettings settings_;
};

ZipKey key_of(const std::string& word) {
  if (word == "zip") return ZipKey::kZip;
  if (word == "real_votes") return ZipKey::kRealVotes;
  if (word == "additive_q") return ZipKey::kAdditive;
  if (word == "convex") return ZipKey::kConvex;
  return ZipKey::kGuarded;
}

std::shared_ptr<const MergeRule> resolve_zip(MethodResolver& resolver) {
  constexpr double kPaperRecentShare = 0.2;
  ZipSettings settings{.rule = {.key = key_of(resolver.word("key_rule")), .bound_product = false},
                       .threshold = resolver.number("threshold"),
                       .merge_first = resolver.word("prefill_order") == "merge_first",
                       .refresh_period = resolver.integer("refresh_period"),
                       .own_average = {},
                       .budget = resolver.entries()};
  if (resolver.word("key_rule") == "zip_guarded") {
    settings.rule.bound_product = resolver.word("guard") == "cumulative";
  } else if (resolver.given("guard")) {
    resolver.refuse(
        fmt::format("guard sets the bounds of key_rule=zip_guarded, but key_rule={} has no bounds",
                    resolver.word("key_rule")));
  }
  if (resolver.choice("select") != "logit_average") {
    settings.own_average = resolve_logit_average(
        resolver, resolver.choice("select") == "accumulated"
                      ? resolver.integer("recent")
                      : static_cast<std::int64_t>(kPaperRecentShare *
                                                  static_cast<double>(resolver.entries())));
  }
  return std::make_shared<ZipMergeRule>(settings);
}

}  // namespace

AxisChoice merge_zip() {
  AxisChoice choice{
      .axis = "merge",
      .name = "zip",
      .params =
          {number_param("threshold", "T_c", 0.8, -1, 1, "a number in [-1, 1]",
                        "minimum cosine between keys for a merge; below it the entry is dropped",
                        "KeepKV, studied in 0.6 to 0.95", {"t_c"}),
           word_param("key_rule", {"zip_guarded", "zip", "real_votes", "additive_q", "convex"},
                      "key and votes of a merged entry: as printed (zip), within bounds, with "
                      "real-valued votes, corrected along the query, or a plain mean",
                      "KeepKV eq. (7) against its released code (convex)"),
           word_param("guard", {"merge", "cumulative"},
                      "zip_guarded bounds each merge's factor to [0.5, 2], or also the product "
                      "over an entry's merges",
                      "ours"),
           word_param("prefill_order", {"merge_after", "merge_first"},
                      "the prompt is evicted to the budget and the evicted entries are merged, or "
                      "it is merged first and then evicted",
                      "KeepKV's released code against its table 3"),
           integer_param("refresh_period", "", 0, 0, kManyEntries, "an integer >= 0",
                         "decode steps after which the cache is rebuilt from all tokens, which are "
                         "kept in host memory; 0: never",
                         "KeepKV's periodic lossless mode")},
      .make = &resolve_zip};
  for (ParamInfo& info : logit_average_params()) choice.params.push_back(std::move(info));
  return choice;
}

}  // namespace kvsim
