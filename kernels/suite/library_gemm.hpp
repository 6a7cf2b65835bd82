#pragma once

#include <vector>

#include "kernels/suite/measure.hpp"

namespace kvsim::kernels {

/// Sweeps of matrix products through cuBLAS (bf16) and cuBLASLt (bf16, and fp8 if the GPU supports
/// it; the algorithm that its heuristic ranks first within a stated workspace), from one row (a
/// GEMV) to many, over the shapes of projections. The libraries are opened on first use. A missing
/// library or an unsupported product results in an entry with the reason.
void library_gemm(std::vector<Measurement>& out);

}  // namespace kvsim::kernels
