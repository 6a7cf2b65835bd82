#pragma once

// Methods are comparable if they hold the same bytes; a budget does not determine the bytes.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/replay/replay.hpp"

namespace kvsim {

/// Methods hold equal bytes if the largest holds at most this many times the bytes of the smallest.
/// Budgets are whole entries, side data differ, and cached bytes are compared after different
/// numbers of decode steps. With a smaller band most methods would have no other to compare with.
inline constexpr double kEqualBytes = 1.1;

/// The error that methods are ranked by: at the answers of a marked trace, otherwise the mean.
[[nodiscard]] double ranked_error(const ReplayMethod& method);
/// " at the answers" if methods of the replay are ranked by the error there; otherwise empty.
[[nodiscard]] std::string_view where_ranked(const ReplayResult& replay);

/// Bands of equal bytes: indices into `shares` (of the full cache's bytes), ascending by share.
/// Each index is in exactly one band. A band starts at the smallest share not in an earlier band.
[[nodiscard]] std::vector<std::vector<std::size_t>> equal_bytes_bands(
    std::span<const double> shares);

/// Methods of one replay that hold equal bytes at the end, the smallest error first. Methods
/// without a budget that hold everything (the full cache) are in no band.
struct EqualBytes {
  double low = 0, high = 0;  // shares of the full cache's bytes
  std::vector<const ReplayMethod*> methods;
};
/// Bands with at least two different methods, ascending; oracles are not candidates.
[[nodiscard]] std::vector<EqualBytes> equal_bytes(const ReplayResult& replay);

/// "7.5 %", "31 to 33 %".
[[nodiscard]] std::string share_range(double low, double high);

/// For each band: bytes held, the number of methods, the two methods with the smallest errors.
/// Empty if there are no bands.
[[nodiscard]] std::string equal_bytes_table(const ReplayResult& replay, std::size_t width);

}  // namespace kvsim
