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

/// The weights as the tensors a framework loads, in the model's order: embeddings, the matrices of
/// each layer (every expert's its own), norms and biases, output head. Elements sum to
/// parameters(llm).
struct WeightTensor {
  std::int64_t elements = 0;
  Bytes bytes;
};
[[nodiscard]] std::vector<WeightTensor> weight_tensors(const Llm& llm, Dtype dtype);

/// A static batch whose allocations are to be made one by one.
struct AllocationRun {
  const CostInput* cost = nullptr;          // not owned
  std::int64_t prompt = 1;                  // tokens a sequence
  std::int64_t output = 0;                  // decode steps
  std::vector<std::int64_t> score_rows{1};  // as prefill_step takes them
};

/// Where a run ended for want of memory.
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

/// Of one batch, or of all that an AllocationSession has run: sizes and peaks are of everything
/// that its allocator has seen so far.
struct AllocationReport {
  AllocatorStats end;                     // after the last step, or at the refusal
  Bytes tensor_peak;                      // of the tensors' requests, in blocks of 512 B
  Owners owners_at_peak;                  // of allocated bytes when reserved was highest
  double worst_fragmentation = 0;         // after any step
  std::int64_t steps = 0;                 // decode steps made, of all batches reported
  std::optional<AllocationRefusal> oom;   // the first
  std::vector<AllocationSample> samples;  // of one batch: after prefill and each decode step
};

/// The allocations of batches that follow each other on one device. Weights are loaded once; what a
/// batch takes goes with it, whether or not it ran to its end, as where a script catches the
/// exception. The segments that it leaves cached, and how they are split, meet the next batch.
/// Deterministic.
class AllocationSession {
 public:
  AllocationSession(const AllocatorDevice& device, const AllocatorConfig& config);
  AllocationSession(AllocationSession&&) noexcept;
  AllocationSession& operator=(AllocationSession&&) noexcept;
  ~AllocationSession();

  /// Allocates the weights, once; nullopt: success. After a refusal, the allocated part stays until
  /// end_batch, or the next attempt. Errors: ContractError without a model.
  [[nodiscard]] std::optional<AllocationRefusal> load(const CostInput& in);

  /// Makes every allocation and release of a batch in the order of its graphs
  /// (models/cost/step.hpp): weights if they are not loaded, static allocations (a static cache, a
  /// mask), prefill, then `output` decode steps. A layer's output is the next one's input; a cache
  /// that was copied into a longer or shorter tensor is that tensor from then on; logits are freed
  /// with their step. The batch's memory at its end stays allocated until end_batch, or the next
  /// batch. Errors: ContractError on sizes below 1; InputError if the method's size depends on
  /// data.
  [[nodiscard]] AllocationReport batch(const AllocationRun& run);
  /// Releases all that the batch took.
  void end_batch();

  /// Of all batches so far.
  [[nodiscard]] AllocationReport report() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvsim
