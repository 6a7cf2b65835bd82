// MergingPress (NVIDIA kvpress): the value of a dropped entry is blended into the value of the kept
// entry with the most similar key; keys do not change.
//
//   w_e = max(cosine, 0) |v_e| / (|v_e| + |v_c| + 1e-6),   v_c <- (v_c + sum w v_e) / (1 + sum w)

#include <algorithm>
#include <cmath>

#include "models/methods/merge/merge.hpp"
#include "models/methods/merge/nearest.hpp"

namespace kvsim {
namespace {

struct Settings {
  double threshold = 0;
  double fraction = 1;
  std::int64_t budget = 0;
};

double norm(std::span<const float> row) {
  double sum = 0;
  for (const float x : row) sum += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(sum);
}

class ValueBlendMerger final : public Merger {
 public:
  explicit ValueBlendMerger(const Settings& settings) : settings_{settings} {}

  void absorb_prompt(EntryTable& entries, Selector& /*selector*/,
                     std::span<const std::int32_t> losers, std::span<const float> keys,
                     std::span<const float> values) override {
    if (entries.size() == 0) return;
    pairs_ = search_.of_prompt(entries, losers, keys);
    const std::size_t d = entries.key(0).size();
    blend(entries,
          [&](std::int32_t id) { return values.subspan(static_cast<std::size_t>(id) * d, d); });
  }
  std::int32_t absorb(EntryTable& entries, Selector& /*selector*/,
                      std::span<const std::int32_t> leaving) override {
    pairs_ = search_.of_leaving(entries, leaving);
    const std::int32_t merged = blend(entries, [&](std::int32_t id) {
      return std::span<const float>{entries.value(entries.slot_of(id))};
    });
    for (const std::int32_t id : leaving) entries.erase(entries.slot_of(id));
    return merged;
  }
  std::span<const std::int32_t> touched() const override { return touched_; }
  void report(Counts& counts) const override { counts["blended"] += merged_; }

 private:
  template <class ValueOf>
  std::int32_t blend(EntryTable& entries, ValueOf value_of) {
    touched_.clear();
    const auto far = [this](const NearestKept& p) {
      return p.into < 0 || p.cosine < settings_.threshold || p.cosine <= 0;
    };
    const std::size_t max = static_cast<std::size_t>(
        std::ceil(settings_.fraction * static_cast<double>(pairs_.size())));
    pairs_.erase(std::remove_if(pairs_.begin(), pairs_.end(), far), pairs_.end());
    if (pairs_.size() > max) {  // keep only the most similar pairs
      std::stable_sort(pairs_.begin(), pairs_.end(),
                       [](const auto& a, const auto& b) { return a.cosine > b.cosine; });
      pairs_.resize(max);
    }
    std::stable_sort(pairs_.begin(), pairs_.end(), [](const auto& a, const auto& b) {
      return a.into != b.into ? a.into < b.into : a.id < b.id;
    });
    for (std::size_t i = 0; i < pairs_.size();) {
      const std::int32_t into = pairs_[i].into;
      const auto kept = entries.mutable_value(entries.slot_of(into));
      const double own = norm(kept);
      sum_.assign(kept.begin(), kept.end());
      double total = 1.0;
      for (; i < pairs_.size() && pairs_[i].into == into; ++i) {
        const std::span<const float> value = value_of(pairs_[i].id);
        const double length = norm(value);
        constexpr double kEpsilon = 1e-6;
        const double weight = pairs_[i].cosine * length / (length + own + kEpsilon);
        for (std::size_t j = 0; j < sum_.size(); ++j) {
          sum_[j] += weight * static_cast<double>(value[j]);
        }
        total += weight;
      }
      for (std::size_t j = 0; j < sum_.size(); ++j) kept[j] = static_cast<float>(sum_[j] / total);
      touched_.push_back(into);
    }
    merged_ += static_cast<double>(pairs_.size());
    return static_cast<std::int32_t>(pairs_.size());
  }

  Settings settings_;
  NearestSearch search_;
  std::vector<NearestKept> pairs_;
  std::vector<double> sum_;
  std::vector<std::int32_t> touched_;
  double merged_ = 0;
};

class ValueBlendRule final : public MergeRule {
 public:
  explicit ValueBlendRule(const Settings& settings) : settings_{settings} {}
  std::unique_ptr<Merger> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<ValueBlendMerger>(settings_);
  }
  bool merges() const override { return true; }
  double bias(std::int32_t /*count*/, double /*weight*/) const override { return 0.0; }
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{0};
  }
  Compaction compaction() const override { return Compaction::kSwap; }
  std::int32_t launches() const override { return 6; }
  // Norms and division, product, maximum; key and value reads; four for the weight; a write.
  std::int32_t operators() const override { return 12; }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    const double half = shape.row_bytes() / 2.0;
    traffic.move_read += events.left * events.attended * half + events.merged * 2.0 * half;
    traffic.move_write += events.merged * half;
    traffic.extra_flops +=
        events.left * events.attended * 3.0 * shape.head_dim + events.merged * 6.0 * shape.head_dim;
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    PrefillExtra extra;
    const std::int64_t lost = prompt - settings_.budget;
    if (lost <= 0) return extra;
    const double rows = shape.n_kv_heads * static_cast<double>(prompt) * shape.head_dim;
    extra.flops = shape.n_kv_heads * 2.0 * static_cast<double>(lost) *
                  static_cast<double>(settings_.budget) * shape.head_dim;
    extra.read = 2.0 * rows * bits_of(recorded) / 8.0;
    extra.launches = 6;
    return extra;
  }

 private:
  Settings settings_;
};

std::shared_ptr<const MergeRule> resolve_value_blend(MethodResolver& resolver) {
  return std::make_shared<ValueBlendRule>(Settings{.threshold = resolver.number("threshold"),
                                                   .fraction = resolver.number("merge_fraction"),
                                                   .budget = resolver.entries()});
}

}  // namespace

AxisChoice merge_value_blend() {
  return {.axis = "merge",
          .name = "value_blend",
          .params =
              {number_param("threshold", "", 0, -1, 1, "a number in [-1, 1]",
                            "minimum cosine between keys for a merge", "kvpress, MergingPress"),
               number_param(
                   "merge_fraction", "", 1, 0, 1, "a number in [0, 1]",
                   "share of simultaneously evicted entries that is merged, the most similar first",
                   "kvpress, MergingPress")},
          .make = &resolve_value_blend};
}

}  // namespace kvsim
