#pragma once

#include <optional>
#include <string_view>

#include "models/units/units.hpp"

namespace kvsim {

/// Parse texts with a unit, as in scenario and catalogue files: a decimal number, blanks, a unit.
/// Binary (`GiB`) and decimal (`GB`) byte units are distinguished. nullopt for anything else: a
/// missing or unknown unit, a wrong dimension, a negative or non-finite number, an overflow. Bytes
/// are rounded to the nearest integer and limited to 1 EiB, times to kLongestTime.
/// 104 days; 64 bits of picoseconds overflow at 9.22e6 s
inline constexpr Seconds kLongestTime{9e6};

[[nodiscard]] std::optional<Bytes> parse_bytes(std::string_view text);               // "80 GiB"
[[nodiscard]] std::optional<BytesPerSecond> parse_bandwidth(std::string_view text);  // "3.35 TB/s"
[[nodiscard]] std::optional<FlopsPerSecond> parse_flops(std::string_view text);  // "989 TFLOP/s"
[[nodiscard]] std::optional<Seconds> parse_duration(std::string_view text);      // "200 ms"

}  // namespace kvsim
