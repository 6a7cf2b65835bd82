#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "models/cost/compiled/compiled_graph.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "sim/batch/point/point_parts.hpp"
#include "sim/batch/score_chunks.hpp"
#include "sim/memory/pool.hpp"

namespace kvsim {
namespace {

GraphMetrics metrics_of(const OpGraph& graph, const Roofline& roofline, bool times) {
  const AlivePeak alive = graph.alive_peak();
  GraphMetrics out{
      .time = {},
      .alive = alive.bytes,
      .by_scores = graph.size() > 0 && graph.op(alive.at).family == OpFamily::kScorePass};
  if (times) out.time = evaluate(graph, roofline).time;
  return out;
}

/// Graphs of layers that differ only in the entries they keep of a prompt, if each layer has a
/// separate budget: copying the kept entries is linear in their number, the rest is equal. Kinds of
/// layers that keep all, few or nonlinear numbers have no form, nor do layers that compute only
/// their kept entries.
class KeptForms {
 public:
  /// Calls `graphs_of(in, column, kept)` with several kept < prompt. The run must outlive this
  /// object.
  template <class GraphsOf>
  KeptForms(const PointRun& run, const Roofline& roofline, GraphsOf&& graphs_of) : run_{run} {
    if (run.point->size_classes <= kFewClasses || !run.point->method->plain_rows()) return;
    for (const LayerClass& column : run.point->columns) {
      if (!prompt_part(run.in, column.first).is_whole()) return;
    }
    CostInput exact = run.in;
    exact.exact_sizes = true;
    for (const LayerClass& column : run.point->columns) {
      if (find(column) != nullptr) continue;
      const std::vector<std::int64_t> kept = numbers_kept(column);
      if (kept.size() < Form::kSamples) continue;
      std::vector<OpGraph> graphs = graphs_of(exact, column, kept);
      std::vector<Form::Sample> samples;
      samples.reserve(kept.size());
      for (std::size_t i = 0; i < kept.size(); ++i) {
        samples.push_back({.counts = {kept[i]}, .graph = std::move(graphs[i])});
      }
      const PointRows& rows = run.decode->rows[static_cast<std::size_t>(column.group)];
      forms_.push_back({.first_equal = column.first_equal,
                        .form = {*run.in.stack, roofline, samples},
                        .side_before = rows.side(run.prompt)});
    }
  }

  /// nullopt: evaluate the graph itself.
  [[nodiscard]] std::optional<GraphMetrics> at(const LayerClass& column, std::int64_t kept) const {
    const OfLayers* of = kept < run_.prompt ? find(column) : nullptr;
    if (of == nullptr || !of->form.is_linear()) return std::nullopt;
    Form::Side side{};
    if (of->form.has_side()) {
      const PointRows& rows = run_.decode->rows[static_cast<std::size_t>(column.group)];
      side = {.first = of->side_before, .later = rows.side(kept)};
    }
    return GraphMetrics{.time = of->form.time({kept}), .alive = of->form.alive_peak({kept}, side)};
  }

 private:
  using Form = CompiledGraph<1>;
  static constexpr std::int32_t kFewClasses = 4;
  struct OfLayers {
    std::int32_t first_equal = -1;
    Form form;
    Bytes side_before;  // of the whole prompt
  };

  /// Each kind is tried only once, linear or not.
  [[nodiscard]] const OfLayers* find(const LayerClass& column) const {
    for (const OfLayers& one : forms_) {
      if (one.first_equal == column.first_equal) return &one;
    }
    return nullptr;
  }
  /// Distinct numbers of kept entries below the prompt: the number that a form is built from, or
  /// all if there are fewer.
  [[nodiscard]] std::vector<std::int64_t> numbers_kept(const LayerClass& one) const {
    std::vector<std::int64_t> out;
    for (const LayerClass& column : run_.point->columns) {
      const std::int64_t kept = run_.trajectory->prompt_entries(column);
      if (column.first_equal != one.first_equal || kept >= run_.prompt) continue;
      if (std::find(out.begin(), out.end(), kept) == out.end()) out.push_back(kept);
      if (out.size() == Form::kSamples) break;
    }
    return out;
  }

  const PointRun& run_;
  std::vector<OfLayers> forms_;  // one per kind; few
};

}  // namespace

PrefillMetrics evaluate_prefill(const PointRun& run, const Roofline& roofline, bool times,
                                std::optional<Bytes> room) {
  const bool is_static = is_preallocated(*run.in.stack);
  const CostInput& in = run.in;
  const ResolvedPoint& point = *run.point;
  const std::int64_t prompt = run.prompt;
  const bool per_layer = point.method->prefill_peak() == PrefillPeak::kPerLayer;
  Bytes held;
  Bytes caches;  // among the bytes in use
  Bytes peak;
  Bytes cached;  // at the peak
  Seconds device;
  const auto note_peak = [&](Bytes total, Bytes its_caches) {
    if (total <= peak) return;
    peak = total;
    cached = its_caches;
  };
  const auto around = [&](const OpGraph& graph) {
    const GraphMetrics once = metrics_of(graph, roofline, times);
    note_peak(held + once.alive, caches);
    device += once.time;
  };
  around(embed_prompt(in, prompt));

  Bytes mask, embeddings;
  for (const Tensor& t : resident_tensors(in, prompt)) {
    (t.owner == Owner::kMask ? mask : embeddings) += t.bytes;
  }
  held += mask;
  struct Done {
    std::int32_t first_equal = -1;
    std::int64_t kept = 0;
    std::int64_t score_rows = 0;
    GraphMetrics once;
    Bytes cache;  // left after the layer
  };
  std::array<Done, 2> done;  // kinds of layers often alternate
  std::size_t oldest = 0;
  std::int64_t score_rows = prompt;
  std::optional<KeptForms> forms;
  if (per_layer && !room) {  // with limited room, layers also differ in their score rows
    forms.emplace(
        run, roofline,
        [&](const CostInput& exact, const LayerClass& column, std::span<const std::int64_t> kept) {
          return prefill_layers(exact, column.first, {.prompt = prompt, .score_rows = score_rows},
                                kept);
        });
  }
  const auto layer_at = [&](const LayerClass& column, std::int64_t kept) -> const Done& {
    for (const Done& d : done) {
      if (d.first_equal == column.first_equal && d.kept == kept && d.score_rows == score_rows)
        return d;
    }
    Done& d = done[std::exchange(oldest, 1 - oldest)];
    const PrefillState moment{.prompt = prompt, .kept = kept, .score_rows = score_rows};
    const auto known = forms ? forms->at(column, kept) : std::nullopt;
    d = {.first_equal = column.first_equal,
         .kept = kept,
         .score_rows = score_rows,
         .once =
             known ? *known : metrics_of(prefill_layer(in, column.first, moment), roofline, times),
         .cache = is_static ? Bytes{}
                            : run.decode->rows[static_cast<std::size_t>(column.group)].cache(
                                  per_layer ? kept : prompt)};
    return d;
  };
  bool compresses = false;
  for (const LayerClass& column : point.columns) {
    const std::int64_t kept = run.trajectory->prompt_entries(column);
    compresses = compresses || (!per_layer && kept != prompt);
    const Done* d = &layer_at(column, kept);
    for (std::int32_t l = column.first; l < column.first + column.count; ++l) {
      // In the first layer the embeddings are the layer's own input.
      if (l == 1) held += embeddings;
      while (room && held + d->once.alive > *room && d->once.by_scores && score_rows > 1) {
        score_rows = fewer_score_rows(score_rows);
        d = &layer_at(column, kept);
      }
      note_peak(held + d->once.alive, caches + d->cache);  // the layer's own cache is in its
                                                           // graph
      held += d->cache;
      caches += d->cache;
      device += d->once.time;
    }
  }
  around(output_logits(in, prompt));
  held = held - mask - (in.llm->n_layers() > 1 ? embeddings : Bytes{});

  if (compresses) {
    forms.emplace(
        run, roofline,
        [&](const CostInput& exact, const LayerClass& column, std::span<const std::int64_t> kept) {
          std::vector<OpGraph> graphs;
          graphs.reserve(kept.size());
          for (const std::int64_t n : kept) {
            graphs.push_back(compress_layer(exact, column.first, prompt, n));
          }
          return graphs;
        });
  }
  for (const LayerClass& column : point.columns) {
    const std::int64_t kept = run.trajectory->prompt_entries(column);
    if (!compresses || kept == prompt) continue;
    const auto known = forms->at(column, kept);
    const GraphMetrics once =
        known ? *known
              : metrics_of(compress_layer(in, column.first, prompt, kept), roofline, times);
    const PointRows& rows = run.decode->rows[static_cast<std::size_t>(column.group)];
    const Bytes before = is_static ? Bytes{} : rows.cache(prompt);
    const Bytes after = is_static ? Bytes{} : rows.cache(kept);
    for (std::int32_t l = 0; l < column.count; ++l) {
      note_peak(held - before + once.alive, caches);
      held += after - before;
      caches += after - before;
    }
    device += once.time * static_cast<double>(column.count);
  }
  PrefillMetrics out{.peak = peak, .cached = cached, .time = std::nullopt};
  if (times) {
    device = device * prefill_passes(in, prompt, point.groups);
    out.time = std::max(device, host_time(in, false)) + inter_step_overhead(in);
  }
  return out;
}

PlacedCaches placed_caches(const PointRun& run, std::int64_t end) {
  PlacedCaches sum;
  for (const LayerClass& column : run.point->columns) {
    const std::int64_t max = std::max(run.trajectory->prompt_entries(column),
                                      held_entries(run.in, column.first, run.prompt, end));
    sum.caches +=
        run.decode->rows[static_cast<std::size_t>(column.group)].cache(max) * column.count;
    sum.prompts += prompt_rows_beyond(run.in, column.first, run.prompt, max) * column.count;
  }
  return sum;
}

}  // namespace kvsim
