#include "models/math/merging/slerp.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/units/check.hpp"

namespace kvsim {

Slerp slerp(std::span<const double> a, std::span<const double> b, double t, std::span<double> e) {
  KVSIM_CHECK(a.size() == b.size() && a.size() == e.size(), "rows of {}, {} and {}", a.size(),
              b.size(), e.size());
  constexpr double kSmall = 1e-4;
  Slerp result;
  double product = 0;
  for (std::size_t j = 0; j < a.size(); ++j) {
    result.norm_a += a[j] * a[j];
    result.norm_b += b[j] * b[j];
    product += a[j] * b[j];
  }
  result.norm_a = std::sqrt(result.norm_a);
  result.norm_b = std::sqrt(result.norm_b);
  double from_a = 0;
  double from_b = 0;
  if (result.norm_a > 0 && result.norm_b > 0) {
    result.angle = std::acos(std::clamp(product / (result.norm_a * result.norm_b), -1.0, 1.0));
    result.antipodal = result.angle > std::numbers::pi - kSmall;
    if (result.antipodal) {
      from_b = 1.0;
    } else if (result.angle < kSmall) {
      from_a = 1.0 - t;
      from_b = t;
    } else {
      from_a = std::sin((1.0 - t) * result.angle) / std::sin(result.angle);
      from_b = std::sin(t * result.angle) / std::sin(result.angle);
    }
  } else {
    from_a = result.norm_a > 0 ? 1.0 : 0.0;
    from_b = result.norm_b > 0 ? 1.0 : 0.0;
  }
  if (from_a != 0) from_a /= result.norm_a;
  if (from_b != 0) from_b /= result.norm_b;
  double norm = 0;
  for (std::size_t j = 0; j < a.size(); ++j) {
    e[j] = from_a * a[j] + from_b * b[j];
    norm += e[j] * e[j];
  }
  norm = std::sqrt(norm);
  // Linear interpolation shortens the vector; spherical interpolation only rounds.
  if (norm > 0) {
    for (double& x : e) x /= norm;
  }
  return result;
}

}  // namespace kvsim
