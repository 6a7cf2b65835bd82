#pragma once

// Units of everything kvsim counts. Free of fmt, so that CUDA code can include it.

#include <cmath>
#include <cstdint>

#include "models/units/quantity.hpp"

namespace kvsim {

using Bytes = Quantity<struct BytesTag, std::int64_t>;  // exact, so used + free == capacity
using FlopCount = Quantity<struct FlopTag, double>;     // a multiply-add counts 2
using Seconds = Quantity<struct SecondsTag, double>;    // what models return
using BytesPerSecond = Quantity<struct BytesPerSecondTag, double>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag, double>;
using SimTime = Quantity<struct SimTimeTag, std::int64_t>;  // picoseconds: what the clock holds

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

/// `n` rounded up to a multiple of `unit`; both at least 0, unit above 0.
constexpr Bytes round_up(Bytes n, Bytes unit) {
  return Bytes{(n.count() + unit.count() - 1) / unit.count() * unit.count()};
}

/// Model time as clock time, to the nearest picosecond.
inline SimTime to_sim_time(Seconds t) {
  return SimTime{static_cast<std::int64_t>(std::llround(t.count() * 1e12))};
}
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
