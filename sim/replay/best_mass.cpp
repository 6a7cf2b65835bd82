#include "sim/replay/best_mass.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

#include "models/math/tiles/panels.hpp"
#include "models/math/tiles/tile_kernels.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

/// Sums of the largest weights of a row; weights are not negative. A histogram over the exponent
/// and first mantissa bits finds the bin of the smallest of them; only that bin is sorted.
class LargestSums {
 public:
  void start(std::span<const float> row) {
    row_ = row;
    for (auto& bins : counts_) bins.fill(0);
    for (std::size_t i = 0; i < row.size(); ++i) ++counts_[i % 2][bin_of(row[i])];
    total_ = from(0.0F);
  }
  /// Returns the share of the row in its `count` largest weights.
  [[nodiscard]] double share(std::size_t count) {
    if (count >= row_.size()) return 1.0;
    std::size_t larger = 0;
    std::size_t bin = kBins;
    while (larger + size_of(bin - 1) <= count) larger += size_of(--bin);
    if (larger == count) return from(std::bit_cast<float>(lowest(bin))) / total_;
    --bin;
    const float low = std::bit_cast<float>(lowest(bin));
    const float end = std::bit_cast<float>(lowest(bin + 1));
    band_.resize(row_.size() + 1);
    std::size_t n = 0;
    for (const float x : row_) {
      band_[n] = x;
      n += static_cast<std::size_t>(x >= low) & static_cast<std::size_t>(x < end);
    }
    const auto nth = band_.begin() + static_cast<std::ptrdiff_t>(count - larger);
    std::nth_element(band_.begin(), nth, band_.begin() + static_cast<std::ptrdiff_t>(n),
                     std::greater<>{});
    double sum = from(end);
    for (auto each = band_.begin(); each != nth; ++each) sum += static_cast<double>(*each);
    return std::min(sum / total_, 1.0);
  }

 private:
  static constexpr int kDropped = 20;  // dropped bits of the mantissa
  static constexpr std::size_t kBins = 1U << (31 - kDropped);
  static std::size_t bin_of(float x) { return std::bit_cast<std::uint32_t>(x) >> kDropped; }
  static std::uint32_t lowest(std::size_t bin) {
    return static_cast<std::uint32_t>(bin) << kDropped;
  }
  [[nodiscard]] std::size_t size_of(std::size_t bin) const {
    return counts_[0][bin] + counts_[1][bin];
  }
  /// Returns the sum of the weights that are at least `low`, in eight lanes.
  [[nodiscard]] double from(float low) const {
    std::array<double, 8> lanes{};
    std::size_t i = 0;
    for (; i + 8 <= row_.size(); i += 8) {
      for (std::size_t l = 0; l < 8; ++l) {
        lanes[l] += static_cast<double>(row_[i + l] >= low ? row_[i + l] : 0.0F);
      }
    }
    for (; i < row_.size(); ++i) lanes[0] += row_[i] >= low ? static_cast<double>(row_[i]) : 0.0;
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    return sum;
  }

  std::span<const float> row_;
  std::array<std::array<std::uint32_t, kBins>, 2> counts_{};  // two, so that increments overlap
  double total_ = 0;
  std::vector<float> band_;
};

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
      for (std::size_t lane = 0; lane < width; ++lane) {
        float* to = rows.data() + lane * entries + at;
        for (std::size_t i = 0; i < count; ++i) to[i] = scores[i * width + lane];
      }
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
