#include "models/cost/kernels/forms/plain.hpp"

namespace kvsim {

const KernelForm& convolution_form() {
  static constexpr KernelForm kForm{.id = "convolution",
                                    .op = KernelOp::kConvolution,
                                    .coefficients = kPlainCoefficients,
                                    .microseconds = plain_microseconds};
  return kForm;
}

}  // namespace kvsim
