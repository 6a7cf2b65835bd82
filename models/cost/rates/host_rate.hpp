#pragma once

#include "models/cost/rates/roofline.hpp"
#include "models/gpu/gpu.hpp"
#include "models/stack/stack.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// Returns the rate of an engine's copies between `gpu` and its host in pinned memory, in each
/// direction: of large copies or, with `piece` above 0, of many pieces of this many bytes, each a
/// separate request to the copy engine. The fitted form of copies defines both; a device's
/// calibration defines the first if it includes copies. Without such timings, and if `stack` is a
/// bound, it is the data sheet's rate for every size, which is also the upper limit. `roofline` is
/// that of `gpu` and `stack`. Copies that a method issues itself are operators, which the roofline
/// times.
[[nodiscard]] BytesPerSecond host_rate(const Roofline& roofline, const Gpu& gpu, const Stack& stack,
                                       Bytes piece = {});

}  // namespace kvsim
