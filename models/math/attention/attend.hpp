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
  /// empty; -infinity hides an entry, of which one at least must be left. Errors: ContractError if
  /// a span's length disagrees, or entries < 1.
  void run(std::span<const float> q, std::span<const float> keys, std::span<const float> values,
           std::span<const double> bias);
  /// Only logits and probabilities; output() stays that of the last run.
  void run_weights(std::span<const float> q, std::span<const float> keys,
                   std::span<const double> bias);

  [[nodiscard]] std::size_t entries() const { return entries_; }
  /// Of the last run: probabilities and logits (bias included) of head g [entries].
  [[nodiscard]] std::span<const double> probabilities(std::int32_t g) const;
  [[nodiscard]] std::span<const double> logits(std::int32_t g) const;
  /// ln of the sum of exponentials of head g.
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

/// probabilities[i] = e^{logits[i]} / sum; returns ln of the sum. Both are readable, and
/// probabilities writable, up to the next multiple of four, where probabilities become 0; logits
/// there are ignored. `entries` >= 1; a logit of -infinity has probability 0.
double softmax_row(const double* logits, std::size_t entries, double* probabilities);

/// q . k in fp64 with the lane order of GroupAttention.
[[nodiscard]] double dot(std::span<const float> a, std::span<const float> b);
/// |a - b|^2 in fp64.
[[nodiscard]] double squared_distance(std::span<const float> a, std::span<const float> b);

}  // namespace kvsim
