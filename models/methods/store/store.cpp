// Shared by several stores.

#include "models/methods/store/store.hpp"

#include <fmt/format.h>

namespace kvsim {

ParamInfo dequant_param() {
  return word_param("dequant", {"fused", "copy"},
                    "codes become numbers inside the attention kernel, or in a copy of the cache",
                    "KIVI's kernels are fused; plain PyTorch copies");
}

void add_dequant(StepTraffic& traffic, const StepEvents& events, const HeadShape& shape,
                 bool copy) {
  const double entries = events.read >= 0 ? events.read : events.attended;
  traffic.extra_flops += 2.0 * 2.0 * entries * shape.head_dim;
  if (!copy) return;
  const double bytes = 2.0 * entries * shape.head_dim * bits_of(shape.recorded) / 8.0;
  traffic.move_read += bytes;
  traffic.move_write += bytes;
}

ParamInfo code_bits_param(std::int64_t bits, std::string source) {
  return integer_param("bits", "", bits, 1, 8, "2, 4 or 8", "bits of a code", std::move(source));
}

std::int32_t resolved_code_bits(MethodResolver& resolver) {
  const std::int64_t bits = resolver.integer("bits");
  if (bits != 2 && bits != 4 && bits != 8) {
    resolver.refuse(fmt::format("bits: expected 2, 4 or 8 (whole codes a byte), got {}", bits));
  }
  return static_cast<std::int32_t>(bits);
}

}  // namespace kvsim
