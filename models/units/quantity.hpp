#pragma once

#include <compare>
#include <cstdint>

namespace kvsim {

/// `v` becomes a `To` without narrowing, so `Bytes{1.5}` and `Bytes{80} * 0.5` do not compile.
template <class T, class To>
concept LosslessTo = requires(T v) {
  To{v};
};

/// A number with its dimension in the type. Only sums, differences and ratios of like quantities
/// and scaling by a plain number are defined here; products between dimensions are in units.hpp.
template <class Dimension, class Rep>
class Quantity {
 public:
  using rep = Rep;

  constexpr Quantity() = default;
  template <LosslessTo<Rep> T>
  constexpr explicit Quantity(T value) : value_{value} {}

  /// The value in the base unit (bytes, FLOP, seconds, picoseconds, per second).
  [[nodiscard]] constexpr Rep count() const { return value_; }

  friend constexpr auto operator<=>(Quantity, Quantity) = default;

  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity{a.value_ + b.value_};
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity{a.value_ - b.value_};
  }
  constexpr Quantity& operator+=(Quantity b) {
    value_ += b.value_;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity b) {
    value_ -= b.value_;
    return *this;
  }
  template <LosslessTo<Rep> T>
  friend constexpr Quantity operator*(Quantity a, T factor) {
    return Quantity{a.value_ * static_cast<Rep>(factor)};
  }
  template <LosslessTo<Rep> T>
  friend constexpr Quantity operator*(T factor, Quantity a) {
    return a * factor;
  }
  /// How many times `b` goes into `a`, as a real number.
  friend constexpr double operator/(Quantity a, Quantity b) {
    return static_cast<double>(a.value_) / static_cast<double>(b.value_);
  }

 private:
  Rep value_{};
};

}  // namespace kvsim
