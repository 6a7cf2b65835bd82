#pragma once

#include <utility>
#include <variant>

#include "models/units/check.hpp"

namespace kvsim {

/// A value, or the reason for its absence ("does not fit" is an answer, not an error).
template <class T, class Reason>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_{std::in_place_index<0>, std::move(value)} {}         // NOLINT: implicit
  Result(Reason reason) : state_{std::in_place_index<1>, std::move(reason)} {}  // NOLINT: implicit

  [[nodiscard]] bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  /// Throws ContractError if there is no value.
  [[nodiscard]] const T& value() const {
    KVSIM_CHECK(has_value(), "value() of a Result that holds a reason");
    return *std::get_if<0>(&state_);
  }
  [[nodiscard]] const Reason& error() const {
    KVSIM_CHECK(!has_value(), "error() of a Result that holds a value");
    return *std::get_if<1>(&state_);
  }

 private:
  std::variant<T, Reason> state_;
};

}  // namespace kvsim
