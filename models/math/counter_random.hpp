#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace kvsim {

/// Random numbers for methods. Each number is a function of its key and counter, so results do not
/// depend on the order of draws or on threads.
///
/// mix64 is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection of 64-bit words.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

/// Combines a key of several words, such as (seed, layer, head, step), into one word.
constexpr std::uint64_t counter_key(std::initializer_list<std::uint64_t> words) {
  std::uint64_t key = 0;
  for (const std::uint64_t word : words) key = mix64(key ^ word);
  return key;
}

/// The number under `key` for the counter with mix64 `mixed`, uniform in the open interval (0, 1).
constexpr double uniform_of(std::uint64_t key, std::uint64_t mixed) {
  return (static_cast<double>(mix64(key ^ mixed) >> 12U) + 0.5) * 0x1p-52;
}

/// The number under `key` for `counter`.
constexpr double counter_uniform(std::uint64_t key, std::uint64_t counter) {
  return uniform_of(key, mix64(counter));
}

/// Standard Gumbel: -ln(-ln u), mean 0.5772 (Euler's constant), variance pi^2/6.
inline double counter_gumbel(std::uint64_t key, std::uint64_t counter) {
  return -std::log(-std::log(counter_uniform(key, counter)));
}

}  // namespace kvsim
