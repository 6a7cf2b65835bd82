#pragma once

// One side of a cache in an engine's format, keys or values: its memory, its encoder, and the
// values decoded from the memory and by the reference.

#include <cstring>
#include <type_traits>

#include "kernels/quantise/formats.hpp"
#include "kernels/suite/cases/over_codes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

template <class T>
constexpr Dtype recorded_dtype() {
  if (std::is_same_v<T, kv::Half>) return Dtype::kFp16;
  return std::is_same_v<T, kv::BFloat16> ? Dtype::kBf16 : Dtype::kFp32;
}

/// Code `i` of `bits` bits in a bit stream of words.
template <class Word>
std::uint32_t code_of(const std::vector<Word>& words, std::int64_t bits, std::int64_t i) {
  constexpr std::int64_t kWord = static_cast<std::int64_t>(sizeof(Word)) * 8;
  std::uint32_t code = 0;
  for (std::int64_t b = 0; b < bits; ++b) {
    const std::int64_t bit = i * bits + b;
    const auto set = (words[at(bit / kWord)] >> static_cast<unsigned>(bit % kWord)) & 1U;
    code |= static_cast<std::uint32_t>(set) << static_cast<unsigned>(b);
  }
  return code;
}

// name(): at most eight characters, for a table of 80 columns.

/// Arrays of codes, of kBits per channel in words, and of scales.
template <class Word_, class Scale_, std::int64_t kBits_>
struct Side {
  using Word = Word_;
  using Scale = Scale_;
  static constexpr std::int64_t kBits = kBits_;
  Array<Word>& words;
  Array<Scale>& steps;
};
template <class S>
S side_memory(Case& c, const QuantShape& s, const char* codes, const char* scales) {
  const std::int64_t elements = s.rows * s.capacity * s.head_dim;
  constexpr std::int64_t kWord = static_cast<std::int64_t>(sizeof(typename S::Word)) * 8;
  return {{c.output<typename S::Word>(codes, elements * S::kBits / kWord),
           c.output<typename S::Scale>(scales, s.rows * s.capacity * S::n_scales(s.head_dim))}};
}

template <ByteCode kCode>
struct TokenHeadSide : Side<std::uint64_t, float, 8> {
  static const char* name() { return kCode == ByteCode::kInt8 ? "int8_tok" : "fp8_tok"; }
  static std::int64_t n_scales(std::int64_t) { return 1; }
  template <class T>
  void encode(Stream stream, const QuantShape& s, Span<const T> from) const {
    quantise_token_head<T, kCode>(stream, s, from, this->words.span(), this->steps.span());
  }
  std::vector<float> read(const QuantShape& s, const std::vector<std::uint64_t>& codes,
                          const std::vector<float>& scale) const {
    std::vector<float> result;
    for (std::int64_t i = 0; i < s.entries * s.head_dim; ++i) {
      const std::uint32_t code = code_of(codes, kBits, i);
      const float value = kCode == ByteCode::kInt8
                              ? static_cast<float>(static_cast<std::int8_t>(code))
                              : kernels::fp8_value(code);
      result.push_back(value * scale[at(i / s.head_dim)]);
    }
    return result;
  }
  template <class T>
  static std::vector<float> expected(std::int64_t head_dim, const std::vector<float>& x) {
    return kernels::token_head_reference(
        kCode == ByteCode::kInt8 ? kernels::TokenHeadCode::kInt8 : kernels::TokenHeadCode::kE4m3,
        head_dim, x);
  }
};

struct Int4Side : Side<std::uint32_t, std::uint32_t, 4> {
  static const char* name() { return "int4_tok"; }
  static std::int64_t n_scales(std::int64_t) { return 1; }
  template <class T>
  void encode(Stream stream, const QuantShape& s, Span<const T> from) const {
    quantise_int4_rotated<T>(stream, s, from, this->words.span(), this->steps.span());
  }
  std::vector<float> read(const QuantShape& s, const std::vector<std::uint32_t>& codes,
                          const std::vector<std::uint32_t>& scale) const {
    std::vector<float> result;
    for (std::int64_t i = 0; i < s.entries * s.head_dim; ++i) {
      const std::uint32_t of = scale[at(i / s.head_dim)];
      const auto code = static_cast<int>(code_of(codes, kBits, i)) - static_cast<int>(of & 15U);
      result.push_back(static_cast<float>(code) * bits_as_float(of & ~15U));
    }
    return result;
  }
  static float bits_as_float(std::uint32_t bits) {
    float x = 0;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }
  template <class T>
  static std::vector<float> expected(std::int64_t head_dim, const std::vector<float>& x) {
    return kernels::int4_rotated_reference(recorded_dtype<T>(), head_dim, x);
  }
};

template <bool kFourOverSix>
struct Nvfp4Side : Side<std::uint32_t, std::uint8_t, 4> {
  static constexpr float kGlobal = 0.046875F;
  static const char* name() { return kFourOverSix ? "nvfp4_46" : "nvfp4"; }
  static std::int64_t n_scales(std::int64_t head_dim) { return head_dim / 16; }
  template <class T>
  void encode(Stream stream, const QuantShape& s, Span<const T> from) const {
    quantise_nvfp4<T>(stream, s, kGlobal, kFourOverSix, from, this->words.span(),
                      this->steps.span());
  }
  std::vector<float> read(const QuantShape& s, const std::vector<std::uint32_t>& codes,
                          const std::vector<std::uint8_t>& scale) const {
    constexpr float kSizes[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    std::vector<float> result;
    for (std::int64_t i = 0; i < s.entries * s.head_dim; ++i) {
      const std::uint32_t code = code_of(codes, kBits, i);
      const float value = (code & 8U) != 0 ? -kSizes[code & 7U] : kSizes[code & 7U];
      result.push_back(value * kernels::fp8_value(scale[at(i / 16)]) * kGlobal);
    }
    return result;
  }
  template <class T>
  static std::vector<float> expected(std::int64_t, const std::vector<float>& x) {
    return kernels::nvfp4_reference(kGlobal, kFourOverSix, x);
  }
};

template <int kOfKey>
struct TurboKeySide : Side<std::uint32_t, kv::Half, kOfKey> {
  static const char* name() {
    return kOfKey == 8 ? "tq_key8" : (kOfKey == 4 ? "tq_key4" : "tq_key3");
  }
  static std::int64_t n_scales(std::int64_t) { return kOfKey == 8 ? 0 : 1; }
  template <class T>
  void encode(Stream stream, const QuantShape& s, Span<const T> from) const {
    if constexpr (kOfKey == 8) {
      quantise_turboquant_bytes<T>(stream, s, from, this->words.span());
    } else {
      quantise_turboquant_keys<T, kOfKey>(stream, s, from, this->words.span(), this->steps.span());
    }
  }
  std::vector<float> read(const QuantShape& s, const std::vector<std::uint32_t>& codes,
                          const std::vector<kv::Half>& norm) const {
    std::vector<float> result;
    for (std::int64_t e = 0; e < s.entries; ++e) {
      std::vector<std::int32_t> row_codes;
      for (std::int64_t i = 0; i < s.head_dim; ++i) {
        row_codes.push_back(static_cast<std::int32_t>(code_of(codes, kOfKey, e * s.head_dim + i)));
      }
      if constexpr (kOfKey == 8) {
        for (const std::int32_t code : row_codes) {
          result.push_back(kernels::fp8_value(static_cast<std::uint32_t>(code)));
        }
      } else {
        const auto row =
            kernels::turboquant_key(kOfKey, Stored<kv::Half>::value(norm[at(e)]), row_codes);
        result.insert(result.end(), row.begin(), row.end());
      }
    }
    return result;
  }
  template <class T>
  static std::vector<float> expected(std::int64_t head_dim, const std::vector<float>& x) {
    if constexpr (kOfKey == 8) {
      return kernels::fp8_reference(1, x);
    } else {
      return kernels::turboquant_key_reference(kOfKey, head_dim, x);
    }
  }
};

template <int kOfValue>
struct TurboValueSide : Side<std::uint32_t, kv::Half, kOfValue> {
  static const char* name() { return kOfValue == 4 ? "tq_val4" : "tq_val3"; }
  static std::int64_t n_scales(std::int64_t) { return 2; }
  template <class T>
  void encode(Stream stream, const QuantShape& s, Span<const T> from) const {
    quantise_turboquant_values<T, kOfValue>(stream, s, from, this->words.span(),
                                            this->steps.span());
  }
  std::vector<float> read(const QuantShape& s, const std::vector<std::uint32_t>& codes,
                          const std::vector<kv::Half>& scale) const {
    std::vector<float> result;
    for (std::int64_t i = 0; i < s.entries * s.head_dim; ++i) {
      const std::int64_t entry = i / s.head_dim;
      const float step = Stored<kv::Half>::value(scale[at(2 * entry)]);
      const float low = Stored<kv::Half>::value(scale[at(2 * entry + 1)]);
      result.push_back(static_cast<float>(code_of(codes, kOfValue, i)) * step + low);
    }
    return result;
  }
  template <class T>
  static std::vector<float> expected(std::int64_t head_dim, const std::vector<float>& x) {
    return kernels::turboquant_value_reference(kOfValue, head_dim, x);
  }
};

/// Bytes of one entry's codes and scales.
template <class S>
std::int64_t entry_bytes(std::int64_t head_dim) {
  return head_dim * S::kBits / 8 +
         S::n_scales(head_dim) * static_cast<std::int64_t>(sizeof(typename S::Scale));
}

}  // namespace kvsim::KVSIM_EXECUTOR
