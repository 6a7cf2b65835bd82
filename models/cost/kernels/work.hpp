#pragma once

#include "models/cost/kernels/call.hpp"

namespace kvsim {

/// Arithmetic and least traffic of a call: every operand once.
struct KernelWork {
  double flops = 0;
  double bytes = 0;
};
[[nodiscard]] KernelWork work_of(const KernelCall& call, const KernelFormat& format);

/// Distinct experts that `tokens` tokens visit when each picks `top_k` of `experts` evenly.
[[nodiscard]] double experts_visited(double tokens, double top_k, double experts);

}  // namespace kvsim
