#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "sim/batch/static_run.hpp"
#include "sim/replay/replay.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/serve/account/mean_iteration.hpp"
#include "sim/serve/account/serve_intervals.hpp"
#include "sim/serve/serve_result.hpp"

namespace kvsim {

/// A requested method that could not be replayed, and the reason.
struct SkippedMethod {
  std::string name;
  std::string reason;
};

/// A trace run through those of the requested methods that can run on it.
struct ReplayJob {
  ReplayResult result;
  std::vector<SkippedMethod> skipped;  // with the reason, such as data that the trace does not have
  std::vector<std::size_t> ran;        // indices of the requested methods that are in `result`;
                                       // ascending
};

/// The content of a report on one run: the scenario and its results.
struct RunReport {
  const Scenario* scenario = nullptr;  // not owned
  std::vector<StaticResult> results;   // one per point, in the scenario's order; of kind "static"
  std::vector<ServeResult> serves;     // likewise, of kind "serve"
  std::vector<std::optional<MeanIteration>> iterations;        // one per point, or none
  std::vector<std::optional<ServeIntervals>> serve_intervals;  // likewise
  std::optional<ReplayResult> replay;                          // if the scenario has one
  std::vector<SkippedMethod> skipped;                          // of the replay
  std::vector<std::string> notes;  // of the run as a whole; a point's notes are in its result
  std::size_t missing = 0;         // points left out because the run was stopped
  bool replay_missing = false;     // likewise for the scenario's replay
};

}  // namespace kvsim
