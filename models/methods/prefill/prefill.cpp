// Shared by the choices of the prefill axis: the prompt's full and partial attention.

#include "models/methods/prefill/prefill.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/math/attention/causal_attention.hpp"
#include "models/methods/prefill_axis.hpp"
#include "models/units/check.hpp"

namespace kvsim {

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
  const auto pattern = rule.start(head);
  std::vector<std::uint8_t> computed(n);
  std::vector<double> whole(d), part(d);
  PrefillOutcome out;
  each_causal_row(head.q, head.keys, 1, head.head_dim, head.prompt, head.prompt, 0, head.scale,
                  [&](const CausalRow& row) {
                    const std::span<std::uint8_t> chosen =
                        std::span{computed}.first(row.probabilities.size());
                    pattern->row(row.t, chosen);
                    std::fill(whole.begin(), whole.end(), 0.0);
                    std::fill(part.begin(), part.end(), 0.0);
                    double kept = 0;
                    std::int64_t pairs = 0;
                    for (std::size_t i = 0; i < chosen.size(); ++i) {
                      const double p = row.probabilities[i];
                      const float* value = values.data() + i * d;
                      for (std::size_t j = 0; j < d; ++j)
                        whole[j] += p * static_cast<double>(value[j]);
                      if (chosen[i] == 0) continue;
                      ++pairs;
                      kept += p;
                      for (std::size_t j = 0; j < d; ++j)
                        part[j] += p * static_cast<double>(value[j]);
                    }
                    KVSIM_CHECK(pairs > 0, "the query at {} attends over no key", row.t);
                    double off = 0, norm = 0;
                    for (std::size_t j = 0; j < d; ++j) {
                      // A row whose kept probabilities all underflow has no output.
                      const double got = kept > 0 ? part[j] / kept : 0.0;
                      off += (got - whole[j]) * (got - whole[j]);
                      norm += whole[j] * whole[j];
                    }
                    out.pairs += static_cast<double>(pairs);
                    out.error += norm > 0 ? std::sqrt(off / norm) : (off > 0 ? 1.0 : 0.0);
                    out.mass += kept;
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
                      "share of the causal pairs that costs assume; a replay reports it "
                      "(prefill.pairs_share)",
                      "1: none is known without data");
}

}  // namespace kvsim
