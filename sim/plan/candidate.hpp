#pragma once

// Internal to sim/plan: the search of one method on one type and number of GPUs.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sim/plan/plan_result.hpp"

namespace kvsim {

/// Input of a candidate. All pointers are non-owning.
struct CandidateInput {
  const PlanSection* plan = nullptr;
  const ScenarioPoint* point = nullptr;
  MethodSpec method;            // with the chosen budget
  std::optional<double> error;  // of the method at that budget
  double gpu_hour = 1;          // price of one GPU-hour; 1 without prices
};

/// Finds the longest context of the point's batch, or the largest batch for its prompt. Fills all
/// of `searched` but its group, point and label. Errors: same as run_static.
void plan_static(const CandidateInput& in, PlanCandidate& searched);
/// Returns the effects of the knobs if not even the smallest run fits.
[[nodiscard]] std::vector<KnobEffect> static_knobs(const CandidateInput& in, PlanQuestion question);

/// A service at several request rates; each rate is simulated once.
class ServeCandidate {
 public:
  /// Errors: InputError as in run_serve, if the workload's rate cannot be scaled, or without
  /// bounds.
  explicit ServeCandidate(CandidateInput in);
  ServeCandidate(const ServeCandidate&) = delete;
  ServeCandidate& operator=(const ServeCandidate&) = delete;
  ~ServeCandidate();

  void highest_rate(PlanCandidate& searched);
  /// Finds the smallest number of copies of the service that serves the workload. All copies are
  /// simulated, behind the service's router. `first`: number of copies to try first.
  void min_gpus(PlanCandidate& searched, std::int64_t first = 1);
  [[nodiscard]] std::vector<KnobEffect> knobs(PlanQuestion question);

 private:
  friend class LayoutCandidate;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvsim
