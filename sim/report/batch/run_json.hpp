#pragma once

// Parts of "kvsim.run/1" documents except services and replays. This is all that a static run
// needs, so the explorer's core (sim/explorer) includes nothing else.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/batch/account/time_terms.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// The keys and results of one entry of `points`.
[[nodiscard]] nlohmann::ordered_json static_point_json(const ScenarioPoint& point,
                                                       const StaticResult& result);
/// `allocator`, in PyTorch's terms, without the CUDA context.
[[nodiscard]] nlohmann::ordered_json allocator_json(const AllocationReport& report);
/// `oom`: null if it fits.
[[nodiscard]] nlohmann::ordered_json oom_json(const std::optional<OomEvent>& oom);
/// `peak_terms`.
[[nodiscard]] nlohmann::ordered_json peak_terms_json(const std::vector<PeakTerm>& terms);
/// `time_terms` of a point.
[[nodiscard]] nlohmann::ordered_json explained_json(const std::vector<ExplainedStep>& steps);
/// `calibration`: id and provenance of each result; one text if all share it.
[[nodiscard]] nlohmann::ordered_json calibration_json(const std::vector<std::string>& ids,
                                                      const std::vector<std::string>& sources);
template <class Result>
[[nodiscard]] nlohmann::ordered_json calibration_json(const std::vector<Result>& results) {
  std::vector<std::string> ids, sources;
  for (const Result& result : results) {
    ids.push_back(result.calibration_id);
    sources.push_back(result.calibration);
  }
  return calibration_json(ids, sources);
}

/// The parts that differ between kinds of run.
struct RunParts {
  nlohmann::ordered_json calibration;
  nlohmann::ordered_json points;         // an array, one entry per point of the scenario
  nlohmann::ordered_json definitions{};  // of services; null if there are none
  nlohmann::ordered_json replay{};       // null if there is none
  std::vector<std::string> notes{};      // in addition to the scenario's
};
/// The document of these parts. Errors: ContractError if a published figure's point is not among
/// them.
[[nodiscard]] nlohmann::ordered_json run_document(const Scenario& scenario, RunParts parts);

/// The document of a static scenario without a replay. Errors: ContractError if results and points
/// differ in number.
[[nodiscard]] nlohmann::ordered_json run_document(const Scenario& scenario,
                                                  const std::vector<StaticResult>& results,
                                                  std::vector<std::string> notes);

}  // namespace kvsim
