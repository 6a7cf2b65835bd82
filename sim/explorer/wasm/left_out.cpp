// Stubs of functions that the scenario reader calls but the explorer does not need: services, and
// traces on disk. They reject during reading what explored_scenario would reject after it, so that
// half of the program need not be compiled.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/methods/resolve/named.hpp"
#include "models/units/error.hpp"
#include "sim/own/own_method.hpp"
#include "sim/replay/replay.hpp"
#include "sim/scenario/points/serve_points.hpp"
#include "sim/serve/account/service_metrics.hpp"
#include "sim/serve/schedulers/scheduler.hpp"
#include "sim/serve/serve_spec.hpp"
#include "traces/trace.hpp"

namespace kvsim {

/// Never called: scenario_of rejects keys of a service in a static scenario.
void check_serve_keys(const Field&, const std::filesystem::path&) {}

void add_serve_points(const Group&, const PointsInput&, InlineDefinitions&,
                      std::vector<ScenarioPoint>&) {
  throw InputError{"explorer.json: /kind: the explorer runs static batches (\"kind\": \"static\")"};
}

/// Used only for services.
std::vector<std::string> scheduler_names() { return {}; }
EngineSite engine_site(const ServeSpec&) { return {}; }
/// Used only for replays.
std::optional<TraceSplit> split_of(std::string_view) { return std::nullopt; }

/// Used only by sim/launch/from_command.cpp, to read commands.
std::string_view word_of(Proposer) { return {}; }

/// Used only by published values of services.
MetricTable<ServeResult> service_metrics() { return {}; }

/// A browser can neither start Python nor load a library.
std::string method_of_user(const std::string& name, const std::filesystem::path&) {
  if (name.find(".py") != std::string::npos || name.find(".so") != std::string::npos) {
    throw InputError{"method \"" + name +
                     "\": the explorer runs no methods from files: kvsim run, kvsim replay"};
  }
  return canonical_method(name);
}

struct Trace::Impl {};
Trace::~Trace() = default;
Trace Trace::open(const std::filesystem::path& path) {
  throw InputError{path.string() + ": the explorer reads no traces: kvsim run"};
}
const TraceInfo& Trace::info() const {
  throw InputError{"the explorer reads no traces: kvsim run"};
}
std::shared_ptr<const Method> resolve_for_trace(const MethodSpec& spec, const TraceInfo&) {
  throw InputError{spec.name + ": the explorer reads no traces: kvsim run"};
}

}  // namespace kvsim
