#include "sim/sweep/static_point.hpp"

#include <cmath>

#include "sim/batch/point/fit_range.hpp"
#include "sim/batch/static_metrics_json.hpp"

namespace kvsim {

nlohmann::ordered_json run_static_point(const Scenario& /*scenario*/, const ScenarioPoint& point) {
  constexpr std::size_t kFewestSamples = 3;  // the timeline is not kept
  StaticResult result = run_static(point.spec, {.max_samples = kFewestSamples, .intervals = true});
  find_oom_range(point.spec, result);
  nlohmann::ordered_json out;
  const bool fits = !result.oom;
  out["fits"] = fits;
  out["usable_hbm_bytes"] = result.usable_hbm.count();
  out.update(static_metrics_json(point.spec, result));
  out["kv_bytes_wanted"] =
      point.kv_bytes_wanted ? nlohmann::ordered_json(point.kv_bytes_wanted->count()) : nullptr;
  out["prefill_peak_bytes"] = result.prefill_peak.count();
  out["decode_peak_bytes"] =
      result.decode_peak > Bytes{0} ? nlohmann::ordered_json(result.decode_peak.count()) : nullptr;
  out["peak_phase"] = result.peak_phase;
  if (result.allocator) {
    out["reserved_hbm_bytes"] =
        (point.spec.stack->context + result.allocator->end.reserved_peak).count();
  }
  out["flops_total"] = number_json(result.flops);
  out["bytes_moved_total"] = std::llround(result.bytes_moved);
  out["size_law"] = point.size_law;
  out["oom"] = nullptr;
  if (result.oom) {
    out["oom"] = {{"step", result.oom->step},
                  {"tokens", result.oom->tokens},
                  {"phase", result.oom->phase},
                  {"what", result.oom->what},
                  {"requested_bytes", result.oom->requested.count()},
                  {"free_bytes", result.oom->free.count()}};
  }
  return out;
}

}  // namespace kvsim
