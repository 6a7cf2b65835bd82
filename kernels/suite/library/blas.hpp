#pragma once

// cuBLAS, opened at run time: nothing is linked. Only for nvcc.

#include <memory>
#include <stdexcept>
#include <string>

#include <cublas_v2.h>
#include <dlfcn.h>

#include "kernels/cuda_sim/kernel.hpp"

namespace kvsim::on_gpu {

/// The cuBLAS functions in use, with the types of its header.
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

  /// out [m, n] = a [m, k] times the transpose of b [n, k], all of one type and row-major, sums in
  /// fp32, on the default stream.
  void multiply(int m, int n, int k, const void* a, const void* b, void* out,
                cudaDataType type = CUDA_R_16BF) const {
    const float one = 1;
    const float zero = 0;
    const cublasStatus_t status =
        gemm_(handle_, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, b, type, k, a, type, k, &zero, out,
              type, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS) {
      throw std::runtime_error{"cublasGemmEx: status " + std::to_string(static_cast<int>(status))};
    }
  }

 private:
  struct Close {
    void operator()(void* library) const { dlclose(library); }
  };
  using Gemm = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                  int, const void*, const void*, cudaDataType, int, const void*,
                                  cudaDataType, int, const void*, void*, cudaDataType, int,
                                  cublasComputeType_t, cublasGemmAlgo_t);
  template <class Function>
  [[nodiscard]] Function find(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library_.get(), name));
  }

  std::unique_ptr<void, Close> library_;
  decltype(&cublasCreate_v2) create_ = nullptr;
  decltype(&cublasDestroy_v2) destroy_ = nullptr;
  Gemm gemm_ = nullptr;
  cublasHandle_t handle_ = nullptr;
};

}  // namespace kvsim::on_gpu
