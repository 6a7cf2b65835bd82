#pragma once

// Internal to sim/plan: one of many layouts of a service, searched only for its fewest GPUs.

#include <cstdint>
#include <memory>

#include "sim/plan/candidate.hpp"
#include "sim/plan/layout_bound.hpp"

namespace kvsim {

/// A layout at the requested confidence. Its answer and prediction are the same as in
/// ServeCandidate, without the other ends of the range and without points on more GPUs.
class LayoutCandidate {
 public:
  /// Errors: same as ServeCandidate.
  explicit LayoutCandidate(CandidateInput in);
  LayoutCandidate(const LayoutCandidate&) = delete;
  LayoutCandidate& operator=(const LayoutCandidate&) = delete;
  ~LayoutCandidate();

  [[nodiscard]] LayoutBound bound();
  /// Returns the number of copies of the service that fit on the plan's GPUs.
  [[nodiscard]] std::int64_t max_copies() const;
  /// Tries `min` to `max` copies. Without an answer and a reason, more than `max` copies are
  /// needed, and `max` is below max_copies().
  void min_gpus(PlanCandidate& searched, std::int64_t min, std::int64_t max);

 private:
  std::unique_ptr<ServeCandidate::Impl> impl_;
};

}  // namespace kvsim
