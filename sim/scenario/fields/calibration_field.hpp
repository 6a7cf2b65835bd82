#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "models/cost/rates/calibration.hpp"
#include "models/json/field.hpp"
#include "sim/scenario/fields/keys.hpp"

namespace kvsim {

/// A calibration and its name in the file.
struct RequestedCalibration {
  std::string name{kBuiltinCalibration};
  const Calibration* calibration = nullptr;  // null: none is used
};

/// Reads a calibration name, or a path relative to `folder`. Each calibration read from a file is
/// added to `own` once. Errors: InputError with the field's place.
[[nodiscard]] RequestedCalibration read_calibration_field(
    const Field& field, const std::filesystem::path& folder,
    std::vector<std::shared_ptr<const Calibration>>& own);

}  // namespace kvsim
