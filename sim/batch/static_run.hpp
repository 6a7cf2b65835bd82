#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/cost/rates/calibration.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/llm.hpp"
#include "models/llm/weight_format.hpp"
#include "models/methods/method.hpp"
#include "models/stack/stack.hpp"
#include "models/units/dtype.hpp"
#include "models/units/units.hpp"
#include "sim/batch/account/intervals.hpp"
#include "sim/batch/account/peak_terms.hpp"
#include "sim/batch/account/time_terms.hpp"
#include "sim/memory/hbm.hpp"
#include "sim/memory/step_allocations.hpp"
#include "sim/memory/vllm_startup.hpp"

namespace kvsim {

/// One static batch: `batch` equal sequences, prefilled together, then decoded in lockstep. Steps
/// are counted as in a replay: prefill leaves `prompt_tokens` tokens, and decode step n brings each
/// sequence to prompt_tokens + n. So output_tokens tokens take output_tokens decode steps, and the
/// last token is cached too. Without output tokens the run ends after prefill.
struct StaticSpec {
  const Llm* llm = nullptr;  // not owned; must outlive the run, like gpu and stack
  const Gpu* gpu = nullptr;
  const Stack* stack = nullptr;
  std::shared_ptr<const Method> method;
  Dtype weight_dtype = Dtype::kFp16;
  Dtype kv_dtype = Dtype::kFp16;
  std::int64_t batch = 1;
  std::int64_t prompt_tokens = 1;               // per sequence
  std::int64_t output_tokens = 1;               // per sequence; decode steps
  const Calibration* calibration = nullptr;     // null: the data sheet's rates, uncalibrated
  const WeightFormat* weight_format = nullptr;  // packs part of the weights; weight_dtype is then
                                                // the dtype of the other weights and of activations
  // GPUs; all figures of the result except tokens/s are per GPU. They share every layer, or hold
  // whole layers each if the stack splits layers (run_split).
  std::int32_t tensor_parallel = 1;
  StackOptions options{};  // settings that override the stack's
  // If set: every allocation is repeated, one by one, through PyTorch's caching allocator with
  // these settings. Costs about 100 us per decode step.
  std::optional<AllocatorConfig> allocator{};
  std::int32_t hand_overs = 0;  // set by run_split

  /// Includes all GPUs over which prompts are split; each such part holds the model once.
  [[nodiscard]] std::int32_t gpus() const {
    return tensor_parallel * options.prefill_context.value_or(1);
  }
};

struct OomEvent {
  std::int64_t step = 0;    // 0: prefill; n: the n-th decode step
  std::int64_t tokens = 0;  // per sequence, at that time
  std::string phase;        // "load", "prefill" or "decode"
  std::string what;         // the refused tensor as text: "attention scores of layer 0"
  Bytes requested;
  Bytes free;
  Owners owners;  // owners of the rest
};

/// One moment of the run, after the step that brought each sequence to `tokens` tokens. Step 0 is
/// the end of prefill, whose `tok_s` is 0.
struct StaticSample {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  Bytes peak;        // highest within the step
  Bytes held;        // between steps
  Bytes kv;          // cache and side data, whole batch
  Seconds time;      // of this step
  double tok_s = 0;  // batch / time
};

/// Memory of one of several GPUs that hold whole layers each.
struct GpuBytes {
  Bytes prefill_peak;
  Bytes decode_peak;  // 0 if no step was run
  Bytes held;         // at the end
  [[nodiscard]] Bytes peak() const { return std::max(prefill_peak, decode_peak); }
};

struct StaticResult {
  std::optional<OomEvent> oom;
  std::string calibration_id;        // "nominal", "builtin", or the user's
  std::string calibration;           // the source of the rates behind every time
  Bytes peak_hbm;                    // up to the OOM, if there is one
  Owners peak_owners;                // at that moment
  std::string peak_phase;            // "prefill" or "decode"
  std::vector<PeakTerm> peak_terms;  // every byte at that moment: they sum to the peak
  Bytes prefill_peak;
  Bytes decode_peak;  // 0 if no step was run
  Bytes kv_bytes;     // at the end (or the last moment before the OOM), whole batch
  Bytes usable_hbm;   // available to the stack
  std::vector<Bytes> kv_bytes_per_layer;  // at the end, whole batch; if layers are split, of the
                                          // fullest GPU
  std::vector<GpuBytes> gpus;             // per GPU, if layers are split
  // Times: nullopt after an OOM, except for a prefill that had finished.
  std::optional<Seconds> prefill_time;
  std::optional<Seconds> decode_time;
  std::optional<double> throughput_tok_s;  // output tokens of the batch over prefill + decode
  std::optional<double> decode_tok_s;
  // If requested: prefill, the first decode step and the last, as far as they ran.
  std::vector<ExplainedStep> explained;
  double flops = 0, bytes_moved = 0;  // whole run, up to the OOM
  Seconds at_peak{};  // time of the arithmetic at the data sheet's peak rate of each operator's
                      // format
  std::optional<RunIntervals> intervals;  // if requested
  std::optional<FitRange> fit_range;      // set by callers of fit_range
  // If the spec requests it: segments and fragmentation, and the point at which memory ran out. The
  // members above include neither.
  std::optional<AllocationReport> allocator;
  std::optional<EngineStartup> startup;  // of a stack with a paged cache
  std::vector<StaticSample> timeline;    // thinned to at most `max_samples`, first and last kept
  std::vector<std::string> notes;        // "prefill scores were chunked to 1250 query rows", …
  /// One of `notes`: the engine does not run the batch at once. Empty if it does.
  std::string exceeded_num_seqs{};
};

/// What a run records; the simulation does not depend on it.
struct StaticOptions {
  std::size_t max_samples = 512;  // of the timeline; at least 3
  bool time_terms = false;        // costs more than the run of a short point itself
  bool intervals = false;         // likewise
  // If spec.allocator is set: the allocator shared by the batches of a service, created by the
  // first of them; the run's allocations stay in it until end_batch. Null: an allocator for this
  // run only.
  std::optional<AllocationSession>* allocations = nullptr;
};

/// Runs a static batch. Pure except for `options.allocations`: equal specs produce equal results.
/// Errors: ContractError on sizes below 1; InputError if the method's size depends on data. An OOM
/// is a result.
[[nodiscard]] StaticResult run_static(const StaticSpec& spec, const StaticOptions& options = {});

}  // namespace kvsim
