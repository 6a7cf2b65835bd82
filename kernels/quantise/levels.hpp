#pragma once

// TurboQuant's levels in kernels: models/math/turboquant.hpp, Codebook::kEngine.

#include "kernels/cuda_sim/kernel.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// Level `code` of a quantiser of N(0, 1); for codes known at compile time.
template <int kBits>
KVSIM_DEVICE constexpr float gaussian_level(int code) {
  constexpr int kHalf = 1 << (kBits - 1);
  constexpr float k3[4] = {.2449836F, .7556455F, 1.343180F, 2.150350F};  // NOLINT
  constexpr float k4[8] = {.1284277F, .3881378F, .6568799F, .9424482F,   // NOLINT
                           1.256258F, 1.617882F, 2.068447F, 2.730922F};
  const int above = code >= kHalf ? code - kHalf : kHalf - 1 - code;
  const float level = kBits == 3 ? k3[above & 3] : k4[above & 7];
  return code >= kHalf ? level : -level;
}

}  // namespace kvsim::KVSIM_EXECUTOR
