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
class PointLaws {
 public:
  /// Of `base` all but the method and the sizes of a run. What it points to outlives the laws.
  PointLaws(const CostInput& base, std::function<SettledMethod(std::int64_t prompt)> settle)
      : base_{base}, settle_{std::move(settle)} {}

  /// nullptr: not settled yet.
  [[nodiscard]] PointLaw* known(std::int64_t prompt) const;
  [[nodiscard]] bool is_full() const {
    return laws_.size() > kMostKept || law_of_prompt_.size() > kMostKept;
  }
  /// Ends all laws that were given.
  void clear();
  /// Errors: what `settle` refuses.
  [[nodiscard]] PointLaw& add(std::int64_t prompt);

 private:
  [[nodiscard]] std::shared_ptr<DecodeSteps> steps_of(const PointLaw& law);

  CostInput base_;
  std::function<SettledMethod(std::int64_t prompt)> settle_;
  std::unordered_map<const Method*, std::unique_ptr<PointLaw>> laws_;  // looked up, never walked
  std::unordered_map<std::int64_t, PointLaw*> law_of_prompt_;
  std::vector<PointLaw*> serving_many_;              // few
  std::vector<std::shared_ptr<DecodeSteps>> steps_;  // that methods may share
};

}  // namespace kvsim
