#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "sim/cli/options/arguments.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

/// Options that read, transform, and generate a request trace.
void add_reading_options(std::vector<Option>& options);
void add_transforming_options(std::vector<Option>& options);
void add_drawing_options(std::vector<Option>& options);
/// Options of commands that read a trace: the first two and --seed.
[[nodiscard]] std::vector<Option> trace_file_options();

/// Sets the keys of /requests that correspond to those options.
void take_reading_options(const Arguments& arguments, nlohmann::json& requests);
void take_transforming_options(const Arguments& arguments, nlohmann::json& requests);
void take_drawing_options(const Arguments& arguments, nlohmann::json& requests);
[[nodiscard]] std::uint64_t seed_of(const Arguments& arguments);

/// The workload of the given files with the options applied. Errors: as read_workload and
/// read_requests.
[[nodiscard]] RequestTrace file_workload(const Arguments& arguments,
                                         const std::vector<std::string>& files);

}  // namespace kvsim
