#pragma once

#include "models/cost/rates/roofline.hpp"
#include "models/gpu/gpu.hpp"
#include "models/stack/stack.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// What an engine's copies between `gpu` and its host reach in pinned memory, each way: those of
/// many bytes, or, with `piece` above 0, of many pieces of so many bytes each, which the copy
/// engine is told one by one. The fitted form of copies says both; a device's calibration says the
/// first, where it timed any. The data sheet's rate, whatever the size, where that timed none and
/// where `stack` is a bound that no measurement was held against; never above it. `roofline` is of
/// `gpu` and `stack`. Copies that a method orders itself are operators, which the roofline times.
[[nodiscard]] BytesPerSecond host_rate(const Roofline& roofline, const Gpu& gpu, const Stack& stack,
                                       Bytes piece = {});

}  // namespace kvsim
