#pragma once

#include <string_view>

#include "models/cost/kernels/call.hpp"
#include "models/gpu/gpu.hpp"

namespace kvsim {

/// Whether `stack` ("vllm", "sglang-0.5.14") unpacks weights by Marlin's kernels.
[[nodiscard]] bool has_marlin(std::string_view stack);

/// Most operations per second of products under `stack` whose weights are
/// stored in fewer bits than they are multiplied in; 0: others than Marlin's kernels compute them.
///
/// vLLM and SGLang multiply such weights by Marlin kernels, whose tiles have 64 rows at most:
/// longer inputs run the same tiles again, each of which unpacks its weights (IST-DASLab/marlin
/// issue 2). On an A100 they stay at 141 TFLOP/s from 64 to 4,000 rows (vllm-project/vllm pull
/// request 2497), 928 operations per clock and SM of 2,048. An RTX 4090, whose SMs have 1,024,
/// reaches its peak (vllm pull request 24722): the limit is of A100, A800 and A30. On Hopper vLLM
/// has other kernels (Machete).
[[nodiscard]] double marlin_flops(KernelOp op, const Gpu& gpu, std::string_view stack,
                                  const KernelFormat& format);

/// Arithmetic of Marlin's kernel of routed experts under `stack` on `gpu`, operations per second,
/// where its time is known; 0: it is not. vLLM runs it for experts that it unpacks since 0.8.5
/// (pull request 14447), those of 8 bits on GPUs without such arithmetic. On A100, A800 and A30 the
/// rate is marlin_flops. On H20 it is 0.53 of the peak, fitted to 10 published times of 4-bit
/// experts (flagos-ai/FlagGems pull request 3609; without those of single tokens), which are 0.91
/// to 1.04 of marlin_moe_us at that rate less its launch.
[[nodiscard]] double marlin_moe_flops(const Gpu& gpu, std::string_view stack,
                                      const KernelFormat& format);

/// µs of a layer's routed experts by that kernel at `flops` operations per second. The rows of an
/// expert are padded to blocks, each of which unpacks and multiplies all of the expert's weights;
/// what it computes does not hide the reading of weights. Of 8, 16, 32, 48 and 64 rows a block has
/// the least that the mean expert fills to less than 0.9, where its GPU had to compute all rows
/// (vllm fused_marlin_moe.py).
[[nodiscard]] double marlin_moe_us(const MoeCall& call, const KernelFormat& format,
                                   const KernelGpu& gpu, double flops);

}  // namespace kvsim
