#include "sim/report/replay/replay_json.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "sim/replay/replay_metrics.hpp"
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

/// All metrics of `row`.
template <class Row>
ordered_json row_json(MetricTable<Row> table, const Row& row) {
  ordered_json out;
  put_metrics(out, table, row);
  return out;
}

/// null if the size law is in closed form.
ordered_json law_json(const ReplayResult& replay, const std::optional<MeasuredLaw>& law) {
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
    out["by_layer"].push_back({{"layer", replay.layer_number(layer)},
                               {"kept_of_prompt", number_or_null(law->kept[layer])},
                               {"entries_per_token", number_or_null(law->growth[layer])},
                               {"bytes_over_law", number_or_null(law->bytes[layer])}});
    if (law->head_kept.empty()) continue;
    out["by_layer"].back()["head_kept_of_prompt"] = law->head_kept[layer];
    out["by_layer"].back()["head_entries_per_token"] = law->head_growth[layer];
  }
  return out;
}

ordered_json method_json(const ReplayResult& replay, const ReplayMethod& method) {
  ordered_json out = {{"name", method.name},
                      {"params", params_json(method.params)},
                      {"trace", replay.trace},
                      {"prompt_tokens", replay.prompt_tokens},
                      {"budget", budget_value(method.budget)}};
  put_metrics(out, replay_metrics(), ReplayedMethod{replay, method});
  if (const auto& errors = method.standard_errors) {
    out["standard_errors"] = {{"rel_error_mean", number_or_null(errors->rel_error_mean)},
                              {"cosine_mean", number_or_null(errors->cosine_mean)},
                              {"retained_mass_mean", number_or_null(errors->retained_mass_mean)},
                              {"best_mass_mean", number_or_null(errors->best_mass_mean)},
                              {"answer_error_mean", number_or_null(errors->answer_error_mean)}};
  }
  out["measured_law"] = law_json(replay, method.measured_law);
  out["counts"] = ordered_json::object();
  for (const auto& [name, count] : method.counts) out["counts"][name] = count;
  if (method.prefill) {
    out["prefill"] = {{"pairs_share", number_or_null(method.prefill->pairs_share)},
                      {"flops_share", number_or_null(method.prefill->flops_share)},
                      {"rel_error_mean", number_or_null(method.prefill->rel_error_mean)},
                      {"retained_mass_mean", number_or_null(method.prefill->retained_mass_mean)}};
  }
  if (method.tier) {
    out["tier"] = {{"page_bytes", method.tier->page_bytes},
                   {"link_bytes", method.tier->link_bytes},
                   {"key_error", number_or_null(method.tier->key_error)},
                   {"value_error", number_or_null(method.tier->value_error)}};
  }
  out["layers"] = ordered_json::array();
  for (const ReplayCell& cell : method.layers)
    out["layers"].push_back(row_json(replay_cell_metrics(), cell));
  if (!method.segments.empty()) {
    out["segments"] = ordered_json::array();
    for (const ReplaySegment& segment : method.segments) {
      out["segments"].push_back({{"name", segment.name},
                                 {"start", segment.start},
                                 {"end", segment.end},
                                 {"steps", segment.steps},
                                 {"rel_error_mean", number_or_null(segment.rel_error_mean)}});
    }
  }
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
    for (const ReplayPaged& paged : method.paged) {
      out["paged"].push_back(row_json(replay_paged_metrics(), paged));
    }
  }
  if (!method.series.empty()) {
    out["per_step"] = ordered_json::array();
    for (const ReplayStep& step : method.series) {
      out["per_step"].push_back(row_json(replay_step_metrics(), step));
    }
  }
  if (!method.heads.empty()) {
    out["per_head"] = ordered_json::array();
    for (const ReplayCell& cell : method.heads) {
      out["per_head"].push_back(row_json(replay_cell_metrics(), cell));
    }
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
  if (const auto& sample = replay.sample) {
    out["sample"] = {
        {"layers", sample->layers},     {"of_layers", sample->of_layers},
        {"kv_heads", sample->kv_heads}, {"of_kv_heads", sample->of_kv_heads},
        {"heads", sample->heads},       {"layers_by_stratum", sample->layers_by_stratum}};
  }
  if (replay.steps) {
    out["sampled_steps"] = {{"measured", replay.steps->measured}, {"of", replay.steps->of}};
  }
  out["methods"] = ordered_json::array();
  for (const ReplayMethod& method : replay.methods) {
    out["methods"].push_back(method_json(replay, method));
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
      for (const ReplayStep& step : series[l]) {
        steps.push_back(row_json(replay_step_metrics(), step));
      }
      layers.push_back({{"layer", replay.layer_number(l)}, {"per_step", std::move(steps)}});
    }
    document.at("methods").at(m)["per_step_layers"] = std::move(layers);
  }
}

ordered_json kept_document(const ReplayResult& replay, const ReplayMethod& method) {
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
  if (const auto& sample = replay.sample) {
    out["layers"] = sample->layers;
    out["kv_heads"] = sample->heads;
  }
  out["kept"] = std::move(layers);
  return out;
}

ordered_json kept_document(const ReplayResult& replay) {
  if (replay.methods.size() == 1) return kept_document(replay, replay.methods.front());
  ordered_json out = ordered_json::array();
  for (const ReplayMethod& method : replay.methods) out.push_back(kept_document(replay, method));
  return out;
}

}  // namespace kvsim
