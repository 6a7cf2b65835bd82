#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/forms/plain.hpp"

namespace kvsim {

const KernelForm& elementwise_form() {
  static constexpr KernelForm kForm{.id = "elementwise",
                                    .op = KernelOp::kElementwise,
                                    .coefficients = kPlainCoefficients,
                                    .microseconds = plain_microseconds};
  return kForm;
}

}  // namespace kvsim
