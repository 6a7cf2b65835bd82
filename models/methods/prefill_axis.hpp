#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/methods/method.hpp"

namespace kvsim {

// The prefill axis: which part of the prompt is computed. Most choices leave out pairs of its
// attention: the cache is the full one, and what changes is the prompt's output and the time that
// its attention takes. prefill=blend leaves out tokens, whose rows were computed elsewhere.

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
  /// Sets computed [t + 1]: 1 where the query at `t` attends over that key, else 0. At least one of
  /// them is 1.
  virtual void row(std::int64_t t, std::span<std::uint8_t> computed) const = 0;
};

/// Sums over query heads and their rows.
struct PrefillOutcome {
  std::int64_t rows = 0;
  double pairs = 0, causal_pairs = 0;  // computed, and all
  double error = 0;                    // |o' - o| / |o| of the outputs, summed
  double mass = 0;                     // of the full attention on what was computed, summed
  double flops = 0, full_flops = 0;    // of attention with the choice of pairs, and of all pairs

  PrefillOutcome& operator+=(const PrefillOutcome& other);
};

class PrefillRule {
 public:
  virtual ~PrefillRule() = default;
  /// nullptr: of the tokens that a layer computes, no pair is left out.
  [[nodiscard]] virtual std::unique_ptr<PrefillPattern> start(const PrefillHead& head) const = 0;
  /// Which tokens a layer computes, and what else is equal in layers of one kind (0 to 3).
  [[nodiscard]] virtual PromptPart part(std::int32_t /*layer*/) const { return {}; }
  [[nodiscard]] virtual std::int32_t layer_kind(std::int32_t /*layer*/) const { return 0; }
  /// The layer whose keys decide which tokens are computed from there on; nullopt: all are.
  [[nodiscard]] virtual std::optional<std::int32_t> check_layer() const { return std::nullopt; }
  /// These tokens, ascending. `differences` [prompt]: squares of the differences between a token's
  /// keys in the check layer and the reused ones, summed over all KV heads.
  [[nodiscard]] virtual std::vector<std::int32_t> computed_tokens(
      std::span<const double> /*differences*/) const {
    return {};
  }
  /// FLOPs of choosing the pairs of one query head.
  [[nodiscard]] virtual double choice_flops(std::int64_t prompt, std::int32_t head_dim) const = 0;
  /// True: the logits of all pairs are computed, and only probabilities and values are skipped.
  [[nodiscard]] virtual bool computes_logits() const { return false; }
  /// The share of the causal pairs that costs assume.
  [[nodiscard]] virtual double pairs_share(std::int64_t prompt) const = 0;
  /// Kernels in addition to attention's.
  [[nodiscard]] virtual std::int32_t launches() const = 0;

  /// FLOPs of attention over a share of the causal pairs relative to all of them.
  [[nodiscard]] double flops_share(double pairs) const {
    return computes_logits() ? 0.5 + pairs / 2 : pairs;
  }
};

/// A rule of the read axis that also limits which pairs of the prompt are computed.
class ReadsPromptInPart {
 public:
  virtual ~ReadsPromptInPart() = default;
  /// Computed pairs of a query and a key over the causal ones.
  [[nodiscard]] virtual double prompt_pairs_share(std::int64_t prompt) const = 0;
};

/// Runs the attention of one query head's prompt as `rule` computes it, next to full causal
/// attention. values: [prompt, d].
[[nodiscard]] PrefillOutcome run_prefill(const PrefillRule& rule, const PrefillHead& head,
                                         std::span<const float> values);

}  // namespace kvsim
