#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "models/methods/method.hpp"
#include "sim/replay/replay.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// Runs a trace through those of `methods` that can run on it. Methods in `whole_catalogue` were
/// not requested by name: if one cannot run here (a budget that it cannot keep, a missing file,
/// rows that its store cannot hold), this is reported and the others run. Errors: InputError for a
/// trace that cannot be read, an unknown method or value, and if no method is left.
[[nodiscard]] ReplayJob run_replay_job(const std::filesystem::path& trace,
                                       const std::vector<MethodSpec>& methods,
                                       const ReplayOptions& options,
                                       const std::set<std::string>& whole_catalogue = {});

}  // namespace kvsim
