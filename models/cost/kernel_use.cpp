#include "models/cost/kernel_use.hpp"

#include <array>

namespace kvsim {
namespace {

constexpr bool is_16_bit(Dtype dtype) { return bits_of(dtype) == 16; }

/// Formats of weights as measurements name them.
std::string_view weight_word(Dtype weights) {
  switch (weights) {
    case Dtype::kFp32: return "fp32";
    case Dtype::kFp16:
    case Dtype::kBf16: return "bf16";
    case Dtype::kFp8E4m3:
    case Dtype::kFp8E5m2: return "fp8";
    case Dtype::kInt8: return "int8_wo";
    case Dtype::kInt4:
    case Dtype::kInt2: return "int4_wo";
    case Dtype::kFp4: break;
  }
  return "nvfp4";
}

const KernelFormat* weight_format(Dtype weights) {
  static const std::array<const KernelFormat*, kDtypes.size()> all = [] {
    std::array<const KernelFormat*, kDtypes.size()> out{};
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = &shared_format(parse_kernel_format(weight_word(kDtypes[i].dtype)));
    }
    return out;
  }();
  return all[static_cast<std::size_t>(weights)];
}

}  // namespace

KernelUse gemm_use(std::int64_t rows, std::int64_t out, std::int64_t in, Dtype weights) {
  return {.call = GemmCall{.m = static_cast<double>(rows),
                           .n = static_cast<double>(out),
                           .k = static_cast<double>(in)},
          .format = weight_format(weights)};
}

const KernelFormat* shared_attention_format(Dtype compute, Dtype kv) {
  static const auto all = [] {
    std::array<std::array<const KernelFormat*, kDtypes.size()>, kDtypes.size()> out{};
    for (const DtypeName& c : kDtypes) {
      for (const DtypeName& k : kDtypes) {
        out[static_cast<std::size_t>(c.dtype)][static_cast<std::size_t>(k.dtype)] =
            &shared_format(attention_format(is_16_bit(c.dtype) ? Dtype::kBf16 : c.dtype,
                                            is_16_bit(k.dtype) ? Dtype::kBf16 : k.dtype));
      }
    }
    return out;
  }();
  return all[static_cast<std::size_t>(compute)][static_cast<std::size_t>(kv)];
}

std::optional<KernelUse> stream_use(OpFamily family, std::int64_t rows, double read, double written,
                                    std::int32_t launches, Dtype dtype) {
  if (launches != 1) return std::nullopt;
  ElementwiseKind kind = ElementwiseKind::kOther;
  switch (family) {
    case OpFamily::kNorm: kind = ElementwiseKind::kNorm; break;
    case OpFamily::kRope: kind = ElementwiseKind::kRope; break;
    case OpFamily::kEmbedding: kind = ElementwiseKind::kEmbedding; break;
    case OpFamily::kElementwise: kind = ElementwiseKind::kActivation; break;
    default: return std::nullopt;
  }
  return KernelUse{.call = ElementwiseCall{.kind = kind,
                                           .rows = static_cast<double>(rows),
                                           .bytes_read = read,
                                           .bytes_written = written},
                   .format = weight_format(dtype)};
}

}  // namespace kvsim
