#include "sim/report/run/run_figures.hpp"

#include <algorithm>
#include <utility>

#include "sim/report/batch/static_figures.hpp"
#include "sim/report/replay/replay_figures.hpp"
#include "sim/report/service/serve_figures.hpp"

namespace kvsim {
FigureSet run_figures(const RunReport& report) {
  FigureSet set;
  const Scenario& scenario = *report.scenario;
  if (scenario.kind == "serve") {
    set = serve_figures(report);
  } else {
    add_static_figures(report, set);
  }
  if (report.replay) {
    FigureSet of_replay = replay_figures(*report.replay);
    for (Figure& figure : of_replay.figures) set.figures.push_back(std::move(figure));
  }
  return set;
}

FigureSet wanted_figures(FigureSet all, const Scenario& scenario) {
  if (!scenario.figures) return all;
  const std::vector<std::string>& wanted = *scenario.figures;
  if (wanted.empty()) return {};
  std::erase_if(all.figures, [&](const Figure& figure) {
    return std::find(wanted.begin(), wanted.end(), figure.kind) == wanted.end();
  });
  return all;
}

}  // namespace kvsim
