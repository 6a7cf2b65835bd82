#include <algorithm>
#include <array>

#include "models/cost/kernels/forms/moe_loads.hpp"
#include "models/cost/kernels/marlin.hpp"

namespace kvsim {

double marlin_moe_us(const MoeCall& call, const KernelFormat& format, const KernelGpu& gpu,
                     double flops) {
  constexpr std::array<double, 5> kBlocks{8, 16, 32, 48, 64};
  constexpr double kFilled = 0.9;
  constexpr double kLaunch = 28;      // us per token on H20, in addition to arithmetic and reads
  constexpr double kImbalance = 1.4;  // deviations of the most loaded of 8 GPUs
  const double local = call.experts / call.ep;
  const double rows = call.tokens * call.top_k / local;
  const auto* const block = std::find_if(kBlocks.begin(), kBlocks.end() - 1,
                                         [&](double b) { return rows / b < kFilled; });
  const moe::Loads loads = moe::loads_of(call, kImbalance);
  const double weights = 3 * call.hidden * call.inter / call.tp;
  const double multiplied = local * moe::tiles_high(loads, *block) * *block * weights;
  const double read = local * loads.mean_visited * weights * format.stored_bytes;
  // The activation reads gate and up and writes one tensor; the sum reads every row and writes a
  // token.
  const double streamed = 2 * local * loads.mean * (3 * call.inter / call.tp + call.hidden) +
                          2 * call.tokens * call.hidden;
  return kLaunch + 1e6 * (2 * multiplied / flops + (read + streamed) / gpu.bandwidth);
}

}  // namespace kvsim
