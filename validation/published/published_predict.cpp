#include "validation/published/published_predict.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "models/cost/rates/roofline.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/batch/memory_end.hpp"
#include "sim/batch/split_run.hpp"
#include "sim/scenario/points/points.hpp"
#include "validation/published/published_capacity.hpp"
#include "validation/published/published_methods.hpp"
#include "validation/published/published_metrics.hpp"
#include "validation/published/published_runs.hpp"

namespace kvsim {
namespace {

/// Thrown for a row that cannot be expressed, with the reason.
struct NotExpressible {
  std::string why;
};
/// Thrown if a run that a published figure presupposes is out of memory.
struct RanOut {
  std::string what{};  // for readers
};

RanOut ran_out(const OomEvent& oom) {
  return {fmt::format("out of memory in {}: {} wants {}, {} free", oom.phase, oom.what,
                      oom.requested, oom.free)};
}

double count(Bytes bytes) { return static_cast<double>(bytes.count()); }

/// Prediction of one row for one of its models.
class RowPrediction {
 public:
  RowPrediction(const PublishedRow& row, const PublishedSetup& setup, const Llm& llm,
                std::vector<std::string>& assumed)
      : row_{row}, setup_{setup}, llm_{llm}, assumed_{assumed} {}

  double predict(const PublishedMetricInfo& metric);
  bool extrapolated() const { return extrapolated_; }
  /// The peak predicted last.
  [[nodiscard]] const std::optional<PredictedPeak>& peak() const { return peak_; }

 private:
  void need(std::string_view what) const {
    if (const std::string* why = setup_.why_missing(what)) throw NotExpressible{*why};
  }
  [[nodiscard]] double in_unit(double bytes) const {
    const auto unit = bytes_in(row_.unit, row_.note, setup_.binary_document);
    if (!unit) throw NotExpressible{fmt::format("no unit of bytes in \"{}\"", row_.unit)};
    return bytes / *unit;
  }
  PublishedRuns runs_of(MethodSpec method) { return {row_, setup_, llm_, std::move(method)}; }
  PublishedRuns own_runs() {
    need("method");
    return runs_of(*setup_.method);
  }

  // Sizes of the run that the row describes.
  std::int64_t prompt();
  std::int64_t steps();
  std::int64_t steps_before();
  bool is_steady() const;
  std::int64_t batch(PublishedRuns& runs);
  const StaticResult& fitting(PublishedRuns& runs, const RunSize& size);
  void note_rates(const StaticResult& result) {
    extrapolated_ = extrapolated_ || (of_time_ && result.calibration == Calibration{}.provenance);
  }

  // Times, s.
  double step_time(PublishedRuns& runs);
  double prefill_time(PublishedRuns& runs, std::int64_t batch);
  struct Generation {
    double prefill_s = 0, decode_s = 0;
    std::int64_t steps = 0, batch = 1;
  };
  Generation generation(PublishedRuns& runs);
  double time_metric(std::string_view name);
  double throughput(PublishedRuns& runs);

  // Bytes.
  double peak_bytes(PublishedRuns& runs);
  double cache_bytes(PublishedRuns& runs);
  double capacity_metric(std::string_view name);
  double startup_metric(std::string_view name);
  double runs_out();
  double relative_metric(std::string_view name);

  const PublishedRow& row_;
  const PublishedSetup& setup_;
  const Llm& llm_;
  std::vector<std::string>& assumed_;
  std::optional<PredictedPeak> peak_;
  bool of_time_ = false;
  bool extrapolated_ = false;  // a time without a calibration of kernels
};

std::int64_t RowPrediction::prompt() {
  if (setup_.cache_tokens) return *setup_.cache_tokens;
  need("prompt");
  return setup_.prompt->tokens;
}

/// Number of decode steps between the prompt and the context of the row's step.
std::int64_t RowPrediction::steps_before() {
  if (!setup_.output || !setup_.output->context) return 0;
  return std::max<std::int64_t>(0, *setup_.output->context - prompt());
}

/// Whether the row is a decode step at a context: stated, or no output is stated.
bool RowPrediction::is_steady() const {
  if (setup_.cache_tokens) return true;
  return setup_.output ? setup_.output->steady : row_.output_len.empty();
}

std::int64_t RowPrediction::steps() {
  if (is_steady()) return steps_before() + 1;
  need("output");
  const OutputText& output = *setup_.output;
  if (output.by_context) return steps_before() + output.tokens;
  return std::max<std::int64_t>(0, output.tokens - 1);
}

std::int64_t RowPrediction::batch(PublishedRuns& runs) {
  if (row_.batch.empty()) {
    assumed_.emplace_back("no batch is stated: 1");
    return 1;
  }
  need("batch");
  const BatchText& text = *setup_.batch;
  if (!text.as_many_as_fit) return text.sequences;
  // Sequences that arrive and end are on average half-way through their output.
  const std::int64_t length = text.in_flight ? steps() / 2 : steps();
  std::int64_t largest = runs.largest_batch(prompt(), length);
  if (largest < 1) throw RanOut{"not one sequence fits"};
  if (text.power_of_two) {
    std::int64_t power = 1;
    while (power * 2 <= largest) power *= 2;
    largest = power;
  }
  assumed_.push_back(fmt::format("largest batch that fits: {}", largest));
  return largest;
}

const StaticResult& RowPrediction::fitting(PublishedRuns& runs, const RunSize& size) {
  const StaticResult& result = runs.run(size);
  note_rates(result);
  if (result.oom) throw ran_out(*result.oom);
  return result;
}

double RowPrediction::step_time(PublishedRuns& runs) {
  const RunSize size{.batch = batch(runs), .prompt = prompt(), .steps = steps()};
  return fitting(runs, size).timeline.back().time.count();
}

double RowPrediction::prefill_time(PublishedRuns& runs, std::int64_t n) {
  const StaticResult& result = runs.run({.batch = n, .prompt = prompt(), .steps = 0});
  note_rates(result);
  if (result.prefill_time) return result.prefill_time->count();
  if (!runs.is_paged() || n < 2) throw ran_out(*result.oom);
  // An engine prefills up to the limit of a pass, regardless of the queue.
  const std::int64_t together =
      std::clamp<std::int64_t>(8192 / std::max<std::int64_t>(1, prompt()), 1, n - 1);
  return prefill_time(runs, together) * static_cast<double>(n) / static_cast<double>(together);
}

RowPrediction::Generation RowPrediction::generation(PublishedRuns& runs) {
  Generation out;
  out.batch = batch(runs);
  out.steps = steps();
  const bool flows = setup_.batch && setup_.batch->in_flight && out.batch > 1;
  if (!flows) {
    const StaticResult& result =
        runs.run({.batch = out.batch, .prompt = prompt(), .steps = out.steps});
    note_rates(result);
    if (!result.oom) {
      out.prefill_s = result.prefill_time->count();
      out.decode_s = result.decode_time ? result.decode_time->count() : 0;
      return out;
    }
    if (!runs.is_paged()) throw ran_out(*result.oom);
  }
  // Sequences come and go, also if an engine's pool cannot hold all of them: each waits once for
  // the prefills of all others, and in a step the served sequences have their mean length.
  std::int64_t served = out.batch;
  if (runs.is_paged()) served = std::min(served, runs.largest_batch(prompt(), out.steps / 2));
  if (served < 1) throw RanOut{"the pool holds not one sequence"};
  if (served < out.batch) {
    assumed_.push_back(fmt::format("{} of {} sequences served at once", served, out.batch));
  }
  const StaticResult& step =
      fitting(runs, {.batch = served, .prompt = prompt() + out.steps / 2, .steps = 1});
  const double turns = static_cast<double>(out.batch) / static_cast<double>(served);
  out.decode_s = step.decode_time->count() * static_cast<double>(out.steps) * turns;
  const std::int64_t together =
      std::clamp<std::int64_t>(8192 / std::max<std::int64_t>(1, prompt()), 1, served);
  out.prefill_s =
      prefill_time(runs, together) * static_cast<double>(out.batch) / static_cast<double>(together);
  return out;
}

double RowPrediction::throughput(PublishedRuns& runs) {
  if (is_steady()) return static_cast<double>(batch(runs)) / step_time(runs);
  const Generation run = generation(runs);
  const auto sequences = static_cast<double>(run.batch);
  const auto steps = static_cast<double>(run.steps);
  if (setup_.output->by_context || has_text(row_.note, "minus a separate prefill")) {
    return sequences * steps / run.decode_s;
  }
  return sequences * (steps + 1) / (run.prefill_s + run.decode_s);
}

double RowPrediction::time_metric(std::string_view name) {
  for (const char* what : {"gpu", "weights", "stack"}) need(what);
  PublishedRuns runs = own_runs();
  of_time_ = true;
  const bool decode_only = has_text(row_.note, "minus a separate prefill");
  const double gpus = setup_.gpus;
  if (setup_.recomputes_window) {
    const std::int64_t n = batch(runs);
    const double pass = prefill_time(runs, n);
    if (name == "latency_ms_per_token") return pass * 1e3;
    if (name == "throughput_tok_s") return static_cast<double>(n) / pass;
    throw NotExpressible{"a figure that does not exist for a recomputed window"};
  }
  const bool prompt_alone = setup_.output && !setup_.output->steady && setup_.output->tokens == 0;
  if (name == "latency_ms_per_layer") {
    const bool decodes = setup_.output && !prompt_alone;
    const double whole = decodes ? step_time(runs) : prefill_time(runs, batch(runs));
    return whole * 1e3 / llm_.n_layers();
  }
  if (prompt_alone && (name == "throughput_tok_s" || name == "total_throughput_tok_s")) {
    const std::int64_t n = batch(runs);
    return static_cast<double>(n * prompt()) / prefill_time(runs, n) /
           (has_text(row_.unit, "per gpu") ? gpus : 1);
  }
  if (name.starts_with("prefill_latency")) {
    return prefill_time(runs, batch(runs)) * (name.ends_with("_ms") ? 1e3 : 1);
  }
  if (name == "ttft_s" || name == "ttft_ms") {
    const std::int64_t n = setup_.batch && setup_.batch->in_flight ? 1 : batch(runs);
    double wait = prefill_time(runs, n);
    if (n > 1 && runs.is_paged() && setup_.output && setup_.output->tokens > 1) {
      // Prompts that do not fit into the pool wait until another sequence ends.
      const std::int64_t admitted = std::max<std::int64_t>(1, runs.largest_batch(prompt(), 1));
      if (admitted < n) {
        const Generation run = generation(runs);
        const double turn =
            (run.prefill_s + run.decode_s) * static_cast<double>(admitted) / static_cast<double>(n);
        wait += turn * static_cast<double>(n - admitted) / static_cast<double>(n);
      }
    }
    return wait * (name == "ttft_ms" ? 1e3 : 1);
  }
  if (name == "throughput_tok_s") {
    return throughput(runs) / (has_text(row_.unit, "per gpu") ? gpus : 1);
  }
  if (name == "mem_bandwidth_gb_s") {
    const double weights = count(loaded_weight_bytes(runs.shard(), runs.weights()));
    return weights * throughput(runs) / static_cast<double>(batch(runs)) / 1e9;
  }
  if (name == "latency_ms_per_token") {
    if (prompt_alone) throw NotExpressible{"a time per token of a prompt alone"};
    if (is_steady()) return step_time(runs) * 1e3;
    const Generation run = generation(runs);
    const auto steps = static_cast<double>(std::max<std::int64_t>(1, run.steps));
    const bool whole = has_text(row_.note, "includes prefill") ||
                       (setup_.batch && setup_.batch->in_flight && run.batch > 1);
    return (whole ? (run.prefill_s + run.decode_s) / (steps + 1) : run.decode_s / steps) * 1e3;
  }
  const Generation run = generation(runs);
  if (name == "total_throughput_tok_s") {
    return static_cast<double>(run.batch * (prompt() + run.steps + 1)) /
           (run.prefill_s + run.decode_s);
  }
  const double seconds = decode_only ? run.decode_s : run.prefill_s + run.decode_s;
  return name == "latency_ms" ? seconds * 1e3 : seconds;
}

double RowPrediction::peak_bytes(PublishedRuns& runs) {
  const StaticResult& result = fitting(
      runs,
      {.batch = batch(runs), .prompt = prompt(), .steps = setup_.recomputes_window ? 0 : steps()});
  const bool driver = has_text(row_.note, "nvidia-smi") || has_text(row_.unit, "nvidia-smi");
  // Programs that split layers among GPUs report the sum over these GPUs.
  const Bytes one = driver ? Bytes{} : setup_.stack->context;
  const double context = count(over_gpus(result, one, [&](const GpuBytes&) { return one; }));
  if (row_.metric == "allocated_mem_gb" || has_text(row_.note, "not a peak") ||
      has_text(row_.note, "end of run") || has_text(row_.note, "end-of-run")) {
    const Bytes held = result.timeline.back().held;
    return count(over_gpus(result, held, [](const GpuBytes& gpu) { return gpu.held; })) - context;
  }
  const bool decode_alone = is_steady() || (setup_.output && setup_.output->by_context);
  const bool of_decode = decode_alone && !setup_.recomputes_window;
  const Bytes fullest = of_decode ? result.decode_peak : result.peak_hbm;
  const Bytes known = result.peak_hbm - activations_of(runs.stack(), result.peak_owners);
  const double peak = count(over_gpus(result, fullest, [&](const GpuBytes& gpu) {
    return of_decode ? gpu.decode_peak : gpu.peak();
  }));
  peak_ = {.bytes = peak - context, .activations = std::max(0.0, count(fullest) - count(known))};
  return peak - context;
}

double RowPrediction::cache_bytes(PublishedRuns& runs) {
  const RunSize size{.batch = batch(runs), .prompt = prompt(), .steps = 0};
  runs.check(size);
  const auto bytes = kv_bytes_wanted(runs.spec(size));
  if (!bytes) throw NotExpressible{"what the method keeps depends on the data"};
  return count(*bytes);
}

double RowPrediction::startup_metric(std::string_view name) {
  for (const char* what : {"gpu", "weights", "stack"}) need(what);
  PublishedRuns runs = runs_of({.name = "full", .params = {}, .budget = {}});
  if (!runs.is_paged()) throw NotExpressible{"the stack sets no pool aside at its start"};
  const EngineStartup start = runs.startup();
  if (name == "kv_capacity_tokens") return static_cast<double>(start.tokens);
  if (name == "kv_cache_gb") return in_unit(count(start.kv_cache));
  if (name == "non_torch_gb") return in_unit(count(start.non_torch));
  if (name == "activation_gb") return in_unit(count(start.activation));
  if (name == "cuda_graph_gb") return in_unit(count(start.graphs));
  throw NotExpressible{fmt::format("no rule for the metric \"{}\"", name)};
}

double RowPrediction::runs_out() {
  for (const char* what : {"gpu", "weights", "stack"}) need(what);
  PublishedRuns runs = own_runs();
  if (runs.is_paged()) {
    // An engine is out of memory if its pool cannot hold one sequence.
    const EngineStartup start = runs.startup();
    if (setup_.max_model_len || !setup_.prompt) return start.serves() ? 0 : 1;
    return runs.run({.batch = 1, .prompt = prompt(), .steps = steps()}).oom ? 1 : 0;
  }
  std::int64_t n = 1;
  if (!setup_.batch || !setup_.batch->as_many_as_fit) n = batch(runs);
  const RunSize size{.batch = n, .prompt = prompt(), .steps = steps()};
  if (runs.run(size).oom) return 1;
  if (!runs.fragments(size)) return 0;
  assumed_.emplace_back("its tensors fit; PyTorch's caching allocator has no room for them");
  return 1;
}

double RowPrediction::capacity_metric(std::string_view name) {
  for (const char* what : {"gpu", "weights", "stack"}) need(what);
  PublishedRuns runs = own_runs();
  if (name == "max_batch") return static_cast<double>(runs.largest_batch(prompt(), steps()));
  const std::int64_t n = batch(runs);
  need("prompt");
  const std::int64_t start = setup_.prompt->tokens;
  if (setup_.value && static_cast<double>(start) == *setup_.value) {
    return static_cast<double>(runs.longest_prompt(n, std::int64_t{1} << 23));
  }
  for (std::int64_t steps = 1 << 14; steps <= 1 << 20; steps *= 4) {
    const StaticResult& result = runs.run({.batch = n, .prompt = start, .steps = steps});
    if (result.oom) return static_cast<double>(result.oom->tokens - 1);
  }
  throw NotExpressible{"the cache stays bounded: no length runs out of memory"};
}

double RowPrediction::relative_metric(std::string_view name) {
  if (name == "compression_ratio" && setup_.method && setup_.method->name == "full") {
    const AttentionSpec& attention = llm_.layers.front().attention;  // grouped queries
    return static_cast<double>(attention.n_heads) / attention.n_kv_heads;
  }
  if (name == "compression_ratio" || name == "removed_fraction") {
    constexpr std::int64_t kLong = 4096;
    const bool stated = setup_.prompt.has_value();
    if (!stated) assumed_.push_back(fmt::format("no length is stated: {} tokens", kLong));
    const RunSize size{.batch = 1, .prompt = stated ? prompt() : kLong, .steps = 0};
    PublishedRuns own = own_runs();
    // Compared with a 16-bit cache, regardless of the row's cache format.
    StaticSpec spec = own.spec(size);
    spec.kv_dtype = default_kv_dtype(llm_, Dtype::kFp16);
    PublishedSetup plain = setup_;
    plain.kv_dtype = spec.kv_dtype;
    PublishedRuns mine{row_, plain, llm_, *setup_.method};
    PublishedRuns full{row_, plain, llm_, {.name = "full", .params = {}, .budget = {}}};
    mine.check(size);
    const auto kept = kv_bytes_wanted(mine.spec(size));
    const auto all = kv_bytes_wanted(full.spec(size));
    if (!kept || !all) throw NotExpressible{"what the method keeps depends on the data"};
    const double ratio = count(*all) / count(*kept);
    return name == "compression_ratio" ? ratio : 1 - 1 / ratio;
  }
  for (const char* what : {"gpu", "weights", "stack"}) need(what);
  need("prompt");
  PublishedSetup plain = setup_;
  plain.kv_dtype = default_kv_dtype(llm_, setup_.weights->weights);
  PublishedRuns mine{row_, plain, llm_, setup_.method ? *setup_.method : MethodSpec{}};
  need("method");
  if (name == "mem_saving_gb") {
    PublishedRuns full{row_, plain, llm_, {.name = "full", .params = {}, .budget = {}}};
    return in_unit(peak_bytes(full) - peak_bytes(mine));
  }
  const auto compared = baseline_of(row_, setup_.method);
  if (!compared) throw NotExpressible{fmt::format("no baseline known in unit \"{}\"", row_.unit)};
  const auto& [spec, peak] = *compared;
  PublishedRuns base{row_, plain, llm_, spec};
  if (name == "relative_memory" || name == "mem_saving_pct") {
    // If both fill the GPU, compare at the largest batch that the larger cache allows.
    if (setup_.batch && setup_.batch->as_many_as_fit) {
      plain.batch = BatchText{
          .sequences = std::max<std::int64_t>(1, std::min(mine.largest_batch(prompt(), steps()),
                                                          base.largest_batch(prompt(), steps())))};
      RowPrediction at{row_, plain, llm_, assumed_};
      const double fixed = peak ? at.peak_bytes(mine) / at.peak_bytes(base)
                                : at.cache_bytes(mine) / at.cache_bytes(base);
      return name == "relative_memory" ? fixed : 100 * (1 - fixed);
    }
    const double ratio =
        peak ? peak_bytes(mine) / peak_bytes(base) : cache_bytes(mine) / cache_bytes(base);
    return name == "relative_memory" ? ratio : 100 * (1 - ratio);
  }
  of_time_ = true;
  if (name == "relative_throughput") return throughput(mine) / throughput(base);
  if (name == "relative_latency") return throughput(base) / throughput(mine);
  if (name == "relative_max_batch") {
    return static_cast<double>(mine.largest_batch(prompt(), steps())) /
           static_cast<double>(base.largest_batch(prompt(), steps()));
  }
  throw NotExpressible{fmt::format("no rule for the metric \"{}\"", name)};
}

double RowPrediction::predict(const PublishedMetricInfo& metric) {
  switch (metric.kind) {
    case PublishedKind::kPeakMemory: {
      for (const char* what : {"gpu", "weights", "stack"}) need(what);
      PublishedRuns runs = own_runs();
      return in_unit(peak_bytes(runs));
    }
    case PublishedKind::kCacheSize: {
      if (metric.name == "kv_bytes_per_token") {
        PublishedRuns runs = own_runs();
        return in_unit(count(full_cache_bytes(llm_, 1, runs.kv_dtype())));
      }
      if (setup_.memory_fraction || metric.name == "kv_capacity_tokens") {
        return startup_metric(metric.name);
      }
      PublishedRuns runs = own_runs();
      return in_unit(cache_bytes(runs));
    }
    case PublishedKind::kEngineMemory:
      if (metric.name == "weights_gb") {
        need("weights");
        PublishedRuns runs = runs_of({.name = "full", .params = {}, .budget = {}});
        return in_unit(count(loaded_weight_bytes(runs.shard(), runs.weights())));
      }
      return startup_metric(metric.name);
    case PublishedKind::kCapacity:
      return capacity_metric(metric.name);
    case PublishedKind::kOom:
      return runs_out();
    case PublishedKind::kTime:
      return time_metric(metric.name);
    case PublishedKind::kKernel:
      break;
    case PublishedKind::kRelative:
      return relative_metric(metric.name);
    case PublishedKind::kEngineCache:
      break;  // predict_engine_cache
  }
  throw NotExpressible{"no rule"};
}

/// Arithmetic rate of causal or full attention as a single kernel, FLOP/s. Rows state the head
/// dimension, the hidden width (heads times head dimension) and the total number of tokens, from
/// which the batch follows.
double attention_rate(const PublishedRow& row, const PublishedSetup& setup) {
  if (setup.gpu == nullptr) throw NotExpressible{*setup.why_missing("gpu")};
  if (setup.stack == nullptr) throw NotExpressible{*setup.why_missing("stack")};
  if (!setup.prompt) throw NotExpressible{*setup.why_missing("prompt")};
  if (!setup.weights) throw NotExpressible{*setup.why_missing("weights")};
  const auto head_dim = number_at(row.method_params, "head dim");
  const auto hidden = number_at(row.method_params, "hidden");
  const auto total = number_at(row.method_params, "total");
  if (!head_dim || !hidden || !total || *head_dim < 1) {
    throw NotExpressible{"an attention kernel without head dimension, width and tokens"};
  }
  const auto tokens = static_cast<double>(setup.prompt->tokens);
  const double heads = *hidden / *head_dim;
  const double batch = std::max(1.0, std::round(*total / tokens));
  const double share =
      has_text(row.method_params, "causal true") || has_text(row.method_params, "causal=true")
          ? 0.5
          : 1.0;
  const double flops = 4 * batch * heads * tokens * tokens * *head_dim * share;
  const double element = bits_of(setup.weights->weights) / 8.0;
  const double vectors = 4 * batch * heads * tokens * *head_dim * element;  // Q, K, V, output
  const Roofline roofline{*setup.gpu, *setup.stack, Calibration{}};
  Op op{.name = "attention",
        .family = OpFamily::kPrefillAttention,
        .flops = FlopCount{flops},
        .bytes_read = vectors * 0.75,
        .bytes_written = vectors * 0.25,
        .dtype = setup.weights->weights};
  double seconds = roofline.time(op).count();
  if (setup.stack->attention == AttentionExec::kEager) {
    // Scores written; read and written by the mask's sum, the softmax and the dropout; read by the
    // second product. The mask does not save any work. Source: Dao-AILab/flash-attention
    // benchmarks/benchmark_flash_attention.py, attention_pytorch.
    const double scores = batch * heads * tokens * tokens * element;
    op.flops = FlopCount{flops / share};
    seconds = roofline.time(op).count() + roofline
                                              .time({.name = "score matrices",
                                                     .family = OpFamily::kElementwise,
                                                     .bytes_read = 4 * scores,
                                                     .bytes_written = 4 * scores,
                                                     .launches = 3,
                                                     .dtype = setup.weights->weights})
                                              .count();
  }
  // FlashAttention-2 uses only Ampere's instructions: 35 % of an H100's rate, compared with 75 %
  // for FlashAttention-3 (Shah et al. 2024, abstract).
  constexpr double kAmpereCode = 35.0 / 75.0;
  if (has_text(row.framework, "flashattention-2") && setup.gpu->generation == "hopper") {
    seconds /= kAmpereCode;
  }
  return flops / seconds;
}

}  // namespace

PublishedPrediction predict_published(const PublishedRow& row, const PublishedSetup& setup) {
  PublishedPrediction out;
  out.assumed = setup.assumed;
  const PublishedMetricInfo* metric = find_metric_rule(row.metric);
  const auto refuse = [&](std::string why) {
    out.value.reset();
    out.reason = std::move(why);
    return out;
  };
  if (has_text(row.method, "bwd") || has_text(row.method, "training")) {
    return refuse("training, not inference");
  }
  if (metric == nullptr) return refuse(fmt::format("no rule for the metric \"{}\"", row.metric));
  if (!setup.value) return refuse("the value is not a number");
  if (metric->kind == PublishedKind::kEngineCache) {
    out.value = predict_engine_cache(row, setup, out.assumed, out.reason);
    std::sort(out.assumed.begin(), out.assumed.end());
    out.assumed.erase(std::unique(out.assumed.begin(), out.assumed.end()), out.assumed.end());
    return out;
  }
  if (setup.gpus == 0) return refuse("the GPU count is not a number");
  if (metric->kind != PublishedKind::kKernel && setup.llms.empty()) {
    return refuse(*setup.why_missing("model"));
  }
  double sum = 0;
  try {
    if (metric->kind == PublishedKind::kKernel) {
      out.value = attention_rate(row, setup) / 1e12;
      out.extrapolated = true;
      return out;
    }
    for (const Llm* llm : setup.llms) {
      RowPrediction prediction{row, setup, *llm, out.assumed};
      sum += prediction.predict(*metric);
      if (metric->kind == PublishedKind::kPeakMemory) out.peak = prediction.peak();
      out.extrapolated = out.extrapolated || prediction.extrapolated();
    }
  } catch (const NotExpressible& refusal) {
    return refuse(refusal.why);
  } catch (const RanOut& refusal) {
    out.runs_out = true;
    if (!refusal.what.empty()) out.assumed.push_back(refusal.what);
    return out;
  } catch (const InputError& error) {
    return refuse(error.what());
  }
  out.value = sum / static_cast<double>(setup.llms.size());
  if (!std::isfinite(*out.value)) return refuse("the prediction is not a finite number");
  if (metric->kind == PublishedKind::kOom) out.runs_out = *out.value >= 0.5;
  std::sort(out.assumed.begin(), out.assumed.end());
  out.assumed.erase(std::unique(out.assumed.begin(), out.assumed.end()), out.assumed.end());
  return out;
}

}  // namespace kvsim
