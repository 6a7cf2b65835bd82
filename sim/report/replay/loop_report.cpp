#include "sim/report/replay/loop_report.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "models/methods/resolve/own_methods.hpp"
#include "sim/report/text/json_values.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "sim/report/text/version.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

ordered_json score_json(const LoopScore& score) {
  return {{"prompts", score.prompts},
          {"answer_tokens", score.answer_tokens},
          {"accuracy", score.accuracy},
          {"accuracy_stderr", score.accuracy_stderr},
          {"token_agreement", score.token_agreement},
          {"kl_mean", number_or_null(score.kl_mean)},
          {"perplexity", number_or_null(score.perplexity)}};
}

ordered_json budget_json(const std::optional<double>& budget) {
  if (!budget) return nullptr;
  if (*budget > 1) return static_cast<std::int64_t>(*budget);
  return *budget;
}

}  // namespace

ordered_json loop_document(const LoopResult& result) {
  ordered_json out = {{"schema", "kvsim.closed-loop/1"},
                      {"kvsim", {{"version", kvsim_version()}}},
                      {"model", result.model},
                      {"prompts", result.prompts},
                      {"methods", ordered_json::array()},
                      {"skipped", ordered_json::array()}};
  for (const LoopMethod& method : result.methods) {
    ordered_json params = ordered_json::object();
    for (const auto& [name, value] : method.params) {
      std::visit([&, &key = name](const auto& v) { params[key] = v; }, value);
    }
    ordered_json one = {{"name", method.name},
                        {"params", std::move(params)},
                        {"budget", budget_json(method.budget)},
                        {"budget_reached", method.budget_reached},
                        {"rel_error_mean", method.rel_error_mean},
                        {"answer_error_mean", method.answer_error_mean},
                        {"closed_loop", score_json(method.all)}};
    if (const auto own = own_method_note(method.name)) one["note"] = *own;
    if (!method.tasks.empty()) {
      one["tasks"] = ordered_json::array();
      for (const LoopScore& task : method.tasks) {
        ordered_json entry = {{"task", task.task}};
        entry.update(score_json(task));
        one["tasks"].push_back(std::move(entry));
      }
    }
    out["methods"].push_back(std::move(one));
  }
  for (const LoopSkipped& skipped : result.skipped) {
    out["skipped"].push_back({{"name", skipped.name}, {"reason", skipped.reason}});
  }
  return out;
}

std::string loop_summary(const LoopResult& result, std::size_t width) {
  Table table{{{"method", Table::Align::kLeft},
               {"budget"},
               {"held", Table::Align::kRight, "%"},
               {"accuracy", Table::Align::kRight, "%"},
               {"agree", Table::Align::kRight, "%"},
               {"KL", Table::Align::kRight, "nats"},
               {"perplexity"},
               {"open-loop error", Table::Align::kRight, "", true}}};
  for (const LoopMethod& method : result.methods) {
    const LoopScore& s = method.all;
    table.add_row({method.name, method.budget ? fmt::format("{:g}", *method.budget) : "-",
                   fmt::format("{:.1f}", 100 * method.budget_reached),
                   fmt::format("{:.1f} ± {:.1f}", 100 * s.accuracy, 100 * s.accuracy_stderr),
                   fmt::format("{:.1f}", 100 * s.token_agreement), fmt::format("{:.3g}", s.kl_mean),
                   fmt::format("{:.4g}", s.perplexity),
                   fmt::format("{:.3f}", method.answer_error_mean)});
  }
  std::string out = fmt::format("closed loop: {}, {} prompts\n{}", clean_text(result.model),
                                result.prompts, table.str(width));
  for (const LoopSkipped& skipped : result.skipped) {
    out += fmt::format("not run: {}: {}\n", clean_text(skipped.name), clean_text(skipped.reason));
  }
  return out;
}

}  // namespace kvsim
