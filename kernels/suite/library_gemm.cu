#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>

#include <cublas_v2.h>
#include <dlfcn.h>

#include "kernels/suite/array.hpp"
#include "kernels/suite/library_gemm.hpp"
#include "kernels/suite/timing.hpp"

namespace kvsim::kernels {
namespace {

using on_gpu::Array;
using on_gpu::Machine;
namespace kv = on_gpu::kv;

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};

/// What is used of cuBLAS, by the types of its header.
class Blas {
 public:
  Blas() {
    for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
      library_.reset(dlopen(name, RTLD_NOW | RTLD_LOCAL));
      if (library_) break;
    }
    if (!library_) return;
    create_ = find<decltype(&cublasCreate_v2)>("cublasCreate_v2");
    destroy_ = find<decltype(&cublasDestroy_v2)>("cublasDestroy_v2");
    gemm_ = find<Gemm>("cublasGemmEx");
    if (create_ == nullptr || destroy_ == nullptr || gemm_ == nullptr ||
        create_(&handle_) != CUBLAS_STATUS_SUCCESS) {
      handle_ = nullptr;
    }
  }
  ~Blas() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;
  [[nodiscard]] bool ready() const { return handle_ != nullptr; }

  /// out [m, n] = a [m, k] times the transpose of b [n, k], all bf16 and row-major, sums in fp32.
  void multiply(int m, int n, int k, const void* a, const void* b, void* out) const {
    const float one = 1;
    const float zero = 0;
    const cublasStatus_t status =
        gemm_(handle_, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, b, CUDA_R_16BF, k, a, CUDA_R_16BF,
              k, &zero, out, CUDA_R_16BF, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS) {
      throw std::runtime_error{"cublasGemmEx: status " + std::to_string(static_cast<int>(status))};
    }
  }

 private:
  using Gemm = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                  int, const void*, const void*, cudaDataType, int, const void*,
                                  cudaDataType, int, const void*, void*, cudaDataType, int,
                                  cublasComputeType_t, cublasGemmAlgo_t);
  template <class Function>
  [[nodiscard]] Function find(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library_.get(), name));
  }

  std::unique_ptr<void, CloseLibrary> library_;
  decltype(&cublasCreate_v2) create_ = nullptr;
  decltype(&cublasDestroy_v2) destroy_ = nullptr;
  Gemm gemm_ = nullptr;
  cublasHandle_t handle_ = nullptr;
};

struct Weights {
  int n, k;
};

}  // namespace

void library_gemm(std::vector<Measurement>& out) {
  const Blas blas;
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
      constexpr kv::BFloat16 kNumber{0x3C00};
      // Numbers of one size: a product of NaN takes other power than one of numbers.
      a.upload(std::vector<kv::BFloat16>(static_cast<std::size_t>(size(m, w.k)), kNumber));
      b.upload(std::vector<kv::BFloat16>(static_cast<std::size_t>(size(w.n, w.k)), kNumber));
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
