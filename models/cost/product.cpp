#include "models/cost/product.hpp"

#include <string_view>

#include <fmt/format.h>

#include "models/units/units_format.hpp"

namespace kvsim {

std::string Product::text() const {
  std::string out;
  for (std::size_t i = 0; i < n_factors_; ++i) {
    const std::int64_t n = factors_.at(i).n;
    const std::string_view unit = factors_.at(i).unit;
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

}  // namespace kvsim
