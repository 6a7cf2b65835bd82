#pragma once

#include <string>

#include "sim/replay/replay.hpp"

namespace kvsim {

/// Which method errs least where methods hold equal bytes.
[[nodiscard]] std::string replay_finding(const ReplayResult& replay);

}  // namespace kvsim
