// ZeroMerge's residual slots (Liu et al. 2025): an evicted token is averaged into the most similar
// of a few slots, eqs. (6) and (7). Attention adds alpha ln w to the logit of a slot of w tokens,
// eq. (8).

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/math/merging/residual_merge.hpp"
#include "models/methods/merge/merge.hpp"
#include "models/methods/params.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

struct ResidualSettings {
  std::int64_t slots = 1;
  double alpha = 0.6;
  bool l2_metric = false;   // nearest slot by distance instead of dot product
  bool score_max = true;    // a merged slot's score is the larger score, otherwise the sum
  bool one_by_one = false;  // the prompt is fed through the decode rule; slots start empty
  bool ring_layout = true;  // three entries are written per step instead of two
  bool count_in_cache_dtype = false;
  Dtype recorded = Dtype::kFp32;  // the cache's dtype, for count_in_cache_dtype
};

class ResidualMerger final : public Merger {
 public:
  ResidualMerger(const ResidualSettings& settings, std::int32_t weight_cap)
      : settings_{settings}, weight_cap_{weight_cap} {}

  /// The dropped tokens, in positional order, form `slots` contiguous runs whose lengths differ by
  /// at most one, longer runs first. Each run becomes one slot with its plain mean (the released
  /// code's rule).
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

  /// The released code uses the first slots of its table as residual slots, even if they hold the
  /// first tokens of a short prompt.
  void prompt_fits(EntryTable& entries) override {
    for (std::int32_t slot = 0; slot < std::min<std::int64_t>(settings_.slots, entries.size());
         ++slot) {
      entries.pin(slot);
    }
  }

  std::int32_t absorb(EntryTable& entries, Selector& selector,
                      std::span<const std::int32_t> leaving) override {
    std::int32_t merged = 0;
    for (const std::int32_t id : leaving) {
      const std::int32_t slot = entries.slot_of(id);
      if (settings_.slots == 0) {
        entries.erase(slot);
      } else if (entries.pinned_size() < settings_.slots) {
        entries.pin(slot);
      } else {
        const std::int32_t into = most_similar(entries, slot);
        selector.merge_scores(entries.id(into), id, settings_.score_max);
        entries.merge_mean(into, slot, weight_cap_);
        ++merged;
      }
    }
    return merged;
  }

 private:
  std::int32_t most_similar(const EntryTable& entries, std::int32_t slot) const {
    const std::vector<std::int32_t> residual = entries.merged_slots();
    const auto key_of = [&](std::int64_t i) {
      return std::span<const float>{entries.key(residual[static_cast<std::size_t>(i)])};
    };
    const std::int64_t best =
        most_similar_key(entries.key(slot), std::ssize(residual), key_of, settings_.l2_metric);
    KVSIM_CHECK(best >= 0, "no residual slot among {} entries", entries.size());
    return residual[static_cast<std::size_t>(best)];
  }

  ResidualSettings settings_;
  std::int32_t weight_cap_;
};

/// Count at which adding 1 is lost: 2048 in fp16, 256 in bf16.
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

  std::unique_ptr<Merger> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<ResidualMerger>(settings_, count_cap_);
  }
  bool merges() const override { return settings_.slots > 0; }
  std::int64_t slots() const override { return settings_.slots; }
  bool prompt_one_by_one() const override { return settings_.one_by_one; }
  double bias(std::int32_t count, double /*weight*/) const override {
    return count == 1
               ? 0.0
               : settings_.alpha * std::log(static_cast<double>(std::min(count, count_cap_)));
  }
  Bytes side_bytes(std::int64_t entries, const HeadShape& /*shape*/) const override {
    return count_bytes() * entries;
  }
  Compaction compaction() const override {
    return settings_.ring_layout ? Compaction::kRing : Compaction::kSwap;
  }
  // Argmin, similarity, merge, two moves: the method's launches per layer and step.
  std::int32_t launches() const override { return 8; }
  // Victim: key and value, products with the slots, maximum. Nearest slot: key, value and count; a
  // product, a sum and a division each; its count; four writes; the larger score. The token that
  // leaves the tail moves to the victim's slot and the new entry to the tail's slot: key, value,
  // score and count are read once and written twice. Bias of attention: logarithm, factor and sum.
  std::int32_t operators() const override { return 35; }

  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    // Counts for the bias; adding the bias is part of the softmax.
    traffic.side_read += events.attended * static_cast<double>(count_bytes().count());
    if (settings_.slots == 0) return;
    const auto slots = static_cast<double>(settings_.slots);
    const double row = shape.row_bytes();
    // Reads victim, slot and the keys to search; writes the slot.
    traffic.move_read += events.left * (2.0 * row + slots * row / 2.0);
    traffic.move_write += events.left * row;
    if (settings_.ring_layout) {  // the tail's oldest moves to the freed slot, the new token to its
                                  // slot
      traffic.move_read += events.left * row;
      traffic.move_write += events.left * row;
    }
    traffic.extra_flops += events.left * (2.0 * slots * shape.head_dim + 6.0 * shape.head_dim);
  }

 private:
  [[nodiscard]] Bytes count_bytes() const {
    if (settings_.slots == 0) return Bytes{0};  // every entry represents only itself
    return settings_.count_in_cache_dtype ? bytes_of(1, settings_.recorded) : Bytes{4};
  }

  ResidualSettings settings_;
  std::int32_t count_cap_;
};

std::int64_t slots(MethodResolver& resolver, std::int64_t beyond_tail) {
  const double requested = resolver.number("residual_slots");
  const std::int64_t slots = share_or_count(requested, beyond_tail);
  return requested > 0 ? std::max<std::int64_t>(slots, 1) : slots;
}

std::shared_ptr<const MergeRule> resolve_residual(MethodResolver& resolver) {
  if (resolver.choice("select") != "accumulated") {
    resolver.refuse("residual slots need scores: expected select=accumulated");
  }
  resolver.resolve("residual_slots", resolver.slots());
  return std::make_shared<ResidualRule>(
      ResidualSettings{.slots = resolver.slots(),
                       .alpha = resolver.number("alpha"),
                       .l2_metric = resolver.word("metric") == "l2",
                       .score_max = resolver.word("score_update") == "max",
                       .one_by_one = resolver.word("prefill") == "online",
                       .ring_layout = resolver.word("layout") == "ring",
                       .count_in_cache_dtype = resolver.word("count_dtype") == "kv",
                       .recorded = resolver.store().dtype(resolver.site().recorded)});
}

}  // namespace

AxisChoice merge_residual() {
  return {.axis = "merge",
          .name = "residual",
          .params =
              {number_param("residual_slots", "B_r", 1, 0, kManyEntries,
                            "a fraction below 1 of the budget minus the tail, or entries; 0 drops",
                            "entries set aside for merged tokens", "ZeroMerge eq. (3)"),
               number_param("alpha", "alpha", 0.6, 1e-6, 1.0, "a number in (0, 1]",
                            "weight of ln(count) in a merged entry's logit",
                            "ZeroMerge eq. (8), theorem 3.1"),
               word_param("metric", {"dot_product", "l2"}, "similarity that chooses the slot",
                          "ZeroMerge eq. (6), released code"),
               word_param("score_update", {"max", "sum"}, "score of a slot after a merge",
                          "ZeroMerge, released code"),
               word_param("prefill", {"chunk_mean", "online"},
                          "prompt compressed at once into runs, or fed token by token with its "
                          "final scores",
                          "ZeroMerge's released code against alg. 1"),
               word_param("layout", {"ring", "indirect"},
                          "entries rewritten per step: three (ring) or two",
                          "ZeroMerge, released code"),
               word_param("count_dtype", {"int32", "kv"},
                          "how counts are stored; in the cache's dtype they stop at 2048 (fp16) or "
                          "256 (bf16)",
                          "ZeroMerge, released code")},
          .make = &resolve_residual,
          .takes_budget = true,
          .slots = &slots};
}

}  // namespace kvsim
