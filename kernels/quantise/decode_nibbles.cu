// Decode attention over caches of four bits per channel: NVFP4 and rotated int4.

#include "kernels/quantise/decode_formats.hpp"
#include "kernels/quantise/fp4.hpp"
#include "kernels/quantise/fp8.hpp"
#include "kernels/quantise/staged_rows.hpp"

namespace kvsim::KVSIM_EXECUTOR {

using namespace split_k;  // NOLINT: this file is one of its parts

namespace {

constexpr int kPer = static_cast<int>(kernels::kQuantPerLane);

template <int kHeadDim>
struct Nvfp4Format {
  using KeyCode = std::uint32_t;
  using ValueCode = std::uint32_t;
  using KeyScale = std::uint8_t;
  using ValueScale = std::uint8_t;
  static constexpr int kWords = kHeadDim / kPer, kGroups = kHeadDim / 16;
  static constexpr int kKeyCodes = kWords, kValueCodes = kWords;
  static constexpr int kKeyScales = kGroups, kValueScales = kGroups;
  Span<const std::uint32_t> key_codes, value_codes;
  Span<const std::uint8_t> key_scales, value_scales;
  float key_global = 1, value_global = 1;

  static Nvfp4Format of(const Nvfp4Cache& c) {
    return {c.key_codes, c.value_codes, c.key_scales, c.value_scales, c.key_global, c.value_global};
  }
  KVSIM_DEVICE void begin() {}
  KVSIM_DEVICE static void read(std::uint32_t word, float scale, float (&x)[std::size_t{kPer}]) {
    KVSIM_UNROLL
    for (int j = 0; j < kPer; ++j) x[j] = scale * from_e2m1((word >> (4 * j)) & 15U);
  }
  template <class Tile>
  KVSIM_DEVICE void key(Tile& tile, int row, int part, float (&x)[std::size_t{kPer}]) {
    read(kv::load(tile.key_codes, row * kWords + part),
         from_e4m3(kv::load(tile.key_scales, row * kGroups + part / 2)), x);
  }
  template <class Tile>
  KVSIM_DEVICE float key_factor(Tile&, int, bool, const float (&)[std::size_t{kPer}]) {
    return key_global;
  }
  template <class Tile>
  KVSIM_DEVICE void value(Tile& tile, int row, int part, float (&x)[std::size_t{kPer}]) {
    read(kv::load(tile.value_codes, row * kWords + part),
         value_global * from_e4m3(kv::load(tile.value_scales, row * kGroups + part / 2)), x);
  }
};

template <int kHeadDim>
struct Int4Format {
  using KeyCode = std::uint32_t;
  using ValueCode = std::uint32_t;
  using KeyScale = std::uint32_t;
  using ValueScale = std::uint32_t;
  static constexpr int kWords = kHeadDim / kPer;
  static constexpr int kKeyCodes = kWords, kValueCodes = kWords;
  static constexpr int kKeyScales = 1, kValueScales = 1;
  Span<const std::uint32_t> key_codes, value_codes, key_scales, value_scales;

  static Int4Format of(const Int4Cache& c) {
    return {c.key_codes, c.value_codes, c.key_scales, c.value_scales};
  }
  KVSIM_DEVICE void begin() {}
  KVSIM_DEVICE static float step(std::uint32_t scale) { return __uint_as_float(scale & ~15U); }
  /// code - zero point
  KVSIM_DEVICE static void read(std::uint32_t word, std::uint32_t scale,
                                float (&x)[std::size_t{kPer}]) {
    const int zero = static_cast<int>(scale & 15U);
    KVSIM_UNROLL
    for (int j = 0; j < kPer; ++j) {
      x[j] = static_cast<float>(static_cast<int>((word >> (4 * j)) & 15U) - zero);
    }
  }
  template <class Tile>
  KVSIM_DEVICE void key(Tile& tile, int row, int part, float (&x)[std::size_t{kPer}]) {
    read(kv::load(tile.key_codes, row * kWords + part), kv::load(tile.key_scales, row), x);
  }
  template <class Tile>
  KVSIM_DEVICE float key_factor(Tile& tile, int row, bool is_live,
                                const float (&)[std::size_t{kPer}]) {
    return is_live ? step(kv::load(tile.key_scales, row)) : 0.0F;
  }
  template <class Tile>
  KVSIM_DEVICE void value(Tile& tile, int row, int part, float (&x)[std::size_t{kPer}]) {
    const std::uint32_t scale = kv::load(tile.value_scales, row);
    read(kv::load(tile.value_codes, row * kWords + part), scale, x);
    KVSIM_UNROLL
    for (int j = 0; j < kPer; ++j) x[j] *= step(scale);
  }
};

}  // namespace

template <class T>
void decode_attention_nvfp4(Stream stream, const DecodeShape& shape, const Nvfp4Cache& cache,
                            const DecodeAttention<T>& a) {
  KVSIM_LAUNCH_CHECK(cache.key_global > 0 && cache.value_global > 0, "a scale is above 0");
  attend_format<Nvfp4Format>(stream, shape, cache, a);
}
template <class T>
void decode_attention_int4(Stream stream, const DecodeShape& shape, const Int4Cache& cache,
                           const DecodeAttention<T>& a) {
  attend_format<Int4Format>(stream, shape, cache, a);
}

#define KVSIM_INSTANTIATE(T)                                                          \
  template void decode_attention_nvfp4(Stream, const DecodeShape&, const Nvfp4Cache&, \
                                       const DecodeAttention<T>&);                    \
  template void decode_attention_int4(Stream, const DecodeShape&, const Int4Cache&,   \
                                      const DecodeAttention<T>&);
KVSIM_INSTANTIATE(kv::Half)
KVSIM_INSTANTIATE(kv::BFloat16)
#undef KVSIM_INSTANTIATE

}  // namespace kvsim::KVSIM_EXECUTOR
