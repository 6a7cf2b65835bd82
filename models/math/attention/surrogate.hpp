#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// x times the normal distribution up to x: the exact GELU.
[[nodiscard]] double gelu(double x);

/// A small regressor from a hidden state to one log score a KV head (KVzap): linear, W h + c, or an
/// mlp of two layers, W2 GELU(W1 h + c1) + c2 with the exact GELU. Matrices are row-major, fp32.
struct Surrogate {
  std::int32_t inputs = 0;    // d_model
  std::int32_t outputs = 0;   // n_kv_heads
  std::int32_t width = 0;     // of the mlp's inner layer; 0: linear
  std::vector<float> w1, b1;  // mlp: [width, inputs], [width]
  std::vector<float> w2, b2;  // [outputs, width or inputs], [outputs]

  /// rows [n, inputs] -> [n, outputs]. Errors: ContractError if a length disagrees.
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
  double lambda = 0;        // ridge: the penalty chosen, in units of the mean squared input
  std::int32_t epochs = 0;  // mlp: after how many it was best
};

/// Ridge regression with an unpenalised intercept. The penalty is the one of 1e-4, 1e-3, … 1e4
/// times n times the mean squared input whose fit on `train` has the smallest squared error on
/// `validation`; the fit is then made on both. Errors: ContractError if either is empty or shapes
/// disagree.
[[nodiscard]] SurrogateFit fit_ridge(const SurrogateSamples& train,
                                     const SurrogateSamples& validation);

struct MlpOptions {
  std::int32_t width = 0;  // 0: inputs / 8, at least 1
  std::int32_t epochs = 200;
  std::int32_t batch = 64;
  double learning_rate = 1e-3;
  std::uint64_t seed = 0;
};

/// Two layers trained by Adam (Kingma and Ba 2015, its defaults) on the squared error of
/// standardised scores; the weights of the epoch that was best on `validation` are kept. The same
/// seed and machine give the same weights. Errors: as fit_ridge.
[[nodiscard]] SurrogateFit fit_mlp(const SurrogateSamples& train,
                                   const SurrogateSamples& validation, const MlpOptions& options);

/// Share of the variance of each output that `surrogate` explains on `samples`, negative where it
/// does worse than their mean: [outputs].
[[nodiscard]] std::vector<double> explained_variance(const Surrogate& surrogate,
                                                     const SurrogateSamples& samples);

}  // namespace kvsim
