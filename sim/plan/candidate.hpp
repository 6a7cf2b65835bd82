#pragma once

// Inside of sim/plan: one method on one kind and number of GPUs, searched.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sim/plan/plan_result.hpp"

namespace kvsim {

/// What a candidate is made from. Nothing is owned.
struct CandidateInput {
  const PlanSection* plan = nullptr;
  const ScenarioPoint* point = nullptr;
  MethodSpec method;            // with the budget that was chosen
  std::optional<double> error;  // of the method there
  double gpu_hour = 1;          // of one GPU: a price, or 1 where there are none
};

/// The longest context of the point's batch, or the largest batch of its prompt. `searched`: fills
/// all but group, point and label of it. Errors: as run_static.
void plan_static(const CandidateInput& in, PlanCandidate& searched);
/// What knobs do where not even the smallest run fits.
[[nodiscard]] std::vector<KnobEffect> static_knobs(const CandidateInput& in, PlanQuestion question);

/// A service at many rates, each run once.
class ServeCandidate {
 public:
  /// Errors: InputError as run_serve; where the workload's rate cannot be scaled; without bounds.
  explicit ServeCandidate(CandidateInput in);
  ServeCandidate(const ServeCandidate&) = delete;
  ServeCandidate& operator=(const ServeCandidate&) = delete;
  ~ServeCandidate();

  void highest_rate(PlanCandidate& searched);
  /// The workload before as many copies of the service as it takes, all of them simulated, with the
  /// router that the service has. `first`: copies to try first.
  void min_gpus(PlanCandidate& searched, std::int64_t first = 1);
  [[nodiscard]] std::vector<KnobEffect> knobs(PlanQuestion question);

 private:
  friend class LayoutCandidate;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvsim
