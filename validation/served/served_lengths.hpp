#pragma once

// Lengths of requests that a serving run states by a data set, a mean or a limit.

#include <cstdint>
#include <filesystem>
#include <vector>

#include <nlohmann/json.hpp>

#include "validation/served/served_tables.hpp"

namespace kvsim {

/// The rows of a set that benchmarks sample.
struct SetRows {
  double prompt_mean = 0;
  std::vector<std::int32_t> outputs;
};
/// Reads each file once; for several threads. Errors: InputError.
[[nodiscard]] const SetRows& served_set_rows(const std::filesystem::path& path,
                                             const ServedLengths& set);

/// The factor that gives outputs the mean `stated` once those above `cap` are cut there (0: no
/// cap). All are at the cap where the mean is.
[[nodiscard]] double output_factor(const std::vector<std::int32_t>& outputs, double stated,
                                   std::int64_t cap);

/// The mean of a lognormal with such a p99 over mean that has the mean `stated` when values above
/// `cap` are cut to it. At most 20 times `stated`.
[[nodiscard]] double mean_before_cap(double stated, double p99_per_mean, std::int64_t cap);

/// A distribution of outputs with mean `tokens` of which a share stops anywhere before the length
/// requested (stopping_share).
[[nodiscard]] nlohmann::ordered_json stopping_outputs(double tokens);

}  // namespace kvsim
