#include "models/cost/kernels/marlin.hpp"

namespace kvsim {

double marlin_flops(KernelOp op, const Gpu& gpu, std::string_view stack,
                    const KernelFormat& format) {
  constexpr double kPerClock = 928;  // of an SM
  const bool is_matrix = op == KernelOp::kGemm || op == KernelOp::kMoe;
  const bool unpacks = format.stored_bytes < format.operand_bytes && bits_of(format.compute) == 16;
  const bool is_engine = stack.starts_with("vllm") || stack.starts_with("sglang");
  const double most = kPerClock * sm_clocks(gpu);
  // SMs of half as many operations per clock are not held up.
  const bool is_held_up =
      gpu.generation == "ampere" && 1.5 * most < peak_flops(gpu, Dtype::kBf16).count();
  return is_matrix && unpacks && is_engine && is_held_up ? most : 0;
}

}  // namespace kvsim
