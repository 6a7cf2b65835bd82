#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "models/cost/rates/calibration.hpp"
#include "models/json/field.hpp"
#include "sim/scenario/fields/keys.hpp"

namespace kvsim {

/// A calibration and what the file calls it.
struct AskedCalibration {
  std::string name{kBuiltinCalibration};
  const Calibration* calibration = nullptr;  // null: none is used
};

/// A word, or a path that starts at `folder`; what is read from files joins `own`, once. Errors:
/// InputError with the field's place.
[[nodiscard]] AskedCalibration read_calibration_field(
    const Field& field, const std::filesystem::path& folder,
    std::vector<std::shared_ptr<const Calibration>>& own);

}  // namespace kvsim
