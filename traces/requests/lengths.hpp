#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "traces/requests/random_stream.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

enum class LengthKind : std::uint8_t { kFixed, kUniform, kLognormal, kZipf, kEmpirical };

/// Distribution of lengths in tokens (or of turns of a session).
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

/// Parameters mu and sigma of the lognormal with a given mean and 99th percentile; of the two
/// solutions, the one with the smaller sigma. Errors: ContractError unless mean > 0 and mean <= p99
/// <= mean * exp(2.3263^2 / 2) = 14.96 mean; no lognormal exceeds this.
struct LognormalShape {
  double mu, sigma;
};
[[nodiscard]] LognormalShape lognormal_of(double mean, double p99);
/// The largest p99 / mean that a lognormal can have.
[[nodiscard]] double max_p99_per_mean();

/// Draws lengths by inverting the distribution function, with one uniform number per draw. A Zipf
/// distribution of more than 65,536 lengths uses rejection-inversion (Hörmann and Derflinger 1996).
class LengthSampler {
 public:
  /// Errors: ContractError if the spec has values that read_workload does not accept.
  explicit LengthSampler(const LengthSpec& spec);
  [[nodiscard]] std::int32_t draw(RandomStream& stream) const;
  /// Whether at() is available: for all distributions but a Zipf of more than 65,536 lengths.
  [[nodiscard]] bool invertible() const;
  /// Returns the quantile `u` of the distribution; u in (0, 1). Errors: ContractError unless
  /// invertible().
  [[nodiscard]] std::int32_t at(double u) const;
  /// Returns the expected length, including rounding to whole tokens. For a lognormal, the
  /// truncated density is integrated without rounding, which changes it by less than half a token.
  [[nodiscard]] double mean() const;

 private:
  [[nodiscard]] std::size_t tabled(double u) const;

  LengthSpec spec_;
  std::vector<double> cumulative_;   // Zipf with a small range, empirical: P(index <= i)
  double from_ = 0.0, up_to_ = 1.0;  // lognormal: the distribution function at the bounds
};

}  // namespace kvsim
