#pragma once

#include "models/cost/kernels/call.hpp"

namespace kvsim {

/// Arithmetic and minimum traffic of a call: every operand counts once.
struct KernelWork {
  double flops = 0;
  double bytes = 0;
};
[[nodiscard]] KernelWork work_of(const KernelCall& call, const KernelFormat& format);

/// Returns the expected number of distinct experts for `tokens` tokens that each choose `top_k` of
/// `experts` uniformly.
[[nodiscard]] double experts_visited(double tokens, double top_k, double experts);

}  // namespace kvsim
