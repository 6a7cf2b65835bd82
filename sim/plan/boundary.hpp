#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

namespace kvsim {

/// The last whole number for which something holds.
struct Boundary {
  std::optional<std::int64_t> last;  // holds there, not one further; nullopt: nowhere
  bool at_most = false;              // `last` is the largest that was to be tried
  bool monotone = true;  // false: it held somewhere beyond a number for which it did not
  std::size_t probes = 0;
};

/// Where to look.
struct Search {
  std::int64_t min = 1;
  std::int64_t max = 1;
  std::int64_t start = 1;   // looked at first; steps away from it double
  std::int64_t stride = 1;  // the first step
  /// How many numbers beyond the boundary are tried as well: +2, +3, then further off.
  std::size_t neighbours = 6;
};

/// Gallops from `start`, then bisects. That what holds for n holds for all below is expected and
/// looked into, not taken for granted: where a number beyond the boundary holds after all, the
/// search goes on from there. Errors: ContractError unless min <= start <= max and stride >= 1.
[[nodiscard]] Boundary largest_feasible(const Search& search,
                                        const std::function<bool(std::int64_t)>& holds);

}  // namespace kvsim
