// D2O's merge (Wan et al. 2024): an evicted entry is merged into the kept entry with the most
// similar key if the similarity reaches a threshold. The threshold is a moving average of observed
// similarities. No counts are kept, so attention to a merged entry is not compensated.

#include <limits>
#include <memory>

#include "models/math/merging/cosine_merge.hpp"
#include "models/methods/merge/merge.hpp"
#include "models/methods/merge/nearest.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

struct Settings {
  double keep = 0.5, take = 0.5;  // alpha, beta of the threshold
  bool code_weights = false;
  bool rank_gate = false;
  std::int64_t budget = 0;
  bool at_first_step = false;
};

/// gate=rank_mean, for one layer: averages the similarities of dropped tokens over heads by rank in
/// position order, so unrelated tokens of equal rank are averaged. All heads share one threshold.
class RankGate {
 public:
  RankGate(double keep, double take, std::size_t heads) : keep_{keep}, take_{take}, heads_{heads} {}

  /// Adds the dropped tokens of the next head; the last head updates the threshold.
  void add(std::span<const NearestKept> pairs) {
    if (seen_ == 0) mean_.assign(pairs.size(), 0.0);
    KVSIM_CHECK(pairs.size() == mean_.size(), "{} losers in one head, {} in another", pairs.size(),
                mean_.size());
    for (std::size_t rank = 0; rank < pairs.size(); ++rank) {
      mean_[rank] += pairs[rank].cosine / static_cast<double>(heads_);
    }
    if (++seen_ < heads_) return;
    seen_ = 0;
    double mean = 0;
    for (const double each : mean_) mean += each / static_cast<double>(mean_.size());
    threshold_ = next_cosine_threshold(threshold_, mean, keep_, take_);
  }
  [[nodiscard]] bool open(std::size_t rank) const { return mean_[rank] >= threshold_; }

 private:
  double keep_, take_;
  std::size_t heads_, seen_ = 0;
  std::vector<double> mean_;                                     // by rank, over heads
  double threshold_ = std::numeric_limits<double>::quiet_NaN();  // NaN before the first update
};

class CosineEmaMerger final : public Merger {
 public:
  CosineEmaMerger(const Settings& settings, std::shared_ptr<RankGate> gate)
      : settings_{settings}, gate_{std::move(gate)} {}

  void consider(const EntryTable& entries, std::span<const std::int32_t> leaving,
                std::span<const float> keys) override {
    pairs_ = keys.empty() ? search_.of_leaving(entries, leaving)
                          : search_.of_prompt(entries, leaving, keys);
    gate_->add(pairs_);
  }
  void absorb_prompt(EntryTable& entries, Selector& selector, std::span<const std::int32_t> losers,
                     std::span<const float> keys, std::span<const float> values) override {
    static_cast<void>(selector);
    if (!gate_) {
      pairs_ = search_.of_prompt(entries, losers, keys);
      update_threshold();
    }
    judge();
    const std::size_t d = keys.empty() || entries.size() == 0 ? 0 : entries.key(0).size();
    for (const NearestKept& pair : pairs_) {
      if (!joins(pair)) continue;
      const std::size_t row = static_cast<std::size_t>(pair.id) * d;
      entries.append(pair.id, keys.subspan(row, d), values.subspan(row, d));
    }
    merge(entries);
  }
  std::int32_t absorb(EntryTable& entries, Selector& /*selector*/,
                      std::span<const std::int32_t> leaving) override {
    if (!gate_) {
      pairs_ = search_.of_leaving(entries, leaving);
      update_threshold();
    }
    judge();
    return merge(entries);
  }
  void report(Counts& counts) const override {
    counts["d2o_merged"] += merged_;
    counts["d2o_dropped"] += dropped_;
  }

 private:
  /// Decides which pairs are merged; the others lose their partner.
  void judge() {
    for (std::size_t rank = 0; rank < pairs_.size(); ++rank) {
      const bool open = gate_ ? gate_->open(rank) : pairs_[rank].cosine >= threshold_;
      if (!open) pairs_[rank].into = -1;
    }
  }
  [[nodiscard]] static bool joins(const NearestKept& pair) { return pair.into >= 0; }
  void update_threshold() {
    double mean = 0;
    for (const NearestKept& pair : pairs_) mean += pair.cosine / static_cast<double>(pairs_.size());
    threshold_ = next_cosine_threshold(threshold_, mean, settings_.keep, settings_.take);
  }
  std::int32_t merge(EntryTable& entries) {
    const auto kept = std::stable_partition(pairs_.begin(), pairs_.end(),
                                            [](const NearestKept& p) { return joins(p); });
    for (auto each = kept; each != pairs_.end(); ++each) {
      const std::int32_t slot = entries.slot_of(each->id);
      dropped_ += slot >= 0 ? entries.count(slot) : 1;
      if (slot >= 0) entries.erase(slot);
    }
    pairs_.erase(kept, pairs_.end());
    std::stable_sort(pairs_.begin(), pairs_.end(),
                     [](const auto& a, const auto& b) { return a.into < b.into; });
    for (std::size_t first = 0; first < pairs_.size();) {
      std::size_t last = first;
      while (last < pairs_.size() && pairs_[last].into == pairs_[first].into) ++last;
      merge_set(entries, std::span{pairs_}.subspan(first, last - first));
      first = last;
    }
    merged_ += static_cast<double>(pairs_.size());
    return static_cast<std::int32_t>(pairs_.size());
  }
  void merge_set(EntryTable& entries, std::span<const NearestKept> joining) {
    const std::int32_t into = entries.slot_of(joining.front().into);
    key_.assign(entries.key(into).begin(), entries.key(into).end());
    value_.assign(entries.value(into).begin(), entries.value(into).end());
    from_.clear();
    rows_.clear();
    for (const NearestKept& each : joining) {
      const std::int32_t slot = entries.slot_of(each.id);
      rows_.push_back(
          {.key = entries.key(slot), .value = entries.value(slot), .cosine = each.cosine});
      from_.push_back(each.id);
    }
    cosine_merge(key_, value_, rows_,
                 settings_.code_weights ? CosineWeights::kCode : CosineWeights::kPaper);
    entries.merge_into(into, from_, key_, value_, /*weight=*/1.0);
  }

  Settings settings_;
  std::shared_ptr<RankGate> gate_;  // shared by the layer; nullptr: one threshold per head
  NearestSearch search_;
  double threshold_ = std::numeric_limits<double>::quiet_NaN();  // NaN before the first update
  std::vector<NearestKept> pairs_;
  std::vector<std::int32_t> from_;
  std::vector<CosineJoining> rows_;
  std::vector<double> key_, value_;
  double merged_ = 0;   // entries merged into another
  double dropped_ = 0;  // dropped tokens
};

class CosineEmaRule final : public MergeRule {
 public:
  explicit CosineEmaRule(const Settings& settings) : settings_{settings} {}
  std::unique_ptr<Merger> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<CosineEmaMerger>(settings_, nullptr);
  }
  bool needs_layer() const override { return settings_.rank_gate; }
  std::vector<std::unique_ptr<Merger>> start_heads(const SessionPlace& place,
                                                   std::size_t heads) const override {
    if (!settings_.rank_gate) return MergeRule::start_heads(place, heads);
    const auto gate = std::make_shared<RankGate>(settings_.keep, settings_.take, heads);
    std::vector<std::unique_ptr<Merger>> all;
    for (std::size_t h = 0; h < heads; ++h) {
      all.push_back(std::make_unique<CosineEmaMerger>(settings_, gate));
    }
    return all;
  }
  bool merges() const override { return true; }
  double bias(std::int32_t /*count*/, double /*weight*/) const override { return 0.0; }
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{4};  // the threshold
  }
  Compaction compaction() const override { return Compaction::kSwap; }
  std::int32_t launches() const override { return 8; }
  // Norms and divisions of both sides, product, maximum; the threshold's mean and its test;
  // weights; two products, a sum and a write each for the entry's key and value; two for the slot,
  // two for scores.
  std::int32_t operators() const override { return 26; }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    const double row = shape.row_bytes();
    const double stay = events.attended - events.left;
    if (events.left > 0) traffic.move_read += events.attended * row / 2.0;
    traffic.extra_flops += events.left * stay * 3.0 * shape.head_dim;
    traffic.move_read += events.merged * 2.0 * row;
    traffic.move_write += events.merged * row;
    traffic.extra_flops += events.merged * 4.0 * shape.head_dim;
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    PrefillExtra extra;
    const std::int64_t lost = prompt - settings_.budget;
    if (lost <= 0 || settings_.at_first_step) return extra;
    extra.flops = shape.n_kv_heads * 2.0 * static_cast<double>(lost) *
                  static_cast<double>(settings_.budget) * shape.head_dim;
    extra.read =
        shape.n_kv_heads * static_cast<double>(prompt) * shape.head_dim * bits_of(recorded) / 8.0;
    extra.launches = 4;
    return extra;
  }

 private:
  Settings settings_;
};

std::shared_ptr<const MergeRule> resolve_cosine_ema(MethodResolver& resolver) {
  return std::make_shared<CosineEmaRule>(
      Settings{.keep = resolver.number("threshold_keep"),
               .take = 1.0 - resolver.number("threshold_keep"),
               .code_weights = resolver.word("weights") == "code",
               .rank_gate = resolver.word("gate") == "rank_mean",
               .budget = resolver.entries(),
               .at_first_step = resolver.choice("select") == "accumulated" &&
                                resolver.word("first_compression") == "first_step"});
}

}  // namespace

AxisChoice merge_cosine_ema() {
  return {.axis = "merge",
          .name = "cosine_ema",
          .params = {number_param("threshold_keep", "alpha", 0.5, 0, 1, "a number in [0, 1]",
                                  "weight of the previous threshold at each step; the mean "
                                  "similarity has the remaining weight",
                                  "D2O, released code (0.7 in its comment)"),
                     word_param("weights", {"paper", "code"},
                                "weights e^similarity that sum to 1, or similarities divided by "
                                "their number plus 1, which shrinks keys",
                                "D2O against its released code"),
                     word_param(
                         "gate", {"per_head", "rank_mean"},
                         "similarity that is compared with the threshold: the entry's in its head, "
                         "or the mean over a layer's heads of the evicted entries of equal rank, "
                         "which mixes unrelated tokens and uses one threshold per layer",
                         "D2O against its released code")},
          .make = &resolve_cosine_ema};
}

}  // namespace kvsim
