#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/forms/plain.hpp"

namespace kvsim {

const KernelForm& copy_form() {
  static constexpr KernelForm kForm{.id = "copy",
                                    .op = KernelOp::kCopy,
                                    .coefficients = kPlainCoefficients,
                                    .microseconds = plain_microseconds};
  return kForm;
}

}  // namespace kvsim
