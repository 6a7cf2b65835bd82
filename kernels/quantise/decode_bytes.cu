// Decode attention over caches of eight bits per channel.

#include "kernels/quantise/decode_formats.hpp"
#include "kernels/quantise/decode_quantised.hpp"
#include "kernels/quantise/fp8.hpp"
#include "kernels/quantise/staged_rows.hpp"

namespace kvsim::KVSIM_EXECUTOR {

using namespace split_k;  // NOLINT: this file is one of its parts

namespace {

constexpr int kPer = static_cast<int>(kernels::kQuantPerLane);

KVSIM_DEVICE void read_e4m3(std::uint64_t word, float scale, float (&x)[std::size_t{kPer}]) {
  KVSIM_UNROLL
  for (int j = 0; j < kPer; ++j) {
    x[j] = scale * from_e4m3(static_cast<std::uint32_t>(word >> (8 * j)) & 0xFFU);
  }
}
KVSIM_DEVICE void read_int8(std::uint64_t word, float scale, float (&x)[std::size_t{kPer}]) {
  KVSIM_UNROLL
  for (int j = 0; j < kPer; ++j) {
    x[j] = scale * static_cast<float>(static_cast<std::int8_t>(word >> (8 * j)));
  }
}

/// Shared parts of eight-bit formats: words of eight channels.
template <int kHeadDim, int kScales>
struct ByteFormat {
  using KeyCode = std::uint64_t;
  using ValueCode = std::uint64_t;
  using KeyScale = float;
  using ValueScale = float;
  static constexpr int kKeyCodes = kHeadDim / kPer, kValueCodes = kHeadDim / kPer;
  static constexpr int kKeyScales = kScales, kValueScales = kScales;
  Span<const std::uint64_t> key_codes, value_codes;
  Span<const float> key_scales{}, value_scales{};
  KVSIM_DEVICE void begin() {}
};

template <int kHeadDim>
struct Fp8Format : ByteFormat<kHeadDim, 0> {
  float key_scale = 1, value_scale = 1;
  static Fp8Format of(const Fp8Cache& c) {
    return {{c.key_codes, c.value_codes}, c.key_scale, c.value_scale};
  }
  template <class Tile>
  KVSIM_DEVICE void key(Tile& tile, int row, int part, float (&x)[std::size_t{kPer}]) {
    read_e4m3(kv::load(tile.key_codes, row * (kHeadDim / kPer) + part), 1, x);
  }
  template <class Tile>
  KVSIM_DEVICE float key_factor(Tile&, int, bool, const float (&)[std::size_t{kPer}]) {
    return key_scale;
  }
  template <class Tile>
  KVSIM_DEVICE void value(Tile& tile, int row, int part, float (&x)[std::size_t{kPer}]) {
    read_e4m3(kv::load(tile.value_codes, row * (kHeadDim / kPer) + part), value_scale, x);
  }
};

template <ByteCode kCode>
struct TokenHead {
  template <int kHeadDim>
  struct Format : ByteFormat<kHeadDim, 1> {
    static Format of(const TokenHeadCache& c) {
      return {{c.key_codes, c.value_codes, c.key_scales, c.value_scales}};
    }
    KVSIM_DEVICE static void read(std::uint64_t word, float scale, float (&x)[std::size_t{kPer}]) {
      if constexpr (kCode == ByteCode::kInt8) {
        read_int8(word, scale, x);
      } else {
        read_e4m3(word, scale, x);
      }
    }
    template <class Tile>
    KVSIM_DEVICE void key(Tile& tile, int row, int part, float (&x)[std::size_t{kPer}]) {
      read(kv::load(tile.key_codes, row * (kHeadDim / kPer) + part), 1, x);
    }
    template <class Tile>
    KVSIM_DEVICE float key_factor(Tile& tile, int row, bool is_live,
                                  const float (&)[std::size_t{kPer}]) {
      return is_live ? kv::load(tile.key_scales, row) : 0.0F;
    }
    template <class Tile>
    KVSIM_DEVICE void value(Tile& tile, int row, int part, float (&x)[std::size_t{kPer}]) {
      read(kv::load(tile.value_codes, row * (kHeadDim / kPer) + part),
           kv::load(tile.value_scales, row), x);
    }
  };
};

}  // namespace

template <class T>
void decode_attention_fp8(Stream stream, const DecodeShape& shape, const Fp8Cache& cache,
                          const DecodeAttention<T>& a) {
  attend_format<Fp8Format>(stream, shape, cache, a);
}

template <class T, ByteCode kCode>
void decode_attention_token_head(Stream stream, const DecodeShape& shape,
                                 const TokenHeadCache& cache, const DecodeAttention<T>& a) {
  attend_format<TokenHead<kCode>::template Format>(stream, shape, cache, a);
}

template void decode_attention_fp8(Stream, const DecodeShape&, const Fp8Cache&,
                                   const DecodeAttention<float>&);
#define KVSIM_INSTANTIATE(T)                                                         \
  template void decode_attention_fp8(Stream, const DecodeShape&, const Fp8Cache&,    \
                                     const DecodeAttention<T>&);                     \
  template void decode_attention_token_head<T, ByteCode::kInt8>(                     \
      Stream, const DecodeShape&, const TokenHeadCache&, const DecodeAttention<T>&); \
  template void decode_attention_token_head<T, ByteCode::kE4m3>(                     \
      Stream, const DecodeShape&, const TokenHeadCache&, const DecodeAttention<T>&);
KVSIM_INSTANTIATE(kv::Half)
KVSIM_INSTANTIATE(kv::BFloat16)
#undef KVSIM_INSTANTIATE

}  // namespace kvsim::KVSIM_EXECUTOR
