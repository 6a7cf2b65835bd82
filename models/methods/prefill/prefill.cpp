// Shared by the choices of the prefill axis: the prompt's full and partial attention.

#include "models/methods/prefill/prefill.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "models/math/attention/causal_attention.hpp"
#include "models/methods/prefill_axis.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kBlockRows = 32;  // rows whose outputs are computed as one product

}  // namespace

PrefillOutcome& PrefillOutcome::operator+=(const PrefillOutcome& other) {
  rows += other.rows;
  pairs += other.pairs;
  causal_pairs += other.causal_pairs;
  error += other.error;
  mass += other.mass;
  flops += other.flops;
  full_flops += other.full_flops;
  return *this;
}

PrefillOutcome run_prefill(const PrefillRule& rule, const PrefillHead& head,
                           std::span<const float> values) {
  const auto d = static_cast<std::size_t>(head.head_dim);
  const auto n = static_cast<std::size_t>(head.prompt);
  KVSIM_CHECK(head.q.size() == n * d && head.keys.size() == n * d && values.size() == n * d,
              "{} queries, {} keys and {} values of {} tokens", head.q.size(), head.keys.size(),
              values.size(), n);
  const WeightedValues v{values, head.head_dim};
  const auto pattern = rule.start(head);
  std::vector<std::uint8_t> computed(n);
  // Of a block of rows: the weights of all pairs of a row, then those of its computed pairs.
  std::vector<double> weights(2 * kBlockRows * n), outputs(2 * kBlockRows * d);
  std::array<double, kBlockRows> kept{};
  PrefillOutcome out;
  const auto finish_block = [&](std::size_t rows, std::size_t seen) {
    v.product(weights, 2 * rows, seen, n, std::span{outputs}.first(2 * rows * d));
    for (std::size_t r = 0; r < rows; ++r) {
      const double* whole = outputs.data() + 2 * r * d;
      const double* part = whole + d;
      double off = 0, norm = 0;
      for (std::size_t j = 0; j < d; ++j) {
        // A row whose kept probabilities all underflow has no output.
        const double got = kept[r] > 0 ? part[j] / kept[r] : 0.0;
        off += (got - whole[j]) * (got - whole[j]);
        norm += whole[j] * whole[j];
      }
      out.error += norm > 0 ? std::sqrt(off / norm) : (off > 0 ? 1.0 : 0.0);
      out.mass += kept[r];
    }
  };
  each_causal_row(head.q, head.keys, 1, head.head_dim, head.prompt, head.prompt, 0, head.scale,
                  [&](const CausalRow& row) {
                    const std::size_t visible = row.probabilities.size();
                    const auto chosen = std::span{computed}.first(visible);
                    pattern->row(row.t, chosen);
                    const std::size_t r = static_cast<std::size_t>(row.t) % kBlockRows;
                    const std::size_t seen = std::min(visible - 1 - r + kBlockRows, n);
                    double* whole = weights.data() + 2 * r * n;
                    double* part = whole + n;
                    double mass = 0;
                    std::int64_t pairs = 0;
                    for (std::size_t i = 0; i < visible; ++i) {
                      whole[i] = row.probabilities[i];
                      part[i] = chosen[i] != 0 ? whole[i] : 0.0;
                      mass += part[i];
                      pairs += chosen[i] != 0 ? 1 : 0;
                    }
                    KVSIM_CHECK(pairs > 0, "the query at {} attends over no key", row.t);
                    std::fill(whole + visible, whole + seen, 0.0);
                    std::fill(part + visible, part + seen, 0.0);
                    kept[r] = mass;
                    out.pairs += static_cast<double>(pairs);
                    if (visible == seen) finish_block(r + 1, seen);
                  });
  out.rows = head.prompt;
  out.causal_pairs = static_cast<double>(n) * static_cast<double>(n + 1) / 2;
  out.full_flops = 4 * out.causal_pairs * static_cast<double>(d);
  out.flops = out.full_flops * rule.flops_share(out.pairs / out.causal_pairs) +
              rule.choice_flops(head.prompt, head.head_dim);
  return out;
}

ParamInfo pairs_param() {
  return number_param("pairs", "", 1, 0, 1, "[0, 1]",
                      "share of the causal pairs that is assumed for costs; a replay reports it "
                      "(prefill.pairs_share)",
                      "1: not known without data");
}

}  // namespace kvsim
