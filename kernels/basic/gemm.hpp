#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// out[m, n] = act(sum over k of a[m, k] b[n, k] + bias[n]): a linear layer with weights row-major
/// by output. A plain tiled kernel on CUDA cores, no tensor cores: in the simulator it represents
/// the library's GEMM with the same bytes; on a GPU cuBLAS is measured as well. A is float,
/// kv::Half or kv::BFloat16; B is A or float; Out is B; sums are fp32. Errors: ContractError if k
/// is not a multiple of 8, or a span is shorter than its shape.
template <class A, class B>
struct Gemm {
  Span<const A> a;           // [m, k]
  Span<const B> b;           // [n, k]
  Span<const float> bias{};  // [n]; empty: none
  bool gelu = false;         // whether act is the exact GELU; otherwise there is no activation
  Span<B> out;               // [m, n]
};
template <class A, class B>
void gemm(Stream stream, const kernels::GemmShape& shape, const Gemm<A, B>& arguments);

/// The same product for one row (m = 1), with one warp per output.
template <class A, class B>
void gemv(Stream stream, const kernels::GemmShape& shape, const Gemm<A, B>& arguments);

}  // namespace kvsim::KVSIM_EXECUTOR
