#include "sim/replay/head_replay.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "models/units/check.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/replay/paged.hpp"

namespace kvsim {
namespace {

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

/// Compares the outputs of head `h` at step `i` of the last block, decode step `step`, with the
/// reference.
void compare(const CacheSession& session, std::size_t h, std::int64_t i, std::size_t step,
             const HeadReference& held_to, bool keeps_mass, HeadSeries& series) {
  const auto d = static_cast<std::size_t>(session.place().head_dim);
  const std::span<const double> out = session.block_output(h, i);
  for (std::size_t g = 0; g * d < out.size(); ++g) {
    const std::size_t row = step * static_cast<std::size_t>(held_to.group) +
                            static_cast<std::size_t>(held_to.first_query) + g;
    const Drift error = drift(out.subspan(g * d, d), held_to.attention->out.data() + row * d);
    series.rel_error.push_back(static_cast<float>(error.rel_error));
    series.cosine.push_back(static_cast<float>(error.cosine));
    if (!held_to.retrieved.empty()) series.retrieved.push_back(held_to.retrieved[row]);
    if (!keeps_mass) continue;
    // A share cannot exceed 1, but the rounding of two sums of fp32 logits can.
    const double mass = std::exp(session.block_log_sum(h, i, static_cast<std::int32_t>(g)) -
                                 held_to.attention->log_sum[row]);
    series.retained_mass.push_back(static_cast<float>(std::min(mass, 1.0)));
  }
}

/// Returns K and V bytes that head `h` attended to: as counted by its store, otherwise by the size
/// law.
std::int64_t attended_bytes(const ComposedMethod& method, const CacheSession& session,
                            const StepEvents& events) {
  if (events.stored >= 0) return static_cast<std::int64_t>(events.stored);
  return method.parts()
      .store
      ->kv_bytes(static_cast<std::int64_t>(events.prompt),
                 static_cast<std::int64_t>(events.attended), session.place().head_dim,
                 method.parts().recorded)
      .count();
}

}  // namespace

void share_threads(CacheSession& session, std::int32_t threads) {
  session.set_parallel([threads](std::size_t count, const std::function<void(std::size_t)>& task) {
    parallel_for(count, threads, task);
  });
}

HeadVectors part_of(const HeadVectors& head, std::int32_t first, std::int32_t queries) {
  HeadVectors part = head;
  const auto row = static_cast<std::size_t>(head.tokens) * static_cast<std::size_t>(head.head_dim);
  part.q = head.q.subspan(static_cast<std::size_t>(first) * row,
                          static_cast<std::size_t>(queries) * row);
  part.group = queries;
  return part;
}

std::vector<HeadSeries> replay_session(const ComposedMethod& method, CacheSession& session,
                                       std::span<const HeadVectors> heads,
                                       std::span<const HeadReference> references,
                                       const StepSample& sample, bool want_kept, bool want_slots) {
  KVSIM_CHECK(heads.size() == session.size() && references.size() == heads.size(),
              "{} heads, {} references, a session of {}", heads.size(), references.size(),
              session.size());
  const auto group = static_cast<std::size_t>(heads.front().group);
  const auto steps = static_cast<std::size_t>(heads.front().tokens - heads.front().prompt);
  const bool keeps_mass = method.has_retained_mass();
  const HeadShape shape{
      .group = heads.front().group,
      .head_dim = heads.front().head_dim,
      .recorded = method.parts().recorded,
      .stored = method.parts().store_of(session.place().layer).dtype(method.parts().recorded)};
  std::vector<HeadSeries> all(heads.size());
  for (std::size_t h = 0; h < heads.size(); ++h) {
    HeadSeries& series = all[h];
    series.layer = session.place().layer;
    series.first_query = references[h].first_query;
    series.queries = heads[h].group;
    series.entries_after_prefill = session.entries(h).size();
    series.bytes_after_prefill = session.bytes(h);
    if (want_slots) series.slots_after_prefill = slots_of(session.kept(h), heads[h].prompt);
    series.costs.reserve(steps);
    series.rel_error.reserve(static_cast<std::size_t>(sample.size()) * group);
    series.cosine.reserve(static_cast<std::size_t>(sample.size()) * group);
  }
  for (std::size_t step = 0; step < steps;) {
    const auto first = static_cast<std::int64_t>(step);
    const bool measured = sample.measures(first);
    const std::int64_t block = session.start_block(sample.run_end(first) - first, measured);
    for (std::int64_t i = 0; i < block; ++i) {
      session.step();
      for (std::size_t h = 0; h < heads.size(); ++h) {
        const StepEvents& events = session.events(h);
        const StepTraffic traffic = method.head_traffic(session.place().layer, events, shape);
        all[h].costs.push_back({.held = session.entries(h).size(),
                                .attended = static_cast<std::int32_t>(events.attended),
                                .entries_read = events.read >= 0 ? events.read : events.attended,
                                .max_read = static_cast<std::int32_t>(session.max_read(h)),
                                .bytes = session.bytes(h),
                                .attended_bytes = attended_bytes(method, session, events),
                                .read = traffic.read(),
                                .written = traffic.written(),
                                .link = traffic.link_read + traffic.link_write +
                                        static_cast<double>(session.fetched(h).count()),
                                .extra_flops = traffic.extra_flops});
      }
    }
    for (std::size_t h = 0; measured && h < heads.size(); ++h) {
      for (std::int64_t i = 0; i < block; ++i) {
        compare(session, h, i, step + static_cast<std::size_t>(i), references[h], keeps_mass,
                all[h]);
      }
    }
    step += static_cast<std::size_t>(block);
  }
  for (std::size_t h = 0; h < heads.size(); ++h) all[h].why = session.why_kept(h);
  for (std::size_t h = 0; want_kept && h < heads.size(); ++h) all[h].kept = session.kept(h);
  for (std::size_t h = 0; want_slots && h < heads.size(); ++h) {
    all[h].slots = slots_of(session.kept(h), heads[h].tokens);
  }
  all.front().counts = session.counts();
  all.front().trip = session.tier_trip();
  all.front().prompt_outcome = session.prefill_outcome();
  return all;
}

std::vector<HeadSeries> replay_head(const ComposedMethod& method, std::int32_t layer,
                                    const HeadVectors& head, const CausalAttention& reference,
                                    PromptScores& group_scores, const Rope* rope, bool want_kept) {
  KVSIM_CHECK(head.prompt >= 1 && head.prompt <= head.tokens, "prompt {} of {} tokens", head.prompt,
              head.tokens);
  const auto entries = method.parts().budget->entries(layer);
  KVSIM_CHECK(method.decision_scope() == DecisionScope::kHead && entries && !method.needs_survey(),
              "\"{}\" is not decided head by head", method.name());
  const auto replay_one = [&](const HeadVectors& one, std::int32_t first_query,
                              PromptScores& scores) {
    CacheSession session{method,
                         {.layer = layer,
                          .n_layers = std::max(method.parts().n_layers, 1),
                          .first_head = 0,
                          .first_query_head = first_query,
                          .group = one.group,
                          .head_dim = one.head_dim,
                          .tokens = static_cast<std::int32_t>(one.tokens),
                          .scale = one.scale,
                          .seed = 0,
                          .rope = rope},
                         {one}};
    session.learn(scores);
    session.prefill(scores, {.entries = *entries});
    const HeadReference held_to{&reference, head.group, first_query};
    const StepSample all{head.tokens - head.prompt};
    return std::move(
        replay_session(method, session, {&one, 1}, {&held_to, 1}, all, want_kept).front());
  };
  std::vector<HeadSeries> all;
  if (!method.parts().query_head) {
    all.push_back(replay_one(head, 0, group_scores));
    return all;
  }
  for (std::int32_t g = 0; g < head.group; ++g) {
    const HeadVectors one = part_of(head, g, 1);
    PromptScores scores{one};
    all.push_back(replay_one(one, g, scores));
  }
  return all;
}

}  // namespace kvsim
