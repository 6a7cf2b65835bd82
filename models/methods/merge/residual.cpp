// ZeroMerge's residual slots (Liu et al. 2025): a token that leaves is averaged into the most
// similar of a few slots, eqs. (6) and (7), and attention adds alpha ln w to a slot of w tokens,
// eq. (8).

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/math/attend.hpp"
#include "models/methods/axes.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

class ResidualMerger final : public Merger {
 public:
  ResidualMerger(const ResidualSettings& settings, std::int32_t weight_cap)
      : settings_{settings}, weight_cap_{weight_cap} {}

  /// The losers, in positional order, become `slots` contiguous runs whose lengths differ by at
  /// most one, the longer first; each run one slot of its plain mean (the released code's rule).
  void absorb_prompt(EntryTable& entries, Selector& selector, std::span<const std::int32_t> losers,
                     std::span<const float> keys, std::span<const float> values) override {
    if (settings_.slots == 0) return;
    const std::size_t d = entries.keys().empty() ? 0 : entries.key(0).size();
    const std::size_t runs = std::min(losers.size(), static_cast<std::size_t>(settings_.slots));
    std::size_t at = 0;
    for (std::size_t run = 0; run < runs; ++run) {
      const std::size_t length = losers.size() / runs + (run < losers.size() % runs ? 1 : 0);
      std::vector<std::int32_t> members;
      std::vector<double> key(d, 0.0);
      std::vector<double> value(d, 0.0);
      for (const std::int32_t id : losers.subspan(at, length)) {
        members.push_back(id);
        const std::size_t row = static_cast<std::size_t>(id) * d;
        for (std::size_t j = 0; j < d; ++j) {
          key[j] += static_cast<double>(keys[row + j]) / static_cast<double>(length);
          value[j] += static_cast<double>(values[row + j]) / static_cast<double>(length);
        }
        if (id != members.front()) selector.merge_scores(members.front(), id, settings_.score_max);
      }
      entries.append_merged(std::move(members), key, value);
      at += length;
    }
  }

  /// The released code takes the first slots of its table as residual ones, also when they hold the
  /// first tokens of a short prompt.
  void prompt_fits(EntryTable& entries) override {
    for (std::int32_t slot = 0; slot < std::min<std::int64_t>(settings_.slots, entries.size());
         ++slot) {
      entries.make_merged(slot);
    }
  }

  void absorb(EntryTable& entries, Selector& selector, std::int32_t slot) override {
    if (settings_.slots == 0) {
      entries.erase(slot);
      return;
    }
    if (entries.merged_size() < settings_.slots) {
      entries.make_merged(slot);
      return;
    }
    const std::int32_t into = most_similar(entries, slot);
    selector.merge_scores(entries.id(into), entries.id(slot), settings_.score_max);
    entries.merge_mean(into, slot, weight_cap_);
  }

 private:
  std::int32_t most_similar(const EntryTable& entries, std::int32_t slot) const {
    std::int32_t best = -1;
    double highest = -std::numeric_limits<double>::infinity();
    for (const std::int32_t candidate : entries.merged_slots()) {
      const double similarity = settings_.l2_metric
                                    ? -squared_distance(entries.key(candidate), entries.key(slot))
                                    : dot(entries.key(candidate), entries.key(slot));
      if (best < 0 || similarity > highest) {
        highest = similarity;
        best = candidate;
      }
    }
    KVSIM_CHECK(best >= 0, "no residual slot among {} entries", entries.size());
    return best;
  }

  ResidualSettings settings_;
  std::int32_t weight_cap_;
};

/// Where adding 1 to a count is lost: 2048 in fp16, 256 in bf16.
std::int32_t saturation(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp16:
      return 2048;
    case Dtype::kBf16:
      return 256;
    default:
      return std::numeric_limits<std::int32_t>::max();
  }
}

class ResidualRule final : public MergeRule {
 public:
  explicit ResidualRule(const ResidualSettings& settings)
      : settings_{settings},
        count_cap_{settings.count_in_cache_dtype ? saturation(settings.recorded)
                                                 : std::numeric_limits<std::int32_t>::max()} {}

  std::unique_ptr<Merger> start() const override {
    return std::make_unique<ResidualMerger>(settings_, count_cap_);
  }
  bool merges() const override { return settings_.slots > 0; }
  std::int64_t slots() const override { return settings_.slots; }
  bool prompt_one_by_one() const override { return settings_.one_by_one; }
  double bias(std::int32_t count) const override {
    return count == 1
               ? 0.0
               : settings_.alpha * std::log(static_cast<double>(std::min(count, count_cap_)));
  }
  Bytes side_bytes_per_entry(Dtype /*recorded*/) const override {
    if (settings_.slots == 0) return Bytes{0};  // every entry stands for itself
    return settings_.count_in_cache_dtype ? bytes_of(1, settings_.recorded) : Bytes{4};
  }
  Compaction compaction() const override {
    return settings_.ring_layout ? Compaction::kRing : Compaction::kSwap;
  }
  // Argmin, similarity, merge, two moves: operators the method launches on its own a layer and
  // step.
  std::int32_t launches() const override { return 8; }

  void add_step(StepTraffic& traffic, double attended, double row_bytes, std::int32_t head_dim,
                bool evicts) const override {
    // Counts, for the bias; adding it is part of the softmax.
    traffic.side_read +=
        attended * static_cast<double>(side_bytes_per_entry(settings_.recorded).count());
    if (!evicts || settings_.slots == 0) return;
    const auto slots = static_cast<double>(settings_.slots);
    traffic.move_read +=
        2.0 * row_bytes + slots * row_bytes / 2.0;  // victim and slot; search over keys
    traffic.move_write += row_bytes;                // the slot
    if (settings_.ring_layout) {  // oldest of the tail moves to the freed slot, the new token to
                                  // its place
      traffic.move_read += row_bytes;
      traffic.move_write += row_bytes;
    }
    traffic.extra_flops += 2.0 * slots * head_dim + 6.0 * head_dim;
  }

 private:
  ResidualSettings settings_;
  std::int32_t count_cap_;
};

}  // namespace

std::shared_ptr<const MergeRule> make_merge_residual(const ResidualSettings& settings) {
  return std::make_shared<ResidualRule>(settings);
}

}  // namespace kvsim
