#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "models/units/units.hpp"
#include "sim/batch/memory_end.hpp"
#include "sim/batch/static_run.hpp"

namespace kvsim {

/// The common part of many static batches: a StaticSpec without its three sizes. Its pointers are
/// not owned.
struct PointSpec {
  const Llm* llm = nullptr;
  const Gpu* gpu = nullptr;
  const Stack* stack = nullptr;
  /// Returns the method resolved for a prompt of this many tokens; called once per prompt. Prompts
  /// with the same object share results.
  std::function<std::shared_ptr<const Method>(std::int64_t prompt)> method;
  Dtype weight_dtype = Dtype::kFp16;
  Dtype kv_dtype = Dtype::kFp16;
  const Calibration* calibration = nullptr;
  const WeightFormat* weight_format = nullptr;
  std::int32_t tensor_parallel = 1;
  StackOptions options{};
  /// For stacks without a pool: the memory end of runs (beyond_prediction). Bytes beyond the
  /// prediction are subtracted from `usable`. For an engine, the end is in `gpu` and `options`
  /// (set_start_end).
  MemoryEnd memory{};
};

struct Point {
  std::int64_t batch = 1;
  std::int64_t prompt_tokens = 1;  // per sequence
  std::int64_t output_tokens = 1;  // per sequence; decode steps
};

struct PointTimes {
  Seconds prefill;
  Seconds last_step;  // the decode step that brings the sequence to its last token
  Seconds decode;     // sum over all steps
  double tok_s = 0;   // output tokens of the batch over prefill + decode
};

struct PointResult {
  bool fits = false;
  Bytes usable;                     // available to the stack
  Bytes prefill_peak;               // the memory that the run needs, whether or not it fits
  Bytes decode_peak;                // 0 without decode steps
  Bytes kv_bytes;                   // cache and side data at the end, whole batch
  Bytes uncompressed;               // prompts in an engine's pool beyond `kv_bytes`, at most
  Bytes activations;                // of the peak: all except weights, caches, context and a
                                    // resident mask
  std::optional<PointTimes> times;  // nullopt if it does not fit
  /// If not empty, `decode` and `tok_s` are a quadrature (errors: integrate_steps), for this
  /// reason.
  std::string_view approximation_reason;
  /// If not empty, run_static computed the result, for this reason. For a run that does not fit,
  /// its values are those up to the refusal.
  std::string_view fallback_reason;

  double demand_ratio = 0;  // required over available memory: above 1 if it does not fit

  [[nodiscard]] Bytes peak() const { return std::max(prefill_peak, decode_peak); }
  [[nodiscard]] Bytes margin() const { return usable - peak(); }  // below 0: the shortage
};

/// One decode step of a batch.
struct PointStep {
  Seconds time;
  Bytes peak;  // within the step
  Bytes kv;    // after it, whole batch
};

/// run_static for many sizes of one (model, GPU, stack, method, formats, calibration): the same
/// operators and size laws, without the run's report. What depends only on the combination is
/// computed once. Decode steps of a batch size are reduced to coefficients (CompiledDecode). While
/// the method's size law rises by whole entries per step, memory peaks at the last of these steps,
/// and times that are sums of maxima of lines are summed along lines. Bytes equal run_static's;
/// times equal its times to rounding, except sums marked as inexact.
///
/// The last (batch, prompt) is kept, so points that differ only in output length are cheapest if
/// evaluated consecutively. Results do not depend on the order of calls. Not thread-safe.
class CompiledPoint {
 public:
  /// Errors: as run_static.
  explicit CompiledPoint(PointSpec spec);
  CompiledPoint(CompiledPoint&&) noexcept;
  CompiledPoint& operator=(CompiledPoint&&) noexcept;
  ~CompiledPoint();

  /// Errors: ContractError on sizes below 1 (output: below 0); InputError if the method's size
  /// depends on data.
  [[nodiscard]] PointResult at(const Point& point);
  /// The same without times, which is faster.
  [[nodiscard]] PointResult memory_at(const Point& point);
  /// The decode step that brings each sequence from `prompt + step - 1` to `prompt + step` tokens,
  /// whether or not it fits. If layers are split over GPUs, bytes are of a GPU with all of them.
  /// Errors: ContractError on sizes below 1.
  [[nodiscard]] PointStep decode_step(std::int64_t batch, std::int64_t prompt, std::int64_t step);

  /// By bisection. Assumes that a larger run does not fit if a smaller one does not; nullopt if not
  /// even one fits.
  [[nodiscard]] std::optional<std::int64_t> largest_batch(std::int64_t prompt, std::int64_t output,
                                                          std::int64_t max = 1 << 16);
  [[nodiscard]] std::optional<std::int64_t> longest_prompt(std::int64_t batch, std::int64_t output,
                                                           std::int64_t max = 1 << 24);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvsim
