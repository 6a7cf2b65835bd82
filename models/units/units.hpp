#pragma once

// Units of all quantities in kvsim. Independent of fmt, so that CUDA code can include it.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "models/units/quantity.hpp"

namespace kvsim {

struct BytesTag {
  static constexpr const char* kTooLarge = "a number of bytes exceeds the range of 64 bits (8 EiB)";
};
struct SimTimeTag {
  static constexpr const char* kTooLarge =
      "a time exceeds the range of the simulated clock (9,223,372 s, 106 days)";
};

using Bytes = Quantity<BytesTag, std::int64_t>;       // exact, so used + free == capacity
using FlopCount = Quantity<struct FlopTag, double>;   // a multiply-add counts as 2
using Seconds = Quantity<struct SecondsTag, double>;  // results of models
using BytesPerSecond = Quantity<struct BytesPerSecondTag, double>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag, double>;
using SimTime = Quantity<SimTimeTag, std::int64_t>;  // picoseconds; the simulation clock

constexpr Seconds operator/(Bytes n, BytesPerSecond rate) {
  return Seconds{static_cast<double>(n.count()) / rate.count()};
}
constexpr Seconds operator/(FlopCount n, FlopsPerSecond rate) {
  return Seconds{n.count() / rate.count()};
}
constexpr BytesPerSecond operator/(Bytes n, Seconds t) {
  return BytesPerSecond{static_cast<double>(n.count()) / t.count()};
}
constexpr Bytes operator%(Bytes a, Bytes b) { return Bytes{a.count() % b.count()}; }

/// Returns `n` rounded up to a multiple of `unit`; both at least 0, unit above 0.
constexpr Bytes round_up(Bytes n, Bytes unit) {
  const Bytes rest = n % unit;
  return rest == Bytes{} ? n : n + (unit - rest);
}

/// Returns the integer part of a count. Throws OverflowError if it does not fit or is not a number.
template <class Q>
requires std::is_same_v<typename Q::rep, std::int64_t>
constexpr Q truncated(double count) {
  constexpr double kEnd = 9223372036854775808.0;  // 2^63
  if (!(count >= -kEnd && count < kEnd)) overflowed<typename Q::dimension>();
  return Q{static_cast<std::int64_t>(count)};
}
/// Returns the nearest integer count. Throws as truncated.
template <class Q>
Q rounded(double count) {
  return truncated<Q>(std::round(count));
}

/// Converts model time to clock time, rounded to the nearest picosecond. Throws as truncated.
inline SimTime to_sim_time(Seconds t) { return rounded<SimTime>(t.count() * 1e12); }
constexpr Seconds to_seconds(SimTime t) { return Seconds{static_cast<double>(t.count()) * 1e-12}; }

inline namespace literals {

consteval Bytes operator""_B(unsigned long long n) { return Bytes{static_cast<std::int64_t>(n)}; }
consteval Bytes operator""_KiB(unsigned long long n) {
  return Bytes{static_cast<std::int64_t>(n) * 1024};
}
consteval Bytes operator""_MiB(unsigned long long n) {
  return Bytes{static_cast<std::int64_t>(n) * 1024 * 1024};
}
consteval Bytes operator""_GiB(unsigned long long n) {
  return Bytes{static_cast<std::int64_t>(n) * 1024 * 1024 * 1024};
}
consteval Bytes operator""_GB(unsigned long long n) {
  return Bytes{static_cast<std::int64_t>(n) * 1'000'000'000};
}
consteval BytesPerSecond operator""_GBps(long double n) {
  return BytesPerSecond{static_cast<double>(n) * 1e9};
}
consteval BytesPerSecond operator""_TBps(long double n) {
  return BytesPerSecond{static_cast<double>(n) * 1e12};
}
consteval FlopsPerSecond operator""_TFLOPps(long double n) {
  return FlopsPerSecond{static_cast<double>(n) * 1e12};
}
consteval Seconds operator""_us(long double n) { return Seconds{static_cast<double>(n) * 1e-6}; }
consteval Seconds operator""_ms(long double n) { return Seconds{static_cast<double>(n) * 1e-3}; }

}  // namespace literals
}  // namespace kvsim
