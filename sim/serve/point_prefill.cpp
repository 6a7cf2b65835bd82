#include <algorithm>
#include <array>
#include <utility>

#include "sim/serve/point_parts.hpp"
#include "sim/serve/score_chunks.hpp"

namespace kvsim {
namespace {

GraphFigures figures_of(const OpGraph& graph, const Roofline& roofline, bool times) {
  const AlivePeak alive = graph.alive_peak();
  GraphFigures out{
      .time = {},
      .alive = alive.bytes,
      .by_scores = graph.size() > 0 && graph.op(alive.at).family == OpFamily::kScorePass};
  if (times) out.time = evaluate(graph, roofline).time;
  return out;
}

}  // namespace

PrefillFigures evaluate_prefill(const PointRun& run, const Roofline& roofline, bool times,
                                std::optional<Bytes> room) {
  const bool is_static = is_preallocated(*run.in.stack);
  const CostInput& in = run.in;
  const PointLaw& law = *run.law;
  const std::int64_t prompt = run.prompt;
  const bool per_layer = law.method->prefill_peak() == PrefillPeak::kPerLayer;
  Bytes standing;
  Bytes peak;
  Seconds device;
  const auto around = [&](const OpGraph& graph) {
    const GraphFigures once = figures_of(graph, roofline, times);
    peak = std::max(peak, standing + once.alive);
    device += once.time;
  };
  around(embed_tokens(in, prompt));

  Bytes mask, embeddings;
  for (const Tensor& t : resident_tensors(in, prompt)) {
    (t.owner == Owner::kMask ? mask : embeddings) += t.bytes;
  }
  standing += mask;
  struct Done {
    std::int32_t like = -1;
    std::int64_t kept = 0;
    std::int64_t score_rows = 0;
    GraphFigures once;
    Bytes cache;  // left after the layer
  };
  std::array<Done, 2> done;  // kinds of layers often alternate
  std::size_t oldest = 0;
  std::int64_t score_rows = prompt;
  const auto layer_at = [&](const LayerColumn& column, std::int64_t kept) -> const Done& {
    for (const Done& d : done) {
      if (d.like == column.like && d.kept == kept && d.score_rows == score_rows) return d;
    }
    Done& d = done[std::exchange(oldest, 1 - oldest)];
    const PrefillMoment moment{.prompt = prompt, .kept = kept, .score_rows = score_rows};
    d = {.like = column.like,
         .kept = kept,
         .score_rows = score_rows,
         .once = figures_of(prefill_layer(in, column.first, moment), roofline, times),
         .cache = is_static ? Bytes{}
                            : run.rows[static_cast<std::size_t>(column.group)]
                                  .cache(per_layer ? kept : prompt)
                                  .total()};
    return d;
  };
  bool compresses = false;
  for (const LayerColumn& column : law.columns) {
    const std::int64_t kept = run.trajectory->prompt_entries(column);
    compresses = compresses || (!per_layer && kept != prompt);
    const Done* d = &layer_at(column, kept);
    for (std::int32_t l = column.first; l < column.first + column.count; ++l) {
      // In the first layer the embeddings are the layer's own input.
      if (l == 1) standing += embeddings;
      while (room && standing + d->once.alive > *room && d->once.by_scores && score_rows > 1) {
        score_rows = fewer_score_rows(score_rows);
        d = &layer_at(column, kept);
      }
      peak = std::max(peak, standing + d->once.alive);
      standing += d->cache;
      device += d->once.time;
    }
  }
  around(output_logits(in, prompt));
  standing = standing - mask - (in.llm->n_layers() > 1 ? embeddings : Bytes{});

  for (const LayerColumn& column : law.columns) {
    const std::int64_t kept = run.trajectory->prompt_entries(column);
    if (!compresses || kept == prompt) continue;
    const GraphFigures once =
        figures_of(compress_layer(in, column.first, prompt, kept), roofline, times);
    const CacheRows& rows = run.rows[static_cast<std::size_t>(column.group)];
    const Bytes before = is_static ? Bytes{} : rows.cache(prompt).total();
    const Bytes after = is_static ? Bytes{} : rows.cache(kept).total();
    for (std::int32_t l = 0; l < column.count; ++l) {
      peak = std::max(peak, standing - before + once.alive);
      standing += after - before;
    }
    device += once.time * static_cast<double>(column.count);
  }
  PrefillFigures out{.peak = peak, .time = std::nullopt};
  if (times) {
    device = device * prefill_passes(in, prompt, law.groups);
    out.time = std::max(device, host_time(in, false)) + between_steps(in);
  }
  return out;
}

}  // namespace kvsim
