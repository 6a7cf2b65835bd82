#pragma once

#include <string_view>

#include "models/cost/kernels/call.hpp"
#include "models/gpu/gpu.hpp"

namespace kvsim {

/// Whether `stack` ("vllm", "sglang-0.5.14") uses Marlin kernels for packed weights.
[[nodiscard]] bool has_marlin(std::string_view stack);

/// Returns the maximum operations per second of products under `stack` whose weights are stored in
/// fewer bits than they are multiplied in; 0 if kernels other than Marlin's compute them.
///
/// vLLM and SGLang multiply such weights with Marlin kernels, whose tiles have at most 64 rows:
/// longer inputs repeat the same tiles, each of which unpacks its weights (IST-DASLab/marlin issue
/// 2). On an A100 they stay at 141 TFLOP/s from 64 to 4,000 rows (vllm-project/vllm pull request
/// 2497), 928 of 2,048 operations per clock and SM. An RTX 4090, whose SMs have 1,024, reaches its
/// peak (vllm pull request 24722): the limit applies to A100, A800 and A30. On Hopper vLLM has
/// other kernels (Machete).
[[nodiscard]] double marlin_flops(KernelOp op, const Gpu& gpu, std::string_view stack,
                                  const KernelFormat& format);

/// Returns the arithmetic rate of Marlin's kernel for routed experts under `stack` on `gpu`,
/// operations per second; 0 if its time is unknown. vLLM has used it for experts with packed
/// weights since 0.8.5 (pull request 14447), for 8-bit experts on GPUs without 8-bit arithmetic. On
/// A100, A800 and A30 the rate is marlin_flops. On H20 it is 0.53 of the peak, fitted to 10
/// published times of 4-bit experts (flagos-ai/FlagGems pull request 3609; without those of single
/// tokens), which are 0.91 to 1.04 of marlin_moe_us at that rate minus its launch.
[[nodiscard]] double marlin_moe_flops(const Gpu& gpu, std::string_view stack,
                                      const KernelFormat& format);

/// Returns the time in µs of a layer's routed experts with that kernel at `flops` operations per
/// second. The rows of an expert are padded to blocks, each of which unpacks and multiplies all of
/// the expert's weights; arithmetic and reading of weights do not overlap. The block size is the
/// smallest of 8, 16, 32, 48 and 64 rows of which the mean expert fills less than 0.9, if its GPU
/// had to compute all rows (vllm fused_marlin_moe.py).
[[nodiscard]] double marlin_moe_us(const MoeCall& call, const KernelFormat& format,
                                   const KernelGpu& gpu, double flops);

}  // namespace kvsim
