#pragma once

#include <charconv>
#include <concepts>

namespace kvsim {

/// std::from_chars of a double, for C++ libraries that have none (libc++ before 20) as well: the
/// same grammar (no leading blank, no "+", no "0x"), the same nearest value, the same end and
/// error. `fixed` takes no exponent. A number out of range leaves `value` unchanged.
[[nodiscard]] std::from_chars_result number_from_chars(const char* first, const char* last,
                                                       double& value, bool fixed = false);

/// The same name for whole numbers, for templates over both.
template <std::integral T>
[[nodiscard]] std::from_chars_result number_from_chars(const char* first, const char* last,
                                                       T& value) {
  return std::from_chars(first, last, value);
}

}  // namespace kvsim
