#pragma once

#include <optional>
#include <string>

#include "sim/cli/options/arguments.hpp"

namespace kvsim {

// The data sources of `kvsim calibrate`; each is in command_calibrate_NAME.cpp.
[[nodiscard]] int calibrate_measured(const Arguments& arguments);
[[nodiscard]] int calibrate_residuals(const Arguments& arguments);
[[nodiscard]] int calibrate_on_device(const Arguments& arguments);

/// The value of --date. Errors: InputError unless it is a valid date in the form YYYY-MM-DD.
[[nodiscard]] std::optional<std::string> checked_date(const Arguments& arguments);

/// The value of --date; by default today in UTC. Errors: as checked_date.
[[nodiscard]] std::string date_of(const Arguments& arguments);

}  // namespace kvsim
