#include "sim/sweep/static_point.hpp"

#include <cmath>
#include <optional>

#include "sim/serve/static_run.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

ordered_json or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json or_null(const std::optional<Seconds>& value) {
  return or_null(value ? std::optional{value->count()} : std::nullopt);
}

}  // namespace

ordered_json run_static_point(const Scenario& /*scenario*/, const ScenarioPoint& point) {
  constexpr std::size_t kFewestSamples = 3;  // the timeline is not kept
  const StaticResult result = run_static(point.spec, {.max_samples = kFewestSamples});
  ordered_json out;
  const bool fits = !result.oom;
  out["fits"] = fits;
  out["peak_hbm_bytes"] = result.peak_hbm.count();
  out["usable_hbm_bytes"] = result.usable_hbm.count();
  out["kv_bytes"] = result.kv_bytes.count();
  out["kv_bytes_wanted"] =
      point.kv_bytes_wanted ? ordered_json(point.kv_bytes_wanted->count()) : ordered_json(nullptr);
  out["throughput_tok_s"] = or_null(result.throughput_tok_s);
  out["decode_tok_s"] = or_null(result.decode_tok_s);
  std::optional<double> latency;
  if (result.prefill_time && result.decode_time) {
    latency = result.prefill_time->count() + result.decode_time->count();
  }
  out["latency_s"] = or_null(latency);
  out["prefill_s"] = or_null(result.prefill_time);
  out["decode_s"] = or_null(result.decode_time);
  out["prefill_peak_bytes"] = result.prefill_peak.count();
  out["decode_peak_bytes"] = result.decode_peak > Bytes{0}
                                 ? ordered_json(result.decode_peak.count())
                                 : ordered_json(nullptr);
  out["peak_phase"] = result.peak_phase;
  if (result.allocator) {
    out["reserved_hbm_bytes"] =
        (point.spec.stack->context + result.allocator->end.reserved_peak).count();
  }
  out["flops_total"] = or_null(std::optional{result.flops});
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
