#pragma once

#include <cstdint>
#include <initializer_list>

namespace kvsim {

/// A number of a stream that needs no state: the same (seed, layer, head, step, index) give the
/// same number whatever was drawn before, on whatever thread.
///
/// Each word passes through the finaliser of SplitMix64 (Steele, Lea, Flood 2014, fig. 13), so that
/// neighbouring counters share no pattern.
[[nodiscard]] constexpr std::uint64_t counter_hash(std::uint64_t seed, std::uint64_t layer,
                                                   std::uint64_t head, std::uint64_t step,
                                                   std::uint64_t index = 0) {
  std::uint64_t state = 0;
  for (const std::uint64_t word : {seed, layer, head, step, index}) {
    state += word + 0x9E3779B97F4A7C15U;
    state = (state ^ (state >> 30U)) * 0xBF58476D1CE4E5B9U;
    state = (state ^ (state >> 27U)) * 0x94D049BB133111EBU;
    state ^= state >> 31U;
  }
  return state;
}

/// Uniform in [0, 1): 53 bits of counter_hash.
[[nodiscard]] constexpr double counter_uniform(std::uint64_t seed, std::uint64_t layer,
                                               std::uint64_t head, std::uint64_t step,
                                               std::uint64_t index = 0) {
  return static_cast<double>(counter_hash(seed, layer, head, step, index) >> 11U) * 0x1p-53;
}

}  // namespace kvsim
