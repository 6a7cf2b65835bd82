#include "sim/sweep/serve_point.hpp"

#include <cmath>
#include <optional>

#include "models/units/check.hpp"
#include "sim/serve/serve_run.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}
ordered_json number(const std::optional<double>& value) {
  return value ? number(*value) : ordered_json(nullptr);
}

ordered_json distribution(const Distribution& d) {
  const auto value = [&](double x) { return d.n > 0 ? number(x) : ordered_json(nullptr); };
  return {{"mean", value(d.mean)}, {"p50", value(d.p50)}, {"p90", value(d.p90)},
          {"p95", value(d.p95)},   {"p99", value(d.p99)}, {"n", d.n}};
}

ordered_json share(std::int64_t part, std::int64_t whole) {
  if (whole <= 0) return nullptr;
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

ordered_json run_serve_point(const Scenario& /*scenario*/, const ScenarioPoint& point) {
  constexpr std::size_t kFewestSamples = 3;  // the timeline is not kept
  KVSIM_CHECK(point.serve.has_value(), "a point that is no service");
  const ServeResult r = run_serve(*point.serve, {.max_samples = kFewestSamples});
  const SloSpec& slo = point.serve->slo;
  ordered_json out;
  // An engine that cannot start refuses everything.
  out["fits"] = r.completed > 0 || r.outcomes.empty();
  out["requests"] = r.completed + r.rejected + r.unfinished;
  out["completed"] = r.completed;
  out["rejected"] = r.rejected;
  out["unfinished"] = r.unfinished;
  out["preemptions"] = r.preemptions;
  out["oom_events"] = r.oom_events;
  out["ttft_s"] = distribution(r.ttft);
  out["tpot_s"] = distribution(r.tpot);
  out["itl_s"] = distribution(r.itl);
  out["e2e_s"] = distribution(r.e2e);
  out["queue_s"] = distribution(r.queue);
  out["output_tok_s"] = number(r.output_tok_s);
  out["total_tok_s"] = number(r.total_tok_s);
  out["request_s"] = number(r.request_s);
  out["goodput"] = slo.empty() ? ordered_json(nullptr) : number(r.goodput);
  out["slo_attained"] = number(r.slo_attained);
  out["mfu"] = number(r.mfu);
  out["mbu"] = number(r.mbu);
  out["busy"] = number(r.busy);
  out["makespan_s"] = number(static_cast<double>(r.makespan.count()) * 1e-12);
  out["iterations"] = r.iterations;
  out["output_tokens"] = r.output_tokens;
  out["prompt_tokens"] = r.prompt_tokens;
  out["recomputed_tokens"] = r.recomputed_tokens;
  out["prefix_hit_rate"] = share(r.prefix_hit_tokens, r.prefix_query_tokens);
  out["kv_capacity_tokens"] = r.kv_capacity_tokens;
  if (r.pool_interval) {
    out["kv_capacity_tokens_low"] = r.pool_interval->tokens_low;
    out["kv_capacity_tokens_high"] = r.pool_interval->tokens_high;
  }
  out["peak_hbm_bytes"] = r.peak_hbm.count();
  out["usable_hbm_bytes"] = r.usable_hbm.count();
  out["kv_pool_bytes"] = r.kv_pool.count();
  out["size_law"] = point.size_law;
  out["scheduler_as_run"] = r.scheduler;
  return out;
}

}  // namespace kvsim
