#pragma once

#include <string>

#include "sim/replay/replay.hpp"

namespace kvsim {

/// The method with the smallest error among methods that hold equal bytes.
[[nodiscard]] std::string replay_finding(const ReplayResult& replay);

}  // namespace kvsim
