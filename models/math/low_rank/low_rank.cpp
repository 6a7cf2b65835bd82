#include "models/math/low_rank/low_rank.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

/// Modified Gram-Schmidt, applied twice, on the columns of m [rows, columns]. A column that
/// vanishes becomes zero.
void orthonormalise(std::vector<double>& m, std::size_t rows, std::size_t columns) {
  for (std::size_t c = 0; c < columns; ++c) {
    const auto norm_of = [&] {
      double sum = 0;
      for (std::size_t i = 0; i < rows; ++i) sum += m[i * columns + c] * m[i * columns + c];
      return std::sqrt(sum);
    };
    const double before = norm_of();
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t other = 0; other < c; ++other) {
        double along = 0;
        for (std::size_t i = 0; i < rows; ++i) {
          along += m[i * columns + c] * m[i * columns + other];
        }
        for (std::size_t i = 0; i < rows; ++i) {
          m[i * columns + c] -= along * m[i * columns + other];
        }
      }
    }
    const double after = norm_of();
    const double factor = after > 1e-10 * before && after > 0 ? 1.0 / after : 0.0;
    for (std::size_t i = 0; i < rows; ++i) m[i * columns + c] *= factor;
  }
}

/// Returns the starting rows: the `r` rows of largest norm outside the span of the previous ones,
/// or fewer if there are not enough. Two collinear rows would start in one direction, and the other
/// direction would be lost.
std::vector<std::size_t> starting_rows(std::span<const double> x, std::size_t rows,
                                       std::size_t width, std::size_t r) {
  std::vector<double> norms(rows, 0.0);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < width; ++j) norms[i] += x[i * width + j] * x[i * width + j];
  }
  std::vector<std::size_t> order(rows);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&norms](std::size_t a, std::size_t b) {
    return norms[a] != norms[b] ? norms[a] > norms[b] : a < b;
  });
  constexpr double kNew = 1e-16;  // minimum share of a row's squared norm outside the others' span
  std::vector<std::size_t> chosen;
  std::vector<double> basis;  // [chosen, width], orthonormal
  std::vector<double> rest(width);
  for (const std::size_t row : order) {
    if (chosen.size() == r || norms[row] == 0) break;
    std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(row * width), width, rest.begin());
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t c = 0; c < chosen.size(); ++c) {
        double along = 0;
        for (std::size_t j = 0; j < width; ++j) along += rest[j] * basis[c * width + j];
        for (std::size_t j = 0; j < width; ++j) rest[j] -= along * basis[c * width + j];
      }
    }
    double left = 0;
    for (const double each : rest) left += each * each;
    if (left <= kNew * norms[row]) continue;
    for (double& each : rest) each /= std::sqrt(left);
    basis.insert(basis.end(), rest.begin(), rest.end());
    chosen.push_back(row);
  }
  return chosen;
}

}  // namespace

LowRank power_iteration(std::span<const double> x, std::int32_t n, std::int32_t d,
                        std::int32_t rank, std::int32_t rounds) {
  const auto rows = static_cast<std::size_t>(n);
  const auto width = static_cast<std::size_t>(d);
  KVSIM_CHECK(x.size() == rows * width && rounds >= 1 && rank >= 0,
              "{} values of {} x {}, rank {}, {} rounds", x.size(), n, d, rank, rounds);
  LowRank result;
  result.rank = std::min({rank, n, d});
  const auto r = static_cast<std::size_t>(result.rank);
  result.a.assign(rows * r, 0.0);
  result.b.assign(width * r, 0.0);
  if (r == 0) return result;

  const std::vector<std::size_t> start = starting_rows(x, rows, width, r);
  for (std::size_t c = 0; c < start.size(); ++c) {
    for (std::size_t j = 0; j < width; ++j) result.b[j * r + c] = x[start[c] * width + j];
  }
  for (std::int32_t round = 0; round < rounds; ++round) {
    orthonormalise(result.b, width, r);
    std::fill(result.a.begin(), result.a.end(), 0.0);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < width; ++j) {
        const double value = x[i * width + j];
        for (std::size_t c = 0; c < r; ++c) result.a[i * r + c] += value * result.b[j * r + c];
      }
    }
    orthonormalise(result.a, rows, r);
    std::fill(result.b.begin(), result.b.end(), 0.0);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < width; ++j) {
        const double value = x[i * width + j];
        for (std::size_t c = 0; c < r; ++c) result.b[j * r + c] += value * result.a[i * r + c];
      }
    }
  }
  return result;
}

}  // namespace kvsim
