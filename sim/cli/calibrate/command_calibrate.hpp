#pragma once

#include <optional>
#include <string>

#include "sim/cli/options/arguments.hpp"

namespace kvsim {

// What `kvsim calibrate` fits to; one file each, command_calibrate_NAME.cpp.
[[nodiscard]] int calibrate_measured(const Arguments& arguments);
[[nodiscard]] int calibrate_residuals(const Arguments& arguments);
[[nodiscard]] int calibrate_on_device(const Arguments& arguments);

/// The value of --date. Errors: InputError unless it is a day of the calendar as YYYY-MM-DD.
[[nodiscard]] std::optional<std::string> checked_date(const Arguments& arguments);

/// The value of --date, else today in UTC. Errors: as checked_date.
[[nodiscard]] std::string date_of(const Arguments& arguments);

}  // namespace kvsim
