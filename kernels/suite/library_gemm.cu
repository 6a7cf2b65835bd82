#include <algorithm>
#include <array>

#include "kernels/suite/array.hpp"
#include "kernels/suite/blas.hpp"
#include "kernels/suite/library_gemm.hpp"
#include "kernels/suite/timing.hpp"

namespace kvsim::kernels {
namespace {

using on_gpu::Array;
using on_gpu::Machine;
namespace kv = on_gpu::kv;

struct Weights {
  int n, k;
};

}  // namespace

void library_gemm(std::vector<Measurement>& out) {
  const on_gpu::Blas blas;
  if (!blas.ready()) {
    Measurement none;
    none.name = "cublas_gemm";
    none.skipped = "libcublas was not found, or does not answer";
    out.push_back(none);
    return;
  }
  // A projection to queries, keys and values, both halves of a feed-forward block, and logits.
  constexpr std::array<Weights, 4> kWeights{
      {{6144, 4096}, {14336, 4096}, {4096, 14336}, {128256, 4096}}};
  for (const Weights w : kWeights) {
    for (const int m : {1, 8, 64, 512, 4096}) {
      Machine machine;
      const auto size = [](int rows, int columns) { return std::int64_t{rows} * columns; };
      Array<kv::BFloat16> a{machine, "a", size(m, w.k)};
      Array<kv::BFloat16> b{machine, "b", size(w.n, w.k)};
      Array<kv::BFloat16> product{machine, "out", size(m, w.n)};
      // Numbers of one size: a product of NaN takes other power than one of numbers.
      a.upload(std::vector<kv::BFloat16>(static_cast<std::size_t>(size(m, w.k)), {0x3C00}));
      b.upload(std::vector<kv::BFloat16>(static_cast<std::size_t>(size(w.n, w.k)), {0x3C00}));
      const KernelTiming time = on_gpu::time_launch([&](on_gpu::Stream) {
        blas.multiply(m, w.n, w.k, a.span().data, b.span().data, product.span().data);
      });
      Measurement one;
      one.name = "cublas_gemm";
      one.shape =
          std::to_string(m) + "x" + std::to_string(w.n) + "x" + std::to_string(w.k) + " bf16";
      one.unit = "TFLOP/s";
      one.value = 2.0 * m * w.n * w.k / time.median_us / 1e6;
      one.spread = time.spread;
      one.samples = time.samples;
      out.push_back(one);
      one.name = "cublas_bytes";
      one.unit = "GB/s";
      one.value = 2.0 * static_cast<double>(size(m, w.k) + size(w.n, w.k) + size(m, w.n)) /
                  time.median_us / 1e3;
      out.push_back(one);
    }
  }
}

}  // namespace kvsim::kernels
