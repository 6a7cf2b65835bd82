#pragma once

#include <vector>

#include "kernels/suite/measure.hpp"

namespace kvsim::kernels {

/// Sweeps of matrix products through cuBLAS (bf16) and cuBLASLt (bf16, and fp8 where the GPU has
/// it; the algorithm that its heuristic thinks best within a stated workspace), from one row (a
/// GEMV) to many, over the shapes of projections. The libraries are opened when asked for; where
/// there is none, and for a product that cannot be made, an entry says so.
void library_gemm(std::vector<Measurement>& out);

}  // namespace kvsim::kernels
