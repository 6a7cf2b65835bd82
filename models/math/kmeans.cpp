#include "models/math/kmeans.hpp"

#include <algorithm>
#include <limits>

#include "models/units/check.hpp"

namespace kvsim {

std::vector<float> kmeans_levels(std::vector<float> values, std::int32_t count,
                                 std::int32_t iterations) {
  KVSIM_CHECK(!values.empty() && count >= 1, "{} levels of {} numbers", count, values.size());
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  const auto k = static_cast<std::size_t>(count);
  std::vector<double> sums(n + 1, 0.0);  // prefix sums
  for (std::size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + static_cast<double>(values[i]);
  std::vector<double> levels;
  for (std::size_t i = 0; i < k; ++i) {
    levels.push_back(static_cast<double>(values[(2 * i + 1) * n / (2 * k)]));
  }
  std::vector<std::size_t> ends(k, 0);  // of each level's values
  for (std::int32_t step = 0; step < iterations; ++step) {
    std::vector<std::size_t> now;
    for (std::size_t i = 0; i + 1 < k; ++i) {
      const double middle = (levels[i] + levels[i + 1]) / 2;  // belongs to the lower level
      now.push_back(static_cast<std::size_t>(
          std::upper_bound(values.begin(), values.end(), middle,
                           [](double a, float b) { return a < static_cast<double>(b); }) -
          values.begin()));
    }
    now.push_back(n);
    if (now == ends) break;
    ends = now;
    std::size_t first = 0;
    for (std::size_t i = 0; i < k; ++i) {
      if (ends[i] > first) {
        levels[i] = (sums[ends[i]] - sums[first]) / static_cast<double>(ends[i] - first);
      }
      first = std::max(first, ends[i]);
    }
  }
  std::vector<float> out;
  for (const double x : levels) out.push_back(static_cast<float>(x));
  return out;
}

namespace {

/// nearest_centre for many rows: the loop over centres is the inner one, so it is vectorised. Each
/// distance is summed in the same order.
class NearestCentre {
 public:
  NearestCentre(std::span<const float> centres, std::size_t width)
      : count_{centres.size() / width}, channels_(centres.size()), distances_(count_) {
    for (std::size_t c = 0; c < count_; ++c) {
      for (std::size_t j = 0; j < width; ++j) {
        channels_[j * count_ + c] = static_cast<double>(centres[c * width + j]);
      }
    }
  }

  [[nodiscard]] std::int32_t operator()(std::span<const float> row) {
    std::fill(distances_.begin(), distances_.end(), 0.0);
    for (std::size_t j = 0; j < row.size(); ++j) {
      const auto value = static_cast<double>(row[j]);
      const double* channel = channels_.data() + j * count_;
      for (std::size_t c = 0; c < count_; ++c) {
        const double x = value - channel[c];
        distances_[c] += x * x;
      }
    }
    return static_cast<std::int32_t>(std::min_element(distances_.begin(), distances_.end()) -
                                     distances_.begin());
  }

 private:
  std::size_t count_;
  std::vector<double> channels_;  // [width, count]
  std::vector<double> distances_;
};

}  // namespace

std::int32_t nearest_centre(std::span<const float> row, std::span<const float> centres) {
  std::int32_t best = 0;
  double min = std::numeric_limits<double>::infinity();
  for (std::size_t c = 0; c * row.size() < centres.size(); ++c) {
    double distance = 0;
    for (std::size_t j = 0; j < row.size(); ++j) {
      const double x =
          static_cast<double>(row[j]) - static_cast<double>(centres[c * row.size() + j]);
      distance += x * x;
    }
    if (distance < min) {
      min = distance;
      best = static_cast<std::int32_t>(c);
    }
  }
  return best;
}

KmeansRows kmeans_rows(std::span<const float> rows, std::int32_t d, std::int32_t count,
                       std::int32_t iterations) {
  const auto width = static_cast<std::size_t>(std::max(d, 1));
  const std::size_t n = rows.size() / width;
  const auto k = static_cast<std::size_t>(count);
  KVSIM_CHECK(d >= 1 && n >= 1 && count >= 1 && rows.size() % width == 0,
              "{} centres of {} numbers in rows of {}", count, rows.size(), d);
  KmeansRows out;
  for (std::size_t c = 0; c < k; ++c) {
    const auto row = rows.subspan((2 * c + 1) * n / (2 * k) * width, width);
    out.centres.insert(out.centres.end(), row.begin(), row.end());
  }
  const auto assign = [&] {
    bool changed = false;
    NearestCentre nearest{out.centres, width};
    for (std::size_t i = 0; i < n; ++i) {
      const std::int32_t at = nearest(rows.subspan(i * width, width));
      changed = changed || out.nearest[i] != at;
      out.nearest[i] = at;
    }
    return changed;
  };
  out.nearest.assign(n, -1);
  assign();
  for (std::int32_t step = 0; step < iterations; ++step) {
    std::vector<double> sums(k * width, 0.0);
    std::vector<std::size_t> sizes(k, 0);
    for (std::size_t i = 0; i < n; ++i) {
      const auto c = static_cast<std::size_t>(out.nearest[i]);
      ++sizes[c];
      for (std::size_t j = 0; j < width; ++j) {
        sums[c * width + j] += static_cast<double>(rows[i * width + j]);
      }
    }
    for (std::size_t c = 0; c < k; ++c) {
      if (sizes[c] == 0) continue;
      for (std::size_t j = 0; j < width; ++j) {
        out.centres[c * width + j] =
            static_cast<float>(sums[c * width + j] / static_cast<double>(sizes[c]));
      }
    }
    if (!assign()) break;
  }
  return out;
}

}  // namespace kvsim
