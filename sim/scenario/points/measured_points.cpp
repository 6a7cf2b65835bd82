#include "sim/scenario/points/measured_points.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "models/methods/resolve/measured.hpp"
#include "models/units/check.hpp"
#include "sim/scenario/points/points.hpp"
#include "traces/trace.hpp"

namespace kvsim {
namespace {

bool same_spec(const MethodSpec& a, const MethodSpec& b) {
  const auto budget = [](const MethodSpec& spec) {
    const Budget given = spec.budget.value_or(Budget{});
    return std::pair{given.fraction, given.entries};
  };
  return a.name == b.name && a.params == b.params && budget(a) == budget(b);
}

/// The methods of one trace, each once, and the points that use them.
struct Wanted {
  std::vector<MethodSpec> specs;
  std::vector<std::vector<ScenarioPoint*>> points;
};

void give(ScenarioPoint& point, const MeasuredLaw& law, const TraceInfo& trace) {
  point.spec.method = with_measured_law(point.spec.method, law, point.spec.llm->n_layers());
  point.measured = std::make_shared<const MeasuredLaw>(law);
  if (point.serve) {
    point.serve->measured = point.measured;
  } else {
    point.kv_bytes_wanted = kv_bytes_wanted(point.spec);
  }
  double kept = 0;
  double grown = 0;
  for (std::size_t layer = 0; layer < law.kept.size(); ++layer) {
    kept += law.kept[layer];
    grown += law.growth[layer];
  }
  const auto layers = static_cast<double>(law.kept.size());
  point.notes.push_back(fmt::format(
      "size law measured on trace {} ({} prompt and {} decode tokens, {} layers): {:.2f} % of the "
      "prompt's tokens kept, {:.3f} entries per decode token, means over layers",
      law.trace, trace.prompt_tokens, trace.tokens - trace.prompt_tokens, law.kept.size(),
      100 * kept / layers, grown / layers));
}

}  // namespace

void measure_laws(Scenario& scenario, ReplayOptions options) {
  std::map<std::filesystem::path, Wanted> traces;
  for (ScenarioPoint& point : scenario.points) {
    if (point.measured_on.empty()) continue;
    Wanted& wanted = traces[point.measured_on];
    const auto found =
        std::find_if(wanted.specs.begin(), wanted.specs.end(),
                     [&](const MethodSpec& spec) { return same_spec(spec, point.method); });
    const auto at = static_cast<std::size_t>(found - wanted.specs.begin());
    if (found == wanted.specs.end()) {
      wanted.specs.push_back(point.method);
      wanted.points.emplace_back();
    }
    wanted.points[at].push_back(&point);
  }
  options.seed = scenario.seed;
  options.per_step = options.per_head = options.kept_positions = false;
  const auto report = std::move(options.progress);
  double done = 0;
  for (const auto& [path, wanted] : traces) {
    const auto n = static_cast<double>(traces.size());
    if (report) options.progress = [&](double part) { report((done + part) / n); };
    const Trace trace = Trace::open(path);
    const ReplayResult result = replay(trace, wanted.specs, options);
    for (std::size_t m = 0; m < wanted.specs.size(); ++m) {
      const auto& law = result.methods[m].measured_law;
      KVSIM_CHECK(law.has_value(), "a replay of {} measured no law", wanted.specs[m].name);
      for (ScenarioPoint* point : wanted.points[m]) give(*point, *law, trace.info());
    }
    ++done;
  }
}

}  // namespace kvsim
