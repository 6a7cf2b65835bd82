#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// Attention of one query group (the query heads that share a KV head) over the entries of a cache.
///
///   logits[g, e] = scale * q[g,:] . k[e,:] + bias[e]          (or bias[g, e])
///   p[g, e]      = exp(logits[g, e]) / sum over e of exp(logits[g, e])
///   out[g, :]    = sum over e of p[g, e] v[e,:]
///
/// Keys and values are fp32, every product and sum is fp64. Scratch is kept between calls.
/// Source: softmax(Q K^T / sqrt(d)) V of Vaswani et al. 2017, eq. (1), with the entry bias of the
/// merging methods (ZeroMerge eq. (8): alpha ln w).
class GroupAttention {
 public:
  GroupAttention(std::int32_t group, std::int32_t head_dim, double scale);

  /// q [group, d] fp32 row-major; keys, values [entries, d]; bias [entries], [group, entries] or
  /// empty. A bias of -infinity hides an entry; at least one entry must stay visible.
  /// Throws ContractError if a span's length disagrees, or entries < 1.
  void run(std::span<const float> q, std::span<const float> keys, std::span<const float> values,
           std::span<const double> bias);
  /// Computes only logits and probabilities; output() keeps the result of the last run.
  void run_weights(std::span<const float> q, std::span<const float> keys,
                   std::span<const double> bias);

  /// For precomputed logits: after `resize`, the caller fills mutable_logits(g), excluding bias,
  /// and `weigh` adds the bias and computes probabilities. output() keeps the result of the last
  /// run.
  void resize(std::size_t entries);
  [[nodiscard]] std::span<double> mutable_logits(std::int32_t g) {
    return {logits_.data() + static_cast<std::size_t>(g) * stride_, entries_};
  }
  void weigh(std::span<const double> bias);

  [[nodiscard]] std::size_t entries() const { return entries_; }
  /// Probabilities and logits (bias included) of head g in the last run: [entries].
  [[nodiscard]] std::span<const double> probabilities(std::int32_t g) const;
  [[nodiscard]] std::span<const double> logits(std::int32_t g) const;
  /// Log-sum-exp of the logits of head g.
  [[nodiscard]] double log_sum(std::int32_t g) const {
    return log_sum_[static_cast<std::size_t>(g)];
  }
  /// out[g, :], [group, d].
  [[nodiscard]] std::span<const double> output() const { return out_; }
  /// Sum over the group of the probabilities [entries].
  [[nodiscard]] std::span<const double> group_sum();

 private:
  std::size_t group_, d_;
  double scale_;
  std::size_t entries_ = 0, stride_ = 0;
  std::vector<double> q_, logits_, probabilities_, out_, log_sum_, sum_;
};

/// Sets probabilities[i] = e^{logits[i]} / sum and returns ln of the sum. Both buffers extend to
/// the next multiple of four: the padding of `probabilities` is set to 0, that of `logits` is
/// ignored. `entries` >= 1; a logit of -infinity has probability 0.
double softmax_row(const double* logits, std::size_t entries, double* probabilities);

/// q . k in fp64 with the lane order of GroupAttention.
[[nodiscard]] double dot(std::span<const float> a, std::span<const float> b);
/// |a - b|^2 in fp64.
[[nodiscard]] double squared_distance(std::span<const float> a, std::span<const float> b);

}  // namespace kvsim
