#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// The exact GELU: x times the standard normal CDF at x.
[[nodiscard]] double gelu(double x);

/// A small regressor from a hidden state to one log score per KV head (KVzap). Linear: W h + c. MLP
/// with two layers: W2 GELU(W1 h + c1) + c2, with the exact GELU. Matrices are row-major, fp32.
struct Surrogate {
  std::int32_t inputs = 0;    // d_model
  std::int32_t outputs = 0;   // n_kv_heads
  std::int32_t width = 0;     // size of the mlp's inner layer; 0: linear
  std::vector<float> w1, b1;  // mlp: [width, inputs], [width]
  std::vector<float> w2, b2;  // [outputs, width or inputs], [outputs]

  /// rows [n, inputs] -> [n, outputs]. Throws ContractError if a length disagrees.
  [[nodiscard]] std::vector<float> predict(std::span<const float> rows) const;
};

/// Samples to fit on: hidden [n, inputs], scores [n, outputs], both row-major.
struct SurrogateSamples {
  std::int32_t inputs = 0, outputs = 0;
  std::vector<float> hidden;
  std::vector<double> scores;
  [[nodiscard]] std::int64_t size() const {
    return inputs > 0 ? static_cast<std::int64_t>(hidden.size()) / inputs : 0;
  }
};

struct SurrogateFit {
  Surrogate surrogate;
  double lambda = 0;        // ridge: the chosen penalty, in units of the mean squared input
  std::int32_t epochs = 0;  // mlp: the best epoch
};

/// Ridge regression with an unpenalised intercept. Candidate penalties are 1e-4, 1e-3, … 1e4, each
/// times n times the mean squared input. The fit on `train` with the smallest squared error on
/// `validation` selects the penalty; the final fit uses both. Throws ContractError if either is
/// empty or shapes disagree.
[[nodiscard]] SurrogateFit fit_ridge(const SurrogateSamples& train,
                                     const SurrogateSamples& validation);

struct MlpOptions {
  std::int32_t width = 0;  // 0: inputs / 8, at least 1
  std::int32_t epochs = 200;
  std::int32_t batch = 64;
  double learning_rate = 1e-3;
  std::uint64_t seed = 0;
};

/// Two layers trained with Adam (Kingma and Ba 2015, its defaults) on the squared error of
/// standardised scores. The weights of the best epoch on `validation` are kept. The same seed and
/// machine give the same weights. Throws as fit_ridge.
[[nodiscard]] SurrogateFit fit_mlp(const SurrogateSamples& train,
                                   const SurrogateSamples& validation, const MlpOptions& options);

/// Fraction of each output's variance that `surrogate` explains on `samples`; negative if it is
/// worse than predicting the mean: [outputs].
[[nodiscard]] std::vector<double> explained_variance(const Surrogate& surrogate,
                                                     const SurrogateSamples& samples);

}  // namespace kvsim
