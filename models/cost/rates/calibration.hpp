#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "models/cost/kernels/library.hpp"
#include "models/cost/op.hpp"

namespace kvsim {

/// Fraction of the data sheet's rate that an operator family reaches, and the scatter of the
/// measurements.
struct Efficiency {
  double flops = 1;
  double bandwidth = 1;
  std::optional<double> relative_residual{};  // of time, one standard deviation
  std::optional<double> min_bytes{};          // measured range; results outside it are extrapolated
  std::optional<double> max_bytes{};
};

/// Measurements of a GPU's operators. The default has data-sheet rates only, and is labelled so.
struct Calibration {
  std::string id = "nominal";
  std::string provenance = "nominal roofline, uncalibrated";
  std::array<Efficiency, kOpFamilies> families{};
  /// Forms fitted to measurements, for operators with a known kernel; null: none.
  const KernelLibrary* kernels = nullptr;
  /// Uncertainty of the host's times in the stack's profile: one standard deviation, relative;
  /// absent: exact.
  std::optional<double> host_residual{};

  [[nodiscard]] const Efficiency& of(OpFamily family) const {
    return families[static_cast<std::size_t>(family)];
  }
};

/// Deviation of operators without a kernel form from the rates of the stack's profile, and of the
/// host from its times. It is a judgement: published eager stacks take 0.4 to 1.6 ms per layer,
/// within a factor of 2 of their middle in either direction.
inline constexpr double kProfileResidual = 0.3;
/// Deviation of families without any measurement, which take the data sheet's times: also a
/// judgement. A 90 % interval is then 0 to 2.6 times the predicted time.
inline constexpr double kUnmeasuredResidual = 1;

/// Returns the calibrations shipped with the program: fitted kernels and, for operators without a
/// form, the fractions of the data sheet's rates that streaming kernels reach.
[[nodiscard]] const Calibration& builtin_calibration();

/// Reads a user's calibrations, as written by `kvsim calibrate --measured`: a file, or a folder's
/// *.json. They replace all shipped ones. A file may also be the output of `kvsim calibrate
/// --device cuda` (device_calibration.hpp). `id` is its name in results. Throws InputError as
/// read_calibrations.
[[nodiscard]] std::shared_ptr<const Calibration> own_calibration(const std::filesystem::path& path,
                                                                 std::string id);

}  // namespace kvsim
