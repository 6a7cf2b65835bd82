#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/forms/plain.hpp"

namespace kvsim {

const KernelForm& gemm_form() {
  static constexpr KernelForm kForm{.id = "gemm",
                                    .op = KernelOp::kGemm,
                                    .coefficients = kPlainCoefficients,
                                    .microseconds = plain_microseconds};
  return kForm;
}

}  // namespace kvsim
