#pragma once

// References of the stores and MiniCache: whole matrices in double, no state carried from step to
// step.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/math/half.hpp"

namespace kvsim::test {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

inline Rows rows_of(std::span<const float> flat, std::int64_t n, std::int32_t d) {
  Rows rows;
  for (std::int64_t t = 0; t < n; ++t) {
    const auto from = flat.begin() + t * d;
    rows.emplace_back(from, from + d);
  }
  return rows;
}

inline double as_fp16(double x) {
  return static_cast<double>(fp16_to_float(float_to_fp16(static_cast<float>(x))));
}

/// The values at `places` of a matrix, quantised as one group.
inline void reference_quantise(const std::vector<double*>& places, int bits) {
  double low = *places.front();
  double high = low;
  for (const double* x : places) {
    low = std::min(low, *x);
    high = std::max(high, *x);
  }
  const double top = std::pow(2.0, bits) - 1;
  const double step = as_fp16((high - low) / top);
  const double zero = as_fp16(low);
  for (double* x : places) {
    const double code = step == 0 ? 0.0 : std::clamp(std::nearbyint((*x - zero) / step), 0.0, top);
    *x = zero + step * code;
  }
}

/// KIVI's keys after `rows` tokens, at the end of the step.
inline Rows reference_kivi_keys(Rows rows, int bits, std::size_t group, std::size_t residual) {
  const std::size_t done = rows.size() / residual * residual;
  for (std::size_t first = 0; first < done; first += group) {
    for (std::size_t c = 0; c < rows.front().size(); ++c) {
      std::vector<double*> column;
      for (std::size_t i = 0; i < group; ++i) column.push_back(&rows[first + i][c]);
      reference_quantise(column, bits);
    }
  }
  return rows;
}

inline Rows reference_kivi_values(Rows rows, int bits, std::size_t group, std::size_t residual) {
  for (std::size_t t = 0; t + residual < rows.size(); ++t) {
    for (std::size_t first = 0; first < rows[t].size(); first += group) {
      std::vector<double*> part;
      for (std::size_t c = first; c < std::min(first + group, rows[t].size()); ++c) {
        part.push_back(&rows[t][c]);
      }
      reference_quantise(part, bits);
    }
  }
  return rows;
}

/// Orthonormalizes columns one after another.
inline void reference_orthonormal(std::vector<Row>& columns) {
  const auto square = [](const Row& x) {
    double sum = 0;
    for (const double v : x) sum += v * v;
    return sum;
  };
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const double before = square(columns[c]);
    for (int twice = 0; twice < 2; ++twice) {
      for (std::size_t o = 0; o < c; ++o) {
        double along = 0;
        for (std::size_t i = 0; i < columns[c].size(); ++i) along += columns[c][i] * columns[o][i];
        for (std::size_t i = 0; i < columns[c].size(); ++i) columns[c][i] -= along * columns[o][i];
      }
    }
    // Repeated tokens have the same values in the first layer: such a column vanishes.
    const double after = square(columns[c]);
    for (double& x : columns[c]) x = after > 1e-20 * before ? x / std::sqrt(after) : 0.0;
  }
}

struct ReferenceGear {
  int bits = 2;
  std::size_t group = 64, block = 64;
  double outliers = 0.02;
  std::size_t prompt_rank = 4, block_rank = 2;
  bool keys = true;

  /// The kept approximation of a block of rows.
  [[nodiscard]] Rows compressed(const Rows& rows, std::size_t rank) const {
    const std::size_t n = rows.size();
    const std::size_t d = rows.front().size();
    Rows backbone = rows;
    std::vector<std::vector<bool>> apart(n, std::vector<bool>(d, false));
    // A vector is a channel of keys or a token of values.
    for (std::size_t v = 0; v < (keys ? d : n); ++v) {
      const std::size_t length = keys ? n : d;
      const auto at = [&](std::size_t i) -> double& {
        return keys ? backbone[i][v] : backbone[v][i];
      };
      std::vector<std::pair<double, std::size_t>> sorted;
      double mean = 0;
      for (std::size_t i = 0; i < length; ++i) {
        sorted.emplace_back(at(i), i);
        mean += at(i) / static_cast<double>(length);
      }
      std::sort(sorted.begin(), sorted.end());
      const auto ends = static_cast<std::size_t>(outliers * static_cast<double>(length) / 2);
      for (std::size_t i = 0; i < length; ++i) {
        if (i >= ends && i + ends < length) continue;
        const std::size_t which = sorted[i].second;
        at(which) = mean;
        (keys ? apart[which][v] : apart[v][which]) = true;
      }
      for (std::size_t first = 0; first < length; first += group) {
        std::vector<double*> together;
        for (std::size_t i = first; i < std::min(first + group, length); ++i) {
          together.push_back(&at(i));
        }
        reference_quantise(together, bits);
      }
    }
    Rows lost(n, Row(d, 0.0));
    std::vector<std::pair<double, std::size_t>> longest;
    for (std::size_t i = 0; i < n; ++i) {
      double square = 0;
      for (std::size_t j = 0; j < d; ++j) {
        if (!apart[i][j]) lost[i][j] = rows[i][j] - backbone[i][j];
        square += lost[i][j] * lost[i][j];
      }
      longest.emplace_back(-square, i);
    }
    std::sort(longest.begin(), longest.end());
    std::vector<Row> b;
    for (const auto& [minus_square, i] : longest) {
      if (b.size() == rank || minus_square == 0) break;
      std::vector<Row> with = b;  // a linear combination of earlier rows would be lost
      with.push_back(lost[i]);
      reference_orthonormal(with);
      if (std::any_of(with.back().begin(), with.back().end(), [](double x) { return x != 0; })) {
        b.push_back(lost[i]);
      }
    }
    b.resize(rank, Row(d, 0.0));
    std::vector<Row> a(rank, Row(n));
    for (int round = 0; round < 3; ++round) {
      reference_orthonormal(b);
      for (std::size_t c = 0; c < rank; ++c) {
        for (std::size_t i = 0; i < n; ++i) {
          a[c][i] = 0;
          for (std::size_t j = 0; j < d; ++j) a[c][i] += lost[i][j] * b[c][j];
        }
      }
      reference_orthonormal(a);
      for (std::size_t c = 0; c < rank; ++c) {
        for (std::size_t j = 0; j < d; ++j) {
          b[c][j] = 0;
          for (std::size_t i = 0; i < n; ++i) b[c][j] += lost[i][j] * a[c][i];
        }
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < d; ++j) {
        if (apart[i][j]) {
          backbone[i][j] = rows[i][j];
          continue;
        }
        for (std::size_t c = 0; c < rank; ++c) {
          backbone[i][j] += as_fp16(a[c][i]) * as_fp16(b[c][j]);
        }
      }
    }
    return backbone;
  }
  /// Rows at the end of a step; the first `prompt` were appended at once.
  [[nodiscard]] Rows operator()(const Rows& rows, std::size_t prompt) const {
    Rows kept = rows;
    std::size_t done = 0;
    const auto compress = [&](std::size_t tokens, std::size_t rank) {
      if (tokens == 0) return;
      const auto first = rows.begin() + static_cast<std::ptrdiff_t>(done);
      const Rows block_rows =
          compressed({first, first + static_cast<std::ptrdiff_t>(tokens)}, rank);
      std::copy(block_rows.begin(), block_rows.end(),
                kept.begin() + static_cast<std::ptrdiff_t>(done));
      done += tokens;
    };
    compress(prompt / block * block, prompt_rank);
    while (rows.size() - done >= block) compress(block, block_rank);
    return kept;
  }
};

/// 8 bits per row, symmetric, after division by `scales`, for which queries compensate.
inline Rows reference_int8(Rows rows, const Row& scales) {
  for (Row& row : rows) {
    double max = 0;
    for (std::size_t j = 0; j < row.size(); ++j) max = std::max(max, std::abs(row[j] / scales[j]));
    const double step = as_fp16(max / 127);
    for (std::size_t j = 0; j < row.size(); ++j) {
      const double code = std::nearbyint(row[j] / scales[j] / step);
      row[j] = std::clamp(code, -127.0, 127.0) * step * scales[j];
    }
  }
  return rows;
}

inline double norm_of(const Row& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}
inline double angle_between(const Row& a, const Row& b) {
  double product = 0;
  for (std::size_t j = 0; j < a.size(); ++j) product += a[j] * b[j];
  return std::acos(std::clamp(product / norm_of(a) / norm_of(b), -1.0, 1.0));
}

/// MiniCache's restored rows of both layers, tokens before `prompt` subject to retention. Rows
/// belong to the unit (all heads concatenated, or one head).
struct ReferencePair {
  Rows shallow, deep;
  std::vector<bool> retained;
};
inline ReferencePair reference_minicache(const Rows& shallow, const Rows& deep, std::size_t prompt,
                                         const std::string& rule, const std::string& merge,
                                         double t, double gamma) {
  ReferencePair pair{shallow, deep, std::vector<bool>(shallow.size(), false)};
  Row distance;
  for (std::size_t i = 0; i < prompt; ++i) {
    distance.push_back(angle_between(shallow[i], deep[i]) / std::numbers::pi);
  }
  const double far = *std::max_element(distance.begin(), distance.end());
  const double near = *std::min_element(distance.begin(), distance.end());
  Row sorted = distance;
  std::sort(sorted.rbegin(), sorted.rend());
  const auto count = static_cast<std::size_t>(std::ceil(gamma * static_cast<double>(prompt)));
  for (std::size_t i = 0; i < prompt; ++i) {
    if (rule == "range_far") pair.retained[i] = distance[i] > far - gamma * (far - near);
    if (rule == "paper_literal") pair.retained[i] = distance[i] < near + gamma * (far - near);
    if (rule == "topk_far") pair.retained[i] = count > 0 && distance[i] >= sorted[count - 1];
  }
  for (std::size_t i = 0; i < shallow.size(); ++i) {
    if (pair.retained[i]) continue;
    const double a = norm_of(shallow[i]);
    const double b = norm_of(deep[i]);
    const double angle = angle_between(shallow[i], deep[i]);
    for (std::size_t j = 0; j < shallow[i].size(); ++j) {
      const double mean = (shallow[i][j] + deep[i][j]) / 2;
      if (merge == "slerp") {
        const double e =
            (std::sin((1 - t) * angle) * shallow[i][j] / a + std::sin(t * angle) * deep[i][j] / b) /
            std::sin(angle);
        pair.shallow[i][j] = e * a;
        pair.deep[i][j] = e * b;
      } else {
        pair.shallow[i][j] = pair.deep[i][j] = mean;
      }
    }
    if (merge == "max_norm") {
      const double factor = std::max(a, b) / norm_of(pair.shallow[i]);
      for (double& x : pair.shallow[i]) x *= factor;
      pair.deep[i] = pair.shallow[i];
    }
  }
  return pair;
}

}  // namespace kvsim::test
