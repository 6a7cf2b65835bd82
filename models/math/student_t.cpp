#include "models/math/student_t.hpp"

#include <array>

#include "models/units/check.hpp"

namespace kvsim {

double student_t_975(std::int64_t degrees) {
  KVSIM_CHECK(degrees >= 1, "{} degrees of freedom", degrees);
  // Abramowitz and Stegun, table 26.10.
  constexpr std::array kTable{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                              2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                              2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                              2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
  if (degrees <= static_cast<std::int64_t>(kTable.size())) {
    return kTable[static_cast<std::size_t>(degrees - 1)];
  }
  // Cornish and Fisher's expansion (26.7.5), accurate to 1e-5 for at least 30 degrees.
  const auto v = static_cast<double>(degrees);
  constexpr double z = 1.959964;
  const double z3 = z * z * z;
  const double z5 = z3 * z * z;
  return z + (z3 + z) / (4 * v) + (5 * z5 + 16 * z3 + 3 * z) / (96 * v * v);
}

}  // namespace kvsim
