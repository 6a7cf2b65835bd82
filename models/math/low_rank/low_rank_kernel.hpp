#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvsim {

struct LowRankShape {
  std::int32_t head_dim = 0, hidden = 64, rank = 8;

  /// Parameters: W1 [d, h], W2 [h, R], W3 [d, h], W4 [h, R], W_int [R, R], s1 [R], s2 [R], in this
  /// order, row-major.
  [[nodiscard]] std::size_t parameters() const {
    const auto d = static_cast<std::size_t>(head_dim);
    const auto h = static_cast<std::size_t>(hidden);
    const auto r = static_cast<std::size_t>(rank);
    return 2 * (d * h + h * r) + r * r + 2 * r;
  }
};

/// LESS' learned feature maps, whose product approximates e^(scale q.k) of evicted tokens:
///
///   phi(q) = |gelu(gelu(q W1) W2)|
///   u = |s1| * gelu(gelu(k W3) W4),   psi(k) = |u + (u W_int) * s2|
///
/// fp64. Source: Dong et al., "Get More with LESS", section 4.
class LowRankKernel {
 public:
  /// Draws W uniformly from [-1, 1] sqrt(3 / fan-in); s1 and s2 are 1e-4 as in the paper. `key`
  /// seeds the draws.
  LowRankKernel(const LowRankShape& shape, std::uint64_t key);

  [[nodiscard]] const LowRankShape& shape() const { return shape_; }
  [[nodiscard]] std::span<double> parameters() { return parameters_; }
  /// Maps rows [n, d] to [n, R], row-major.
  [[nodiscard]] std::vector<double> phi(std::span<const double> queries) const;
  [[nodiscard]] std::vector<double> psi(std::span<const double> keys) const;

 private:
  LowRankShape shape_;
  std::vector<double> parameters_;
};

/// Training data of a kernel: queries, and the attention output that they should produce.
struct LowRankTask {
  std::vector<double> queries;  // [n, d]
  std::vector<double> keys;     // [m, d]: evicted keys
  std::vector<double> values;   // [m, d]
  std::vector<double> visible;  // [n, m]: 1 if the query comes after the key, else 0
  // Over the kept entries: sum of e^(logit - shift) v [n, d], sum of e^(logit - shift) [n], and the
  // shift.
  std::vector<double> kept_out, kept_sum, shift;
  std::vector<double> target;  // [n, d]: output over all entries
};

/// Mean squared error of the output, and its gradient by parameter if `gradient` is not empty.
[[nodiscard]] double low_rank_loss(const LowRankKernel& kernel, const LowRankTask& task,
                                   std::span<double> gradient);

/// Runs `steps` steps of Adam (0.9, 0.999) at learning rate `rate` and keeps the best parameters.
/// Returns the loss before and after.
std::pair<double, double> fit_low_rank(LowRankKernel& kernel, const LowRankTask& task,
                                       std::int32_t steps, double rate);

}  // namespace kvsim
