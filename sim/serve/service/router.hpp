#pragma once

// Inside of sim/serve: which of several engines a request goes to.

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

/// Round robin: in turn, whatever the load. Least loaded: fewest requests present or promised.
/// Prefix-aware: the engine that has most of the prompt's head in its cache, of several the least
/// loaded, unless more than `prefix_margin` requests more are there than at the least loaded one,
/// which gets it then.
/// Source of the margin: SGLang's cache-aware router, which balances where loads differ by more
/// than balance_abs_threshold; its second, relative threshold is left out, and it knows prefixes by
/// what it has sent, not by what the engines still hold.
[[nodiscard]] std::unique_ptr<Router> make_router(RouterPolicy policy, std::int64_t prefix_margin);

}  // namespace kvsim
