#pragma once

#include <span>

namespace kvsim {

/// Common direction of two rows.
struct Slerp {
  double angle = 0;  // between the rows, in [0, pi]; 0 if one of them is zero
  double norm_a = 0, norm_b = 0;
  bool antipodal = false;  // angle > pi - 1e-4: the direction is undefined, so b's was taken
};

/// Spherical linear interpolation between the directions of a and b, weight t towards b:
///
///   e = sin((1-t) angle) / sin(angle) * a/|a| + sin(t angle) / sin(angle) * b/|b|
///
/// a, b, e [h]; e has norm 1, or 0 if both rows are zero. If one row is zero, e is the direction of
/// the other. Below 1e-4 rad the interpolation is linear, then normalised. Computed in fp64.
/// Throws ContractError if lengths disagree. Source: MiniCache (Liu et al. 2024), eq. (3).
Slerp slerp(std::span<const double> a, std::span<const double> b, double t, std::span<double> e);

}  // namespace kvsim
