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

/// What many static batches have in common: all of a StaticSpec but its three sizes. Its pointers
/// are not owned.
struct PointSpec {
  const Llm* llm = nullptr;
  const Gpu* gpu = nullptr;
  const Stack* stack = nullptr;
  /// The method resolved for a prompt of that many tokens, called once per prompt or range of
  /// prompts: results for a method are shared among the prompts that it is valid for.
  std::function<SettledMethod(std::int64_t prompt)> method;
  Dtype weight_dtype = Dtype::kFp16;
  Dtype kv_dtype = Dtype::kFp16;
  const Calibration* calibration = nullptr;
  const WeightFormat* weight_format = nullptr;
  std::int32_t tensor_parallel = 1;
  StackOptions options{};
  /// Of stacks without a pool: the memory that runs take (beyond_prediction), whose `usable` is
  /// less by what that is beyond the prediction. An engine's is in `gpu` and `options`
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
  Bytes usable;                     // what the stack may use
  Bytes prefill_peak;               // what the run takes, whether or not there is so much
  Bytes decode_peak;                // 0 without decode steps
  Bytes kv_bytes;                   // cache and side data at the end, whole batch
  Bytes activations;                // of the peak: all but weights, caches, context, a kept mask
  std::optional<PointTimes> times;  // nullopt where it does not fit
  /// Where not empty, `decode` and `tok_s` are a quadrature (errors: sum_steps), and this says why.
  std::string_view inexact;
  /// Where not empty, run_static itself gave the figures, and this says why: a run that does not
  /// fit, whose figures are up to its refusal.
  std::string_view simulated;

  double need = 0;  // memory wanted over what there is: above 1 where it does not fit

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
/// The last (batch, prompt) is kept, so points that differ only in output length are cheapest one
/// after another. Results do not depend on the order of calls. Not thread-safe.
class CompiledPoint {
 public:
  /// Errors: as run_static.
  explicit CompiledPoint(PointSpec spec);
  CompiledPoint(CompiledPoint&&) noexcept;
  CompiledPoint& operator=(CompiledPoint&&) noexcept;
  ~CompiledPoint();

  /// Errors: ContractError on sizes below 1 (output: below 0); InputError where the method's size
  /// depends on data.
  [[nodiscard]] PointResult at(const Point& point);
  /// The same without times, which takes less.
  [[nodiscard]] PointResult memory_at(const Point& point);
  /// The decode step that brings each sequence from `prompt + step - 1` to `prompt + step` tokens,
  /// whether or not there is room for it. Errors: ContractError on sizes below 1.
  [[nodiscard]] PointStep decode_step(std::int64_t batch, std::int64_t prompt, std::int64_t step);

  /// By bisection, for runs of which a larger one never fits where a smaller one does not; nullopt:
  /// not even one fits.
  [[nodiscard]] std::optional<std::int64_t> largest_batch(std::int64_t prompt, std::int64_t output,
                                                          std::int64_t most = 1 << 16);
  [[nodiscard]] std::optional<std::int64_t> longest_prompt(std::int64_t batch, std::int64_t output,
                                                           std::int64_t most = 1 << 24);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvsim
