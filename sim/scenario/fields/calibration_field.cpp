#include "sim/scenario/fields/calibration_field.hpp"

#include <algorithm>
#include <system_error>

#include <fmt/format.h>

#include "models/units/error.hpp"

namespace kvsim {

RequestedCalibration read_calibration_field(const Field& field, const std::filesystem::path& folder,
                                            std::vector<std::shared_ptr<const Calibration>>& own) {
  const std::string name = field.string();
  if (name == kNominalCalibration) return {.name = name};
  if (name == kBuiltinCalibration) return {.name = name, .calibration = &builtin_calibration()};
  const std::filesystem::path path = (folder / name).lexically_normal();
  if (std::error_code status; name.empty() || !std::filesystem::exists(path, status)) {
    const std::vector<std::string> words{std::string{kNominalCalibration},
                                         std::string{kBuiltinCalibration}};
    field.fail(fmt::format("{}, and no file or folder {}", unknown_name("calibration", name, words),
                           path.string()));
  }
  const auto found =
      std::find_if(own.begin(), own.end(), [&](const auto& known) { return known->id == name; });
  if (found != own.end()) return {.name = name, .calibration = found->get()};
  try {
    own.push_back(own_calibration(path, name));
  } catch (const InputError& error) {
    field.fail(error.what());
  }
  return {.name = name, .calibration = own.back().get()};
}

}  // namespace kvsim
