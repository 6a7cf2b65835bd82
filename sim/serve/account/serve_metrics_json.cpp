#include "sim/serve/account/serve_metrics_json.hpp"

#include <string_view>

#include <fmt/format.h>

#include "sim/batch/static_metrics_json.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

/// All null where there is nothing to be described.
ordered_json distribution_json(const Distribution& d) {
  const auto value = [&](double x) { return d.n > 0 ? number_json(x) : ordered_json(nullptr); };
  return {{"mean", value(d.mean)}, {"p50", value(d.p50)}, {"p90", value(d.p90)},
          {"p95", value(d.p95)},   {"p99", value(d.p99)}, {"n", d.n}};
}

ordered_json share(std::int64_t part, std::int64_t whole) {
  if (whole <= 0) return nullptr;
  return static_cast<double>(part) / static_cast<double>(whole);
}

/// `NAME_low` and `NAME_high` of everything that depends on times; null where there is no interval.
void put_intervals(ordered_json& out, const std::optional<ServeIntervals>& intervals) {
  const auto put = [&](std::string_view end, const ServeMetrics* f) {
    const auto name = [&](std::string_view key) { return fmt::format("{}_{}", key, end); };
    const auto latency = [&](std::string_view key, const Distribution ServeMetrics::*d) {
      out[name(key)] = f == nullptr ? ordered_json(nullptr) : distribution_json(f->*d);
      if (out[name(key)].is_object()) out[name(key)].erase("n");
    };
    latency("ttft_s", &ServeMetrics::ttft);
    latency("tpot_s", &ServeMetrics::tpot);
    latency("itl_s", &ServeMetrics::itl);
    latency("e2e_s", &ServeMetrics::e2e);
    latency("queue_s", &ServeMetrics::queue);
    const auto rate = [&](std::string_view key, std::optional<double> value) {
      out[name(key)] = number_json(value);
    };
    rate("output_tok_s", f == nullptr ? std::nullopt : std::optional{f->output_tok_s});
    rate("total_tok_s", f == nullptr ? std::nullopt : std::optional{f->total_tok_s});
    rate("request_s", f == nullptr ? std::nullopt : std::optional{f->request_s});
    rate("makespan_s", f == nullptr ? std::nullopt : std::optional{f->makespan_s});
    rate("mfu", f == nullptr ? std::nullopt : std::optional{f->mfu});
    rate("mbu", f == nullptr ? std::nullopt : std::optional{f->mbu});
    rate("busy", f == nullptr ? std::nullopt : std::optional{f->busy});
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

ordered_json serve_metrics_json(const ServeSpec& spec, const ServeResult& r,
                                const std::optional<ServeIntervals>& intervals) {
  constexpr double kPicosecond = 1e-12;
  const std::int64_t gpus = service_gpus(spec);
  ordered_json out;
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
  out["output_tok_s"] = number_json(r.output_tok_s);
  out["total_tok_s"] = number_json(r.total_tok_s);
  out["request_s"] = number_json(r.request_s);
  out["goodput"] = number_json(r.goodput);
  out["slo_attained"] = number_json(r.slo_attained);
  out["gpus"] = gpus;
  out["output_tok_s_per_gpu"] = number_json(r.output_tok_s / static_cast<double>(gpus));
  out["total_tok_s_per_gpu"] = number_json(r.total_tok_s / static_cast<double>(gpus));
  out["output_tok_s_per_user"] =
      r.tpot.n > 0 && r.tpot.mean > 0 ? number_json(1 / r.tpot.mean) : ordered_json(nullptr);
  out["cut_short"] = r.cut_short;
  out["held_back"] = number_json(r.held_back);
  out["mfu"] = number_json(r.mfu);
  out["mbu"] = number_json(r.mbu);
  out["busy"] = number_json(r.busy);
  out["makespan_s"] = static_cast<double>(r.makespan.count()) * kPicosecond;
  out["iterations"] = r.iterations;
  out["output_tokens"] = r.output_tokens;
  out["prompt_tokens"] = r.prompt_tokens;
  out["recomputed_tokens"] = r.recomputed_tokens;
  out["prefix_hit_rate"] = share(r.prefix_hit_tokens, r.prefix_query_tokens);
  out["prefix_hit_tokens"] = r.prefix_hit_tokens;
  out["kv_capacity_tokens"] = r.kv_capacity_tokens;
  put_pool_interval(out, r);
  out["peak_hbm_bytes"] = r.peak_hbm.count();
  const auto& peak = r.peak_interval;
  out["peak_hbm_bytes_low"] = peak ? ordered_json(peak->low.count()) : ordered_json(nullptr);
  out["peak_hbm_bytes_high"] = peak ? ordered_json(peak->high.count()) : ordered_json(nullptr);
  out["peak_interval_basis"] = peak ? ordered_json(r.peak_basis) : ordered_json(nullptr);
  out["usable_hbm_bytes"] = r.usable_hbm.count();
  if (r.allocator) out["reserved_hbm_bytes"] = r.reserved_hbm.count();
  out["kv_pool_bytes"] = r.kv_pool.count();
  out["offload_fetched_bytes"] = r.offload_fetched.count();
  out["offload_written_bytes"] = r.offload_written.count();
  out["link_wait"] = number_json(r.link_wait);
  out["kv_dropped_bytes"] = r.kv_dropped.count();
  out["kv_reclaimed_bytes"] = r.kv_reclaimed.count();
  out["blocks"] = r.blocks;
  out["block_tokens"] = r.block_tokens;
  out["peak_blocks"] = r.peak_blocks;
  out["scheduler_as_run"] = r.scheduler;
  put_intervals(out, intervals);
  return out;
}

}  // namespace kvsim
