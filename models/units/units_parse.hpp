#pragma once

#include <optional>
#include <string_view>

#include "models/units/units.hpp"

namespace kvsim {

/// Texts with a unit, as scenario and catalogue files write them: a decimal number, blanks, a unit.
/// Binary (`GiB`) and decimal (`GB`) byte units mean what they say. nullopt for anything else:
/// no unit, an unknown unit, a wrong dimension, a negative or non-finite number, an
/// overflow. Bytes are rounded to the nearest whole one and end at 1 EiB, times at kLongestTime.
inline constexpr Seconds kLongestTime{9e6};  // 104 days; picoseconds in 64 bits end at 9.22e6 s

[[nodiscard]] std::optional<Bytes> parse_bytes(std::string_view text);               // "80 GiB"
[[nodiscard]] std::optional<BytesPerSecond> parse_bandwidth(std::string_view text);  // "3.35 TB/s"
[[nodiscard]] std::optional<FlopsPerSecond> parse_flops(std::string_view text);  // "989 TFLOP/s"
[[nodiscard]] std::optional<Seconds> parse_duration(std::string_view text);      // "200 ms"

}  // namespace kvsim
