#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "models/cost/kernels/calibration.hpp"
#include "validation/measured/measured_rows.hpp"

namespace kvsim {

/// Fits every (op, GPU, stack, format) that has at least kMinRows rows, without the held-out
/// shapes, and reports the error of each fit on both parts. Returns one file per GPU and family,
/// sorted by name. Fits run in parallel; `progress` is called after each with the numbers of
/// completed and of all fits.
[[nodiscard]] std::vector<KernelCalibrationFile> calibrate_kernels(
    const std::vector<MeasuredFile>& files, const std::string& provenance, const std::string& date,
    const std::function<void(std::size_t done, std::size_t all)>& progress = {});

inline constexpr std::size_t kMinRows = 16;

/// Rows that are fitted together.
struct TimingGroup {
  std::string gpu;
  KernelOp op{};
  std::string stack, format;
  std::size_t rows = 0;
};
/// All groups of `files`, sorted by name.
[[nodiscard]] std::vector<TimingGroup> timing_groups(const std::vector<MeasuredFile>& files);
/// The groups with fewer than kMinRows rows, which calibrate_kernels leaves out.
[[nodiscard]] std::vector<TimingGroup> groups_with_too_few_rows(
    const std::vector<MeasuredFile>& files);

/// File name of a calibration, such as "gemm-h100-80gb-sxm.json".
[[nodiscard]] std::string calibration_file_name(const KernelCalibrationFile& file);

}  // namespace kvsim
