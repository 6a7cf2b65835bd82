#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/forms/plain.hpp"

namespace kvsim {

const KernelForm& moe_form() {
  static constexpr KernelForm kForm{.id = "moe",
                                    .op = KernelOp::kMoe,
                                    .coefficients = kPlainCoefficients,
                                    .microseconds = plain_microseconds};
  return kForm;
}

}  // namespace kvsim
