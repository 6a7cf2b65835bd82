#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/cost/step.hpp"
#include "models/llm/llm.hpp"
#include "models/units/dtype.hpp"
#include "models/units/units.hpp"
#include "sim/memory/caching_allocator.hpp"

namespace kvsim {

/// The weights as the tensors that a framework loads, in the model's order: embeddings, the
/// matrices of each layer (separate ones for every expert), norms and biases, output head. The
/// elements sum to parameters(llm).
struct WeightTensor {
  std::int64_t elements = 0;
  Bytes bytes;
};
[[nodiscard]] std::vector<WeightTensor> weight_tensors(const Llm& llm, Dtype dtype);

/// A static batch whose allocations are simulated one by one.
struct AllocationRun {
  const CostInput* cost = nullptr;          // not owned
  std::int64_t prompt = 1;                  // per sequence
  std::int64_t output = 0;                  // decode steps
  std::vector<std::int64_t> score_rows{1};  // as in prefill_step
};

/// The point at which a run ran out of memory.
struct AllocationRefusal {
  std::int64_t step = 0;    // 0: load or prefill; n: the n-th decode step
  std::int64_t tokens = 0;  // per sequence
  std::string phase;        // "load", "prefill" or "decode"
  std::string what;         // "longer copy of the keys of layer 17"
  OutOfMemory reason;
};

/// The memory in use after one step.
struct AllocationSample {
  Bytes allocated;
  Bytes reserved;
};

/// Report on one batch, or on all batches of an AllocationSession. Sizes and peaks cover everything
/// that its allocator has processed so far.
struct AllocationReport {
  AllocatorStats end;                     // after the last step, or at the refusal
  Bytes tensor_peak;                      // of the tensors' requests, in blocks of 512 B
  Owners owners_at_peak;                  // of allocated bytes when reserved was highest
  double worst_fragmentation = 0;         // after any step
  std::int64_t steps = 0;                 // decode steps run, over all reported batches
  std::optional<AllocationRefusal> oom;   // the first
  std::vector<AllocationSample> samples;  // of one batch: after prefill and each decode step
};

/// The allocations of consecutive batches on one device. Weights are loaded once. A batch's memory
/// is released with it, whether or not it ran to its end, as in a script that catches the
/// exception. The cached segments that it leaves, and how they are split, affect the next batch.
/// Deterministic.
class AllocationSession {
 public:
  AllocationSession(const AllocatorDevice& device, const AllocatorConfig& config);
  AllocationSession(AllocationSession&&) noexcept;
  AllocationSession& operator=(AllocationSession&&) noexcept;
  ~AllocationSession();

  /// Allocates the weights, once; returns nullopt on success. After a refusal, the allocated part
  /// stays until end_batch or the next attempt. Errors: ContractError without a model.
  [[nodiscard]] std::optional<AllocationRefusal> load(const CostInput& in);

  /// Makes every allocation and release of a batch in the order of its graphs
  /// (models/cost/step.hpp): weights if they are not loaded, static allocations (a static cache, a
  /// mask), prefill, then `output` decode steps. A layer's output is the next one's input; a cache
  /// that is copied into a longer or shorter tensor is replaced by that tensor; logits are freed
  /// with their step. The batch's memory at its end stays allocated until end_batch or the next
  /// batch. Errors: ContractError on sizes below 1; InputError if the method's size depends on
  /// data.
  [[nodiscard]] AllocationReport batch(const AllocationRun& run);
  /// Releases all memory of the batch.
  void end_batch();

  /// Reports on all batches so far.
  [[nodiscard]] AllocationReport report() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvsim
