#pragma once

#include <compare>
#include <cstdint>
#include <type_traits>

#include "models/units/error.hpp"

namespace kvsim {

/// A count of bytes or picoseconds exceeds 64 bits: the input is too large or too slow.
class OverflowError : public InputError {
 public:
  using InputError::InputError;
};

/// Throws OverflowError, which names the quantity and its largest value.
template <class Dimension>
[[noreturn]] inline void overflowed() {
  throw OverflowError{Dimension::kTooLarge};
}

/// `v` converts to `To` without narrowing, so `Bytes{1.5}` and `Bytes{80} * 0.5` do not compile.
template <class T, class To>
concept LosslessTo = requires(T v) {
  To{v};
};

/// A number with its dimension in the type. Only sums, differences and ratios of the same quantity
/// and scaling by a plain number are defined here; products between dimensions are in units.hpp.
/// Integer quantities never wrap: sums, differences and products beyond `Rep` throw OverflowError.
template <class Dimension, class Rep>
class Quantity {
 public:
  using dimension = Dimension;
  using rep = Rep;

  constexpr Quantity() = default;
  template <LosslessTo<Rep> T>
  constexpr explicit Quantity(T value) : value_{value} {}

  /// The value in the base unit (bytes, FLOP, seconds, picoseconds, per second).
  [[nodiscard]] constexpr Rep count() const { return value_; }

  friend constexpr auto operator<=>(Quantity, Quantity) = default;

  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    if constexpr (std::is_integral_v<Rep>) {
      Rep sum{};
      if (__builtin_add_overflow(a.value_, b.value_, &sum)) overflowed<Dimension>();
      return Quantity{sum};
    } else {
      return Quantity{a.value_ + b.value_};
    }
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    if constexpr (std::is_integral_v<Rep>) {
      Rep difference{};
      if (__builtin_sub_overflow(a.value_, b.value_, &difference)) overflowed<Dimension>();
      return Quantity{difference};
    } else {
      return Quantity{a.value_ - b.value_};
    }
  }
  constexpr Quantity& operator+=(Quantity b) { return *this = *this + b; }
  constexpr Quantity& operator-=(Quantity b) { return *this = *this - b; }
  template <LosslessTo<Rep> T>
  friend constexpr Quantity operator*(Quantity a, T factor) {
    if constexpr (std::is_integral_v<Rep>) {
      Rep product{};
      if (__builtin_mul_overflow(a.value_, static_cast<Rep>(factor), &product)) {
        overflowed<Dimension>();
      }
      return Quantity{product};
    } else {
      return Quantity{a.value_ * static_cast<Rep>(factor)};
    }
  }
  template <LosslessTo<Rep> T>
  friend constexpr Quantity operator*(T factor, Quantity a) {
    return a * factor;
  }
  /// The ratio as a real number.
  friend constexpr double operator/(Quantity a, Quantity b) {
    return static_cast<double>(a.value_) / static_cast<double>(b.value_);
  }

 private:
  Rep value_{};
};

}  // namespace kvsim
