#pragma once

// Request lengths that a serving run states as a data set, a mean or a limit.

#include <cstdint>
#include <filesystem>
#include <vector>

#include <nlohmann/json.hpp>

#include "validation/served/served_tables.hpp"

namespace kvsim {

/// The rows of a data set sampled by benchmarks.
struct SetRows {
  double prompt_mean = 0;
  std::vector<std::int32_t> outputs;
};
/// Reads each file once; thread-safe. Errors: InputError.
[[nodiscard]] const SetRows& served_set_rows(const std::filesystem::path& path,
                                             const ServedLengths& set);

/// Returns the factor that gives outputs the mean `stated` after truncation at `cap` (0: no cap).
/// If the mean equals the cap, all outputs are at the cap.
[[nodiscard]] double output_factor(const std::vector<std::int32_t>& outputs, double stated,
                                   std::int64_t cap);

/// Returns the mean of a lognormal distribution with this ratio of p99 to mean whose mean is
/// `stated` after truncation at `cap`. At most 20 times `stated`.
[[nodiscard]] double mean_before_cap(double stated, double p99_per_mean, std::int64_t cap);

/// Returns a distribution of outputs with mean `tokens` in which a share stops at a random point
/// before the requested length (stopping_share).
[[nodiscard]] nlohmann::ordered_json stopping_outputs(double tokens);

}  // namespace kvsim
