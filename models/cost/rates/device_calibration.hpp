#pragma once

#include <memory>
#include <string>

#include "models/cost/rates/calibration.hpp"
#include "models/json/field.hpp"

namespace kvsim {

/// Whether `document` declares itself as output of `kvsim calibrate --device cuda`.
[[nodiscard]] bool is_device_calibration(const Field& document);

/// Reads the rates that the kernels of `kvsim calibrate --device cuda` reached on one GPU
/// ("kvsim.calibrate-device/1"), as fractions of its data sheet. The fraction of an operator family
/// is the median over its timed cases with more bytes than the L2 cache, at most 1, with their
/// scatter (one standard deviation of the logarithm, at least the spread of the times) and their
/// range of bytes. A family without such a case keeps the data sheet's rate and a judged scatter.
/// Fractions are transferred to other GPUs unchanged. Arithmetic keeps the data sheet's rate: the
/// suite's matrix products represent a library's and are not read, so gemm has no fraction. Throws
/// InputError if a key is missing, unknown or out of range, a family is unknown, the device is not
/// in the catalogue, a case failed, or no case can be used.
[[nodiscard]] std::shared_ptr<const Calibration> read_device_calibration(const Field& document,
                                                                         std::string id);

}  // namespace kvsim
