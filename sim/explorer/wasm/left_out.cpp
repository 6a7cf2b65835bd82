// Functions that reading a scenario calls and a browser has no use for: services, and
// traces on disk. What explored_scenario would refuse after reading is refused here while reading,
// and half the program need not be compiled.

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

/// Never called: scenario_of refuses keys of a service in a static scenario.
void check_serve_keys(const Field&, const std::filesystem::path&) {}

void add_serve_points(const Group&, const PointsInput&, InlineDefinitions&,
                      std::vector<ScenarioPoint>&) {
  throw InputError{"explorer.json: /kind: the explorer runs static batches (\"kind\": \"static\")"};
}

/// Only of services.
std::vector<std::string> scheduler_names() { return {}; }
EngineSite engine_site(const ServeSpec&) { return {}; }
/// Only of replays.
std::optional<TraceSplit> split_of(std::string_view) { return std::nullopt; }

/// Only commands that are read back name them (sim/launch/from_command.cpp).
std::string_view word_of(Proposer) { return {}; }

/// Only published values of services name them.
MetricTable<ServeResult> service_metrics() { return {}; }

/// A browser starts no Python and loads no library.
std::string method_of_user(const std::string& name, const std::filesystem::path&) {
  if (name.find(".py") != std::string::npos || name.find(".so") != std::string::npos) {
    throw InputError{"method \"" + name +
                     "\": the explorer runs no methods of files: kvsim run, kvsim replay"};
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
