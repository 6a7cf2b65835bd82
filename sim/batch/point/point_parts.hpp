#pragma once

// Data that compiled_point.cpp caches per method and batch size, and for the last run.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "models/cost/cache_rows.hpp"
#include "models/cost/compiled/compiled.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/cost/step.hpp"
#include "sim/batch/point/decode_segments.hpp"
#include "sim/batch/point/recently_used.hpp"
#include "sim/batch/point/step_sum.hpp"

namespace kvsim {

/// The time of one graph, and the peak of its tensors.
struct GraphMetrics {
  Seconds time;
  Bytes alive;
  bool by_scores = false;  // whether the peak is at the method's scores
};

/// A prefill: its peak minus the bytes allocated at load, and its time if requested.
struct PrefillMetrics {
  Bytes peak;
  Bytes cached;  // the part of the peak that is cache of layers
  std::optional<Seconds> time;
};

/// The cache of one group's layers.
class PointRows {
 public:
  PointRows(const CostInput& in, std::int32_t layer) : in_{in}, rows_{in, layer} {
    rows_.fit_side_bytes();
  }

  [[nodiscard]] Bytes cache(std::int64_t entries) const { return rows_.cache(entries).total(); }
  [[nodiscard]] Bytes side(std::int64_t entries) const {  // as charged
    return allocator_rounded(in_, rows_.side(entries));
  }
  [[nodiscard]] Bytes cache_after_step(const DecodeState& moment) const {
    return rows_.cache_after_step(moment).total();
  }

 private:
  const CostInput& in_;
  CacheRows rows_;
};

/// Adjacent layers of one step with the same operations.
struct StepLayers {
  std::int32_t group = 0;
  std::int32_t first_equal = 0;  // of each group, the first equal one
  std::int64_t layers = 0;
  DecodeState moment{};

  [[nodiscard]] bool same_work_as(const StepLayers& other) const {
    return first_equal == other.first_equal && moment == other.moment;
  }
};

/// All decode steps of one batch size.
class DecodeForms {
 public:
  DecodeForms(const CostInput& input, const Roofline& roofline, const DecodeEnds& ends,
              const std::vector<LayerGroup>& groups)
      : in{input}, compiled{in, roofline, ends, groups}, roofline_{roofline} {
    for (const Tensor& t : resident_tensors(in, 1)) resident += t.bytes;
    write_rows();
    between = inter_step_overhead(in);
  }
  DecodeForms(const DecodeForms&) = delete;
  DecodeForms& operator=(const DecodeForms&) = delete;

  /// Formats other than plain rows store a prompt's entries separately: subsequent calls use this
  /// prompt.
  void serve(std::int64_t prompt) {
    if (in.prompt == prompt && !rows.empty()) return;
    in.prompt = prompt;
    write_rows();
    graphs_.clear();
  }

  /// One layer's step, by its compiled form or by its graph.
  [[nodiscard]] Seconds time(const StepLayers& step, bool by_graph) {
    return by_graph ? on_graph(step, true).time : form_of(step).time(step.moment);
  }
  [[nodiscard]] Bytes alive(const StepLayers& step, bool by_graph) {
    if (by_graph) return on_graph(step, true).alive;
    const CompiledLayer& form = form_of(step);
    return form.is_linear() ? form.alive_peak(step.moment) : on_graph(step, false).alive;
  }

  CostInput in;
  CompiledDecode compiled;
  Bytes resident;
  std::vector<PointRows> rows;  // by group
  Seconds between;

 private:
  struct LayerKey {
    std::int32_t first_equal = 0;
    DecodeState moment{};
    bool timed = false;
    friend bool operator==(const LayerKey&, const LayerKey&) = default;
  };
  const CompiledLayer& form_of(const StepLayers& step) {
    return compiled.layer(static_cast<std::size_t>(step.group), step.moment);
  }
  const GraphMetrics& on_graph(const StepLayers& step, bool timed) {
    return graphs_.at({step.first_equal, step.moment, timed}, [&] {
      const auto like = static_cast<std::size_t>(step.first_equal);
      const OpGraph graph = decode_layer(in, compiled.groups()[like].first, step.moment);
      return GraphMetrics{.time = timed ? evaluate(graph, roofline_).time : Seconds{},
                          .alive = graph.alive_peak().bytes};
    });
  }

  void write_rows() {
    const std::vector<LayerGroup>& groups = compiled.groups();
    rows.clear();
    rows.reserve(groups.size());
    for (const LayerGroup& group : groups) rows.emplace_back(in, group.first);
  }

  const Roofline& roofline_;
  // Kinds of layers often alternate, and all runs of a prompt begin with the same step.
  RecentlyUsed<LayerKey, GraphMetrics, 8> graphs_;
};

/// A method resolved for some prompts, and the data derived from it.
struct ResolvedPoint {
  std::shared_ptr<const Method> method;
  std::vector<LayerGroup> groups;
  std::vector<LayerClass> columns;
  std::int32_t size_classes = 0;  // of the columns
  std::map<std::pair<std::int64_t, std::int64_t>, DecodeSegments>
      trajectories;                           // (prompt, allocated)
  std::map<std::int64_t, DecodeForms> forms;  // decode steps by batch size
};

/// Times by (step, by_graph): runs of one prompt share their first step; sums and results use the
/// same last step.
using StepTimes = RecentlyUsed<std::pair<std::int64_t, bool>, Seconds, 8>;

/// One (batch, prompt), without its output.
struct PointRun {
  ResolvedPoint* point = nullptr;
  std::int64_t batch = 0;
  std::int64_t prompt = 0;
  std::int64_t allocated = 0;
  CostInput in;
  std::optional<PrefillMetrics> prefill;  // with full score matrices
  struct Retried {
    Bytes room;
    PrefillMetrics metrics;
  };
  std::optional<Retried> retried;  // with smaller ones if only those fit
  DecodeSegments* trajectory = nullptr;
  DecodeForms* decode = nullptr;
  std::int64_t now = 0;            // the step evaluated last; 0: none
  std::vector<StepLayers> layers;  // of step `now`
  StepTimes times;
  // Over all steps before the trajectory's n-th segment, as far as they were evaluated.
  std::vector<Bytes> peaks;  // minus the bytes allocated at load
  std::vector<StepSum> sums;
};

/// Evaluates the run's prefill, and its time if requested, as StaticRun does but without its
/// report. Score matrices are allocated whole or, if `room` is given, in the number of query rows
/// at which its retries end.
[[nodiscard]] PrefillMetrics evaluate_prefill(const PointRun& run, const Roofline& roofline,
                                              bool times, std::optional<Bytes> room = std::nullopt);

/// A cache that is allocated at the start, with room for the maximum length of each layer: sizes
/// grow until token `end` or until they reach a budget.
struct PlacedCaches {
  Bytes caches;
  Bytes prompts;  // rows of prompts that are not compressed yet, beyond `caches`
};
[[nodiscard]] PlacedCaches placed_caches(const PointRun& run, std::int64_t end);

}  // namespace kvsim
