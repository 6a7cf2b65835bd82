#include "sim/report/replay/loop_report.hpp"

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "models/methods/resolve/own_methods.hpp"
#include "sim/report/folder/summary_blocks.hpp"
#include "sim/report/replay/equal_bytes.hpp"
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

namespace {

/// Why accuracies are not compared if fewer than two methods hold part of the cache.
std::string nothing_to_compare(const LoopResult& result) {
  const auto is_full = [](const LoopMethod& method) { return method.name == "full"; };
  const auto others = std::count_if(result.methods.begin(), result.methods.end(),
                                    [&](const LoopMethod& method) { return !is_full(method); });
  if (others == 0) return "Only the full cache was run, so there is nothing to compare.";
  if (result.methods.size() == 1) {
    return "Only one method was run, so there is nothing to compare it with.";
  }
  if (others == 1) {
    return "Only one method was run next to the full cache, so there is nothing to compare it with "
           "at equal bytes.";
  }
  return "No two methods hold part of the cache here, so there is nothing to compare at equal "
         "bytes.";
}

}  // namespace

std::string loop_finding(const LoopResult& result) {
  std::vector<const LoopMethod*> all;
  std::vector<double> shares;
  for (const LoopMethod& method : result.methods) {
    const bool holds_all = !method.budget && method.budget_reached >= 1;
    if (holds_all || method.name.starts_with("oracle")) continue;
    all.push_back(&method);
    shares.push_back(method.budget_reached);
  }
  if (all.size() < 2) return nothing_to_compare(result);
  std::size_t bands = 0;
  std::map<std::string, std::size_t> wins;
  std::string of_last;
  for (const std::vector<std::size_t>& band : equal_bytes_bands(shares)) {
    const LoopMethod* best = all[band.front()];
    for (const std::size_t i : band) {
      if (all[i]->all.accuracy > best->all.accuracy) best = all[i];
    }
    const auto is_other = [&](std::size_t i) { return all[i]->name != best->name; };
    if (std::none_of(band.begin(), band.end(), is_other)) continue;
    ++bands;
    const bool leads = std::none_of(band.begin(), band.end(), [&](std::size_t i) {
      const double margin = std::max(best->all.accuracy_stderr, all[i]->all.accuracy_stderr);
      return is_other(i) && best->all.accuracy - all[i]->all.accuracy <= margin;
    });
    const std::string range = share_range(shares[band.front()], shares[band.back()]);
    of_last =
        fmt::format("No method that holds {} of the bytes leads by over a standard error.", range);
    if (!leads) continue;
    ++wins[best->name];
    of_last = fmt::format(
        "Of the methods that hold {} of the bytes, {} has the highest accuracy "
        "({:.1f} %).",
        range, clean_text(best->name), 100 * best->all.accuracy);
  }
  if (bands == 0) {
    return "No two methods hold equal bytes here, so their accuracies are not comparable.";
  }
  if (bands == 1) return of_last;
  for (const auto& [name, n] : wins) {
    if (2 * n <= bands) continue;
    return fmt::format("At equal bytes {} has the highest accuracy in {} of {} comparisons.",
                       clean_text(name), n, bands);
  }
  return fmt::format("No method leads in most of the {} comparisons at equal bytes.", bands);
}

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
  out["finding"] = loop_finding(result);
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
  return out + finding_block(loop_finding(result), width);
}

}  // namespace kvsim
