#pragma once

#include <string>
#include <vector>

#include "sim/replay/replay.hpp"
#include "sim/report/replay/replay_aggregate.hpp"

namespace kvsim {

/// The method with the smallest error among methods that hold equal bytes.
[[nodiscard]] std::string replay_finding(const ReplayResult& replay);

/// The mean shares of the full cache's bytes and the mean errors as if of one replay. Means over
/// only some of the traces are omitted: they are not comparable with the others.
[[nodiscard]] ReplayResult replay_of_means(const std::vector<AggregateRow>& rows);
/// The finding of several replays: the same rule on these means.
[[nodiscard]] std::string aggregate_finding(const std::vector<AggregateRow>& rows);

}  // namespace kvsim
