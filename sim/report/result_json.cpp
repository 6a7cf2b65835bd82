#include "sim/report/result_json.hpp"

#include <algorithm>
#include <cmath>

#include "models/units/check.hpp"
#include "sim/report/replay_aggregate.hpp"
#include "sim/report/serve_json.hpp"
#include "sim/report/startup_report.hpp"

namespace kvsim {
namespace {

/// Bytes that a model counts as a real number, as the whole number they mean.
std::int64_t whole(double bytes) { return std::llround(bytes); }

/// A fraction as a number, a number of entries as an integer.
nlohmann::ordered_json budget_value(const std::optional<double>& budget) {
  if (!budget) return nullptr;
  if (*budget > 1) return static_cast<std::int64_t>(*budget);
  return *budget;
}

using nlohmann::ordered_json;

ordered_json number_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? ordered_json(*value) : ordered_json(nullptr);
}
ordered_json seconds_or_null(const std::optional<Seconds>& value) {
  return number_or_null(value ? std::optional{value->count()} : std::nullopt);
}

ordered_json owners_json(const Owners& owners) {
  ordered_json out = ordered_json::object();
  for (const auto& [name, bytes] : owners) out[name] = bytes.count();
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

ordered_json terms_json(const std::vector<PeakTerm>& terms) {
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

/// A predicted figure and the interval beside it, null where nothing says one.
template <class Ends>
void put_predicted(ordered_json& point, const std::string& name, ordered_json value,
                   const std::optional<Ends>& interval) {
  point[name] = std::move(value);
  point[name + "_low"] = interval ? ordered_json(interval->low.count()) : ordered_json(nullptr);
  point[name + "_high"] = interval ? ordered_json(interval->high.count()) : ordered_json(nullptr);
}

ordered_json explained_json(const std::vector<ExplainedStep>& steps) {
  ordered_json out = ordered_json::array();
  for (const ExplainedStep& step : steps) {
    ordered_json one = {{"step", step.step}, {"tokens", step.tokens}};
    put_predicted(one, "step_s", step.time.count(), step.interval);
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

ordered_json mean_iteration_json(const MeanIteration& it) {
  ordered_json out = {{"iterations", it.iterations},
                      {"mean_s", it.mean.count()},
                      {"decodes", it.decodes},
                      {"prefill_tokens", it.prefill_tokens},
                      {"prompt", it.prompt}};
  const ordered_json explained = explained_json({it.step});
  for (const auto& item : explained[0].items()) out[item.key()] = item.value();
  return out;
}

/// What the simulated allocator came to, in PyTorch's terms: without the CUDA context.
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

/// Ends of an interval of tokens per second, as put_predicted takes them.
struct Rate {
  struct End {
    double value;
    [[nodiscard]] double count() const { return value; }
  };
  End low, high;
};

ordered_json point_json(const ScenarioPoint& point, const StaticResult& result) {
  ordered_json out = point.keys.is_object() ? point.keys : ordered_json::object();
  out["label"] = point.label;
  const auto& at = result.intervals;
  // Rates are highest where times are lowest.
  const auto rate = [&](const std::optional<Interval>& time) -> std::optional<Rate> {
    if (!time) return std::nullopt;
    const double tokens =
        static_cast<double>(point.spec.batch) * static_cast<double>(point.spec.output_tokens);
    return Rate{{tokens / time->high.count()}, {tokens / time->low.count()}};
  };
  std::optional<Interval> whole_run;
  if (at && at->prefill && at->decode) {
    whole_run = Interval{.low = at->prefill->low + at->decode->low,
                         .high = at->prefill->high + at->decode->high};
  }
  const std::optional<Interval> decode = at ? at->decode : std::nullopt;
  put_predicted(out, "peak_hbm_bytes", result.peak_hbm.count(), at ? at->peak : std::nullopt);
  // By the size law, which is exact.
  put_predicted(out, "kv_bytes", result.kv_bytes.count(), std::optional<BytesInterval>{});
  put_predicted(out, "throughput_tok_s", number_or_null(result.throughput_tok_s), rate(whole_run));
  put_predicted(out, "decode_tok_s", number_or_null(result.decode_tok_s), rate(decode));
  out["kv_bytes_wanted"] =
      point.kv_bytes_wanted ? ordered_json(point.kv_bytes_wanted->count()) : ordered_json(nullptr);
  out["size_law"] = point.size_law;
  std::optional<double> latency;
  if (result.prefill_time && result.decode_time) {
    latency = result.prefill_time->count() + result.decode_time->count();
  }
  put_predicted(out, "latency_s", number_or_null(latency), whole_run);
  put_predicted(out, "prefill_s", seconds_or_null(result.prefill_time),
                at ? at->prefill : std::nullopt);
  put_predicted(out, "decode_s", seconds_or_null(result.decode_time), decode);
  out["oom_tokens_low"] = at && at->oom_low ? ordered_json(*at->oom_low) : ordered_json(nullptr);
  out["oom_tokens_high"] = at && at->oom_high ? ordered_json(*at->oom_high) : ordered_json(nullptr);
  out["interval_basis"] = nullptr;
  if (at) out["interval_basis"] = {{"time", at->time_basis}, {"memory", at->memory_basis}};
  out["oom"] = oom_json(result.oom);
  out["peak_phase"] = result.peak_phase;
  out["peak_owners"] = owners_json(result.peak_owners);
  out["peak_terms"] = terms_json(result.peak_terms);
  out["time_terms"] = explained_json(result.explained);
  out["prefill_peak_bytes"] = result.prefill_peak.count();
  out["decode_peak_bytes"] = result.decode_peak > Bytes{0}
                                 ? ordered_json(result.decode_peak.count())
                                 : ordered_json(nullptr);
  out["usable_hbm_bytes"] = result.usable_hbm.count();
  if (result.allocator) {
    // Beside peak_hbm_bytes, which counts the context too.
    out["reserved_hbm_bytes"] =
        (point.spec.stack->context + result.allocator->end.reserved_peak).count();
    out["allocator"] = allocator_json(*result.allocator);
  }
  out["flops_total"] = number_or_null(result.flops);
  out["bytes_moved_total"] = whole(result.bytes_moved);
  out["kv_bytes_per_layer"] = ordered_json::array();
  for (const Bytes bytes : result.kv_bytes_per_layer) {
    out["kv_bytes_per_layer"].push_back(bytes.count());
  }
  if (result.startup) out["startup"] = startup_json(*result.startup);
  out["notes"] = result.notes;
  return out;
}

/// What stands in `point` for a published figure: a key of the point, the length at the OOM, or
/// whether there is one (0 or 1).
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

/// Each text of `texts` once: null for none, the text alone for one, else a list.
ordered_json each_once(const std::vector<std::string>& texts) {
  std::vector<std::string> seen;
  for (const std::string& text : texts) {
    if (std::find(seen.begin(), seen.end(), text) == seen.end()) seen.push_back(text);
  }
  if (seen.empty()) return nullptr;
  return seen.size() == 1 ? ordered_json(seen.front()) : ordered_json(seen);
}

/// Where the rates behind every time come from; one text where all points share it.
template <class Result>
ordered_json calibration_json(const std::vector<Result>& results) {
  std::vector<std::string> names, sources;
  for (const Result& result : results) {
    names.push_back(result.calibration_id);
    sources.push_back(result.calibration);
  }
  return {{"name", each_once(names)}, {"provenance", each_once(sources)}};
}

ordered_json published_json(const PublishedFigure& figure, const ordered_json& point) {
  const std::optional<double> ours = predicted(point, figure.metric);
  // A verdict is right or wrong; only numbers miss by so much.
  const bool verdict = figure.metric == "oom";
  std::optional<double> miss;
  if (ours && figure.value != 0 && !verdict) miss = *ours / figure.value - 1.0;
  const auto said = [verdict](std::optional<double> value) {
    return verdict && value ? ordered_json(*value != 0) : number_or_null(value);
  };
  return {
      {"point", figure.point},           {"label", point.at("label")},    {"metric", figure.metric},
      {"published", said(figure.value)}, {"published_text", figure.text}, {"predicted", said(ours)},
      {"miss", number_or_null(miss)},    {"source", figure.source},       {"note", figure.note}};
}

ordered_json params_json(const std::map<std::string, ParamValue>& params) {
  ordered_json out = ordered_json::object();
  for (const auto& [name, value] : params) {
    std::visit([&, &key = name](const auto& v) { out[key] = v; }, value);
  }
  return out;
}

ordered_json cell_json(const ReplayCell& cell) {
  ordered_json out = {{"layer", cell.layer}};
  if (cell.head >= 0) out["head"] = cell.head;
  out["entries_final"] = cell.entries_final;
  out["bytes_final"] = cell.bytes_final;
  out["rel_error_mean"] = number_or_null(cell.rel_error_mean);
  out["cosine_mean"] = number_or_null(cell.cosine_mean);
  out["retained_mass_mean"] = number_or_null(cell.retained_mass_mean);
  return out;
}

ordered_json step_json(const ReplayStep& step) {
  return {{"step", step.step},
          {"tokens", step.tokens},
          {"entries_held", step.entries_held},
          {"entries_attended", step.entries_attended},
          {"bytes_held", step.bytes_held},
          {"bytes_attended", step.bytes_attended},
          {"side_bytes", step.side_bytes},
          {"host_bytes", step.host_bytes},
          {"link_bytes", whole(step.link_bytes)},
          {"entries_read", step.entries_read},
          {"bytes_read", whole(step.bytes_read)},
          {"bytes_written", whole(step.bytes_written)},
          {"extra_flops", step.extra_flops},
          {"rel_error", number_or_null(step.rel_error)},
          {"cosine", number_or_null(step.cosine)},
          {"retained_mass", number_or_null(step.retained_mass)}};
}

/// null where the size law is in closed form.
ordered_json law_json(const std::optional<MeasuredLaw>& law) {
  if (!law) return nullptr;
  const auto mean = [](const std::vector<double>& by_layer) {
    double sum = 0;
    for (const double x : by_layer) sum += x;
    return sum / static_cast<double>(by_layer.size());
  };
  ordered_json out = {{"trace", law->trace},
                      {"kept_of_prompt", number_or_null(mean(law->kept))},
                      {"entries_per_token", number_or_null(mean(law->growth))},
                      {"bytes_over_law", number_or_null(mean(law->bytes))}};
  out["by_layer"] = ordered_json::array();
  for (std::size_t layer = 0; layer < law->kept.size(); ++layer) {
    out["by_layer"].push_back({{"layer", layer},
                               {"kept_of_prompt", number_or_null(law->kept[layer])},
                               {"entries_per_token", number_or_null(law->growth[layer])},
                               {"bytes_over_law", number_or_null(law->bytes[layer])}});
  }
  return out;
}

ordered_json paged_json(const ReplayPaged& paged) {
  const PagedReport& r = paged.report;
  ordered_json out = {{"moment", paged.moment},
                      {"block_size", r.block_size},
                      {"layout", name_of(r.layout)},
                      {"logical_bytes", r.logical.count()},
                      {"allocated_bytes", r.allocated.count()},
                      {"reclaimable_bytes", r.reclaimable.count()},
                      {"slack_bytes", r.slack.count()},
                      {"entries_dropped", r.entries_dropped},
                      {"blocks_total", r.blocks_total},
                      {"blocks_freed", r.blocks_freed}};
  for (const CompactionPolicy policy : kCompactionPolicies) {
    const PagedCompaction& to = r.compaction[static_cast<std::size_t>(policy)];
    const std::string name{name_of(policy)};
    out["compacted_bytes_" + name] = to.allocated.count();
    out["compaction_bytes_moved_" + name] = to.bytes_moved.count();
  }
  return out;
}

ordered_json method_json(const ReplayMethod& method, const std::string& trace,
                         const OracleGap& gap) {
  ordered_json out = {{"name", method.name},
                      {"params", params_json(method.params)},
                      {"trace", trace},
                      {"budget", budget_value(method.budget)},
                      {"budget_reached", number_or_null(method.budget_reached)},
                      {"steps", method.steps},
                      {"entries_held_final", method.entries_held_final},
                      {"bytes_held_final", method.bytes_held_final},
                      {"bytes_full_final", method.bytes_full_final},
                      {"side_bytes_final", method.side_bytes_final},
                      {"host_bytes_final", method.host_bytes_final},
                      {"link_bytes_total", whole(method.link_bytes_total)},
                      {"entries_read_share", number_or_null(method.entries_read_share)},
                      {"bytes_full_read_total", whole(method.bytes_full_read_total)},
                      {"bytes_read_total", whole(method.bytes_read_total)},
                      {"bytes_written_total", whole(method.bytes_written_total)},
                      {"extra_flops_total", method.extra_flops_total},
                      {"rel_error_mean", number_or_null(method.rel_error_mean)},
                      {"rel_error_p99", number_or_null(method.rel_error_p99)},
                      {"cosine_mean", number_or_null(method.cosine_mean)},
                      {"retained_mass_mean", number_or_null(method.retained_mass_mean)},
                      {"best_mass_mean", number_or_null(method.best_mass_mean)},
                      {"oracle_mass_gap", number_or_null(gap.mass)},
                      {"oracle_error_ratio", number_or_null(gap.error_ratio)},
                      {"closed_form_bytes_final", nullptr}};
  if (method.closed_form_bytes_final) {
    out["closed_form_bytes_final"] = *method.closed_form_bytes_final;
  }
  out["measured_law"] = law_json(method.measured_law);
  out["counts"] = ordered_json::object();
  for (const auto& [name, count] : method.counts) out["counts"][name] = count;
  out["layers"] = ordered_json::array();
  for (const ReplayCell& cell : method.layers) out["layers"].push_back(cell_json(cell));
  if (!method.paged.empty()) {
    out["paged"] = ordered_json::array();
    for (const ReplayPaged& paged : method.paged) out["paged"].push_back(paged_json(paged));
  }
  if (!method.series.empty()) {
    out["per_step"] = ordered_json::array();
    for (const ReplayStep& step : method.series) out["per_step"].push_back(step_json(step));
  }
  if (!method.heads.empty()) {
    out["per_head"] = ordered_json::array();
    for (const ReplayCell& cell : method.heads) out["per_head"].push_back(cell_json(cell));
  }
  out["notes"] = method.notes;
  return out;
}

bool is_plain(const ordered_json& value) {
  return value.is_array() && std::none_of(value.begin(), value.end(), [](const ordered_json& item) {
           return item.is_object() || (item.is_array() && !is_plain(item));
         });
}

/// A row of a table: an object of scalars that stands in an array.
bool is_row(const ordered_json& value) {
  return value.is_object() &&
         std::none_of(value.begin(), value.end(),
                      [](const ordered_json& item) { return item.is_structured(); });
}

void dump(const ordered_json& value, std::size_t indent, std::string& out, bool in_array = false) {
  const bool object = value.is_object();
  if (value.empty() || !value.is_structured() || is_plain(value) || (in_array && is_row(value))) {
    out += value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    return;
  }
  out += object ? "{" : "[";
  bool first = true;
  for (const auto& item : value.items()) {
    out += first ? "\n" : ",\n";
    first = false;
    out.append(indent + 2, ' ');
    if (object) {
      out += ordered_json(item.key()).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
      out += ": ";
    }
    dump(item.value(), indent + 2, out, !object);
  }
  out += "\n";
  out.append(indent, ' ');
  out += object ? "}" : "]";
}

}  // namespace

std::string_view kvsim_version() { return KVSIM_VERSION; }

ordered_json run_document(const RunReport& report) {
  KVSIM_CHECK(report.scenario != nullptr, "a report without its scenario");
  const Scenario& scenario = *report.scenario;
  const bool serves = scenario.kind == "serve";
  const std::size_t results = serves ? report.serves.size() : report.results.size();
  KVSIM_CHECK(results == scenario.points.size(), "{} results of {} points", results,
              scenario.points.size());
  ordered_json out = {{"schema", "kvsim.run/1"}, {"kind", scenario.kind}};
  out["kvsim"] = {{"version", kvsim_version()}};
  out["scenario"] = {
      {"name", scenario.name}, {"title", scenario.title}, {"description", scenario.description},
      {"hash", scenario.hash}, {"seed", scenario.seed},   {"echo", scenario.echo}};
  out["calibration"] = serves ? calibration_json(report.serves) : calibration_json(report.results);
  if (serves) out["definitions"] = definitions_json();
  out["points"] = ordered_json::array();
  for (std::size_t i = 0; i < scenario.points.size(); ++i) {
    const ScenarioPoint& point = scenario.points[i];
    if (!serves) {
      out["points"].push_back(point_json(point, report.results[i]));
      continue;
    }
    ordered_json one = serve_point_json(point, report.serves[i]);
    if (i < report.iterations.size() && report.iterations[i]) {
      one["mean_iteration"] = mean_iteration_json(*report.iterations[i]);
    }
    out["points"].push_back(std::move(one));
  }
  out["published"] = ordered_json::array();
  for (const PublishedFigure& figure : scenario.published) {
    KVSIM_CHECK(figure.point < scenario.points.size(), "a published figure of point {} of {}",
                figure.point, scenario.points.size());
    out["published"].push_back(published_json(figure, out["points"][figure.point]));
  }
  if (report.replay) out["replay"] = replay_document(*report.replay, report.skipped);
  out["notes"] = scenario.notes;
  for (const std::string& note : report.notes) out["notes"].push_back(note);
  if (report.wall_s) out["run"] = {{"wall_s", *report.wall_s}};
  return out;
}

ordered_json replay_document(const ReplayResult& replay, const std::vector<SkippedMethod>& skipped,
                             const std::vector<std::string>& notes) {
  ordered_json out = {{"schema", "kvsim.replay/1"}};
  out["kvsim"] = {{"version", kvsim_version()}};
  out["trace"] = replay.trace;
  out["methods"] = ordered_json::array();
  for (const ReplayMethod& method : replay.methods) {
    out["methods"].push_back(method_json(method, replay.trace, oracle_gap(replay, method)));
  }
  out["skipped"] = ordered_json::array();
  for (const SkippedMethod& method : skipped) {
    out["skipped"].push_back({{"name", method.name}, {"reason", method.reason}});
  }
  out["notes"] = notes;
  return out;
}

void add_layer_steps(ordered_json& document, const ReplayResult& replay) {
  for (std::size_t m = 0; m < replay.methods.size(); ++m) {
    const auto& series = replay.methods[m].layer_series;
    if (series.empty()) continue;
    ordered_json layers = ordered_json::array();
    for (std::size_t l = 0; l < series.size(); ++l) {
      ordered_json steps = ordered_json::array();
      for (const ReplayStep& step : series[l]) steps.push_back(step_json(step));
      layers.push_back({{"layer", l}, {"per_step", std::move(steps)}});
    }
    document.at("methods").at(m)["per_step_layers"] = std::move(layers);
  }
}

ordered_json kept_document(const ReplayMethod& method) {
  ordered_json layers = ordered_json::array();
  for (const auto& layer : method.kept) {
    ordered_json heads = ordered_json::array();
    for (const auto& head : layer) {
      ordered_json entries = ordered_json::array();
      for (const auto& members : head) {
        if (members.size() == 1)
          entries.push_back(members.front());
        else
          entries.push_back(members);
      }
      heads.push_back(std::move(entries));
    }
    layers.push_back(std::move(heads));
  }
  ordered_json out = {{"method", method.name}, {"budget", budget_value(method.budget)}};
  out["kept"] = std::move(layers);
  return out;
}

ordered_json kept_document(const ReplayResult& replay) {
  if (replay.methods.size() == 1) return kept_document(replay.methods.front());
  ordered_json out = ordered_json::array();
  for (const ReplayMethod& method : replay.methods) out.push_back(kept_document(method));
  return out;
}

std::string to_file_text(const ordered_json& document) {
  std::string out;
  dump(document, 0, out);
  out += '\n';
  return out;
}

}  // namespace kvsim
