#pragma once

#include <functional>
#include <string>

#include "sim/run/run_report.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// How a scenario is run; no number depends on it.
struct RunOptions {
  int threads = 0;        // 0: as many as the machine has
  bool per_head = false;  // the replay keeps what each head holds, whether or not the scenario asks
  bool why_kept = false;  // and what keeps each entry
  /// Told what begins: "simulating NAME" of so many units ("points"; 0: no number), "replaying
  /// TRACE". May be empty.
  std::function<void(const std::string& what, double total, const std::string& unit)> phase{};
  /// Told the share of the phase that is done, from any thread. What it throws ends the run.
  std::function<void(double)> progress{};
  /// Asked before each point and while a trace is replayed, from any thread: true leaves out the
  /// points that have not begun, and the replay. May be empty.
  std::function<bool()> stop{};
};

/// Runs the points of `scenario` and the replay it asks for: all that its report is made of. Size
/// laws that depend on data are measured first, and kept in the scenario, which the report points
/// to. Points that `stop` left out leave the scenario too, are counted in `missing` and named in a
/// note; no replay follows them. One that `stop` ends is given up and named likewise. Errors:
/// InputError, with the name of the point that cannot be run.
[[nodiscard]] RunReport run_scenario(Scenario& scenario, const RunOptions& options);

/// Measures size laws that depend on data (measure_laws) where points have such.
void measure_missing_laws(Scenario& scenario, const RunOptions& options);

}  // namespace kvsim
