#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/gpu/gpu.hpp"
#include "models/stack/stack.hpp"
#include "models/units/units.hpp"
#include "sim/batch/account/intervals.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/memory/vllm_startup.hpp"

namespace kvsim {

/// Factors for predicted bytes. Weights, cache and measured terms are known and have no factor.
struct TermFactors {
  double activation = 1;  // of an engine: the peak of the start-up's profiling run
  double non_torch = 1;   // CUDA context, libraries and collectives' buffers
  double graphs = 1;      // CUDA graph pools

  friend bool operator==(const TermFactors&, const TermFactors&) = default;
};

/// Real over predicted memory at one end of an interval. An engine has a factor for each uncertain
/// term of its start-up. PyTorch has a factor for activations and a reserve.
struct MemoryEnd {
  TermFactors terms{};
  Bytes reserve{};  // of PyTorch: bytes added to the scaled activations; negative at the low end

  friend bool operator==(const MemoryEnd&, const MemoryEnd&) = default;
};
/// Raises every factor to `power` and multiplies the reserve by it: 1 is the end itself, 0 the
/// prediction.
[[nodiscard]] MemoryEnd to_power(const MemoryEnd& end, double power);

/// The interval [`low`, `high`] covers 90 % of cases. Factors of `low` are at most 1, those of
/// `high` at least 1.
struct MemoryEnds {
  MemoryEnd low, high;
  bool by_term = false;  // of an engine
  std::string basis;
};
/// An engine's factors, or PyTorch's; nullopt: the stack's memory is a bound without measurements.
/// `gpus`: number of GPUs that share the model; their collectives have buffers.
[[nodiscard]] std::optional<MemoryEnds> memory_ends(const Stack& stack, std::int32_t gpus);

/// Bytes by which a PyTorch run at `end` exceeds its predicted peak, of which `activations` are
/// predicted activations; negative if it needs less. Weights, caches and the CUDA context are
/// known. Beyond the largest activations of published peaks, the result grows in proportion.
[[nodiscard]] Bytes beyond_prediction(const MemoryEnd& end, Bytes activations);
/// The activations of a peak, given its owners: all except weights, caches, the CUDA context and a
/// mask that the stack allocates once.
[[nodiscard]] Bytes activations_of(const Stack& stack, const Owners& owners);
/// Reduces the memory of `gpu` so that a run on `stack` may use `more` fewer bytes (more bytes if
/// negative).
void reduce_memory(Gpu& gpu, const Stack& stack, Bytes more);

/// The parts of a peak that its interval treats differently; the rest is activations. PyTorch's
/// context is known.
struct PeakParts {
  Bytes peak{};
  Bytes known{};      // weights, cache, measured terms
  Bytes non_torch{};  // predicted, of an engine
  Bytes graphs{};     // predicted, of an engine
};
/// Returns the parts of a moment of a run with this peak and this cache.
[[nodiscard]] PeakParts peak_parts(const StaticSpec& spec, const StaticResult& result, Bytes peak,
                                   Bytes cache);
[[nodiscard]] BytesInterval peak_interval(const MemoryEnds& ends, const PeakParts& parts);

/// An engine's start with each uncertain term at `factors`, except those in `measured`; the pool is
/// the remainder.
[[nodiscard]] EngineStartup at_factors(const EngineStartup& startup, const TermFactors& factors,
                                       const Stack& stack, const StackOptions& measured);
[[nodiscard]] PoolInterval pool_interval(const EngineStartup& startup, const Stack& stack,
                                         std::int32_t gpus, const StackOptions& measured);

/// Sets `gpu` and `options` to the end of the memory interval. An engine with predicted memory then
/// starts and runs if and only if an engine with the end's memory does on the original GPU.
/// `startup`: the engine's.
void set_start_end(const TermFactors& end, const EngineStartup& startup, Gpu& gpu,
                   StackOptions& options);

/// Every term of the start-up: "79.19 GiB of GPU memory = 61.02 GiB of weights + ... + 4.487 GiB
/// for the cache". The terms add up to the GPU's memory.
[[nodiscard]] std::string start_text(const EngineStartup& startup);

}  // namespace kvsim
