#pragma once

// Random numbers of the generator: hashes of their purpose, so that the order of use does not
// matter.

#include <cstdint>
#include <initializer_list>

namespace kvsim::synthetic {

/// Purpose of a number.
enum class Stream : std::uint64_t {
  kTokens = 1,
  kEmbedding,
  kContext,
  kHeavy,
  kKeyMap,
  kValueMap,
  kHiddenMap,
  kProfile,
  kQuery,
  kOutput,
  kScore
};

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

/// Numbers for one (seed, stream, layer, head, token), by index.
class Draw {
 public:
  Draw(std::uint64_t seed, Stream stream, std::int64_t layer, std::int64_t head,
       std::int64_t token) {
    key_ = mix(seed);
    for (const std::uint64_t part :
         {static_cast<std::uint64_t>(stream), static_cast<std::uint64_t>(layer),
          static_cast<std::uint64_t>(head), static_cast<std::uint64_t>(token)}) {
      key_ = mix(key_ ^ mix(part));
    }
  }
  [[nodiscard]] std::uint64_t bits(std::int64_t i) const {
    return mix(key_ + static_cast<std::uint64_t>(i) * 0xD1B54A32D192ED03ULL);
  }
  /// Uniform in [0, 1).
  [[nodiscard]] double uniform(std::int64_t i) const {
    return static_cast<double>(bits(i) >> 11U) * 0x1p-53;
  }
  /// Mean 0, variance 1, |x| < 3.5: sum of four uniform 16-bit numbers (Irwin-Hall), in integers,
  /// so that it does not depend on the mathematics library.
  [[nodiscard]] float normal(std::int64_t i) const {
    const std::uint64_t x = bits(i);
    const auto sum = static_cast<std::int32_t>((x & 0xFFFFU) + ((x >> 16U) & 0xFFFFU) +
                                               ((x >> 32U) & 0xFFFFU) + (x >> 48U));
    constexpr float kToUnit = 1.7320508F / 65536.0F;
    return static_cast<float>(sum - 131070) * kToUnit;
  }

 private:
  std::uint64_t key_ = 0;
};

}  // namespace kvsim::synthetic
