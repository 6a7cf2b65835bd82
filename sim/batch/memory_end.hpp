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

/// What predicted bytes of an engine's start are multiplied with. Weights, cache and measured terms
/// are known and have no factor.
struct TermFactors {
  double activation = 1;  // peak of the start-up's profiling run
  double non_torch = 1;   // CUDA context, libraries and collectives' buffers
  double graphs = 1;      // CUDA graph pools

  friend bool operator==(const TermFactors&, const TermFactors&) = default;
};

/// Real memory over predicted at one end of an interval. Engines have a factor for each uncertain
/// term of their start. Published peaks of PyTorch are totals: there one factor is of the whole.
struct MemoryEnd {
  double all = 1;
  TermFactors terms{};

  friend bool operator==(const MemoryEnd&, const MemoryEnd&) = default;
};
/// Every factor to this power: 1 the end itself, 0 the prediction.
[[nodiscard]] MemoryEnd to_power(const MemoryEnd& end, double power);

/// 90 % of cases are between `low` and `high`; no factor of `low` is above 1, none of `high` below.
struct MemoryEnds {
  MemoryEnd low, high;
  bool by_term = false;  // of an engine
  std::string basis;
};
/// An engine's, or PyTorch's; nullopt: the stack's memory is a bound that nothing was held against.
/// `gpus`: that share the model, whose collectives have buffers.
[[nodiscard]] std::optional<MemoryEnds> memory_ends(const Stack& stack, std::int32_t gpus);

/// A peak by what its interval takes from each part; what is none of these is activations.
struct PeakParts {
  Bytes peak{};
  Bytes known{};      // weights, cache, measured terms
  Bytes non_torch{};  // predicted
  Bytes graphs{};     // predicted
};
/// Of a moment of a run with that peak and that cache.
[[nodiscard]] PeakParts peak_parts(const StaticSpec& spec, const StaticResult& result, Bytes peak,
                                   Bytes cache);
[[nodiscard]] BytesInterval peak_interval(const MemoryEnds& ends, const PeakParts& parts);

/// An engine's start with each uncertain term at `factors`, but for those in `measured`; the pool
/// is what they leave.
[[nodiscard]] EngineStartup at_factors(const EngineStartup& startup, const TermFactors& factors,
                                       const Stack& stack, const StackOptions& measured);
[[nodiscard]] PoolInterval pool_interval(const EngineStartup& startup, const Stack& stack,
                                         std::int32_t gpus, const StackOptions& measured);

/// Makes `gpu` and `options` those on which a run as predicted fits if and only if, on the GPU as
/// it is, one fits that takes the end's memory. `startup`: the run's, of a paged engine.
void set_memory_end(const MemoryEnd& end, const std::optional<EngineStartup>& startup, Gpu& gpu,
                    StackOptions& options);

/// "79.19 GiB of GPU memory = 61.02 GiB of weights + ... + 4.487 GiB for the cache": every term of
/// the start. They add up to the GPU's memory.
[[nodiscard]] std::string start_text(const EngineStartup& startup);

}  // namespace kvsim
