#include "sim/report/service/serve_json.hpp"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/report/batch/run_json.hpp"
#include "sim/report/batch/startup_report.hpp"
#include "sim/report/service/derived_metrics.hpp"
#include "sim/report/text/json_values.hpp"
#include "sim/serve/account/service_metrics.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

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

/// A memory tier outside the GPUs by name; null if no cache was in it.
ordered_json tier_json(const std::vector<TierResult>& tiers, std::string_view name) {
  for (const TierResult& tier : tiers) {
    if (tier.name != name) continue;
    const auto of = [&](const char* owner) {
      const auto found = tier.peak_owners.find(owner);
      return found == tier.peak_owners.end() ? std::int64_t{0} : found->second.count();
    };
    return {{"capacity_bytes", tier.capacity ? ordered_json(tier.capacity->count()) : nullptr},
            {"peak_bytes", tier.peak.count()},
            {"kv_offloaded_bytes", of("kv_offloaded")},
            {"kv_swapped_bytes", of("kv_swapped")}};
  }
  return nullptr;
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
    if (!oom.message.empty()) out.back()["message"] = oom.message;
  }
  return out;
}

ordered_json share(std::int64_t part, std::int64_t whole) {
  if (whole <= 0) return nullptr;
  return static_cast<double>(part) / static_cast<double>(whole);
}

/// The shares of replica time by activity; the four sum to 1.
ordered_json phases_json(const ServeResult& r) {
  return {{"idle", number_or_null(1 - r.busy)},
          {"prompts", number_or_null(r.phases.prompts)},
          {"mixed", number_or_null(r.phases.mixed)},
          {"decodes", number_or_null(r.phases.decodes)}};
}

/// The utilisation of the resources that may bound the service.
ordered_json resources_json(const ServeResult& r) {
  const ServeUtilization use = utilization(r);
  const auto limit = [](std::int64_t n) { return n > 0 ? ordered_json(n) : ordered_json(nullptr); };
  const bool moved = r.transfers > 0;
  return {{"waiting", number_or_null(use.waits)},
          {"kv_tight", number_or_null(use.tight)},
          {"kv_peak", share(r.peak_blocks, r.blocks)},
          {"max_num_seqs", limit(r.limits.seqs)},
          {"most_running", use.max_running},
          {"seqs_full", number_or_null(r.seqs_full)},
          {"max_num_batched_tokens", limit(r.limits.tokens)},
          {"tokens_full", number_or_null(r.tokens_full)},
          {"transfers", r.transfers},
          {"transfer_s", moved ? number_or_null(r.transfer.mean) : nullptr},
          {"transfer_wait_s", moved ? number_or_null(r.transfer_wait.mean) : nullptr}};
}

}  // namespace

ordered_json definitions_json() {
  ordered_json out = ordered_json::object();
  // In the order of a request's life.
  for (const char* key : {"queue_s", "ttft_s", "tpot_s", "itl_s", "e2e_s"}) {
    out[key] = find_metric(service_metrics(), key)->info.help;
  }
  return out;
}

ordered_json serve_point_json(const ScenarioPoint& point, const ServeResult& r,
                              const std::optional<ServeIntervals>& intervals) {
  const ServeSpec& spec = *point.serve;
  ordered_json out = point.keys.is_object() ? point.keys : ordered_json::object();
  out["label"] = point.label;
  out.update(service_metrics_json(r, intervals));
  out["slo"] = slo_json(spec.slo);
  const ServeBottleneck bound = bottleneck(r);
  out["bound"] = bound.kind;
  out["bound_text"] = bound.text;
  out["phases"] = phases_json(r);
  out["resources"] = resources_json(r);
  out["peak_owners"] = owners_json(r.peak_owners);
  if (r.allocator) out["allocator"] = allocator_json(*r.allocator);
  out["host_tier"] = tier_json(r.tiers, "host memory");
  out["nvme_tier"] = tier_json(r.tiers, "NVMe");
  out["size_law"] = point.size_law;
  if (r.startup) out["startup"] = startup_json(*r.startup);
  out["ooms"] = ooms_json(r.ooms);
  out["notes"] = r.notes;
  return out;
}

}  // namespace kvsim
