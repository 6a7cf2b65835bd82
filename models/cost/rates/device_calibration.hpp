#pragma once

#include <memory>
#include <string>

#include "models/cost/rates/calibration.hpp"
#include "models/json/field.hpp"

namespace kvsim {

/// Whether `document` says it is what `kvsim calibrate --device cuda` writes.
[[nodiscard]] bool is_device_calibration(const Field& document);

/// What the kernels of `kvsim calibrate --device cuda` reached on one GPU
/// ("kvsim.calibrate-device/1"), as shares of its data sheet: of an operator family, the median
/// over its timed cases whose bytes are more than the L2 cache, at most 1, with their scatter (one
/// standard deviation of the logarithm, no less than the times' own spread) and their range of
/// bytes. A family that no such case times keeps the data sheet's rate and the scatter of a
/// judgement. Shares carry over to another GPU as far as shares do; arithmetic keeps the data
/// sheet's rate: the suite's matrix products stand in for a library's and are not read, so gemm has
/// no share. Errors: InputError if a key is missing, unknown or out of range, a family is unknown,
/// the catalogue lacks the device, a case failed, or no case can be used.
[[nodiscard]] std::shared_ptr<const Calibration> read_device_calibration(const Field& document,
                                                                         std::string id);

}  // namespace kvsim
