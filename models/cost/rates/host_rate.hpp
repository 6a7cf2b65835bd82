#pragma once

#include "models/cost/rates/roofline.hpp"
#include "models/gpu/gpu.hpp"
#include "models/stack/stack.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// The rate of an engine's copies between `gpu` and its host in pinned memory, in each direction:
/// of large copies or, with `piece` above 0, of many pieces of so many bytes, each a separate
/// request to the copy engine. The fitted form of copies gives both; a device's calibration gives
/// the first if it timed any. Without such timings, and if `stack` is a bound, it is the data
/// sheet's rate for every size; it is never above that. `roofline` is of `gpu` and `stack`. Copies
/// that a method issues itself are operators, which the roofline times.
[[nodiscard]] BytesPerSecond host_rate(const Roofline& roofline, const Gpu& gpu, const Stack& stack,
                                       Bytes piece = {});

}  // namespace kvsim
