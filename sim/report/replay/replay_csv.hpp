#pragma once

// Time series and tables as CSV (RFC 4180 quoting, lines end in "\n", units in column names).

#include <string>

#include "sim/replay/replay.hpp"

namespace kvsim {

/// One line per method and step; only the header if no series was kept.
[[nodiscard]] std::string replay_steps_csv(const ReplayResult& replay);
[[nodiscard]] std::string replay_layer_steps_csv(const ReplayResult& replay);  // for each layer
/// One line per method and layer: entries, bytes, errors at the end.
[[nodiscard]] std::string replay_layers_csv(const ReplayResult& replay);

/// One line per method: sizes, traffic, errors, distance from the oracle.
[[nodiscard]] std::string replay_methods_csv(const ReplayResult& replay);
/// The reason why each entry is kept at the end, one line per run of positions: a single position
/// for entries chosen by score, consecutive positions for others. Empty if this was not recorded.
[[nodiscard]] std::string replay_kept_csv(const ReplayResult& replay);
/// One line per method, moment, block size and layout.
[[nodiscard]] std::string replay_paged_csv(const ReplayResult& replay);

}  // namespace kvsim
