#include "sim/batch/memory_end.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/units_format.hpp"

namespace kvsim {
namespace {

// From published peaks in PyTorch (memory_ends): the largest predicted activations, and the
// reserves at both ends.
constexpr Bytes kMaxActivations{INT64_C(7'765'000'000)};
constexpr Bytes kHighReserve{INT64_C(1'935'000'000)};
constexpr Bytes kLowReserve{INT64_C(70'000'000)};

Bytes scaled(Bytes bytes, double factor) {
  return factor == 1 ? bytes : rounded<Bytes>(factor * static_cast<double>(bytes.count()));
}

Bytes owned(const StaticResult& result, const char* owner) {
  const auto found = result.peak_owners.find(owner);
  return found == result.peak_owners.end() ? Bytes{} : found->second;
}

/// Returns the GPU memory that adds as many bytes to a pool as `more` activations take from it.
Bytes pool_memory(const EngineStartup& startup, Bytes more) {
  switch (startup.fraction_of) {
    case FractionOf::kAll:
      return scaled(more, 1 / startup.fraction);
    case FractionOf::kFree:
      return more;
    case FractionOf::kBeforeWeights:
    case FractionOf::kAfterWeights:
      break;  // activations use the memory that the fraction leaves out
  }
  return {};
}

}  // namespace

MemoryEnd to_power(const MemoryEnd& end, double power) {
  return {.terms = {.activation = std::pow(end.terms.activation, power),
                    .non_torch = std::pow(end.terms.non_torch, power),
                    .graphs = std::pow(end.terms.graphs, power)},
          .reserve = scaled(end.reserve, power)};
}

std::optional<MemoryEnds> memory_ends(const Stack& stack, std::int32_t gpus) {
  // Published over predicted bytes of each term, in vLLM's start-up logs of the table described in
  // docs/published-data.md. Each end is the limit that 95 % of new starts stay within, moved
  // outward for the small number of logs (upper_limit of models/cost/kernels/spread.hpp). If a log
  // reports a pool but not its terms, all memory except weights, predicted activations and the pool
  // counts as non-PyTorch memory. docs/accuracy.md describes the procedure, and a test of published
  // figures repeats it.
  if (stack.growth == CacheGrowth::kPaged) {
    MemoryEnds out{
        .low = {.terms = {.activation = 0.135, .non_torch = 1, .graphs = 0}, .reserve = {}},
        .high = {.terms = {.activation = 1.023, .non_torch = 7.1, .graphs = 1}, .reserve = {}},
        .by_term = true,
        .basis = {}};
    if (gpus > 1) {
      out.low.terms.non_torch = 0;
      out.high.terms.non_torch = 1.93;
    }
    out.basis = fmt::format(
        "vLLM's start-up logs over predictions, by term: activations x {:g} to {:g}, non-PyTorch "
        "memory{} x {:g} to {:g}, CUDA graphs x {:g} to {:g}; weights and cache are known "
        "(validate published)",
        out.low.terms.activation, out.high.terms.activation, gpus > 1 ? " of several GPUs" : "",
        out.low.terms.non_torch, out.high.terms.non_torch, out.low.terms.graphs,
        out.high.terms.graphs);
    return out;
  }
  if (!stack.rounds_allocations) return std::nullopt;
  // Published peaks minus predicted weights and caches, as a function of predicted activations: the
  // narrowest lines that bound all peaks (also repeated by a test).
  MemoryEnds out{.low = {.terms = {.activation = 0.117}, .reserve = Bytes{} - kLowReserve},
                 .high = {.terms = {.activation = 1}, .reserve = kHighReserve},
                 .basis = {}};
  out.basis = fmt::format(
      "published peaks in PyTorch of six documents: activations x {:g} minus {} to activations x "
      "{:g} plus {}; weights and caches are known (validate published)",
      out.low.terms.activation, kLowReserve, out.high.terms.activation, kHighReserve);
  return out;
}

Bytes beyond_prediction(const MemoryEnd& end, Bytes activations) {
  if (end == MemoryEnd{} || activations < Bytes{}) return {};
  const Bytes within = std::min(activations, kMaxActivations);
  const Bytes taken = std::max(Bytes{}, scaled(within, end.terms.activation) + end.reserve);
  return activations == within ? taken - within
                               : scaled(taken - within, static_cast<double>(activations.count()) /
                                                            static_cast<double>(within.count()));
}

Bytes activations_of(const Stack& stack, const Owners& owners) {
  Bytes sum;
  for (const auto& [owner, bytes] : owners) {
    const bool known = owner == name_of(Owner::kWeights) || owner == name_of(Owner::kKvCache) ||
                       owner == name_of(Owner::kSideData) || owner == name_of(Owner::kContext) ||
                       (stack.full_causal_mask && owner == name_of(Owner::kMask));
    if (!known) sum += bytes;
  }
  return sum;
}

void reduce_memory(Gpu& gpu, const Stack& stack, Bytes more) {
  gpu.hbm_usable = std::max(Bytes{}, gpu.hbm_usable - scaled(more, 1 / stack.usable_fraction));
  gpu.hbm = std::max(gpu.hbm, gpu.hbm_usable);
}

PeakParts peak_parts(const StaticSpec& spec, const StaticResult& result, Bytes peak, Bytes cache) {
  PeakParts parts{.peak = peak, .known = cache + owned(result, "weights")};
  const Bytes context = owned(result, "context");
  if (!result.startup) {
    parts.known += context;
    if (spec.stack->full_causal_mask) parts.known += owned(result, "mask");
    return parts;
  }
  const Bytes graphs = result.startup ? result.startup->graphs : Bytes{};
  (spec.options.graphs ? parts.known : parts.graphs) += graphs;
  (spec.options.non_torch ? parts.known : parts.non_torch) += context - graphs;
  return parts;
}

BytesInterval peak_interval(const MemoryEnds& ends, const PeakParts& parts) {
  const auto at = [&](const MemoryEnd& end) {
    const Bytes activation =
        std::max(Bytes{}, parts.peak - parts.known - parts.non_torch - parts.graphs);
    if (!ends.by_term) return parts.peak + beyond_prediction(end, activation);
    return parts.peak - activation - parts.non_torch - parts.graphs +
           scaled(activation, end.terms.activation) + scaled(parts.non_torch, end.terms.non_torch) +
           scaled(parts.graphs, end.terms.graphs);
  };
  return {.low = at(ends.low), .high = at(ends.high)};
}

EngineStartup at_factors(const EngineStartup& startup, const TermFactors& factors,
                         const Stack& stack, const StackOptions& measured) {
  EngineStartup out = startup;
  if (!measured.non_torch) out.non_torch = scaled(startup.non_torch, factors.non_torch);
  if (!measured.activation) out.activation = scaled(startup.activation, factors.activation);
  if (!measured.graphs) out.graphs = scaled(startup.graphs, factors.graphs);
  const Bytes left = out.remaining_cache(out.weights, out.non_torch, out.activation);
  out.missing = std::max(Bytes{}, Bytes{} - left);
  out.kv_cache = std::clamp(left, Bytes{}, out.total);
  if (startup.draft_cache > Bytes{}) {
    const auto drafts = static_cast<double>(startup.draft_cache.count());
    const double share = drafts / (drafts + static_cast<double>(startup.kv_cache.count()));
    out.draft_cache = scaled(out.kv_cache, share);
    out.kv_cache -= out.draft_cache;
  }
  out.blocks = out.kv_cache.count() / out.block.count();
  out.tokens = out.blocks * stack.block_tokens;
  if (out.groups) {
    const VllmCapacity capacity = capacity_of_blocks(*out.groups, out.blocks, out.max_model_len);
    out.tokens = capacity.tokens;
    out.max_concurrency = capacity.concurrency;
  } else if (out.pools && startup.kv_cache > Bytes{}) {
    const double share =
        static_cast<double>(out.kv_cache.count()) / static_cast<double>(startup.kv_cache.count());
    out.tokens = static_cast<std::int64_t>(static_cast<double>(startup.tokens) * share);
    out.blocks = out.tokens / stack.block_tokens;
  }
  return out;
}

PoolInterval pool_interval(const EngineStartup& startup, const Stack& stack, std::int32_t gpus,
                           const StackOptions& measured) {
  const auto ends = memory_ends(stack, gpus);
  KVSIM_CHECK(ends && ends->by_term && startup.blocks >= 0, "the pool of stack {}, which has none",
              stack.name);
  const EngineStartup tight = at_factors(startup, ends->high.terms, stack, measured);
  const EngineStartup roomy = at_factors(startup, ends->low.terms, stack, measured);
  const auto peak = [](const EngineStartup& s) {
    return std::min(s.weights + s.non_torch + s.activation + s.graphs + s.kv_cache + s.draft_cache,
                    s.limit());
  };
  return {.low = tight.kv_cache,
          .high = roomy.kv_cache,
          .blocks_low = tight.blocks,
          .blocks_high = roomy.blocks,
          .tokens_low = tight.tokens,
          .tokens_high = roomy.tokens,
          .peak_low = std::min(peak(tight), peak(roomy)),
          .peak_high = std::max(peak(tight), peak(roomy)),
          .basis = ends->basis};
}

void set_start_end(const TermFactors& end, const EngineStartup& startup, Gpu& gpu,
                   StackOptions& options) {
  if (end == TermFactors{}) return;
  if (!options.non_torch) options.non_torch = scaled(startup.non_torch, end.non_torch);
  if (!options.graphs) options.graphs = scaled(startup.graphs, end.graphs);
  if (!options.activation) {
    // Not set as a measured peak, which would include the memory for a method's scores.
    const Bytes more = scaled(startup.activation, end.activation) - startup.activation;
    // gpu.hbm is unchanged: the engine's defaults depend on it.
    gpu.hbm_usable = std::max(Bytes{}, gpu.hbm_usable - pool_memory(startup, more));
  }
}

std::string start_text(const EngineStartup& startup) {
  // The base of the fraction decides which terms are subtracted before the pool; the others must
  // fit into the memory that the fraction leaves out.
  const bool counts_graphs = startup.counts_graphs || startup.fraction_of == FractionOf::kFree;
  const bool counts_activation =
      startup.fraction_of == FractionOf::kFree || startup.fraction_of == FractionOf::kAll;
  const Bytes activation = counts_activation ? startup.activation : Bytes{};
  const Bytes graphs = counts_graphs ? startup.graphs : Bytes{};
  const Bytes pool = startup.kv_cache - startup.missing;
  const Bytes outside =
      startup.total - startup.weights - startup.non_torch - activation - graphs - pool;
  std::string text =
      fmt::format("{} of GPU memory = {} of weights", startup.total, startup.weights);
  const auto add = [&](Bytes bytes, const std::string& what) {
    if (bytes > Bytes{}) text += fmt::format(" + {} {}", bytes, what);
  };
  add(activation, "of activations");
  add(startup.non_torch, "of non-PyTorch memory");
  add(graphs, "of CUDA graphs");
  add(outside, fmt::format("outside the memory fraction {:g}", startup.fraction));
  if (startup.missing > Bytes{}) {
    return text +
           fmt::format(" - {} that are missing, so nothing is left for a cache", startup.missing);
  }
  return text + fmt::format(" + {} for the cache", startup.kv_cache);
}

}  // namespace kvsim
