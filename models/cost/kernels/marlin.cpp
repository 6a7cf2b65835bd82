#include "models/cost/kernels/marlin.hpp"

namespace kvsim {

double marlin_flops(KernelOp op, const Gpu& gpu, std::string_view stack,
                    const KernelFormat& format) {
  constexpr double kPerClock = 928;  // of an SM
  const bool is_matrix = op == KernelOp::kGemm || op == KernelOp::kMoe;
  const bool multiplies_16_bit =
      bits_of(format.compute) == 16 || !gpu.peak.contains(format.compute);
  const bool unpacks = format.stored_bytes < format.operand_bytes && multiplies_16_bit;
  const bool is_engine = stack.starts_with("vllm") || stack.starts_with("sglang");
  const bool is_chip = gpu.generation == "ampere" || gpu.generation == "ada";
  return is_matrix && unpacks && is_engine && is_chip ? kPerClock * sm_clocks(gpu) : 0;
}

}  // namespace kvsim
