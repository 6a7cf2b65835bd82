#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "models/units/dtype.hpp"
#include "models/units/units.hpp"
#include "models/units/units_format.hpp"

namespace kvsim {

/// A product as text with its numbers: "batch 2 x 18,000 entries x 32 heads x 128 x 4 B". Units are
/// literals.
class Product {
 public:
  Product& times(std::int64_t n, std::string_view unit = "") {
    count_ *= n;
    if (n != 1 || !unit.empty()) factors_.at(n_factors_++) = {n, unit};
    return *this;
  }
  Product& in(Dtype dtype) {
    bits_ = bits_of(dtype);
    return *this;
  }
  Product& in_bytes(Bytes n) {
    bits_ = 8 * n.count();
    return *this;
  }
  [[nodiscard]] Bytes bytes() const { return Bytes{(count_ * bits_ + 7) / 8}; }
  [[nodiscard]] std::string text() const {
    std::string out;
    for (std::size_t i = 0; i < n_factors_; ++i) {
      const auto& [n, unit] = factors_.at(i);
      if (unit == "batch") {
        out += "batch ";
        out += with_commas(n);
      } else {
        out += with_commas(n);
        if (!unit.empty()) out += ' ';
        out += n == 1 && unit.ends_with('s') ? unit.substr(0, unit.size() - 1) : unit;
      }
      out += " x ";
    }
    out +=
        bits_ % 8 == 0 ? with_commas(bits_ / 8) : fmt::format("{}", static_cast<double>(bits_) / 8);
    return out += " B";
  }

 private:
  static constexpr std::size_t kMostFactors = 8;
  std::array<std::pair<std::int64_t, std::string_view>, kMostFactors> factors_{};
  std::size_t n_factors_ = 0;
  std::int64_t count_ = 1;
  std::int64_t bits_ = 8;
};

}  // namespace kvsim
