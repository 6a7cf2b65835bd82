#include "sim/sweep/serve_point.hpp"

#include "models/units/check.hpp"
#include "sim/serve/account/mean_iteration.hpp"
#include "sim/serve/account/service_metrics.hpp"
#include "sim/serve/service/serve_run.hpp"

namespace kvsim {

nlohmann::ordered_json run_serve_point(const Scenario& /*scenario*/, const ScenarioPoint& point) {
  KVSIM_CHECK(point.serve.has_value(), "a point that is no service");
  const ServeSpec& spec = *point.serve;
  const ServeResult result = run_serve(spec);
  nlohmann::ordered_json out;
  // An engine that cannot start rejects all requests.
  out["fits"] = result.completed > 0 || result.outcomes.empty();
  out.update(
      service_metrics_json(result, serve_intervals(spec, result, mean_iteration(spec, result))));
  out["size_law"] = point.size_law;
  return out;
}

}  // namespace kvsim
