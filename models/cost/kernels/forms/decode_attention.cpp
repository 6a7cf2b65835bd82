#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/forms/plain.hpp"

namespace kvsim {

const KernelForm& decode_attention_form() {
  static constexpr KernelForm kForm{.id = "decode-attention",
                                    .op = KernelOp::kDecodeAttention,
                                    .coefficients = kPlainCoefficients,
                                    .microseconds = plain_microseconds};
  return kForm;
}

}  // namespace kvsim
