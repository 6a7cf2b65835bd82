#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/cost/step.hpp"
#include "models/methods/method.hpp"
#include "sim/batch/point/point_parts.hpp"

namespace kvsim {

/// Limit of the results kept for earlier prompts and batch sizes; beyond it all of a kind are
/// dropped.
inline constexpr std::size_t kMostKept = 4096;

/// A method resolved for the requested prompts.
class ResolvedPoints {
 public:
  /// Uses all of `base` except the method and the sizes of a run. Its pointers must outlive the
  /// laws.
  ResolvedPoints(const CostInput& base, std::function<ResolvedMethod(std::int64_t prompt)> settle)
      : base_{base}, settle_{std::move(settle)} {}

  /// nullptr: not settled yet.
  [[nodiscard]] ResolvedPoint* known(std::int64_t prompt) const;
  [[nodiscard]] bool is_full() const {
    return laws_.size() > kMostKept || law_of_prompt_.size() > kMostKept;
  }
  /// Invalidates all laws returned.
  void clear();
  /// Errors: as `settle`.
  [[nodiscard]] ResolvedPoint& add(std::int64_t prompt);

 private:
  [[nodiscard]] std::shared_ptr<DecodeSteps> steps_of(const ResolvedPoint& law);

  CostInput base_;
  std::function<ResolvedMethod(std::int64_t prompt)> settle_;
  std::unordered_map<const Method*, std::unique_ptr<ResolvedPoint>>
      laws_;  // looked up, never iterated
  std::unordered_map<std::int64_t, ResolvedPoint*> law_of_prompt_;
  std::vector<ResolvedPoint*> serving_many_;         // few
  std::vector<std::shared_ptr<DecodeSteps>> steps_;  // that methods may share
};

}  // namespace kvsim
