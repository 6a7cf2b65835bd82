#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "models/cost/kernels/library.hpp"
#include "models/cost/op.hpp"

namespace kvsim {

/// Share of the data sheet's rate that an operator family reaches, and how far measurements
/// scattered about it.
struct Efficiency {
  double flops = 1;
  double bandwidth = 1;
  std::optional<double> relative_residual{};  // of time, one standard deviation
  std::optional<double> min_bytes{};          // measured range; outside it a result is extrapolated
  std::optional<double> max_bytes{};
};

/// Measurements of a GPU's operators. The default is only the data sheet, and is labelled so.
struct Calibration {
  std::string id = "nominal";
  std::string provenance = "nominal roofline, uncalibrated";
  std::array<Efficiency, kOpFamilies> families{};
  /// Forms fitted to measurements, for operators that say which kernel they are; null: none.
  const KernelLibrary* kernels = nullptr;
  /// Uncertainty of the host's times in the stack's profile: one standard deviation, relative;
  /// none: exact.
  std::optional<double> host_residual{};

  [[nodiscard]] const Efficiency& of(OpFamily family) const {
    return families[static_cast<std::size_t>(family)];
  }
};

/// The deviation of operators without a kernel form from the rates of the stack's profile, and of a
/// host from its times, is a judgement: published eager stacks take 0.4 to 1.6 ms a layer, within a
/// factor of 2 of their middle in either direction.
inline constexpr double kProfileResidual = 0.3;
/// That of families without any measurement, whose times are those of the data sheet: a judgement
/// too. A 90 % interval then reaches from 0 to 2.6 times the time.
inline constexpr double kUnmeasuredResidual = 1;

/// The calibrations shipped with the program: fitted kernels and, for operators without a form, the
/// shares of the data sheet's rates that streaming kernels reach.
[[nodiscard]] const Calibration& builtin_calibration();

/// A user's calibrations, as `kvsim calibrate --measured` writes them: a file, or a folder's
/// *.json. They replace all shipped ones. A file may also be what `kvsim calibrate --device cuda`
/// writes (device_calibration.hpp). `id` is its name in results. Errors: InputError as
/// read_calibrations.
[[nodiscard]] std::shared_ptr<const Calibration> own_calibration(const std::filesystem::path& path,
                                                                 std::string id);

}  // namespace kvsim
