#pragma once

#include <functional>
#include <string>

#include "sim/run/run_report.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// Options of running a scenario; they do not affect any number.
struct RunOptions {
  int threads = 0;        // 0: as many as the machine has
  bool per_head = false;  // the replay keeps the entries of each head, even if the scenario does
                          // not request it
  bool why_kept = false;  // also the rule that keeps each entry
  /// Called when a phase begins: "simulating NAME" with a number of units ("points"; 0: no number),
  /// "replaying TRACE". May be empty.
  std::function<void(const std::string& what, double total, const std::string& unit)> phase{};
  /// Called with the share of the phase that is done, from any thread. An exception from it ends
  /// the run.
  std::function<void(double)> progress{};
  /// Called before each point and while a trace is replayed, from any thread. If it returns true,
  /// points that have not begun, and the replay, are left out. May be empty.
  std::function<bool()> stop{};
};

/// Runs the points of `scenario` and its replay, and collects the content of its report. Size laws
/// that depend on data are measured first and kept in the scenario, which the report points to.
/// Points left out by `stop` are removed from the scenario, counted in `missing` and named in a
/// note; the replay is then left out too. A replay ended by `stop` is discarded and named likewise.
/// Errors: InputError, with the name of the point that cannot be run.
[[nodiscard]] RunReport run_scenario(Scenario& scenario, const RunOptions& options);

/// Measures size laws that depend on data (measure_laws) if points have any.
void measure_missing_laws(Scenario& scenario, const RunOptions& options);

}  // namespace kvsim
