#pragma once

#include <cstdint>

namespace kvsim {

/// One step of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words that looks random.
[[nodiscard]] constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

/// 64 random bits that depend on where they are drawn alone, not on what was drawn before.
[[nodiscard]] constexpr std::uint64_t counter_bits(std::uint64_t seed, std::uint64_t layer,
                                                   std::uint64_t head, std::uint64_t step,
                                                   std::uint64_t draw = 0) {
  return mix_bits(mix_bits(mix_bits(mix_bits(mix_bits(seed) ^ layer) ^ head) ^ step) ^ draw);
}

/// A number in (0, 1): the middle of one of 2^53 cells, so that it is neither bound.
[[nodiscard]] constexpr double counter_uniform(std::uint64_t seed, std::uint64_t layer,
                                               std::uint64_t head, std::uint64_t step,
                                               std::uint64_t draw = 0) {
  return (static_cast<double>(counter_bits(seed, layer, head, step, draw) >> 11U) + 0.5) * 0x1p-53;
}

}  // namespace kvsim
