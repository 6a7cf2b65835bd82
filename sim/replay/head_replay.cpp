#include "sim/replay/head_replay.hpp"

#include <algorithm>
#include <cmath>

#include "models/methods/session.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

/// Queries first … first + queries - 1 of the group as a group of their own.
HeadVectors part_of(const HeadVectors& head, std::int32_t first, std::int32_t queries) {
  HeadVectors part = head;
  const auto row = static_cast<std::size_t>(head.tokens) * static_cast<std::size_t>(head.head_dim);
  part.q = head.q.subspan(static_cast<std::size_t>(first) * row,
                          static_cast<std::size_t>(queries) * row);
  part.group = queries;
  return part;
}

struct Drift {
  double rel_error = 0;
  double cosine = 1;
};

Drift drift(std::span<const double> got, const float* want) {
  double difference = 0;
  double got_norm = 0;
  double want_norm = 0;
  double product = 0;
  for (std::size_t j = 0; j < got.size(); ++j) {
    const auto o = static_cast<double>(want[j]);
    difference += (got[j] - o) * (got[j] - o);
    got_norm += got[j] * got[j];
    want_norm += o * o;
    product += got[j] * o;
  }
  if (want_norm == 0) return got_norm == 0 ? Drift{0, 1} : Drift{1, 0};
  const double cosine = got_norm == 0 ? 0.0 : product / std::sqrt(got_norm * want_norm);
  return {std::sqrt(difference / want_norm), std::clamp(cosine, -1.0, 1.0)};
}

HeadSeries replay_stored_head(const ComposedMethod& method, std::int32_t layer,
                              const HeadVectors& head, std::int32_t first_query,
                              std::int32_t reference_group, const CausalAttention& reference,
                              PromptScores& scores, const Rope* rope, bool want_kept) {
  const auto d = static_cast<std::size_t>(head.head_dim);
  const auto tokens = static_cast<std::size_t>(head.tokens);
  const auto prompt = static_cast<std::size_t>(head.prompt);
  const auto group = static_cast<std::size_t>(head.group);
  HeadSession session{method,
                      {.layer = layer,
                       .group = head.group,
                       .head_dim = head.head_dim,
                       .tokens = static_cast<std::int32_t>(head.tokens),
                       .scale = head.scale,
                       .rope = rope}};
  session.prefill(head.keys.first(prompt * d), head.values.first(prompt * d), scores);

  HeadSeries series;
  series.first_query = first_query;
  series.queries = head.group;
  series.entries_after_prefill = session.entries().size();
  const std::size_t steps = tokens - prompt;
  series.held.reserve(steps);
  series.attended.reserve(steps);
  series.compressed.reserve(steps);
  series.rel_error.reserve(steps * group);
  series.cosine.reserve(steps * group);
  const bool keeps_mass = !method.merges();

  std::vector<float> q(group * d);
  for (std::size_t step = 0; step < steps; ++step) {
    const std::size_t t = prompt + step;
    for (std::size_t g = 0; g < group; ++g) {
      std::copy_n(head.q.data() + (g * tokens + t) * d, d, q.data() + g * d);
    }
    const GroupAttention& attention =
        session.step(q, head.keys.subspan(t * d, d), head.values.subspan(t * d, d));
    series.attended.push_back(static_cast<std::int32_t>(attention.entries()));
    series.held.push_back(session.entries().size());
    series.compressed.push_back(session.compressed() ? 1 : 0);
    for (std::size_t g = 0; g < group; ++g) {
      const std::size_t row = step * static_cast<std::size_t>(reference_group) +
                              static_cast<std::size_t>(first_query) + g;
      const Drift error =
          drift(attention.output().subspan(g * d, d), reference.out.data() + row * d);
      series.rel_error.push_back(static_cast<float>(error.rel_error));
      series.cosine.push_back(static_cast<float>(error.cosine));
      if (keeps_mass) {
        // A share cannot exceed 1; the reference's fp32 logits can, by their rounding.
        const double mass =
            std::exp(attention.log_sum(static_cast<std::int32_t>(g)) - reference.log_sum[row]);
        series.retained_mass.push_back(static_cast<float>(std::min(mass, 1.0)));
      }
    }
  }
  if (want_kept) series.kept = session.kept();
  return series;
}

}  // namespace

std::span<const double> RecordedPromptScores::column_sums(double decay) {
  const auto [at, fresh] = sums_.try_emplace(decay);
  if (fresh) {
    at->second = prompt_column_sums(head_.q, head_.keys, head_.group, head_.head_dim, head_.tokens,
                                    head_.prompt, head_.scale, decay);
  }
  return at->second;
}

std::vector<HeadSeries> replay_head(const ComposedMethod& method, std::int32_t layer,
                                    const HeadVectors& head, const CausalAttention& reference,
                                    PromptScores& group_scores, const Rope* rope, bool want_kept) {
  KVSIM_CHECK(head.prompt >= 1 && head.prompt <= head.tokens, "prompt {} of {} tokens", head.prompt,
              head.tokens);
  std::vector<HeadSeries> all;
  if (!method.parts().query_head) {
    all.push_back(replay_stored_head(method, layer, head, 0, head.group, reference, group_scores,
                                     rope, want_kept));
    return all;
  }
  for (std::int32_t g = 0; g < head.group; ++g) {
    const HeadVectors one = part_of(head, g, 1);
    RecordedPromptScores scores{one};
    all.push_back(
        replay_stored_head(method, layer, one, g, head.group, reference, scores, rope, want_kept));
  }
  return all;
}

}  // namespace kvsim
