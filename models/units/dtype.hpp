#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "models/units/units.hpp"

namespace kvsim {

/// Element formats of weights, activations and caches. Scales and zeros of quantised stores are not
/// part of the format; they are counted by the store that uses them.
enum class Dtype : std::uint8_t {
  kFp32,
  kFp16,
  kBf16,
  kFp8E4m3,
  kFp8E5m2,
  kInt8,
  kInt4,
  kInt2,
  kFp4
};

struct DtypeName {
  Dtype dtype;
  std::string_view name;  // name in scenario files
  std::int32_t bits;
};

inline constexpr std::array kDtypes{
    DtypeName{Dtype::kFp32, "fp32", 32},       DtypeName{Dtype::kFp16, "fp16", 16},
    DtypeName{Dtype::kBf16, "bf16", 16},       DtypeName{Dtype::kFp8E4m3, "fp8_e4m3", 8},
    DtypeName{Dtype::kFp8E5m2, "fp8_e5m2", 8}, DtypeName{Dtype::kInt8, "int8", 8},
    DtypeName{Dtype::kInt4, "int4", 4},        DtypeName{Dtype::kInt2, "int2", 2},
    DtypeName{Dtype::kFp4, "fp4", 4},
};

constexpr std::string_view name_of(Dtype dtype) {
  return kDtypes[static_cast<std::size_t>(dtype)].name;
}
constexpr std::int32_t bits_of(Dtype dtype) {
  return kDtypes[static_cast<std::size_t>(dtype)].bits;
}

/// Returns the bytes of `elements` of `dtype`, rounded up to whole bytes.
constexpr Bytes bytes_of(std::int64_t elements, Dtype dtype) {
  return Bytes{(elements * bits_of(dtype) + 7) / 8};
}

struct DtypeAlias {
  std::string_view name;
  Dtype dtype;
};
/// Other common spellings.
inline constexpr std::array kDtypeAliases{
    DtypeAlias{"float32", Dtype::kFp32},
    DtypeAlias{"float", Dtype::kFp32},
    DtypeAlias{"f32", Dtype::kFp32},
    DtypeAlias{"float16", Dtype::kFp16},
    DtypeAlias{"half", Dtype::kFp16},
    DtypeAlias{"f16", Dtype::kFp16},
    DtypeAlias{"bfloat16", Dtype::kBf16},
    DtypeAlias{"fp8", Dtype::kFp8E4m3},
    DtypeAlias{"float8_e4m3fn", Dtype::kFp8E4m3},
};

/// Returns the format named `word`, a name of kDtypes or of kDtypeAliases; nullopt if unknown.
constexpr std::optional<Dtype> parse_dtype(std::string_view word) {
  for (const auto& entry : kDtypes) {
    if (entry.name == word) return entry.dtype;
  }
  for (const auto& alias : kDtypeAliases) {
    if (alias.name == word) return alias.dtype;
  }
  return std::nullopt;
}

}  // namespace kvsim
