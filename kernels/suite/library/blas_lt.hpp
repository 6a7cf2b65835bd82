#pragma once

// cuBLASLt, opened at run time: nothing is linked. Only for nvcc.

#include <array>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include <cublasLt.h>
#include <dlfcn.h>

#include "kernels/cuda_sim/kernel.hpp"

namespace kvsim::on_gpu {

/// The cuBLASLt functions in use, with the types of its header.
class BlasLt {
 public:
  /// Workspace limit of an algorithm; NVIDIA's recommendation for compute capability 9.0 and
  /// higher.
  static constexpr std::size_t kWorkspace = std::size_t{32} << 20U;

  BlasLt() {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
      library_.reset(dlopen(name, RTLD_NOW | RTLD_LOCAL));
      if (library_) break;
    }
    if (!library_) return;
    bool all = true;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library_.get(), name));
      all = all && function != nullptr;
    };
    find(create_, "cublasLtCreate");
    find(destroy_, "cublasLtDestroy");
    find(describe_, "cublasLtMatmulDescCreate");
    find(forget_, "cublasLtMatmulDescDestroy");
    find(describe_attribute_, "cublasLtMatmulDescSetAttribute");
    find(lay_out_, "cublasLtMatrixLayoutCreate");
    find(forget_layout_, "cublasLtMatrixLayoutDestroy");
    find(prefer_, "cublasLtMatmulPreferenceCreate");
    find(forget_preference_, "cublasLtMatmulPreferenceDestroy");
    find(prefer_attribute_, "cublasLtMatmulPreferenceSetAttribute");
    find(heuristic_, "cublasLtMatmulAlgoGetHeuristic");
    find(multiply_, "cublasLtMatmul");
    if (!all || create_(&handle_) != CUBLAS_STATUS_SUCCESS) {
      handle_ = nullptr;
      return;
    }
    check_cuda(cudaMalloc(&workspace_, kWorkspace), "cudaMalloc", __FILE__, __LINE__);
  }
  ~BlasLt() {
    cudaFree(workspace_);
    if (handle_ != nullptr) destroy_(handle_);
  }
  BlasLt(const BlasLt&) = delete;
  BlasLt& operator=(const BlasLt&) = delete;
  [[nodiscard]] bool ready() const { return handle_ != nullptr; }

  /// Whether the current device multiplies fp8: compute capability 8.9 or higher.
  [[nodiscard]] static bool has_fp8() {
    int device = 0;
    int major = 0;
    int minor = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice", __FILE__, __LINE__);
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
               "cudaDeviceGetAttribute", __FILE__, __LINE__);
    check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
               "cudaDeviceGetAttribute", __FILE__, __LINE__);
    return 10 * major + minor >= 89;
  }

  /// A product's descriptors and the algorithm ranked first by the library's heuristic.
  class Plan {
   public:
    [[nodiscard]] std::size_t workspace() const { return best_.workspaceSize; }

   private:
    friend class BlasLt;
    using Layout = std::shared_ptr<cublasLtMatrixLayoutOpaque_t>;
    std::shared_ptr<cublasLtMatmulDescOpaque_t> what_;
    Layout a_, b_, out_;
    cublasLtMatmulHeuristicResult_t best_{};
  };

  /// Plans out [m, n] = a [m, k] times the transpose of b [n, k], row-major, with a and b of
  /// `type`, out of `out_type` and sums in fp32. Returns nullopt if the library has no algorithm
  /// for it. Errors: runtime_error if a call fails.
  [[nodiscard]] std::optional<Plan> plan(int m, int n, int k, cudaDataType type,
                                         cudaDataType out_type) const {
    Plan plan;
    cublasLtMatmulDesc_t what = nullptr;
    check(describe_(&what, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    plan.what_ = {what, forget_};
    // Column-major, as in the library: out^T [n, m] = (b^T)^T [n, k] times a^T [k, m].
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasOperation_t as_is = CUBLAS_OP_N;
    check(describe_attribute_(what, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
          "cublasLtMatmulDescSetAttribute");
    check(describe_attribute_(what, CUBLASLT_MATMUL_DESC_TRANSB, &as_is, sizeof as_is),
          "cublasLtMatmulDescSetAttribute");
    plan.b_ = layout(type, k, n);
    plan.a_ = layout(type, k, m);
    plan.out_ = layout(out_type, n, m);
    cublasLtMatmulPreference_t raw = nullptr;
    check(prefer_(&raw), "cublasLtMatmulPreferenceCreate");
    const std::shared_ptr<cublasLtMatmulPreferenceOpaque_t> preference{raw, forget_preference_};
    check(prefer_attribute_(raw, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                            sizeof kWorkspace),
          "cublasLtMatmulPreferenceSetAttribute");
    int found = 0;
    const cublasStatus_t status =
        heuristic_(handle_, what, plan.b_.get(), plan.a_.get(), plan.out_.get(), plan.out_.get(),
                   raw, 1, &plan.best_, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return std::nullopt;
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    if (found == 0 || plan.best_.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
    return plan;
  }

  /// Runs the product. Scales of fp8 are 1.
  void multiply(const Plan& plan, const void* a, const void* b, void* out, Stream stream) const {
    const float one = 1;
    const float zero = 0;
    check(multiply_(handle_, plan.what_.get(), &one, b, plan.b_.get(), a, plan.a_.get(), &zero, out,
                    plan.out_.get(), out, plan.out_.get(), &plan.best_.algo, workspace_, kWorkspace,
                    stream.stream),
          "cublasLtMatmul");
  }

 private:
  struct Close {
    void operator()(void* library) const { dlclose(library); }
  };
  static void check(cublasStatus_t status, const char* call) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw std::runtime_error{std::string{call} + ": status " +
                             std::to_string(static_cast<int>(status))};
  }
  [[nodiscard]] Plan::Layout layout(cudaDataType type, int rows, int columns) const {
    cublasLtMatrixLayout_t raw = nullptr;
    check(lay_out_(&raw, type, static_cast<std::uint64_t>(rows),
                   static_cast<std::uint64_t>(columns), rows),
          "cublasLtMatrixLayoutCreate");
    return {raw, forget_layout_};
  }

  std::unique_ptr<void, Close> library_;
  decltype(&cublasLtCreate) create_ = nullptr;
  decltype(&cublasLtDestroy) destroy_ = nullptr;
  decltype(&cublasLtMatmulDescCreate) describe_ = nullptr;
  decltype(&cublasLtMatmulDescDestroy) forget_ = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) describe_attribute_ = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) lay_out_ = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) forget_layout_ = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) prefer_ = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) forget_preference_ = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) prefer_attribute_ = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic_ = nullptr;
  decltype(&cublasLtMatmul) multiply_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
};

}  // namespace kvsim::on_gpu
