#include "models/cost/kernels/marlin.hpp"

#include <algorithm>
#include <array>

#include "models/cost/kernels/forms/moe_loads.hpp"

namespace kvsim {

bool has_marlin(std::string_view stack) {
  return stack.starts_with("vllm") || stack.starts_with("sglang");
}

double marlin_flops(KernelOp op, const Gpu& gpu, std::string_view stack,
                    const KernelFormat& format) {
  constexpr double kPerClock = 928;  // of an SM
  const bool is_matrix = op == KernelOp::kGemm || op == KernelOp::kMoe;
  const bool unpacks = format.stored_bytes < format.operand_bytes && bits_of(format.compute) == 16;
  const double most = kPerClock * sm_clocks(gpu);
  // SMs with half as many operations per clock reach their peak.
  const bool is_limited =
      gpu.generation == "ampere" && 1.5 * most < peak_flops(gpu, Dtype::kBf16).count();
  return is_matrix && unpacks && has_marlin(stack) && is_limited ? most : 0;
}

double marlin_moe_flops(const Gpu& gpu, std::string_view stack, const KernelFormat& format) {
  if (!stack.starts_with("vllm")) return 0;
  constexpr double kSlowSm = 1024;       // operations per clock: of an SM that was slowed down
  constexpr double kShareOfPeak = 0.53;  // of H20
  const double peak = peak_flops(gpu, Dtype::kBf16).count();
  const bool unpacks = format.stored_bytes < format.operand_bytes && bits_of(format.compute) == 16;
  if (unpacks && gpu.generation == "hopper" && peak < kSlowSm * sm_clocks(gpu)) {
    return kShareOfPeak * peak;
  }
  return marlin_flops(KernelOp::kMoe, gpu, stack, format);
}

double marlin_moe_us(const MoeCall& call, const KernelFormat& format, const KernelGpu& gpu,
                     double flops) {
  constexpr std::array<double, 5> kBlocks{8, 16, 32, 48, 64};
  constexpr double kFilled = 0.9;
  constexpr double kLaunch = 28;      // us: of a token on H20, beyond what is computed and read
  constexpr double kImbalance = 1.4;  // deviations of the busiest of 8 GPUs
  const double local = call.experts / call.ep;
  const double rows = call.tokens * call.top_k / local;
  const auto* const block = std::find_if(kBlocks.begin(), kBlocks.end() - 1,
                                         [&](double b) { return rows / b < kFilled; });
  const moe::Loads loads = moe::loads_of(call, kImbalance);
  const double weights = 3 * call.hidden * call.inter / call.tp;
  const double multiplied = local * moe::tiles_high(loads, *block) * *block * weights;
  const double read = local * loads.mean_visited * weights * format.stored_bytes;
  // The activation reads gate and up and writes one, the sum reads every row and writes a token.
  const double streamed = 2 * local * loads.mean * (3 * call.inter / call.tp + call.hidden) +
                          2 * call.tokens * call.hidden;
  return kLaunch + 1e6 * (2 * multiplied / flops + (read + streamed) / gpu.bandwidth);
}

}  // namespace kvsim
