#include "sim/replay/best_mass.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "models/math/tiles/panels.hpp"
#include "models/math/tiles/tile_kernels.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

/// Sums of the largest weights of rows; weights are not negative. Bisects the bit patterns of
/// weights, which have the order of their values, for the smallest of the largest weights: starts
/// close to that of the previous row and ends when few weights are left, of which it sorts a part.
/// Loops compare bit patterns, since comparisons of floating-point numbers are not vectorised.
class LargestSums {
 public:
  void start(std::span<const float> row) {
    row_ = row;
    total_ = sum_from(0);
  }
  /// Returns the share of the row in its `count` largest weights.
  [[nodiscard]] double share(std::size_t count) {
    if (count >= row_.size()) return 1.0;
    constexpr std::int32_t kNear = 1 << 20;  // an eighth of an octave
    std::int32_t low = 0, high = bits(std::numeric_limits<float>::infinity());
    // Of the weights, more than `count` are at least `low`, and `larger` <= count at least `high`.
    std::size_t at_least_low = row_.size(), larger = 0;
    const auto split = [&](std::int32_t at) {
      if (at <= low || at >= high) return;
      const std::size_t found = count_from(at);
      (found > count ? low : high) = at;
      (found > count ? at_least_low : larger) = found;
    };
    if (last_ > kNear) {
      split(last_ - kNear);
      split(last_ + kNear);
    }
    const std::size_t few = std::max<std::size_t>(row_.size() / 256, 64);
    while (larger < count && at_least_low - larger > few && high - low > 1) {
      split(low + (high - low) / 2);
    }
    double sum = sum_from(high);
    last_ = high;
    if (larger < count) {
      collect(low, high);
      const auto nth = band_.begin() + static_cast<std::ptrdiff_t>(count - larger);
      std::nth_element(band_.begin(), nth, band_.end(), std::greater<>{});
      for (auto each = band_.begin(); each != nth; ++each) sum += static_cast<double>(*each);
      last_ = bits(*nth);
    }
    return std::min(sum / total_, 1.0);
  }

 private:
  static constexpr std::size_t kLanes = 16;
  static std::int32_t bits(float x) { return std::bit_cast<std::int32_t>(x); }

  [[nodiscard]] std::size_t count_from(std::int32_t low) const {
    std::int32_t count = 0;
    for (const float x : row_) count += bits(x) >= low ? 1 : 0;
    return static_cast<std::size_t>(count);
  }
  /// Returns the sum of the weights that are at least `low`, in lanes.
  [[nodiscard]] double sum_from(std::int32_t low) const {
    std::array<double, kLanes> lanes{};
    const auto add = [&](std::size_t i, std::size_t lane) {
      const std::int32_t x = bits(row_[i]);
      lanes[lane] += static_cast<double>(std::bit_cast<float>(x & -std::int32_t{x >= low}));
    };
    std::size_t i = 0;
    for (; i + kLanes <= row_.size(); i += kLanes) {
      for (std::size_t l = 0; l < kLanes; ++l) add(i + l, l);
    }
    for (; i < row_.size(); ++i) add(i, 0);
    return std::accumulate(lanes.begin(), lanes.end(), 0.0);
  }
  /// Writes the weights in [low, end) to band_. Most blocks have none.
  void collect(std::int32_t low, std::int32_t end) {
    band_.clear();
    for (std::size_t at = 0; at < row_.size(); at += kLanes) {
      const auto block = row_.subspan(at, std::min(kLanes, row_.size() - at));
      std::int32_t found = 0;
      for (const float x : block)
        found |= std::int32_t{bits(x) >= low} & std::int32_t{bits(x) < end};
      if (found == 0) continue;
      for (const float x : block) {
        if (bits(x) >= low && bits(x) < end) band_.push_back(x);
      }
    }
  }

  std::span<const float> row_;
  std::int32_t last_ = 0;  // bit pattern of the previous row's smallest weight; 0: none
  double total_ = 0;
  std::vector<float> band_;
};

/// Writes from [rows, width] to columns that are `stride` numbers apart, in blocks of 4 x 4.
/// `width` is a multiple of four.
void transpose(const float* from, std::size_t rows, std::size_t width, float* to,
               std::size_t stride) {
  using F4 = float __attribute__((vector_size(16)));
  const auto load = [](const float* p) {
    F4 v;
    std::memcpy(&v, p, sizeof v);
    return v;
  };
  const auto store = [](float* p, F4 v) { std::memcpy(p, &v, sizeof v); };
  const std::size_t whole = rows / 4 * 4;
  for (std::size_t lane = 0; lane < width; lane += 4) {
    float* column = to + lane * stride;
    for (std::size_t i = 0; i < whole; i += 4) {
      const float* at = from + i * width + lane;
      const F4 a = load(at), b = load(at + width), c = load(at + 2 * width),
               d = load(at + 3 * width);
      const F4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
      const F4 cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
      const F4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const F4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      store(column + i, __builtin_shufflevector(ab, cd, 0, 1, 4, 5));
      store(column + stride + i, __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
      store(column + 2 * stride + i, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
      store(column + 3 * stride + i, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
    }
    for (std::size_t i = whole; i < rows; ++i) {
      for (std::size_t l = 0; l < 4; ++l) column[l * stride + i] = from[i * width + lane + l];
    }
  }
}

/// Whether each series reads all entries at each measured step from `first` on, of `steps`.
bool read_all(const std::vector<HeadSeries*>& all, const StepSample& sample, std::int64_t prompt,
              std::size_t first, std::size_t steps) {
  for (std::size_t step = first; step < first + steps; ++step) {
    const auto at = static_cast<std::int64_t>(step);
    if (!sample.measures(at)) continue;
    for (const HeadSeries* series : all) {
      if (series->costs[step].max_read < prompt + at + 1) return false;
    }
  }
  return true;
}

}  // namespace

std::size_t best_mass_blocks(const HeadVectors& head) {
  const std::size_t steps = block_steps(static_cast<std::size_t>(head.group));
  return (static_cast<std::size_t>(head.tokens - head.prompt) + steps - 1) / steps;
}

void add_best_mass(const HeadVectors& head, const CausalAttention& reference, std::size_t block,
                   const StepSample& sample, const std::vector<HeadSeries*>& all) {
  const TileKernels& kernels = tile_kernels();
  const auto group = static_cast<std::size_t>(head.group);
  const auto d = static_cast<std::size_t>(head.head_dim);
  const std::size_t max = block_steps(group);
  const std::size_t first = block * max;
  const auto steps = static_cast<std::size_t>(head.tokens - head.prompt);
  const PanelLayout layout{
      .steps = std::min(max, steps - first), .group = group, .width = kernels.width};
  const std::size_t width = layout.width;
  if (read_all(all, sample, head.prompt, first, layout.steps)) {
    for (HeadSeries* series : all) {
      for (std::size_t step = first; step < first + layout.steps; ++step) {
        const std::int64_t rank = sample.rank(static_cast<std::int64_t>(step));
        if (rank < 0) continue;
        std::fill_n(series->best_mass.begin() + rank * series->queries, series->queries, 1.0F);
      }
    }
    return;
  }
  const std::int64_t position = head.prompt + static_cast<std::int64_t>(first);
  std::vector<float> queries;
  pack_queries(head.q, head.tokens, position, layout, d, queries);
  const auto entries = static_cast<std::size_t>(position) + layout.steps;
  std::vector<float> rows(width * entries);  // of one panel: weights by lane
  std::vector<float> scores(kTileEntries * width), highest(width);
  std::vector<double> sum(width), factor(width);
  std::vector<std::int32_t> born(entries), lane_steps(width);  // indices in this block
  for (std::size_t e = 0; e < entries; ++e) {
    born[e] = static_cast<std::int32_t>(std::max(e, static_cast<std::size_t>(position)) -
                                        static_cast<std::size_t>(position));
  }
  LargestSums largest;
  for (std::size_t p = 0; p < layout.panels(); ++p) {
    // The weights are shares of the row up to rounding, because its log-sum replaces the maximum.
    std::fill(highest.begin(), highest.end(), 0.0F);
    const std::size_t end = std::min(layout.first_step(p) + layout.steps_per_panel(), layout.steps);
    const auto each_lane = [&](auto visit) {
      for (std::size_t step = layout.first_step(p); step < end; ++step) {
        for (std::size_t g = 0; g < group; ++g) {
          if (layout.panel(step, g) == p) visit(step, g, layout.lane(step, g));
        }
      }
    };
    each_lane([&](std::size_t step, std::size_t g, std::size_t lane) {
      lane_steps[lane] = static_cast<std::int32_t>(step);
      highest[lane] =
          static_cast<float>(reference.log_sum[(first + step) * group + g] / head.scale);
    });
    bool measured = false;
    each_lane([&](std::size_t step, std::size_t, std::size_t) {
      measured = measured || sample.measures(static_cast<std::int64_t>(first + step));
    });
    if (!measured) continue;
    const std::vector<float> log_sums = highest;
    const std::size_t seen = static_cast<std::size_t>(position) + end;  // visible to the last step
    for (std::size_t at = 0; at < seen; at += kTileEntries) {
      const std::size_t count = std::min(kTileEntries, seen - at);
      kernels.score(head.keys.data() + at * d, count, d, queries.data() + p * d * width,
                    scores.data());
      const TileKernels::Visible visible{
          .born = born.data() + at, .gone = nullptr, .steps = lane_steps.data()};
      const bool all_seen =
          at + count <= static_cast<std::size_t>(position) + layout.first_step(p) + 1;
      highest = log_sums;
      (void)kernels.soften(scores.data(), count, static_cast<float>(head.scale),
                           all_seen ? nullptr : &visible, highest.data(), sum.data(),
                           factor.data());
      transpose(scores.data(), count, width, rows.data() + at, entries);
    }
    each_lane([&](std::size_t step, std::size_t g, std::size_t lane) {
      const std::int64_t rank = sample.rank(static_cast<std::int64_t>(first + step));
      if (rank < 0) return;
      const std::size_t visible = static_cast<std::size_t>(position) + step + 1;
      largest.start(std::span{rows}.subspan(lane * entries, visible));
      std::size_t before = 0;
      double share = 0;
      for (HeadSeries* series : all) {
        const std::size_t query = g - static_cast<std::size_t>(series->first_query);
        if (query >= static_cast<std::size_t>(series->queries)) continue;
        const auto count = static_cast<std::size_t>(series->costs[first + step].max_read);
        if (count != before) share = largest.share(before = count);
        series->best_mass[static_cast<std::size_t>(rank * series->queries) + query] =
            static_cast<float>(share);
      }
    });
  }
}

}  // namespace kvsim
