#pragma once

#include <vector>

#include "kernels/suite/measure.hpp"

namespace kvsim::kernels {

/// Sweeps of matrix products in bf16 through cuBLAS, from one row (a GEMV) to many, over the shapes
/// of projections. The library is opened when asked for; where there is none, one entry says so.
void library_gemm(std::vector<Measurement>& out);

}  // namespace kvsim::kernels
