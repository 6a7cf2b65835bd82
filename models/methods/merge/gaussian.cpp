// KVMerger's merge (Wang et al. 2024): a run of tokens becomes one row, weighted by a Gaussian of
// the keys' distances from the key of the run's pivot.
//
//   g_i = exp(-|k_p - k_i|^2 / 2 sigma^2),   k = sum g k / sum g,   v = sum g v / sum g

#include <algorithm>
#include <cmath>

#include "models/math/attention/attend.hpp"
#include "models/methods/merge/merge.hpp"

namespace kvsim {
namespace {

struct Settings {
  double sigma = 5;
  bool mean_distance = false;
  bool times_size = false;
};

class GaussianMerger final : public Merger {
 public:
  explicit GaussianMerger(const Settings& settings) : settings_{settings} {}

  void absorb_prompt(EntryTable& entries, Selector& selector, std::span<const std::int32_t> losers,
                     std::span<const float> keys, std::span<const float> values) override {
    if (entries.size() == 0) return;
    const std::size_t d = entries.key(0).size();
    // Runs are contiguous, so a run's dropped tokens are adjacent in the list.
    for (std::size_t i = 0; i < losers.size();) {
      const std::int32_t pivot = selector.representative(losers[i]);
      from_.clear();
      for (; i < losers.size() && selector.representative(losers[i]) == pivot; ++i) {
        const std::size_t row = static_cast<std::size_t>(losers[i]) * d;
        entries.append(losers[i], keys.subspan(row, d), values.subspan(row, d));
        from_.push_back(losers[i]);
      }
      merge_run(entries, pivot);
    }
  }
  std::int32_t absorb(EntryTable& entries, Selector& /*selector*/,
                      std::span<const std::int32_t> leaving) override {
    for (const std::int32_t id : leaving) entries.erase(entries.slot_of(id));
    return 0;
  }
  void report(Counts& counts) const override {
    counts["runs_merged"] += runs_;
    counts["tokens_merged"] += tokens_;
  }

 private:
  void merge_run(EntryTable& entries, std::int32_t pivot) {
    const std::int32_t into = entries.slot_of(pivot);
    const auto members = static_cast<double>(from_.size() + 1);
    double sigma = settings_.sigma;
    if (settings_.mean_distance) {
      double distances = 0;
      for (const std::int32_t id : from_) {
        distances +=
            std::sqrt(squared_distance(entries.key(into), entries.key(entries.slot_of(id))));
      }
      sigma = distances / (std::sqrt(2.0) * members);
    }
    key_.assign(entries.key(into).begin(), entries.key(into).end());
    value_.assign(entries.value(into).begin(), entries.value(into).end());
    double total = 1.0;  // the pivot's weight
    for (const std::int32_t id : from_) {
      const std::int32_t slot = entries.slot_of(id);
      const double square = squared_distance(entries.key(into), entries.key(slot));
      const double weight = sigma > 0 ? std::exp(-square / (2.0 * sigma * sigma)) : 1.0;
      for (std::size_t j = 0; j < key_.size(); ++j) {
        key_[j] += weight * static_cast<double>(entries.key(slot)[j]);
        value_[j] += weight * static_cast<double>(entries.value(slot)[j]);
      }
      total += weight;
    }
    for (std::size_t j = 0; j < key_.size(); ++j) {
      key_[j] /= total;
      value_[j] *= (settings_.times_size ? members : 1.0) / total;
    }
    entries.merge_into(into, from_, key_, value_, /*weight=*/1.0);
    ++runs_;
    tokens_ += members;
  }

  Settings settings_;
  std::vector<std::int32_t> from_;
  std::vector<double> key_, value_;
  double runs_ = 0, tokens_ = 0;
};

class GaussianRule final : public MergeRule {
 public:
  explicit GaussianRule(const Settings& settings) : settings_{settings} {}
  std::unique_ptr<Merger> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<GaussianMerger>(settings_);
  }
  bool merges() const override { return true; }
  bool keeps_size_law() const override { return false; }
  double bias(std::int32_t /*count*/, double /*weight*/) const override { return 0.0; }
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{0};
  }
  Compaction compaction() const override { return Compaction::kAppend; }
  std::int32_t launches() const override { return 0; }  // decode steps only append
  void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                const HeadShape& /*shape*/) const override {}
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    PrefillExtra extra;
    const double rows = shape.n_kv_heads * static_cast<double>(prompt) * shape.head_dim;
    extra.flops = 7.0 * rows;  // distance, weighted sums of keys and values
    extra.read = 2.0 * rows * bits_of(recorded) / 8.0;
    extra.launches = 4;
    return extra;
  }

 private:
  Settings settings_;
};

std::shared_ptr<const MergeRule> resolve_gaussian(MethodResolver& resolver) {
  if (resolver.choice("select") != "key_runs") {
    resolver.refuse("merge=gaussian merges runs of similar keys: expected select=key_runs");
  }
  const bool by_distance = resolver.word("sigma_rule") == "mean_dist";
  return std::make_shared<GaussianRule>(
      Settings{.sigma = by_distance ? 0.0 : resolver.number("sigma"),
               .mean_distance = by_distance,
               .times_size = resolver.word("value_multiplier") == "set_size"});
}

}  // namespace

AxisChoice merge_gaussian() {
  return {.axis = "merge",
          .name = "gaussian",
          .params = {number_param("sigma", "", 5, 1e-6, 1e9, "a number > 0",
                                  "width of the weights, in units of keys", "KVMerger, ablation"),
                     word_param("sigma_rule", {"fixed", "mean_dist"},
                                "sigma as given, or from a run's mean distance from its pivot",
                                "KVMerger's formula for sigma is circular; ours"),
                     word_param("value_multiplier", {"none", "set_size"},
                                "a merged value is the mean, or the mean times the run's length",
                                "KVMerger against what later papers quote")},
          .make = &resolve_gaussian};
}

}  // namespace kvsim
