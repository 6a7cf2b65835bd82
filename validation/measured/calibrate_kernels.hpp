#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "models/cost/kernels/calibration.hpp"
#include "validation/measured/measured_rows.hpp"

namespace kvsim {

/// Fits every (op, GPU, stack, format) that has at least kMinRows rows, with the held-out
/// shapes kept from it, and says how well each holds on both parts. One file a GPU and family, in
/// the order of their names. Fits run side by side;
/// `progress` is called after each with how many are done, and of how many.
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
/// All groups of `files`, in the order of their names.
[[nodiscard]] std::vector<TimingGroup> timing_groups(const std::vector<MeasuredFile>& files);
/// Those with fewer than kMinRows rows, which calibrate_kernels leaves out.
[[nodiscard]] std::vector<TimingGroup> groups_with_too_few_rows(
    const std::vector<MeasuredFile>& files);

/// "gemm-h100-80gb-sxm.json": the name of a file of these calibrations.
[[nodiscard]] std::string calibration_file_name(const KernelCalibrationFile& file);

}  // namespace kvsim
