#include "sim/report/plan/plan_page.hpp"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/report/folder/page_parts.hpp"
#include "sim/report/plan/plan_finding.hpp"
#include "sim/report/plan/plan_metrics.hpp"
#include "sim/report/plan/plan_report.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
using PageTone = PageSentence::Tone;

constexpr std::size_t kMaxCandidatePoints = 4000;  // per plan

}  // namespace

std::string plan_page(const Scenario& scenario, const PlanResult& plan,
                      const ordered_json& document, const FigureSet& figures) {
  const std::string text = plan_summary(scenario, plan, nullptr, kOneLine);
  std::vector<PageSentence> sentences;
  // The answers precede the first blank line.
  std::vector<std::string> lines = lines_of(text.substr(0, text.find("\n\n")));
  for (std::string& line : lines) {
    const bool no = line.find(": impossible") != std::string::npos;
    sentences.push_back({std::move(line), no ? PageTone::kFails : PageTone::kPlain});
  }
  for (const PlanGroup& group : plan.groups) {
    const std::string of_which =
        plan.groups.size() > 1 ? fmt::format("{} of {}: ", plan_words(group.question), group.of)
                               : std::string{};
    sentences.push_back({of_which + plan_finding(plan, group)});
  }
  std::vector<std::string> cuts;
  ordered_json shown = document;
  std::size_t n = 0;
  for (ordered_json& answer : shown["answers"]) {
    for (ordered_json& candidate : answer["candidates"]) {
      n += candidate["points"].size();
      candidate.erase("at_answer");  // kvsim explain prints it
    }
  }
  if (n > kMaxCandidatePoints) {
    for (ordered_json& answer : shown["answers"]) {
      for (ordered_json& candidate : answer["candidates"]) candidate.erase("points");
    }
    cuts.push_back(fmt::format("{} ways to run are in front.csv.", n));
  }
  ordered_json extras{{"candidates", page_columns(infos_of(candidate_metrics()))},
                      {"ways", page_columns(infos_of(operating_point_metrics()))}};
  return page_text({.title = title_of(scenario.name, scenario.title),
                    .lead = clean_text(scenario.description),
                    .sentences = std::move(sentences),
                    .summary = plan_summary(scenario, plan, nullptr, kSummaryWidth),
                    .data = data_of("plan", std::move(shown), figures, std::move(extras), cuts)});
}

}  // namespace kvsim
