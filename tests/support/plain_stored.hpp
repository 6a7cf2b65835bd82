#pragma once

// The stores and MiniCache told once more in the most obvious way: whole matrices in double, no
// state carried from step to step.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>
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

/// The values at `places` of a matrix, quantised together.
inline void plain_quantise(const std::vector<double*>& places, int bits) {
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

/// KIVI's keys when `rows` tokens have come and the step is over.
inline Rows plain_kivi_keys(Rows rows, int bits, std::size_t group, std::size_t residual) {
  const std::size_t done = rows.size() / residual * residual;
  for (std::size_t first = 0; first < done; first += group) {
    for (std::size_t c = 0; c < rows.front().size(); ++c) {
      std::vector<double*> column;
      for (std::size_t i = 0; i < group; ++i) column.push_back(&rows[first + i][c]);
      plain_quantise(column, bits);
    }
  }
  return rows;
}

inline Rows plain_kivi_values(Rows rows, int bits, std::size_t group, std::size_t residual) {
  for (std::size_t t = 0; t + residual < rows.size(); ++t) {
    for (std::size_t first = 0; first < rows[t].size(); first += group) {
      std::vector<double*> part;
      for (std::size_t c = first; c < std::min(first + group, rows[t].size()); ++c) {
        part.push_back(&rows[t][c]);
      }
      plain_quantise(part, bits);
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

/// MiniCache's restored rows of both layers, tokens before `prompt` subject to retention. Rows are
/// those of the unit (all heads side by side, or one head).
struct PlainPair {
  Rows shallow, deep;
  std::vector<bool> retained;
};
inline PlainPair plain_minicache(const Rows& shallow, const Rows& deep, std::size_t prompt,
                                 const std::string& rule, const std::string& merge, double t,
                                 double gamma) {
  PlainPair pair{shallow, deep, std::vector<bool>(shallow.size(), false)};
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
