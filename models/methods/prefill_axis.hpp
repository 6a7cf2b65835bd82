#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/methods/method.hpp"

namespace kvsim {

// The prefill axis: the part of the prompt that is computed. Most choices skip pairs of its
// attention: the cache is complete, and only the prompt's output and the time of its attention
// change. prefill=blend skips tokens whose rows were computed elsewhere.

/// The prompt of one query head.
struct PrefillHead {
  std::span<const float> q;     // [prompt, d], unscaled
  std::span<const float> keys;  // [prompt, d]
  std::int64_t prompt = 0;
  std::int32_t head_dim = 0;
  double scale = 0;

  [[nodiscard]] std::span<const float> query(std::int64_t t) const { return row(q, t); }
  [[nodiscard]] std::span<const float> key(std::int64_t t) const { return row(keys, t); }

 private:
  [[nodiscard]] std::span<const float> row(std::span<const float> rows, std::int64_t t) const {
    const auto d = static_cast<std::size_t>(head_dim);
    return rows.subspan(static_cast<std::size_t>(t) * d, d);
  }
};

/// The pairs of queries and keys of one query head that are computed.
class PrefillPattern {
 public:
  virtual ~PrefillPattern() = default;
  /// Sets computed [t + 1]: 1 if the query at `t` attends over the key, else 0. At least one
  /// element is 1.
  virtual void row(std::int64_t t, std::span<std::uint8_t> computed) const = 0;
};

/// Sums over query heads and their rows.
struct PrefillOutcome {
  std::int64_t rows = 0;
  double pairs = 0, causal_pairs = 0;  // computed, and all
  double error = 0;                    // |o' - o| / |o| of the outputs, summed
  double mass = 0;                     // of the full attention on computed pairs, summed
  double flops = 0, full_flops = 0;    // of attention and the choice of pairs; of all pairs

  PrefillOutcome& operator+=(const PrefillOutcome& other);
};

class PrefillRule {
 public:
  virtual ~PrefillRule() = default;
  /// Returns nullptr if all pairs of the tokens that a layer computes are computed.
  [[nodiscard]] virtual std::unique_ptr<PrefillPattern> start(const PrefillHead& head) const = 0;
  /// The tokens that a layer computes, and the layer's kind (0 to 3); layers of one kind are equal.
  [[nodiscard]] virtual PromptPart part(std::int32_t /*layer*/) const { return {}; }
  [[nodiscard]] virtual std::int32_t layer_kind(std::int32_t /*layer*/) const { return 0; }
  /// The layer whose keys determine the tokens computed in this and later layers; nullopt if all
  /// are computed.
  [[nodiscard]] virtual std::optional<std::int32_t> check_layer() const { return std::nullopt; }
  /// Returns these tokens, ascending. `differences` [prompt]: squared differences between a token's
  /// keys in the check layer and its reused keys, summed over all KV heads.
  [[nodiscard]] virtual std::vector<std::int32_t> computed_tokens(
      std::span<const double> /*differences*/) const {
    return {};
  }
  /// FLOPs of choosing the pairs of one query head.
  [[nodiscard]] virtual double choice_flops(std::int64_t prompt, std::int32_t head_dim) const = 0;
  /// True if the logits of all pairs are computed and only probabilities and values are skipped.
  [[nodiscard]] virtual bool computes_logits() const { return false; }
  /// The share of causal pairs that the cost model assumes.
  [[nodiscard]] virtual double pairs_share(std::int64_t prompt) const = 0;
  /// Number of kernels in addition to the attention kernels.
  [[nodiscard]] virtual std::int32_t launches() const = 0;

  /// Returns the FLOPs of attention over the share `pairs` of the causal pairs, relative to all
  /// pairs.
  [[nodiscard]] double flops_share(double pairs) const {
    return computes_logits() ? 0.5 + pairs / 2 : pairs;
  }
};

/// A rule of the read axis that also limits which pairs of the prompt are computed.
class ReadsPromptInPart {
 public:
  virtual ~ReadsPromptInPart() = default;
  /// Number of computed query-key pairs divided by the number of causal pairs.
  [[nodiscard]] virtual double prompt_pairs_share(std::int64_t prompt) const = 0;
};

/// Runs the attention of one query head's prompt under `rule`, and full causal attention for
/// comparison. values: [prompt, d].
[[nodiscard]] PrefillOutcome run_prefill(const PrefillRule& rule, const PrefillHead& head,
                                         std::span<const float> values);

}  // namespace kvsim
