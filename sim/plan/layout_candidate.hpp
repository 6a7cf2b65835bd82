#pragma once

// Inside of sim/plan: one of many layouts of a service, searched for its fewest GPUs and nothing
// else.

#include <cstdint>
#include <memory>

#include "sim/plan/candidate.hpp"
#include "sim/plan/layout_bound.hpp"

namespace kvsim {

/// A layout at the requested confidence. Its answer and prediction are those of ServeCandidate,
/// without the other ends of the range and without ways to run on more GPUs.
class LayoutCandidate {
 public:
  /// Errors: as ServeCandidate.
  explicit LayoutCandidate(CandidateInput in);
  LayoutCandidate(const LayoutCandidate&) = delete;
  LayoutCandidate& operator=(const LayoutCandidate&) = delete;
  ~LayoutCandidate();

  [[nodiscard]] LayoutBound bound();
  /// Of the service, on as many GPUs as the plan allows.
  [[nodiscard]] std::int64_t max_copies() const;
  /// Tries `min` to `max` copies. No answer and no reason: it takes more than `max`, which are
  /// fewer than max_copies().
  void min_gpus(PlanCandidate& searched, std::int64_t min, std::int64_t max);

 private:
  std::unique_ptr<ServeCandidate::Impl> impl_;
};

}  // namespace kvsim
