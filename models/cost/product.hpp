#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "models/units/dtype.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// The size of a tensor as a product of factors: "batch 2 x 18,000 entries x 32 heads x 128 x 4 B".
/// Units are literals.
class Product {
 public:
  Product& times(std::int64_t n, const char* unit = "") {
    count_ *= n;
    if (n != 1 || *unit != '\0') factors_.at(n_factors_++) = {n, unit};
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
  [[nodiscard]] std::string text() const;

 private:
  struct Factor {
    std::int64_t n = 0;
    const char* unit = "";
  };
  static constexpr std::size_t kMaxFactors = 6;
  std::array<Factor, kMaxFactors> factors_{};
  std::size_t n_factors_ = 0;
  std::int64_t count_ = 1;
  std::int64_t bits_ = 8;
};

}  // namespace kvsim
