#include "models/math/tiles/running_attention.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "models/math/tiles/tile_kernels.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

constexpr float kNothingSeen = -1e29F;  // above the kernels' score of a hidden entry

}  // namespace

RunningAttention::RunningAttention(std::int32_t group, std::int32_t head_dim, double scale)
    : d_{static_cast<std::size_t>(head_dim)},
      scale_{scale},
      layout_{.steps = 0, .group = static_cast<std::size_t>(group), .width = tile_kernels().width} {
  KVSIM_CHECK(group >= 1 && head_dim >= 1, "group {}, head_dim {}", group, head_dim);
  factor_.resize(layout_.width);
  scores_.resize(kTileEntries * layout_.width);
  part_.resize(d_ * layout_.width);
}

void RunningAttention::start(std::span<const float> q, std::int64_t tokens, std::int64_t first,
                             std::size_t steps) {
  layout_.steps = steps;
  pack_queries(q, tokens, first, layout_, d_, queries_);
  const std::size_t lanes = layout_.panels() * layout_.width;
  lane_steps_.assign(lanes, static_cast<std::int32_t>(steps) - 1);
  for (std::size_t step = 0; step < steps; ++step) {
    for (std::size_t g = 0; g < layout_.group; ++g) {
      lane_steps_[layout_.panel(step, g) * layout_.width + layout_.lane(step, g)] =
          static_cast<std::int32_t>(step);
    }
  }
  highest_.assign(lanes, kNothingSeen);
  sum_.assign(lanes, 0.0);
  visited_.assign(steps, 0);
  total_.assign(lanes * d_, 0.0);
}

void RunningAttention::add(std::span<const float> keys, std::span<const float> values,
                           std::span<const std::int32_t> born, std::span<const std::int32_t> gone) {
  const std::size_t entries = keys.size() / d_;
  KVSIM_CHECK(
      keys.size() == entries * d_ && values.size() == keys.size() &&
          (born.empty() || born.size() == entries) && (gone.empty() || gone.size() == entries),
      "keys {}, values {}, {} born, {} gone", keys.size(), values.size(), born.size(), gone.size());
  const TileKernels& kernels = tile_kernels();
  const std::size_t width = layout_.width;
  const auto last_step = static_cast<std::int32_t>(layout_.steps);
  const std::vector<std::int32_t> from_start(born.empty() ? kTileEntries : 0, 0);
  for (std::size_t at = 0; at < entries; at += kTileEntries) {
    const std::size_t count = std::min(kTileEntries, entries - at);
    const auto in_tile = [&](std::span<const std::int32_t> of) { return of.subspan(at, count); };
    std::int32_t first_born = 0, last_born = 0, first_gone = last_step, last_gone = last_step;
    if (!born.empty()) {
      const auto [low, high] = std::minmax_element(in_tile(born).begin(), in_tile(born).end());
      first_born = *low, last_born = *high;
    }
    if (!gone.empty()) {
      const auto [low, high] = std::minmax_element(in_tile(gone).begin(), in_tile(gone).end());
      first_gone = *low, last_gone = *high;
    }
    const TileKernels::Visible lifetimes{
        .born = born.empty() ? from_start.data() : born.data() + at,
        .gone = gone.empty() ? nullptr : gone.data() + at,
        .steps = nullptr};
    for (std::size_t p = 0; p < layout_.panels(); ++p) {
      const auto low = static_cast<std::int32_t>(layout_.first_step(p));
      const auto high =
          std::min(low + static_cast<std::int32_t>(layout_.steps_per_panel()), last_step) - 1;
      if (first_born > high || last_gone <= low) continue;
      TileKernels::Visible visible = lifetimes;
      visible.steps = lane_steps_.data() + p * width;
      const bool all_seen = last_born <= low && first_gone > high;
      for (std::int32_t step = low; step <= high; ++step) {
        auto& visited = visited_[static_cast<std::size_t>(step)];
        for (std::size_t i = at; visited == 0 && i < at + count; ++i) {
          const bool is_born = born.empty() || born[i] <= step;
          visited = is_born && (gone.empty() || gone[i] > step) ? 1 : 0;
        }
      }
      kernels.score(keys.data() + at * d_, count, d_, queries_.data() + p * d_ * width,
                    scores_.data());
      (void)kernels.soften(scores_.data(), count, static_cast<float>(scale_),
                           all_seen ? nullptr : &visible, highest_.data() + p * width,
                           sum_.data() + p * width, factor_.data());
      kernels.mix(values.data() + at * d_, nullptr, count, d_, scores_.data(), part_.data());
      kernels.accumulate(total_.data() + p * d_ * width, factor_.data(), part_.data(), d_);
    }
  }
}

template <class T>
void RunningAttention::finish(std::span<T> out, std::span<double> log_sum) const {
  const std::size_t width = layout_.width;
  KVSIM_CHECK(log_sum.size() == layout_.steps * layout_.group && out.size() == log_sum.size() * d_,
              "out {}, log_sum {} for {} steps", out.size(), log_sum.size(), layout_.steps);
  for (std::size_t step = 0; step < layout_.steps; ++step) {
    for (std::size_t g = 0; g < layout_.group; ++g) {
      const std::size_t panel = layout_.panel(step, g);
      const std::size_t lane = layout_.lane(step, g);
      const double sum = sum_[panel * width + lane];
      // If every entry is minus infinity for a query, no entry counts.
      if (std::isnan(sum) || (sum == 0 && visited_[step] != 0)) {
        throw InputError{fmt::format("query head {} of step {}", g, step),
                         "scores that are numbers",
                         "none: a row of a method's store is beyond the range of its format"};
      }
      KVSIM_CHECK(sum > 0, "query head {} of step {} saw no entry", g, step);
      const std::size_t row = step * layout_.group + g;
      log_sum[row] = static_cast<double>(highest_[panel * width + lane]) * scale_ + std::log(sum);
      const double* total = total_.data() + panel * d_ * width + lane;
      for (std::size_t c = 0; c < d_; ++c) {
        out[row * d_ + c] = static_cast<T>(total[c * width] / sum);
      }
    }
  }
}

template void RunningAttention::finish(std::span<float>, std::span<double>) const;
template void RunningAttention::finish(std::span<double>, std::span<double>) const;

}  // namespace kvsim
