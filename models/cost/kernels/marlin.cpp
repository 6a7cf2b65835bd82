#include "models/cost/kernels/marlin.hpp"

namespace kvsim {

bool has_marlin(std::string_view stack) {
  return stack.starts_with("vllm") || stack.starts_with("sglang");
}

double marlin_flops(KernelOp op, const Gpu& gpu, std::string_view stack,
                    const KernelFormat& format) {
  constexpr double kPerClock = 928;  // per SM
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
  constexpr double kSlowSm = 1024;       // operations per clock of a limited SM
  constexpr double kShareOfPeak = 0.53;  // of H20
  const double peak = peak_flops(gpu, Dtype::kBf16).count();
  const bool unpacks = format.stored_bytes < format.operand_bytes && bits_of(format.compute) == 16;
  if (unpacks && gpu.generation == "hopper" && peak < kSlowSm * sm_clocks(gpu)) {
    return kShareOfPeak * peak;
  }
  return marlin_flops(KernelOp::kMoe, gpu, stack, format);
}

}  // namespace kvsim
