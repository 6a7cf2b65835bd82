#pragma once

#include <charconv>
#include <concepts>

namespace kvsim {

/// std::from_chars of a double, also for C++ libraries without it (libc++ before 20): the same
/// grammar (no leading blank, no "+", no "0x"), nearest value, end and error. `fixed` rejects
/// exponents. An out-of-range number leaves `value` unchanged.
[[nodiscard]] std::from_chars_result number_from_chars(const char* first, const char* last,
                                                       double& value, bool fixed = false);

/// Overload for integers, for templates over both.
template <std::integral T>
[[nodiscard]] std::from_chars_result number_from_chars(const char* first, const char* last,
                                                       T& value) {
  return std::from_chars(first, last, value);
}

}  // namespace kvsim
