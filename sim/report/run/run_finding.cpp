#include "sim/report/run/run_finding.hpp"

#include <fmt/format.h>

#include "sim/report/batch/static_finding.hpp"
#include "sim/report/replay/replay_finding.hpp"
#include "sim/report/service/serve_finding.hpp"

namespace kvsim {
std::string points_finding(const RunReport& report) {
  const Scenario& scenario = *report.scenario;
  return scenario.kind == "serve" ? serve_finding(scenario, report.serves)
                                  : static_finding(scenario, report.results);
}

std::string run_finding(const RunReport& report) {
  const std::string out = points_finding(report);
  if (!report.replay) return out;
  return fmt::format("{}{}{}", out, out.empty() ? "" : " ", replay_finding(*report.replay));
}

}  // namespace kvsim
