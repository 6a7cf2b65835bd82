#include "models/math/merging/cosine_search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <type_traits>

#include <Eigen/Core>

#include "models/math/lanes.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

using lanes::D4;
using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

double inverse(double squared_norm) {
  return squared_norm > 0 ? 1.0 / std::sqrt(squared_norm) : 0.0;
}

/// Normalises rows to unit length; zero rows stay zero.
Rows unit_rows(std::span<const float> rows, std::size_t d) {
  const std::size_t n = rows.size() / d;
  Rows unit(static_cast<Eigen::Index>(n), static_cast<Eigen::Index>(d));
  for (std::size_t i = 0; i < n; ++i) {
    double norm = 0;
    for (std::size_t j = 0; j < d; ++j) {
      const auto x = static_cast<double>(rows[i * d + j]);
      norm += x * x;
    }
    const double by = inverse(norm);
    for (std::size_t j = 0; j < d; ++j) {
      unit(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(j)) =
          static_cast<double>(rows[i * d + j]) * by;
    }
  }
  return unit;
}

}  // namespace

void cosines(std::span<const float> row, std::span<const float> keys, std::span<double> cosine) {
  const std::size_t d = row.size();
  KVSIM_CHECK(d > 0 && keys.size() == cosine.size() * d, "{} elements of keys for {} rows of {}",
              keys.size(), cosine.size(), d);
  double own = 0;
  for (const float x : row) own += static_cast<double>(x) * static_cast<double>(x);
  const double by = inverse(own);
  const std::size_t whole = d / 4 * 4;
  // Sums of several keys are interleaved, since each waits for its previous addition. The order of
  // a key's additions does not depend on the number of keys.
  const auto of_keys = [&]<std::size_t kKeys>(std::size_t first,
                                              std::integral_constant<std::size_t, kKeys>) {
    const float* key = keys.data() + first * d;
    std::array<D4, kKeys> product{}, norm{};
    for (std::size_t j = 0; j < whole; j += 4) {
      const D4 x = lanes::load(row.data() + j);
      for (std::size_t i = 0; i < kKeys; ++i) {
        const D4 k = lanes::load(key + i * d + j);
        product[i] = lanes::multiply_add(x, k, product[i]);
        norm[i] = lanes::multiply_add(k, k, norm[i]);
      }
    }
    for (std::size_t i = 0; i < kKeys; ++i) {
      double dot = lanes::fold(product[i]);
      double square = lanes::fold(norm[i]);
      for (std::size_t j = whole; j < d; ++j) {
        const auto k = static_cast<double>(key[i * d + j]);
        dot += static_cast<double>(row[j]) * k;
        square += k * k;
      }
      cosine[first + i] = dot * by * inverse(square);
    }
  };
  constexpr std::size_t kTogether = 4;
  std::size_t i = 0;
  for (; i + kTogether <= cosine.size(); i += kTogether) {
    of_keys(i, std::integral_constant<std::size_t, kTogether>{});
  }
  for (; i < cosine.size(); ++i) of_keys(i, std::integral_constant<std::size_t, 1>{});
}

std::vector<CosineMatch> best_cosines(std::span<const float> rows, std::span<const float> keys,
                                      std::int32_t d, bool same) {
  KVSIM_CHECK(d >= 1, "rows of {}", d);
  const auto width = static_cast<std::size_t>(d);
  KVSIM_CHECK(rows.size() % width == 0 && keys.size() % width == 0, "{} and {} elements of {}",
              rows.size(), keys.size(), d);
  const Rows from = unit_rows(rows, width);
  const Rows to = same ? Rows{} : unit_rows(keys, width);
  const Rows& others = same ? from : to;
  std::vector<CosineMatch> best(static_cast<std::size_t>(from.rows()));
  constexpr Eigen::Index kBlock = 64;
  Rows block;
  for (Eigen::Index first = 0; first < from.rows(); first += kBlock) {
    const Eigen::Index n = std::min(kBlock, from.rows() - first);
    block.noalias() = from.middleRows(first, n) * others.transpose();
    for (Eigen::Index i = 0; i < n; ++i) {
      CosineMatch& match = best[static_cast<std::size_t>(first + i)];
      for (Eigen::Index j = 0; j < block.cols(); ++j) {
        if (same && j == first + i) continue;
        if (match.index < 0 || block(i, j) > match.cosine) {
          match = {.index = static_cast<std::int32_t>(j), .cosine = block(i, j)};
        }
      }
    }
  }
  return best;
}

}  // namespace kvsim
