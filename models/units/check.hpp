#pragma once

#include <stdexcept>
#include <string>

#include <fmt/format.h>

namespace kvsim {

/// An internal contract is violated: a bug in the program, not an error in its input.
class ContractError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] inline void contract_failed(const char* file, int line, const char* condition,
                                         const std::string& message) {
  throw ContractError{fmt::format("{}:{}: {} ({})", file, line, message, condition)};
}

}  // namespace kvsim

/// Checked in every build type: KVSIM_CHECK(n > 0, "n is {}", n).
#define KVSIM_CHECK(condition, ...)                                                       \
  do {                                                                                    \
    if (!(condition)) [[unlikely]] {                                                      \
      ::kvsim::contract_failed(__FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
    }                                                                                     \
  } while (false)
