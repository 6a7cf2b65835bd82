#include "sim/report/replay/replay_json.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "sim/report/replay/replay_aggregate.hpp"
#include "sim/report/replay/replay_finding.hpp"
#include "sim/report/text/json_values.hpp"
#include "sim/report/text/version.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

/// A fraction as a number, a number of entries as an integer.
nlohmann::ordered_json budget_value(const std::optional<double>& budget) {
  if (!budget) return nullptr;
  if (*budget > 1) return static_cast<std::int64_t>(*budget);
  return *budget;
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

/// null if the size law is in closed form.
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
    if (law->head_kept.empty()) continue;
    out["by_layer"].back()["head_kept_of_prompt"] = law->head_kept[layer];
    out["by_layer"].back()["head_entries_per_token"] = law->head_growth[layer];
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
  out["kept_by_role"] = ordered_json::array();
  for (const ReplayKept& kept : method.kept_by_role) {
    out["kept_by_role"].push_back({{"layer", kept.layer},
                                   {"role", name_of(kept.role)},
                                   {"entries", kept.entries},
                                   {"tokens", kept.tokens},
                                   {"score_lowest", number_or_null(kept.score_lowest)},
                                   {"score_highest", number_or_null(kept.score_highest)}});
  }
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

}  // namespace

ordered_json replay_document(const ReplayResult& replay, const std::vector<SkippedMethod>& skipped,
                             const std::vector<std::string>& notes) {
  ordered_json out = {{"schema", "kvsim.replay/1"}};
  out["kvsim"] = {{"version", kvsim_version()}};
  out["trace"] = replay.trace;
  out["source"] = replay.source;
  out["model"] = replay.model;
  out["model_parameters"] = number_or_null(replay.parameters);
  out["methods"] = ordered_json::array();
  for (const ReplayMethod& method : replay.methods) {
    out["methods"].push_back(method_json(method, replay.trace, oracle_gap(replay, method)));
  }
  out["skipped"] = ordered_json::array();
  for (const SkippedMethod& method : skipped) {
    out["skipped"].push_back({{"name", method.name}, {"reason", method.reason}});
  }
  out["finding"] = replay_finding(replay);
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

}  // namespace kvsim
