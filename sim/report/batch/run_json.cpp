#include "sim/report/batch/run_json.hpp"

#include <algorithm>
#include <utility>

#include "models/units/check.hpp"
#include "sim/batch/static_metrics.hpp"
#include "sim/report/batch/startup_report.hpp"
#include "sim/report/text/json_values.hpp"
#include "sim/report/text/version.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

ordered_json owners_json(const Owners& owners) {
  ordered_json out = ordered_json::object();
  for (const auto& [name, bytes] : owners) out[name] = bytes.count();
  return out;
}

/// The predicted value of a published metric: a key of the point, the length at the OOM, or whether
/// there is an OOM (0 or 1).
std::optional<double> predicted(const ordered_json& point, const std::string& metric) {
  if ((metric == "oom_tokens" || metric == "oom") && !point.contains("oom")) return std::nullopt;
  if (metric == "oom_tokens") {
    if (point.at("oom").is_null()) return std::nullopt;
    return point.at("oom").at("tokens").get<double>();
  }
  if (metric == "oom") return point.at("oom").is_null() ? 0.0 : 1.0;
  const auto found = point.find(metric);
  if (found == point.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

/// The distinct texts of `texts`: null if there are none, a string for one, else a list.
ordered_json unique_values(const std::vector<std::string>& texts) {
  std::vector<std::string> seen;
  for (const std::string& text : texts) {
    if (std::find(seen.begin(), seen.end(), text) == seen.end()) seen.push_back(text);
  }
  if (seen.empty()) return nullptr;
  return seen.size() == 1 ? ordered_json(seen.front()) : ordered_json(seen);
}

ordered_json published_json(const PublishedValue& entry, const ordered_json& point) {
  const std::optional<double> ours = predicted(point, entry.metric);
  // A verdict is right or wrong; only numbers have a relative error.
  const bool verdict = entry.metric == "oom";
  std::optional<double> miss;
  if (ours && entry.value != 0 && !verdict) miss = *ours / entry.value - 1.0;
  const auto said = [verdict](std::optional<double> value) {
    return verdict && value ? ordered_json(*value != 0) : number_or_null(value);
  };
  return {
      {"point", entry.point},           {"label", point.at("label")},   {"metric", entry.metric},
      {"published", said(entry.value)}, {"published_text", entry.text}, {"predicted", said(ours)},
      {"miss", number_or_null(miss)},   {"source", entry.source},       {"note", entry.note}};
}

}  // namespace

ordered_json allocator_json(const AllocationReport& report) {
  ordered_json out = {{"allocated_peak_bytes", report.end.allocated_peak.count()},
                      {"reserved_peak_bytes", report.end.reserved_peak.count()},
                      {"tensor_peak_bytes", report.tensor_peak.count()},
                      {"allocated_final_bytes", report.end.allocated.count()},
                      {"reserved_final_bytes", report.end.reserved.count()},
                      {"largest_free_final_bytes", report.end.largest_free.count()},
                      {"inactive_split_final_bytes", report.end.inactive_split.count()},
                      {"fragmentation_final", report.end.fragmentation()},
                      {"fragmentation_worst", report.worst_fragmentation},
                      {"segments_final", report.end.segments},
                      {"device_allocs", report.end.device_allocs},
                      {"retries", report.end.retries},
                      {"steps", report.steps},
                      {"owners", owners_json(report.owners_at_peak)},
                      {"oom", nullptr}};
  if (report.oom) {
    out["oom"] = {{"step", report.oom->step},
                  {"tokens", report.oom->tokens},
                  {"phase", report.oom->phase},
                  {"what", report.oom->what},
                  {"requested", report.oom->reason.requested.count()},
                  {"free", report.oom->reason.free.count()},
                  {"reserved", report.oom->reason.reserved.count()},
                  {"owners", owners_json(report.oom->reason.owners)},
                  {"message", report.oom->reason.message()}};
  }
  return out;
}

ordered_json oom_json(const std::optional<OomEvent>& oom) {
  if (!oom) return nullptr;
  return {{"step", oom->step},
          {"tokens", oom->tokens},
          {"phase", oom->phase},
          {"what", oom->what},
          {"requested", oom->requested.count()},
          {"free", oom->free.count()},
          {"owners", owners_json(oom->owners)}};
}

ordered_json peak_terms_json(const std::vector<PeakTerm>& terms) {
  ordered_json out = ordered_json::array();
  for (const PeakTerm& term : terms) {
    out.push_back({{"owner", term.owner},
                   {"what", term.what},
                   {"bytes", term.bytes.count()},
                   {"formula", term.formula},
                   {"source", term.source}});
  }
  return out;
}

ordered_json explained_json(const std::vector<ExplainedStep>& steps) {
  ordered_json out = ordered_json::array();
  for (const ExplainedStep& step : steps) {
    ordered_json one = {{"step", step.step}, {"tokens", step.tokens}};
    one["step_s"] = step.time.count();
    put_ends(one, "step_s", MetricKind::kTime, step.interval);
    one["terms"] = ordered_json::array();
    for (const TimeTerm& term : step.terms) {
      one["terms"].push_back({{"what", term.what},
                              {"family", term.family},
                              {"layers", term.layers},
                              {"calls", term.calls},
                              {"flops", term.flops},
                              {"bytes_read", whole(term.bytes_read)},
                              {"bytes_written", whole(term.bytes_written)},
                              {"launches", term.launches},
                              {"bound", term.bound},
                              {"seconds", term.time.count()}});
      ordered_json& last = one["terms"].back();
      last["seconds_low"] = term.interval ? ordered_json(term.interval->low.count()) : nullptr;
      last["seconds_high"] = term.interval ? ordered_json(term.interval->high.count()) : nullptr;
      last["formula"] = term.formula;
      last["basis"] = term.basis;
      last["source"] = term.source;
    }
    out.push_back(std::move(one));
  }
  return out;
}

ordered_json static_point_json(const ScenarioPoint& point, const StaticResult& result) {
  ordered_json out = point.keys.is_object() ? point.keys : ordered_json::object();
  out["label"] = point.label;
  const auto& at = result.intervals;
  const StaticPoint metrics{point.spec, result, point.kv_bytes_wanted};
  put_metrics(out, static_metrics(), metrics);
  out["size_law"] = point.size_law;
  put_metrics(out, static_metrics(), metrics, MetricPart::kFit);
  out["interval_basis"] = nullptr;
  if (at) out["interval_basis"] = {{"time", at->time_basis}, {"memory", at->memory_basis}};
  out["oom"] = oom_json(result.oom);
  out["peak_phase"] = result.peak_phase;
  out["peak_owners"] = owners_json(result.peak_owners);
  out["peak_terms"] = peak_terms_json(result.peak_terms);
  out["time_terms"] = explained_json(result.explained);
  for (const MetricPart part : {MetricPart::kPhases, MetricPart::kUsable, MetricPart::kReserved}) {
    put_metrics(out, static_metrics(), metrics, part);
  }
  if (result.allocator) out["allocator"] = allocator_json(*result.allocator);
  put_metrics(out, static_metrics(), metrics, MetricPart::kWork);
  out["kv_bytes_per_layer"] = ordered_json::array();
  for (const Bytes bytes : result.kv_bytes_per_layer) {
    out["kv_bytes_per_layer"].push_back(bytes.count());
  }
  if (result.startup) out["startup"] = startup_json(*result.startup);
  out["notes"] = result.notes;
  return out;
}

ordered_json calibration_json(const std::vector<std::string>& ids,
                              const std::vector<std::string>& sources) {
  return {{"name", unique_values(ids)}, {"provenance", unique_values(sources)}};
}

ordered_json run_document(const Scenario& scenario, RunParts parts) {
  ordered_json out = {{"schema", "kvsim.run/1"}, {"kind", scenario.kind}};
  out["kvsim"] = {{"version", kvsim_version()}};
  out["scenario"] = {
      {"name", scenario.name}, {"title", scenario.title}, {"description", scenario.description},
      {"hash", scenario.hash}, {"seed", scenario.seed},   {"echo", scenario.echo}};
  out["calibration"] = std::move(parts.calibration);
  if (!parts.definitions.is_null()) out["definitions"] = std::move(parts.definitions);
  out["points"] = std::move(parts.points);
  out["published"] = ordered_json::array();
  for (const PublishedValue& entry : scenario.published) {
    KVSIM_CHECK(entry.point < out["points"].size(), "a published figure of point {} of {}",
                entry.point, out["points"].size());
    out["published"].push_back(published_json(entry, out["points"][entry.point]));
  }
  if (!parts.replay.is_null()) out["replay"] = std::move(parts.replay);
  out["notes"] = scenario.notes;
  for (const std::string& note : parts.notes) out["notes"].push_back(note);
  return out;
}

ordered_json run_document(const Scenario& scenario, const std::vector<StaticResult>& results,
                          std::vector<std::string> notes) {
  KVSIM_CHECK(results.size() == scenario.points.size(), "{} results of {} points", results.size(),
              scenario.points.size());
  ordered_json points = ordered_json::array();
  for (std::size_t i = 0; i < results.size(); ++i) {
    points.push_back(static_point_json(scenario.points[i], results[i]));
  }
  return run_document(scenario, {.calibration = calibration_json(results),
                                 .points = std::move(points),
                                 .notes = std::move(notes)});
}

}  // namespace kvsim
