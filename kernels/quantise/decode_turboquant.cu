// Decode attention over TurboQuant's codes.

#include "kernels/quantise/decode_formats.hpp"
#include "kernels/quantise/fp8.hpp"
#include "kernels/quantise/levels.hpp"
#include "kernels/quantise/staged_rows.hpp"

namespace kvsim::KVSIM_EXECUTOR {

using namespace split_k;  // NOLINT: this file is one of its parts

namespace {

constexpr int kPer = static_cast<int>(kernels::kQuantPerLane);

/// Levels in shared memory: lanes look up different ones at the same time.
struct LevelTable {
  SharedArray<float, 16> levels;
};

/// Eight codes of a row whose words begin at `first`, starting at the lowest bits.
template <int kBits, class Codes>
KVSIM_DEVICE std::uint32_t eight_codes(Codes& codes, int first, int part) {
  if constexpr (kBits == 4) {
    return kv::load(codes, first + part);
  } else {
    static_assert(kBits == 3);
    const int bit = 24 * part;
    const unsigned shift = static_cast<unsigned>(bit) % 32U;
    std::uint32_t word = kv::load(codes, first + bit / 32) >> shift;
    if (shift > 8) word |= kv::load(codes, first + bit / 32 + 1) << (32U - shift);
    return word;
  }
}

template <int kKeyBits, int kValueBits>
struct TurboQuant {
  template <int kHeadDim>
  struct Format {
    using KeyCode = std::uint32_t;
    using ValueCode = std::uint32_t;
    using KeyScale = kv::Half;
    using ValueScale = kv::Half;
    static constexpr int kKeyCodes = kHeadDim * kKeyBits / 32;
    static constexpr int kValueCodes = kHeadDim * kValueBits / 32;
    static constexpr int kKeyScales = kKeyBits == 8 ? 0 : 1, kValueScales = 2;
    Span<const std::uint32_t> key_codes, value_codes;
    Span<const kv::Half> key_scales, value_scales;

    static Format of(const TurboQuantCache& c) {
      return {c.key_codes, c.value_codes, c.key_norms, c.value_scales};
    }
    KVSIM_DEVICE void begin() {
      if constexpr (kKeyBits != 8) {
        auto& table = kv::shared<LevelTable>();
        const float root = sqrtf(static_cast<float>(kHeadDim));
        KVSIM_UNROLL
        for (int code = 0; code < (1 << kKeyBits); ++code) {
          if (static_cast<int>(threadIdx.x) == code) {
            kv::store(table.levels, code, gaussian_level<kKeyBits>(code) / root);
          }
        }
      }
    }
    template <class Tile>
    KVSIM_DEVICE void key(Tile& tile, int row, int part, float (&x)[std::size_t{kPer}]) {
      if constexpr (kKeyBits == 8) {
        KVSIM_UNROLL
        for (int w = 0; w < 2; ++w) {
          const std::uint32_t word = kv::load(tile.key_codes, row * kKeyCodes + 2 * part + w);
          KVSIM_UNROLL
          for (int j = 0; j < 4; ++j) x[4 * w + j] = from_e4m3((word >> (8 * j)) & 0xFFU);
        }
      } else {
        const std::uint32_t word = eight_codes<kKeyBits>(tile.key_codes, row * kKeyCodes, part);
        auto& table = kv::shared<LevelTable>();
        constexpr std::uint32_t kMask = (1U << kKeyBits) - 1U;
        KVSIM_UNROLL
        for (int j = 0; j < kPer; ++j) {
          x[j] = kv::load(table.levels, (word >> (kKeyBits * j)) & kMask);
        }
      }
    }
    template <class Tile>
    KVSIM_DEVICE float key_factor(Tile& tile, int row, bool is_live,
                                  const float (&x)[std::size_t{kPer}]) {
      if constexpr (kKeyBits == 8) return 1;
      float squares = 0;
      KVSIM_UNROLL
      for (int j = 0; j < kPer; ++j) squares += x[j] * x[j];
      squares = warp_sum(squares, kHeadDim / kPer);
      if (!is_live) return 0;
      return kv::to_float(kv::load(tile.key_scales, row)) / sqrtf(squares + 1e-16F);
    }
    template <class Tile>
    KVSIM_DEVICE void value(Tile& tile, int row, int part, float (&x)[std::size_t{kPer}]) {
      const std::uint32_t word = eight_codes<kValueBits>(tile.value_codes, row * kValueCodes, part);
      const float step = kv::to_float(kv::load(tile.value_scales, 2 * row));
      const float low = kv::to_float(kv::load(tile.value_scales, 2 * row + 1));
      constexpr std::uint32_t kMask = (1U << kValueBits) - 1U;
      KVSIM_UNROLL
      for (int j = 0; j < kPer; ++j) {
        x[j] = low + step * static_cast<float>((word >> (kValueBits * j)) & kMask);
      }
    }
  };
};

}  // namespace

template <class T, int kKeyBits, int kValueBits>
void decode_attention_turboquant(Stream stream, const DecodeShape& shape,
                                 const TurboQuantCache& cache, const DecodeAttention<T>& a) {
  attend_format<TurboQuant<kKeyBits, kValueBits>::template Format>(stream, shape, cache, a);
}

#define KVSIM_INSTANTIATE_BITS(T, KEY, VALUE)               \
  template void decode_attention_turboquant<T, KEY, VALUE>( \
      Stream, const DecodeShape&, const TurboQuantCache&, const DecodeAttention<T>&);
#define KVSIM_INSTANTIATE(T)      \
  KVSIM_INSTANTIATE_BITS(T, 8, 4) \
  KVSIM_INSTANTIATE_BITS(T, 4, 4) \
  KVSIM_INSTANTIATE_BITS(T, 3, 4) \
  KVSIM_INSTANTIATE_BITS(T, 3, 3)
KVSIM_INSTANTIATE(kv::Half)
KVSIM_INSTANTIATE(kv::BFloat16)
#undef KVSIM_INSTANTIATE
#undef KVSIM_INSTANTIATE_BITS

}  // namespace kvsim::KVSIM_EXECUTOR
