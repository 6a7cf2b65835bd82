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

}  // namespace kvsim
