#pragma once

#include <memory>
#include <string>

#include "models/cost/rates/calibration.hpp"
#include "models/json/field.hpp"

namespace kvsim {

/// Whether `document` says it is what `kvsim calibrate --device cuda` writes.
[[nodiscard]] bool is_device_calibration(const Field& document);

/// The rates that the kernels of `kvsim calibrate --device cuda` reached on one GPU
/// ("kvsim.calibrate-device/1"), as shares of its data sheet. The share of an operator family is
/// the median over its timed cases with more bytes than the L2 cache, at most 1, with their scatter
/// (one standard deviation of the logarithm, at least the spread of the times) and their range of
/// bytes. A family without such a case keeps the data sheet's rate and a judged scatter. Shares are
/// transferred to other GPUs as shares. Arithmetic keeps the data sheet's rate: the suite's matrix
/// products represent a library's and are not read, so gemm has no share. Errors: InputError if a
/// key is missing, unknown or out of range, a family is unknown, the device is not in the
/// catalogue, a case failed, or no case can be used.
[[nodiscard]] std::shared_ptr<const Calibration> read_device_calibration(const Field& document,
                                                                         std::string id);

}  // namespace kvsim
