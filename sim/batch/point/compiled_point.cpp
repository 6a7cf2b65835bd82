#include "sim/batch/point/compiled_point.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/cost/layer/dealt.hpp"
#include "models/cost/layer/split_prompt.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/cost/step.hpp"
#include "models/methods/resolve/masked.hpp"
#include "models/units/check.hpp"
#include "sim/batch/point/decode_segments.hpp"
#include "sim/batch/point/largest.hpp"
#include "sim/batch/point/point_parts.hpp"
#include "sim/batch/point/step_sum.hpp"
#include "sim/memory/vllm_startup.hpp"
#include "sim/network/expert_network.hpp"

namespace kvsim {
namespace {

constexpr std::string_view kKernels =
    "fitted kernel times are not linear in the cache's length: decode steps are summed by "
    "quadrature";
constexpr std::string_view kFormat =
    "sizes of the method's format increase in steps: decode steps are summed by quadrature";
constexpr std::string_view kSplit = "each GPU holds different layers";
constexpr std::string_view kRetries =
    "the method prefills in smaller score chunks when memory is short";

// Limit of the results kept for earlier prompts and batch sizes; beyond it all of a kind are
// dropped.
constexpr std::size_t kMaxKept = 4096;

// Runs of up to this many steps are evaluated on their graphs; a compiled form is built from more.
constexpr std::int64_t kFewSteps = 2;

}  // namespace

struct CompiledPoint::Impl {
  explicit Impl(PointSpec spec);

  PointResult evaluate(const Point& point, bool times);
  /// evaluate(), with the result's `demand_ratio` set.
  PointResult evaluate_demand(const Point& point, bool times);
  PointStep step_at(std::int64_t batch, std::int64_t prompt, std::int64_t step);

 private:
  ResolvedPoint& point_of(std::int64_t prompt);
  /// Whether a few steps are cheaper on their graphs: if compiled forms serve only one prompt.
  [[nodiscard]] bool by_graphs(const ResolvedPoint& point) const { return point.size_classes <= 2; }
  PointRun& run_of(std::int64_t batch, std::int64_t prompt, std::int64_t allocated);
  const DecodeEnds& ends_of(const PointRun& run);
  [[nodiscard]] const std::vector<StepLayers>& layers_at(PointRun& run, std::size_t segment,
                                                         std::int64_t step) const;
  template <class Each>
  static void visit(const std::vector<StepLayers>& layers, Each&& each);
  [[nodiscard]] Seconds step_time(PointRun& run, std::size_t segment, std::int64_t step,
                                  bool by_graph) const;
  [[nodiscard]] Bytes step_peak(PointRun& run, std::size_t segment, std::int64_t step,
                                bool by_graph) const;
  [[nodiscard]] StepSum sum(PointRun& run, std::size_t segment, std::int64_t last) const;
  /// Over steps 1 to `last`, which is in `segment`.
  [[nodiscard]] Bytes peak_to(PointRun& run, std::size_t segment, std::int64_t last) const;
  [[nodiscard]] StepSum sum_to(PointRun& run, std::size_t segment, std::int64_t last) const;
  [[nodiscard]] Bytes cache_at(const PointRun& run, std::int64_t step) const;
  struct Pool {
    const ResolvedPoint* point = nullptr;
    std::int64_t tokens = -1;
    Bytes cache;
    Bytes limit;              // of all bytes that a run holds
    double demand_ratio = 0;  // of the start-up only
    bool starts = true;
  };
  [[nodiscard]] const Pool& pool(const PointRun& run, std::int64_t run_tokens);
  /// run_static for the point on a GPU with `safety_margin` less memory.
  [[nodiscard]] PointResult simulate(const Point& point, const PointRun& run, Bytes safety_margin,
                                     std::string_view why) const;
  [[nodiscard]] bool splits() const {
    return spec_.stack->splits_layers && spec_.tensor_parallel > 1;
  }

  PointSpec spec_;
  Llm llm_;      // of one GPU
  Stack stack_;  // as set by the spec
  Calibration calibration_;
  Roofline roofline_;
  CostInput base_;
  Bytes usable_;
  Bytes outside_;  // part of load: context and weights
  bool is_static_;
  // Both are only looked up, never iterated.
  std::unordered_map<const Method*, std::unique_ptr<ResolvedPoint>> points_;
  std::unordered_map<std::int64_t, ResolvedPoint*> point_of_prompt_;
  std::unordered_map<std::int64_t, DecodeEnds> ends_;  // by batch size
  PointRun run_;
  Pool pool_;
  // Per layer of one step; a member to reuse its memory.
  struct LayerMemory {
    Bytes alive, before, growth;
  };
  mutable std::vector<Seconds> times_;
  mutable std::vector<LayerMemory> layer_memory_;
};

CompiledPoint::Impl::Impl(PointSpec spec)
    : spec_{std::move(spec)},
      llm_{tensor_shard(*spec_.llm, tensor_ranks(*spec_.stack, spec_.tensor_parallel),
                        spec_.options.context_parallel.value_or(1))},
      stack_{with_expert_network(
          with_options(*spec_.stack, spec_.options, {spec_.gpu, spec_.llm, spec_.tensor_parallel}),
          *spec_.gpu)},
      calibration_{spec_.calibration != nullptr ? *spec_.calibration : Calibration{}},
      roofline_{*spec_.gpu, stack_, calibration_},
      base_{.llm = &llm_,
            .stack = &stack_,
            .weight_dtype = spec_.weight_dtype,
            .kv_dtype = spec_.kv_dtype,
            .weight_format = spec_.weight_format,
            .tensor_parallel = tensor_ranks(*spec_.stack, spec_.tensor_parallel),
            .vocab_size = spec_.llm->vocab_size,
            .hand_overs = splits() ? spec_.tensor_parallel : 0,
            .measured_weights = spec_.options.weights},
      usable_{fraction_bytes(stack_, spec_.gpu->hbm_usable)},
      outside_{weights_held(base_)},
      is_static_{is_preallocated(stack_)} {
  for (const OffloadedBytes& part : offloaded_bytes(base_)) outside_ += part.bytes;
  roofline_.remember_calls();
}

ResolvedPoint& CompiledPoint::Impl::point_of(std::int64_t prompt) {
  if (const auto known = point_of_prompt_.find(prompt); known != point_of_prompt_.end()) {
    return *known->second;
  }
  if (point_of_prompt_.size() > kMaxKept) {
    point_of_prompt_.clear();
    points_.clear();
    run_ = {};
    pool_ = {};
  }
  std::shared_ptr<const Method> method = spec_.method(prompt);
  KVSIM_CHECK(method != nullptr, "no method for a prompt of {} tokens", prompt);
  check_dealt(stack_, llm_, *method, spec_.kv_dtype);
  check_split_prompts(stack_, llm_, *method);
  if (stack_.masks_evicted) method = masked(std::move(method));
  std::unique_ptr<ResolvedPoint>& point = points_[method.get()];
  if (!point) {
    point = std::make_unique<ResolvedPoint>();
    point->groups = layer_groups(llm_, *method);
    point->columns = layer_columns(point->groups, method->has_equal_layers());
    for (const LayerClass& c : point->columns)
      point->size_classes = std::max(point->size_classes, c.size_class + 1);
    point->method = std::move(method);
  }
  point_of_prompt_[prompt] = point.get();
  return *point;
}

PointRun& CompiledPoint::Impl::run_of(std::int64_t batch, std::int64_t prompt,
                                      std::int64_t allocated) {
  if (run_.point != nullptr && run_.batch == batch && run_.prompt == prompt &&
      run_.allocated == allocated) {
    return run_;
  }
  ResolvedPoint& point = point_of(prompt);
  run_.point = nullptr;  // no run if resolving the point throws
  run_.batch = batch;
  run_.prompt = prompt;
  run_.allocated = allocated;
  run_.in = base_;
  run_.in.method = point.method.get();
  run_.in.batch = batch;
  run_.in.prompt = prompt;
  run_.in.allocated = allocated;
  run_.prefill.reset();
  run_.retried.reset();
  run_.now = 0;
  run_.times.clear();
  run_.peaks.clear();
  run_.sums.clear();

  if (point.trajectories.size() > kMaxKept) point.trajectories.clear();
  const std::int64_t attended = stack_.attends_allocated ? allocated : 0;
  run_.trajectory = &point.trajectories
                         .try_emplace({prompt, attended}, run_.in, point.columns, prompt,
                                      DecodeSegments::Lines::kOfFormat)
                         .first->second;
  if (point.forms.size() > kMaxKept) point.forms.clear();
  run_.decode = &point.forms.try_emplace(batch, run_.in, roofline_, ends_of(run_), point.groups)
                     .first->second;
  if (!point.method->plain_rows()) run_.decode->serve(prompt);
  run_.point = &point;
  return run_;
}

const DecodeEnds& CompiledPoint::Impl::ends_of(const PointRun& run) {
  const auto known = ends_.find(run.batch);
  if (known != ends_.end()) return known->second;
  if (ends_.size() > kMaxKept) ends_.clear();
  return ends_[run.batch] = decode_ends(run.in, roofline_);
}

const std::vector<StepLayers>& CompiledPoint::Impl::layers_at(PointRun& run, std::size_t segment,
                                                              std::int64_t step) const {
  std::vector<StepLayers>& all = run.layers;
  if (run.now == step) return all;
  run.now = step;
  all.clear();
  for (const LayerClass& column : run.point->columns) {
    const DecodeState moment = run.trajectory->moment(segment, column, step);
    if (!all.empty() && all.back().group == column.group && all.back().moment == moment) {
      all.back().layers += column.count;
    } else {
      all.push_back({.group = column.group,
                     .first_equal = column.first_equal,
                     .layers = column.count,
                     .moment = moment});
    }
  }
  KVSIM_CHECK(!all.empty(), "a model without layers");
  return all;
}

/// Calls `each(index, as)` for all of a step's layers. `as` is the index of an earlier equal entry,
/// or `index` itself. Kinds of layers often alternate, so the last two are compared.
template <class Each>
void CompiledPoint::Impl::visit(const std::vector<StepLayers>& layers, Each&& each) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    std::size_t known = i;
    for (std::size_t back = 1; back <= std::min<std::size_t>(i, 2) && known == i; ++back) {
      if (layers[i - back].same_work_as(layers[i])) known = i - back;
    }
    each(i, known);
  }
}

Seconds CompiledPoint::Impl::step_time(PointRun& run, std::size_t segment, std::int64_t step,
                                       bool by_graph) const {
  return run.times.at({step, by_graph}, [&] {
    DecodeForms& decode = *run.decode;
    const auto& layers = layers_at(run, segment, step);
    times_.resize(layers.size());
    Seconds device = decode.compiled.around().time;
    visit(layers, [&](std::size_t i, std::size_t as) {
      const StepLayers& equal_layers = layers[i];
      times_[i] = as < i ? times_[as] : decode.time(equal_layers, by_graph);
      device += times_[i] * static_cast<double>(equal_layers.layers);
    });
    return std::max(device, decode.compiled.host()) + decode.between;
  });
}

/// As StaticRun's decode_one: the highest use within a step, minus the bytes allocated at load.
Bytes CompiledPoint::Impl::step_peak(PointRun& run, std::size_t segment, std::int64_t step,
                                     bool by_graph) const {
  DecodeForms& decode = *run.decode;
  const auto& layers = layers_at(run, segment, step);
  layer_memory_.resize(layers.size());
  Bytes held = decode.resident;
  visit(layers, [&](std::size_t i, std::size_t as) {
    const StepLayers& equal_layers = layers[i];
    LayerMemory& s = layer_memory_[i];
    if (as < i) {
      s = layer_memory_[as];
    } else {
      const PointRows& rows = decode.rows[static_cast<std::size_t>(equal_layers.group)];
      s = {.alive = decode.alive(equal_layers, by_graph),
           .before = {},
           .growth = rows.cache_after_step(equal_layers.moment)};
      if (!is_static_) {
        s.before = rows.cache(equal_layers.moment.before);
        s.growth += rows.cache(equal_layers.moment.after) - s.before;
      }
    }
    held += s.before * equal_layers.layers;
  });
  Bytes peak;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerMemory& s = layer_memory_[i];
    // If caches grow, the last layer has the peak, else the first.
    const std::int64_t highest = s.growth > Bytes{} ? layers[i].layers - 1 : 0;
    peak = std::max(peak, held - s.before + s.growth * highest + s.alive);
    held += s.growth * layers[i].layers;
  }
  return std::max(peak, held + decode.compiled.around_peak());
}

StepSum CompiledPoint::Impl::sum(PointRun& run, std::size_t segment, std::int64_t last) const {
  const std::int64_t first = run.trajectory->segments()[segment].first;
  StepCurve shape = StepCurve::kConvex;
  const CompiledLayer* seen = nullptr;
  for (const StepLayers& equal_layers : layers_at(run, segment, first)) {
    const CompiledLayer& layer = run.decode->compiled.layer(
        static_cast<std::size_t>(equal_layers.group), equal_layers.moment);
    if (&layer == std::exchange(seen, &layer)) continue;
    if (!layer.is_linear()) {
      // Formats other than plain rows have segments along lines or stairs, and no fitted kernels.
      shape = run.point->method->plain_rows()              ? StepCurve::kAny
              : run.trajectory->segments()[segment].stairs ? StepCurve::kSmooth
                                                           : StepCurve::kRounded;
    } else if (!layer.is_convex() && shape == StepCurve::kConvex) {
      shape = StepCurve::kSmooth;
    }
  }
  return integrate_steps(first, last, shape, [&](std::int64_t step) {
    return step_time(run, segment, step, false).count();
  });
}

Bytes CompiledPoint::Impl::peak_to(PointRun& run, std::size_t segment, std::int64_t last) const {
  // Along a segment no tensor shrinks.
  if (run.peaks.empty()) run.peaks.emplace_back();
  while (run.peaks.size() <= segment) {
    const std::size_t next = run.peaks.size() - 1;
    run.peaks.push_back(std::max(
        run.peaks.back(), step_peak(run, next, run.trajectory->segments()[next].last, false)));
  }
  return std::max(run.peaks[segment], step_peak(run, segment, last, false));
}

StepSum CompiledPoint::Impl::sum_to(PointRun& run, std::size_t segment, std::int64_t last) const {
  const auto both = [](const StepSum& a, const StepSum& b) {
    return StepSum{.sum = a.sum + b.sum, .exact = a.exact && b.exact};
  };
  if (run.sums.empty()) run.sums.emplace_back();
  while (run.sums.size() <= segment) {
    const std::size_t next = run.sums.size() - 1;
    run.sums.push_back(
        both(run.sums.back(), sum(run, next, run.trajectory->segments()[next].last)));
  }
  return both(run.sums[segment], sum(run, segment, last));
}

Bytes CompiledPoint::Impl::cache_at(const PointRun& run, std::int64_t step) const {
  Bytes sum;
  const std::vector<LayerClass>& columns = run.point->columns;
  const std::size_t segment = step > 0 ? run.trajectory->segment_of(step) : 0;
  for (const LayerClass& column : columns) {
    const std::int64_t entries = step > 0 ? run.trajectory->moment(segment, column, step).after
                                          : run.trajectory->prompt_entries(column);
    sum += run.decode->rows[static_cast<std::size_t>(column.group)].cache(entries) * column.count;
  }
  return sum;
}

const CompiledPoint::Impl::Pool& CompiledPoint::Impl::pool(const PointRun& run,
                                                           std::int64_t run_tokens) {
  const std::int64_t tokens = stack_.prefill_chunk > 0 || stack_.max_model_len > 0 ? 0 : run_tokens;
  if (pool_.point != run.point || pool_.tokens != tokens) {
    const EngineStartup start =
        engine_startup(run.in, spec_.gpu->hbm_usable, run_tokens, spec_.options);
    pool_ = {.point = run.point,
             .tokens = tokens,
             .cache = start.kv_cache,
             .limit = start.limit(),
             .demand_ratio = start.demand_ratio(),
             .starts = start.missing == Bytes{} && start.graphs <= start.graphs_room()};
  }
  return pool_;
}

PointResult CompiledPoint::Impl::simulate(const Point& point, const PointRun& run,
                                          Bytes safety_margin, std::string_view why) const {
  Gpu gpu = *spec_.gpu;
  reduce_memory(gpu, stack_, safety_margin);
  const StaticResult full = run_static({.llm = spec_.llm,
                                        .gpu = &gpu,
                                        .stack = spec_.stack,
                                        .method = run.point->method,
                                        .weight_dtype = spec_.weight_dtype,
                                        .kv_dtype = spec_.kv_dtype,
                                        .batch = point.batch,
                                        .prompt_tokens = point.prompt_tokens,
                                        .output_tokens = point.output_tokens,
                                        .calibration = spec_.calibration,
                                        .weight_format = spec_.weight_format,
                                        .tensor_parallel = spec_.tensor_parallel,
                                        .options = spec_.options});
  PointResult out{.fits = !full.oom,
                  .usable = full.usable_hbm,
                  .prefill_peak = full.prefill_peak,
                  .decode_peak = full.decode_peak,
                  .kv_bytes = full.kv_bytes,
                  .uncompressed = {},
                  .activations = activations_of(stack_, full.peak_owners),
                  .times = std::nullopt,
                  .approximation_reason = {},
                  .fallback_reason = why};
  if (out.fits) {
    out.times =
        PointTimes{.prefill = *full.prefill_time,
                   .last_step = point.output_tokens > 0 ? full.timeline.back().time : Seconds{},
                   .decode = *full.decode_time,
                   .tok_s = full.throughput_tok_s.value_or(0)};
  }
  return out;
}

PointResult CompiledPoint::Impl::evaluate_demand(const Point& point, bool times) {
  PointResult out = evaluate(point, times);
  const auto of = [](Bytes bytes) { return static_cast<double>(bytes.count()); };
  out.demand_ratio = out.usable > Bytes{} ? of(out.peak()) / of(out.usable)
                                          : std::numeric_limits<double>::infinity();
  if (stack_.growth == CacheGrowth::kPaged) {
    if (!pool_.starts && !out.fits)
      out.demand_ratio = std::max(out.demand_ratio, pool_.demand_ratio);
    if (pool_.cache > Bytes{})
      out.demand_ratio =
          std::max(out.demand_ratio, of(out.kv_bytes + out.uncompressed) / of(pool_.cache));
  }
  if (!out.fits) out.demand_ratio = std::max(out.demand_ratio, std::nextafter(1.0, 2.0));
  return out;
}

PointResult CompiledPoint::Impl::evaluate(const Point& point, bool times) {
  const auto& [batch, prompt, output] = point;
  KVSIM_CHECK(batch >= 1 && prompt >= 1 && output >= 0,
              "batch {} and prompt {} at least 1, output {} at least 0", batch, prompt, output);
  const std::int64_t end =
      std::max(prompt + output, stack_.growth == CacheGrowth::kStatic ? stack_.max_model_len : 0);
  const bool by_end = stack_.growth == CacheGrowth::kStatic && stack_.attends_allocated;
  PointRun& run = run_of(batch, prompt, by_end ? end : 0);
  if (splits()) {
    PointResult out = simulate(point, run, {}, kSplit);
    const Bytes beyond = beyond_prediction(spec_.memory, out.activations);
    if (beyond != Bytes{}) out = simulate(point, run, beyond, kSplit);
    if (!times) out.times.reset();
    return out;
  }

  if (!run.prefill || (times && !run.prefill->time)) {
    run.prefill = evaluate_prefill(run, roofline_, times);
  }
  PrefillMetrics prefill = *run.prefill;

  Bytes load = outside_;
  if (stack_.full_causal_mask) load += full_mask_bytes(run.in, end);
  const PlacedCaches of_step = is_static_ ? placed_caches(run, end) : PlacedCaches{};
  const Bytes placed = of_step.caches, prompts = of_step.prompts;
  load += placed;

  Bytes usable = usable_;
  bool blocks_suffice = true;
  if (stack_.growth == CacheGrowth::kPaged) {
    const Pool& of_engine = pool(run, prompt + output);
    usable = of_engine.limit;
    blocks_suffice = of_engine.starts && placed + prompts <= of_engine.cache;
  }
  PointResult out{.fits = blocks_suffice,
                  .usable = usable,
                  .prefill_peak = load + prompts + prefill.peak,
                  .decode_peak = {},
                  .kv_bytes = {},
                  .uncompressed = prompts,
                  .activations = {},
                  .times = std::nullopt,
                  .approximation_reason = {},
                  .fallback_reason = {}};
  // For a phase's peak: the bytes that are not cache, and the bytes at the memory end beyond the
  // prediction.
  const auto activations = [&](Bytes peak, Bytes cached) {
    return std::max(Bytes{}, peak - (is_static_ ? Bytes{} : cached));
  };
  const auto beyond = [&](Bytes its_activations) {
    return stack_.growth == CacheGrowth::kPaged ? Bytes{}
                                                : beyond_prediction(spec_.memory, its_activations);
  };
  Bytes safety_margin = beyond(activations(prefill.peak, prefill.cached));
  // Only a full simulation determines the metrics up to a refusal.
  const auto simulated = [&] {
    PointResult full = simulate(point, run, safety_margin, kRetries);
    full.uncompressed = prompts;
    if (!times) full.times.reset();
    return full;
  };
  const bool retries = out.fits && out.prefill_peak + safety_margin > usable &&
                       run.point->method->needs().retries_smaller_chunks;
  if (retries) {
    const auto within = [&](Bytes room) -> const PrefillMetrics& {
      if (!run.retried || run.retried->room != room || (times && !run.retried->metrics.time)) {
        run.retried = {.room = room, .metrics = evaluate_prefill(run, roofline_, times, room)};
      }
      return run.retried->metrics;
    };
    // The memory end is that of the chunks that fit into the predicted room.
    const PrefillMetrics& chunked = within(usable - load - prompts);
    safety_margin = beyond(activations(chunked.peak, chunked.cached));
    prefill = within(usable - safety_margin - load - prompts);
    out.prefill_peak = load + prompts + prefill.peak;
    if (out.prefill_peak + safety_margin > usable) return simulated();
  }
  std::size_t segment = 0;
  const bool few = output <= kFewSteps && by_graphs(*run.point);
  Bytes decode_peak;
  if (output > 0) {
    run.trajectory->extend(run.in, output);
    segment = run.trajectory->segment_of(output);
    if (!few) decode_peak = peak_to(run, segment, output);
    for (std::int64_t step = 1; few && step <= output; ++step) {
      decode_peak =
          std::max(decode_peak, step_peak(run, run.trajectory->segment_of(step), step, true));
    }
    out.decode_peak = load + decode_peak;
  }
  out.kv_bytes = is_static_ ? placed : cache_at(run, output);
  const Bytes in_prefill = activations(prefill.peak, prefill.cached);
  const Bytes in_decode = activations(decode_peak, out.kv_bytes);
  const bool decodes = out.decode_peak > out.prefill_peak;
  out.activations = decodes ? in_decode : in_prefill;
  const Bytes wanted = std::max(out.prefill_peak + beyond(in_prefill),
                                output > 0 ? out.decode_peak + beyond(in_decode) : Bytes{});
  out.usable = std::max(Bytes{}, usable - (wanted - out.peak()));
  out.fits = out.fits && wanted <= usable;
  if (retries && !out.fits) return simulated();
  if (!times || !out.fits) return out;

  PointTimes& t = out.times.emplace();
  t.prefill = *prefill.time;
  if (output == 0) return out;
  StepSum steps;
  if (!few) steps = sum_to(run, segment, output);
  for (std::int64_t step = 1; few && step <= output; ++step) {
    steps.sum += step_time(run, run.trajectory->segment_of(step), step, true).count();
  }
  t.decode = Seconds{steps.sum};
  t.last_step = step_time(run, segment, output, few);
  t.tok_s =
      static_cast<double>(batch) * static_cast<double>(output) / (t.prefill + t.decode).count();
  if (!steps.exact) out.approximation_reason = run.point->method->plain_rows() ? kKernels : kFormat;
  return out;
}

PointStep CompiledPoint::Impl::step_at(std::int64_t batch, std::int64_t prompt, std::int64_t step) {
  KVSIM_CHECK(batch >= 1 && prompt >= 1 && step >= 1, "batch {}, prompt {} and step {} at least 1",
              batch, prompt, step);
  const std::int64_t end =
      std::max(prompt + step, stack_.growth == CacheGrowth::kStatic ? stack_.max_model_len : 0);
  const bool by_end = stack_.growth == CacheGrowth::kStatic && stack_.attends_allocated;
  PointRun& run = run_of(batch, prompt, by_end ? end : 0);
  run.trajectory->extend(run.in, step);
  const std::size_t segment = run.trajectory->segment_of(step);
  const bool few = step <= kFewSteps && by_graphs(*run.point);
  Bytes load = outside_;
  if (stack_.full_causal_mask) load += full_mask_bytes(run.in, end);
  const Bytes placed = is_static_ ? placed_caches(run, end).caches : Bytes{};
  return {.time = step_time(run, segment, step, few),
          .peak = load + placed + step_peak(run, segment, step, few),
          .kv = is_static_ ? placed : cache_at(run, step)};
}

CompiledPoint::CompiledPoint(PointSpec spec) {
  KVSIM_CHECK(spec.llm != nullptr && spec.gpu != nullptr && spec.stack != nullptr && spec.method,
              "a point has no model, GPU, stack or method");
  check_expert_parallel(
      *spec.llm, *spec.gpu,
      with_options(*spec.stack, spec.options, {spec.gpu, spec.llm, spec.tensor_parallel}),
      spec.tensor_parallel);
  impl_ = std::make_unique<Impl>(std::move(spec));
}
CompiledPoint::CompiledPoint(CompiledPoint&&) noexcept = default;
CompiledPoint& CompiledPoint::operator=(CompiledPoint&&) noexcept = default;
CompiledPoint::~CompiledPoint() = default;

PointResult CompiledPoint::at(const Point& point) { return impl_->evaluate_demand(point, true); }
PointResult CompiledPoint::memory_at(const Point& point) {
  return impl_->evaluate_demand(point, false);
}
PointStep CompiledPoint::decode_step(std::int64_t batch, std::int64_t prompt, std::int64_t step) {
  return impl_->step_at(batch, prompt, step);
}

std::optional<std::int64_t> CompiledPoint::largest_batch(std::int64_t prompt, std::int64_t output,
                                                         std::int64_t max) {
  return largest_fitting(max, [&](std::int64_t batch) {
    return memory_at({.batch = batch, .prompt_tokens = prompt, .output_tokens = output}).fits;
  });
}

std::optional<std::int64_t> CompiledPoint::longest_prompt(std::int64_t batch, std::int64_t output,
                                                          std::int64_t max) {
  return largest_fitting(max, [&](std::int64_t prompt) {
    return memory_at({.batch = batch, .prompt_tokens = prompt, .output_tokens = output}).fits;
  });
}

}  // namespace kvsim
