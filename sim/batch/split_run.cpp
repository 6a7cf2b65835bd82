#include "sim/batch/split_run.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "models/cost/iteration/layer_split.hpp"
#include "models/methods/resolve/on_layers.hpp"
#include "models/units/units_format.hpp"
#include "sim/batch/static_state.hpp"

namespace kvsim {
namespace {

/// Runs the layers of `range` on one GPU.
StaticResult run_stage(const StaticSpec& spec, const LayerRange& range,
                       const StaticOptions& options) {
  const Llm stage = stage_llm(*spec.llm, range);
  std::vector<std::int32_t> layers(stage.layers.size());
  std::iota(layers.begin(), layers.end(), range.first);
  StaticSpec one = spec;
  one.llm = &stage;
  one.tensor_parallel = 1;
  one.method = on_layers(spec.method, std::move(layers));
  return StaticRun{one, options}.run();
}

/// Runs all layers on a GPU with the memory of all `spec.tensor_parallel`, with the same number of
/// transfers of hidden states.
StaticResult run_whole(const StaticSpec& spec, std::int32_t stages, const StaticOptions& options) {
  Gpu all = *spec.gpu;
  all.hbm = all.hbm * std::int64_t{spec.tensor_parallel};
  all.hbm_usable = all.hbm_usable * std::int64_t{spec.tensor_parallel};
  StaticSpec one = spec;
  one.gpu = &all;
  one.tensor_parallel = 1;
  // The logits return to the first GPU, which has the next token's embedding.
  one.hand_overs = stages;
  one.allocator.reset();
  StaticOptions as_run = options;
  as_run.allocations = nullptr;
  return StaticRun{one, as_run}.run();
}

}  // namespace

StaticResult run_split(const StaticSpec& spec, const StaticOptions& options) {
  const std::vector<LayerRange> ranges =
      device_map(*spec.llm, {spec.weight_dtype, spec.weight_format}, spec.tensor_parallel);
  StaticOptions of_memory = options;
  of_memory.time_terms = false;
  std::optional<StaticResult> fullest;
  std::size_t where = 0;
  std::vector<GpuBytes> gpus;
  for (std::size_t g = 0; g < ranges.size(); ++g) {
    StaticResult one = run_stage(spec, ranges[g], of_memory);
    gpus.push_back({.prefill_peak = one.prefill_peak,
                    .decode_peak = one.decode_peak,
                    .held = one.timeline.empty() ? Bytes{} : one.timeline.back().held});
    const auto worse = [&] {
      if (!fullest) return true;
      if (one.oom && fullest->oom) return one.oom->step < fullest->oom->step;
      if (one.oom || fullest->oom) return one.oom.has_value();
      return one.peak_hbm > fullest->peak_hbm;
    };
    if (!worse()) continue;
    fullest = std::move(one);
    where = g;
  }
  StaticResult out = std::move(*fullest);
  Bytes sum;
  for (const GpuBytes& gpu : gpus) sum += gpu.peak();
  out.gpus = std::move(gpus);
  std::vector<std::string> layers;
  for (const LayerRange& range : ranges) {
    layers.push_back(fmt::format("{}", range.last - range.first));
  }
  out.notes.push_back(
      fmt::format("layers are split over {} GPUs ({}), which compute one after the other: memory "
                  "is that of GPU {}, {} on all GPUs; work and traffic are means per GPU, tokens "
                  "per second are of the model",
                  ranges.size(), fmt::join(layers, ", "), where, sum));
  if (out.oom) {
    out.oom->what = fmt::format("{} on GPU {}", out.oom->what, where);
    return out;
  }
  StaticResult whole = run_whole(spec, static_cast<std::int32_t>(ranges.size()), options);
  out.calibration = whole.calibration;
  out.prefill_time = whole.prefill_time;
  out.decode_time = whole.decode_time;
  out.throughput_tok_s = whole.throughput_tok_s;
  out.decode_tok_s = whole.decode_tok_s;
  out.explained = std::move(whole.explained);
  const double n = spec.tensor_parallel;
  out.flops = whole.flops / n;
  out.bytes_moved = whole.bytes_moved / n;
  out.at_peak = whole.at_peak * (1 / n);
  if (out.intervals && whole.intervals) {
    out.intervals->prefill = whole.intervals->prefill;
    out.intervals->decode = whole.intervals->decode;
    out.intervals->time_basis = whole.intervals->time_basis;
  }
  for (std::size_t i = 0; i < std::min(out.timeline.size(), whole.timeline.size()); ++i) {
    out.timeline[i].time = whole.timeline[i].time;
    out.timeline[i].tok_s = whole.timeline[i].tok_s;
  }
  return out;
}

}  // namespace kvsim
