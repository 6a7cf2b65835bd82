#include "sim/sweep/static_point.hpp"

#include "sim/batch/point/fit_range.hpp"
#include "sim/batch/static_metrics.hpp"

namespace kvsim {

nlohmann::ordered_json run_static_point(const Scenario& /*scenario*/, const ScenarioPoint& point) {
  constexpr std::size_t kMinSamples = 3;  // the timeline is not kept
  StaticResult result = run_static(point.spec, {.max_samples = kMinSamples, .intervals = true});
  find_oom_range(point.spec, result);
  nlohmann::ordered_json out;
  const bool fits = !result.oom;
  out["fits"] = fits;
  const StaticPoint metrics{point.spec, result, point.kv_bytes_wanted};
  using enum MetricPart;
  for (const MetricPart part : {kUsable, kMain, kPhases}) {
    put_metrics(out, static_metrics(), metrics, part);
  }
  out["peak_phase"] = result.peak_phase;
  for (const MetricPart part : {kReserved, kWork}) {
    put_metrics(out, static_metrics(), metrics, part);
  }
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
