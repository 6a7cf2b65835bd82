#pragma once

// Methods are comparable where they hold the same bytes; a budget does not say what they hold.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "sim/replay/replay.hpp"

namespace kvsim {

/// Methods hold equal bytes if the largest of them holds at most this many times the least. Budgets
/// are whole entries, side data differ, and cached bytes are compared after different numbers of
/// decode steps: with a smaller band most methods would have no other to compare with.
inline constexpr double kEqualBytes = 1.1;

/// Bands of equal bytes: indices into `shares` (of the full cache's bytes), ascending by share,
/// each index in exactly one band. A band starts at the least share that no band before it has.
[[nodiscard]] std::vector<std::vector<std::size_t>> equal_bytes_bands(
    std::span<const double> shares);

/// Methods of one replay that hold equal bytes at the end, least error first. Methods without a
/// budget that hold everything (the full cache) are in no band.
struct EqualBytes {
  double low = 0, high = 0;  // shares of the full cache's bytes
  std::vector<const ReplayMethod*> methods;
};
/// Bands with two different methods or more, ascending; oracles are no candidates.
[[nodiscard]] std::vector<EqualBytes> equal_bytes(const ReplayResult& replay);

/// "7.5 %", "31 to 33 %".
[[nodiscard]] std::string share_range(double low, double high);

/// Of each band: bytes held, the number of methods, that with the least error, and the next. Empty
/// without bands.
[[nodiscard]] std::string equal_bytes_table(const ReplayResult& replay, std::size_t width);

}  // namespace kvsim
