#pragma once

// The results of `kvsim plan`. Every document is a function of the scenario and the plan's result.

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/plan/plan_result.hpp"
#include "sim/report/figure/figure.hpp"
#include "sim/report/folder/results_folder.hpp"
#include "sim/report/text/text_style.hpp"

namespace kvsim {

/// "kvsim.plan/1".
[[nodiscard]] nlohmann::ordered_json plan_document(const Scenario& scenario, const PlanResult& plan,
                                                   const std::vector<std::string>& notes = {});
/// One line per candidate: the question, its name, its answer or its bound.
[[nodiscard]] std::string plan_csv(const PlanResult& plan);
/// One line per way to run: load, cost, latency, error, and whether it is on the front.
[[nodiscard]] std::string plan_front_csv(const PlanResult& plan);
/// The cost of the best answer: "5 USD per hour, 0.65 USD per million output tokens". Empty if
/// there is no answer or its GPU has no price.
[[nodiscard]] std::string plan_cost(const PlanSection& section, const PlanResult& plan,
                                    const PlanGroup& group);
/// "available in: snapkv: kvpress, research code; nvfp4: vLLM 0.30, …": the software that
/// implements the candidates' methods. Empty if the catalogue has none of them except full.
[[nodiscard]] std::string plan_availability(const PlanResult& plan, std::size_t width);
/// For the terminal: the answers as text, a table per group, what limits them, notes.
[[nodiscard]] std::string plan_summary(const Scenario& scenario, const PlanResult& plan,
                                       const ResultsFolder* written, std::size_t width = 80);
/// The same on one screen, for few static batches: the size of each as predicted, safe and
/// optimistic, its resource use there, and what limits it.
[[nodiscard]] std::string plan_screen(const Scenario& scenario, const PlanResult& plan,
                                      const ResultsFolder* written, const TextStyle& style = {});
/// For each group, the answers as bars and the cost against latency of all ways to run.
[[nodiscard]] FigureSet plan_figures(const PlanResult& plan);

/// The text of a question, "longest context", and its unit, "tokens".
[[nodiscard]] std::string plan_words(PlanQuestion question);
[[nodiscard]] std::string plan_unit(PlanQuestion question, double value);
/// "131,584", "2.37".
[[nodiscard]] std::string plan_amount(PlanQuestion question, double value);

/// "8 to 24": the ends of a candidate's range, the smaller number first. A missing end is "none"
/// (no size fits) or "more than 64" (GPUs). Empty if the uncertainty is unknown.
[[nodiscard]] std::string plan_range(const PlanCandidate& one);

/// The results folder: plan.json, plan.csv, front.csv and figures/. Errors: as write_run_results.
ResultsFolder write_plan_results(const Scenario& scenario, const PlanResult& plan,
                                 const std::filesystem::path& folder,
                                 const FolderOptions& options = {});

}  // namespace kvsim
