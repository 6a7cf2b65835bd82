#pragma once

#include <cstdint>
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
  AllocatorDevice device;
  AllocatorConfig config;
};

/// Where a run ended for want of memory.
struct AllocationRefusal {
  std::int64_t step = 0;    // 0: load or prefill; n: the n-th decode step
  std::int64_t tokens = 0;  // per sequence
  std::string phase;        // "load", "prefill" or "decode"
  std::string what;         // "longer copy of the keys of layer 17"
  OutOfMemory reason;
};

struct AllocationReport {
  AllocatorStats end;              // after the last step, or at the refusal
  Bytes tensor_peak;               // of what tensors asked for, in blocks of 512 B
  Owners owners_at_peak;           // of allocated bytes when reserved was highest
  double worst_fragmentation = 0;  // after any step
  std::int64_t steps = 0;          // decode steps made
  std::optional<AllocationRefusal> oom;
};

/// Makes every allocation and release of the run in the order of its graphs (models/cost/step.hpp):
/// weights, a static cache, prefill, then `output` decode steps. A layer's output is the next
/// one's input; a cache that was copied into a longer or shorter tensor is that tensor from then
/// on; logits go with their step. Deterministic. Errors: ContractError on sizes below 1; InputError
/// where the method's size depends on data.
[[nodiscard]] AllocationReport run_allocations(const AllocationRun& run);

}  // namespace kvsim
