#pragma once

#include <vector>

#include "kernels/suite/measure.hpp"

namespace kvsim::kernels {

/// Sweeps of matrix products through cuBLAS (bf16) and cuBLASLt (bf16, and fp8 where the GPU has
/// it; the algorithm that its heuristic ranks first within a stated workspace), from one row (a
/// GEMV) to many, over the shapes of projections. The libraries are opened on first use; a missing
/// library or an impossible product is an entry with the reason.
void library_gemm(std::vector<Measurement>& out);

}  // namespace kvsim::kernels
