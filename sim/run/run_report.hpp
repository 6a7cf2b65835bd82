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

/// A method that was asked for and could not be replayed, and why.
struct SkippedMethod {
  std::string name;
  std::string reason;
};

/// A trace run through those of the methods asked for that can run on it.
struct ReplayJob {
  ReplayResult result;
  std::vector<SkippedMethod> skipped;  // what the trace lacks for the others
  std::vector<std::size_t> ran;        // of the methods asked for, those in `result`; ascending
};

/// All that a report of one run is made of: what was asked and what came out.
struct RunReport {
  const Scenario* scenario = nullptr;  // not owned
  std::vector<StaticResult> results;   // one a point, in the scenario's order; of kind "static"
  std::vector<ServeResult> serves;     // likewise, of kind "serve"
  std::vector<std::optional<MeanIteration>> iterations;        // one a point, or none
  std::vector<std::optional<ServeIntervals>> serve_intervals;  // likewise
  std::optional<ReplayResult> replay;                          // where the scenario asks for one
  std::vector<SkippedMethod> skipped;                          // of the replay
  std::vector<std::string> notes;  // of the run as a whole; a point's own stand in its result
  std::size_t missing = 0;         // points that were left out, the run being told to stop
  bool replay_missing = false;     // likewise the replay that the scenario asks for
};

}  // namespace kvsim
