#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "traces/requests/random_stream.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

enum class LengthKind : std::uint8_t { kFixed, kUniform, kLognormal, kZipf, kEmpirical };

/// How lengths in tokens (or turns of a session) are spread.
struct LengthSpec {
  LengthKind kind = LengthKind::kFixed;
  /// Bounds, inclusive. A fixed length is `low`; uniform and Zipf lengths have the bounds as their
  /// range; a lognormal is truncated at them (values outside are never drawn).
  std::int32_t low = 1;
  std::int32_t high = kMaxTokens;
  double mu = 0.0;        // lognormal: mean of ln(length)
  double sigma = 0.0;     // lognormal: deviation of ln(length)
  double exponent = 1.0;  // Zipf: P(n) proportional to n^-exponent for n in [low, high]
  std::vector<std::int32_t> values{};  // empirical
  std::vector<double> weights{};       // empirical: one per value, in any unit; empty: all equal
};

/// mu and sigma of the lognormal of a given mean and 99th percentile: of the two solutions the one
/// of less spread. Errors: ContractError unless mean > 0 and mean <= p99 <= mean * exp(2.3263^2 /
/// 2) = 14.96 mean; no lognormal is beyond.
struct LognormalShape {
  double mu, sigma;
};
[[nodiscard]] LognormalShape lognormal_of(double mean, double p99);
/// The largest p99 / mean that a lognormal can have.
[[nodiscard]] double max_p99_per_mean();

/// Draws lengths by inverting the distribution function, one uniform number a draw; a Zipf of more
/// than 65,536 lengths by rejection-inversion (Hörmann and Derflinger 1996).
class LengthSampler {
 public:
  /// Errors: ContractError if the spec's numbers are not ones that read_workload lets pass.
  explicit LengthSampler(const LengthSpec& spec);
  [[nodiscard]] std::int32_t draw(RandomStream& stream) const;
  /// Whether at() can tell: of all but a Zipf of more than 65,536 lengths.
  [[nodiscard]] bool invertible() const;
  /// The length that a share `u` of the distribution lies below; u in (0, 1). Errors: ContractError
  /// unless invertible().
  [[nodiscard]] std::int32_t at(double u) const;
  /// Expected length, rounding to whole tokens included except for a lognormal, whose density is
  /// integrated without rounding (truncation included; rounding changes it by less than half a
  /// token).
  [[nodiscard]] double mean() const;

 private:
  [[nodiscard]] std::size_t tabled(double u) const;

  LengthSpec spec_;
  std::vector<double> cumulative_;   // Zipf of a small range, empirical: P(up to i)
  double from_ = 0.0, up_to_ = 1.0;  // lognormal: the distribution function at the bounds
};

}  // namespace kvsim
