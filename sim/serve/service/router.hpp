#pragma once

// Internal to sim/serve: choice of the engine for each request.

#include <cstdint>
#include <memory>
#include <span>

#include "sim/serve/engine/engine.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// Chooses the engine of each request on arrival, by the engines' current state, without delay.
/// Ties go to the lowest index. The only state is the round-robin position.
class Router {
 public:
  virtual ~Router() = default;
  /// Index into `engines`, which is not empty and always the same for one router.
  [[nodiscard]] virtual std::size_t choose(RequestId id,
                                           std::span<const std::unique_ptr<Engine>> engines) = 0;
};

/// Round robin: in turn, regardless of load. Least loaded: fewest requests present or promised.
/// Prefix-aware: the engine that caches the longest prefix of the prompt; ties go to the least
/// loaded. If it has over `prefix_margin` requests more than the least loaded engine, the latter is
/// chosen.
/// Source of the margin: SGLang's cache-aware router, which balances if loads differ by more than
/// balance_abs_threshold. Its second, relative threshold is not modelled. It tracks prefixes by the
/// requests that it has sent, not by what the engines still hold.
[[nodiscard]] std::unique_ptr<Router> make_router(RouterPolicy policy, std::int64_t prefix_margin);

}  // namespace kvsim
