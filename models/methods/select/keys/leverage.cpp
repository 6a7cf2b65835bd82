// LeverageScorePress of kvpress, a part of Compactor (Chari and Van Durme 2025, arXiv 2507.08143).
//
//   X = (K - mean of K) times a Gaussian sketch, K before RoPE;  score_i = x_i (X^T X + 0.01 I)^-1
//   x_i^T
//
// kvpress then subtracts the mean over the layer's heads and divides by their deviation. This
// affects neither kept sets nor budgets that compare a layer's heads.

#include "models/math/low_rank/leverage.hpp"

#include <cmath>
#include <numbers>

#include "models/math/counter_random.hpp"
#include "models/methods/select/keys/compactor.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr double kRidge = 1e-2;  // the released code's first jitter

class Leverage final : public Scorer {
 public:
  Leverage(std::int64_t sketch, double width) : sketch_{sketch}, width_{width} {}

  std::vector<double> score(const ScoredTokens& tokens, const SessionPlace& place) const override {
    return leverage_scores(tokens, place, sketch_);
  }
  bool non_negative() const override { return true; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.inputs.rope = true;
    return needs;
  }
  ScoreCost cost(double entries, double /*queries*/, const HeadShape& shape) const override {
    return leverage_cost(entries, sketch_, width_, shape);
  }

 private:
  std::int64_t sketch_;
  double width_;
};

/// Returns standard normal numbers keyed by `key` (Box-Muller transform).
double normal_of(std::uint64_t key, std::uint64_t i) {
  const double radius = std::sqrt(-2 * std::log(counter_uniform(key, 2 * i)));
  return radius * std::cos(2 * std::numbers::pi * counter_uniform(key, 2 * i + 1));
}

std::shared_ptr<const SelectRule> resolve_leverage(MethodResolver& resolver) {
  return make_scored(
      resolver, std::make_shared<Leverage>(resolver.integer("sketch"), hidden_width(resolver)));
}

}  // namespace

std::vector<double> leverage_scores(const ScoredTokens& tokens, const SessionPlace& place,
                                    std::int64_t sketch) {
  KVSIM_CHECK(place.rope != nullptr, "keys before RoPE without the rotary embedding");
  const auto d = static_cast<std::size_t>(tokens.head.head_dim);
  const auto k = static_cast<std::size_t>(sketch);
  const std::size_t n = tokens.size();
  std::vector<double> keys(tokens.keys.begin(), tokens.keys.end());
  std::vector<double> mean(d, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    const std::span<double> key = std::span{keys}.subspan(i * d, d);
    place.rope->rotate(key, -std::int64_t{tokens.positions[i]});
    for (std::size_t j = 0; j < d; ++j) mean[j] += key[j] / static_cast<double>(n);
  }
  const std::uint64_t drawn = counter_key({place.seed, static_cast<std::uint64_t>(place.layer),
                                           static_cast<std::uint64_t>(tokens.kv_head)});
  std::vector<double> gauss(d * k);
  for (std::size_t i = 0; i < gauss.size(); ++i) {
    gauss[i] = normal_of(drawn, i) / std::sqrt(static_cast<double>(k));
  }
  std::vector<double> rows(n * k, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < d; ++j) {
      const double x = keys[i * d + j] - mean[j];
      for (std::size_t c = 0; c < k; ++c) rows[i * k + c] += x * gauss[j * k + c];
    }
  }
  return ridge_leverage(rows, k, {}, kRidge);
}

ScoreCost leverage_cost(double entries, std::int64_t sketch, double width, const HeadShape& shape) {
  const auto k = static_cast<double>(sketch);
  const double d = shape.head_dim;
  // Projection of keys, then the sketch, the Gram matrix and the solution.
  return {.flops = 2.0 * entries * width * d + 2.0 * entries * k * (d + 2.0 * k),
          .read = entries * shape.row_bytes() / 2,
          // Keys before RoPE; the sketched rows and the solution in fp32.
          .transient = truncated<Bytes>(entries * (shape.row_bytes() / 2 + 8.0 * k))};
}

ParamInfo sketch_param() {
  return integer_param("sketch", "k", 48, 1, 65536, "an integer in [1, 65536]",
                       "columns of the Gaussian sketch", "kvpress, LeverageScorePress",
                       {"sketch_dimension"});
}

AxisChoice select_leverage() {
  return scored_choice("leverage", {sketch_param()}, &resolve_leverage);
}

}  // namespace kvsim
