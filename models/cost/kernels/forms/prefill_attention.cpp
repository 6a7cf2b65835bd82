#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/forms/plain.hpp"

namespace kvsim {

const KernelForm& prefill_attention_form() {
  static constexpr KernelForm kForm{.id = "prefill-attention",
                                    .op = KernelOp::kPrefillAttention,
                                    .coefficients = kPlainCoefficients,
                                    .microseconds = plain_microseconds};
  return kForm;
}

}  // namespace kvsim
