#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"

namespace kvsim {

enum class PlanQuestion : std::uint8_t { kLongestContext, kLargestBatch, kHighestRate, kMinGpus };
/// The question's name in scenario files: "longest_context", ….
[[nodiscard]] std::string_view name_of(PlanQuestion question);
/// Whether the question is about services; otherwise it is about static batches.
[[nodiscard]] constexpr bool is_of_services(PlanQuestion question) {
  return question == PlanQuestion::kHighestRate || question == PlanQuestion::kMinGpus;
}

/// The largest loss of a method relative to the full cache on a recorded trace.
struct QualityFloor {
  std::string named;                        // the trace as written in the file
  std::filesystem::path trace;              // resolved against the scenario's folder
  std::optional<double> max_rel_error;      // mean error of attention outputs; one of both is set
  std::optional<double> min_retained_mass;  // mean share of attention probability
  /// If set, budgets between the smallest and the largest of a method's list are also tried, in
  /// steps of this share of the prompt's cache.
  std::optional<double> bisect_step;
};

/// The layouts of a service that a plan searches: tensor, pipeline and expert parallelism.
struct LayoutSearch {
  std::int32_t gpus = 8;       // maximum for one service
  bool disaggregated = false;  // also engines that only prefill, and others that only decode
};

/// The `plan` of a scenario.
struct PlanSection {
  std::vector<PlanQuestion> questions;
  double confidence = 0;    // of an answer; 0: the answer is the prediction
  double attainment = 0.9;  // share of requests that meet all bounds
  std::optional<QualityFloor> quality;
  std::map<std::string, double> prices;  // per GPU-hour, by the GPU's catalogue name
  std::string currency;                  // of the prices
  std::int64_t max_gpus = 64;            // for min_gpus
  double rate_step = 0.01;               // highest_rate is a power of (1 + rate_step)
  bool beyond_positions = false;         // contexts may exceed the model's positions
  std::optional<LayoutSearch> layouts;   // nullopt: the scenario's layout
};

/// Reads a `plan` section. Paths are relative to `folder`. Errors: InputError with file and JSON
/// pointer.
[[nodiscard]] PlanSection read_plan(const Field& field, const std::filesystem::path& folder);

}  // namespace kvsim
