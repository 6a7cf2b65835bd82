#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

namespace kvsim {

/// The largest whole number for which a condition holds.
struct Boundary {
  std::optional<std::int64_t> last;  // the condition holds for it and not for the next number;
                                     // nullopt if it holds nowhere
  bool at_most = false;              // whether `last` is the largest number of the search
  bool monotone = true;  // false if the condition holds for a number above one for which it does
                         // not
  std::size_t probes = 0;
};

/// Range and order of a search.
struct Search {
  std::int64_t min = 1;
  std::int64_t max = 1;
  std::int64_t start = 1;   // first number to try; steps away from it double
  std::int64_t stride = 1;  // the first step
  /// Number of probes beyond the boundary: +2, +3, then at larger distances.
  std::size_t neighbours = 6;
};

/// Gallops from `start`, then bisects. The condition is expected to hold for every number below one
/// for which it holds, but this is probed, not assumed: if a number beyond the boundary holds, the
/// search continues from there. Errors: ContractError unless min <= start <= max and stride >= 1.
[[nodiscard]] Boundary largest_feasible(const Search& search,
                                        const std::function<bool(std::int64_t)>& holds);

}  // namespace kvsim
