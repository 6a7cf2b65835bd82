#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/forms/plain.hpp"

namespace kvsim {

const KernelForm& grouped_gemm_form() {
  static constexpr KernelForm kForm{.id = "grouped-gemm",
                                    .op = KernelOp::kGroupedGemm,
                                    .coefficients = kPlainCoefficients,
                                    .microseconds = plain_microseconds};
  return kForm;
}

}  // namespace kvsim
