#include "sim/report/serve_json.hpp"

#include <cmath>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "sim/report/serve_measures.hpp"
#include "sim/report/startup_report.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}
ordered_json number(const std::optional<double>& value) {
  return value ? number(*value) : ordered_json(nullptr);
}

/// All null where there is nothing to be described.
ordered_json distribution_json(const Distribution& d) {
  const auto value = [&](double x) { return d.n > 0 ? number(x) : ordered_json(nullptr); };
  return {{"mean", value(d.mean)}, {"p50", value(d.p50)}, {"p90", value(d.p90)},
          {"p95", value(d.p95)},   {"p99", value(d.p99)}, {"n", d.n}};
}

ordered_json slo_json(const SloSpec& slo) {
  if (slo.empty()) return nullptr;
  const auto bound = [](const std::optional<Seconds>& b) {
    return b ? ordered_json(b->count()) : ordered_json(nullptr);
  };
  return {{"ttft_s", bound(slo.ttft)}, {"tpot_s", bound(slo.tpot)}, {"e2e_s", bound(slo.e2e)}};
}

ordered_json owners_json(const Owners& owners) {
  ordered_json out = ordered_json::object();
  for (const auto& [name, bytes] : owners) out[name] = bytes.count();
  return out;
}

ordered_json ooms_json(const std::vector<ServeOom>& ooms) {
  ordered_json out = ordered_json::array();
  for (const ServeOom& oom : ooms) {
    out.push_back({{"at_s", seconds_of(oom.at)},
                   {"request", oom.request >= 0 ? ordered_json(oom.request) : nullptr},
                   {"what", oom.what},
                   {"requested", oom.requested.count()},
                   {"free", oom.free.count()},
                   {"owners", owners_json(oom.owners)}});
  }
  return out;
}

/// `NAME_low` and `NAME_high` of everything that depends on times; null where there is no interval.
void put_intervals(ordered_json& out, const std::optional<ServeIntervals>& intervals) {
  const auto put = [&](std::string_view end, const ServeFigures* f) {
    const auto name = [&](std::string_view key) { return fmt::format("{}_{}", key, end); };
    const auto latency = [&](std::string_view key, const Distribution ServeFigures::*d) {
      out[name(key)] = f == nullptr ? ordered_json(nullptr) : distribution_json(f->*d);
      if (out[name(key)].is_object()) out[name(key)].erase("n");
    };
    latency("ttft_s", &ServeFigures::ttft);
    latency("tpot_s", &ServeFigures::tpot);
    latency("itl_s", &ServeFigures::itl);
    latency("e2e_s", &ServeFigures::e2e);
    latency("queue_s", &ServeFigures::queue);
    const auto rate = [&](std::string_view key, std::optional<double> value) {
      out[name(key)] = number(value);
    };
    rate("output_tok_s", f == nullptr ? std::nullopt : std::optional{f->output_tok_s});
    rate("total_tok_s", f == nullptr ? std::nullopt : std::optional{f->total_tok_s});
    rate("request_s", f == nullptr ? std::nullopt : std::optional{f->request_s});
    rate("goodput", f == nullptr ? std::nullopt : f->goodput);
    rate("slo_attained", f == nullptr ? std::nullopt : f->slo_attained);
  };
  put("low", intervals ? &intervals->low : nullptr);
  put("high", intervals ? &intervals->high : nullptr);
  out["intervals"] = nullptr;
  if (!intervals) return;
  out["intervals"] = {{"probability", 0.9},
                      {"time_factor_low", intervals->faster},
                      {"time_factor_high", intervals->slower},
                      {"basis", intervals->basis}};
}

ordered_json share(std::int64_t part, std::int64_t whole) {
  if (whole <= 0) return nullptr;
  return static_cast<double>(part) / static_cast<double>(whole);
}

/// Ends of the pool; null where the stack has none.
void put_pool_interval(ordered_json& out, const ServeResult& r) {
  const auto& i = r.pool_interval;
  const auto or_null = [](bool known, std::int64_t n) {
    return known ? ordered_json(n) : ordered_json(nullptr);
  };
  const bool known = i.has_value();
  out["kv_capacity_tokens_low"] = or_null(known, known ? i->tokens_low : 0);
  out["kv_capacity_tokens_high"] = or_null(known, known ? i->tokens_high : 0);
  out["kv_pool_bytes_low"] = or_null(known, known ? i->low.count() : 0);
  out["kv_pool_bytes_high"] = or_null(known, known ? i->high.count() : 0);
  out["blocks_low"] = or_null(known, known ? i->blocks_low : 0);
  out["blocks_high"] = or_null(known, known ? i->blocks_high : 0);
  out["pool_interval_basis"] = known ? ordered_json(i->basis) : ordered_json(nullptr);
}

}  // namespace

ordered_json definitions_json() {
  ordered_json out = ordered_json::object();
  for (const Definition& d : latency_definitions()) out[std::string{d.key}] = d.text;
  return out;
}

ordered_json serve_point_json(const ScenarioPoint& point, const ServeResult& r,
                              const std::optional<ServeIntervals>& intervals) {
  const ServeSpec& spec = *point.serve;
  const auto gpus = static_cast<double>(gpus_of(spec));
  ordered_json out = point.keys.is_object() ? point.keys : ordered_json::object();
  out["label"] = point.label;
  out["requests"] = r.completed + r.rejected + r.unfinished;
  out["completed"] = r.completed;
  out["rejected"] = r.rejected;
  out["unfinished"] = r.unfinished;
  out["preemptions"] = r.preemptions;
  out["oom_events"] = r.oom_events;
  out["ttft_s"] = distribution_json(r.ttft);
  out["tpot_s"] = distribution_json(r.tpot);
  out["itl_s"] = distribution_json(r.itl);
  out["e2e_s"] = distribution_json(r.e2e);
  out["queue_s"] = distribution_json(r.queue);
  out["output_tok_s"] = number(r.output_tok_s);
  out["total_tok_s"] = number(r.total_tok_s);
  out["request_s"] = number(r.request_s);
  out["goodput"] = number(r.goodput);
  out["slo"] = slo_json(spec.slo);
  out["slo_attained"] = number(r.slo_attained);
  out["gpus"] = gpus_of(spec);
  out["output_tok_s_per_gpu"] = number(r.output_tok_s / gpus);
  out["total_tok_s_per_gpu"] = number(r.total_tok_s / gpus);
  out["output_tok_s_per_user"] =
      r.tpot.n > 0 && r.tpot.mean > 0 ? number(1 / r.tpot.mean) : ordered_json(nullptr);
  out["cut_short"] = r.cut_short;
  out["held_back"] = number(r.held_back);
  out["mfu"] = number(r.mfu);
  out["mbu"] = number(r.mbu);
  out["busy"] = number(r.busy);
  const ServeBound bound = bound_of(spec, r);
  out["bound"] = bound.kind;
  out["bound_text"] = bound.text;
  out["makespan_s"] = seconds_of(r.makespan);
  out["iterations"] = r.iterations;
  out["output_tokens"] = r.output_tokens;
  out["prompt_tokens"] = r.prompt_tokens;
  out["recomputed_tokens"] = r.recomputed_tokens;
  out["prefix_hit_rate"] = share(r.prefix_hit_tokens, r.prefix_query_tokens);
  out["prefix_hit_tokens"] = r.prefix_hit_tokens;
  out["kv_capacity_tokens"] = r.kv_capacity_tokens;
  put_pool_interval(out, r);
  out["peak_hbm_bytes"] = r.peak_hbm.count();
  out["usable_hbm_bytes"] = r.usable_hbm.count();
  out["peak_owners"] = owners_json(r.peak_owners);
  out["kv_pool_bytes"] = r.kv_pool.count();
  out["blocks"] = r.blocks;
  out["block_tokens"] = r.block_tokens;
  out["peak_blocks"] = r.peak_blocks;
  out["size_law"] = point.size_law;
  out["scheduler_as_run"] = r.scheduler;
  if (r.startup) out["startup"] = startup_json(*r.startup);
  out["ooms"] = ooms_json(r.ooms);
  put_intervals(out, intervals);
  out["notes"] = r.notes;
  return out;
}

}  // namespace kvsim
