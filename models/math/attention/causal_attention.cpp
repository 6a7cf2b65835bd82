#include "models/math/attention/causal_attention.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <Eigen/Dense>

#include "models/math/attention/attend.hpp"
#include "models/math/lanes.hpp"
#include "models/math/tiles/panels.hpp"
#include "models/math/tiles/tile_kernels.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

template <class Scalar>
using RowMajor = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

void attend_causally(RunningAttention& attention, const CausalRows& rows, std::int64_t first,
                     std::size_t steps, std::span<float> out, std::span<double> log_sum) {
  const auto d = static_cast<std::size_t>(rows.head_dim);
  const auto before = static_cast<std::size_t>(first) * d;
  std::vector<std::int32_t> born(steps);
  std::iota(born.begin(), born.end(), 0);
  attention.start(rows.q, rows.tokens, first, steps);
  attention.add(rows.keys.first(before), rows.values.first(before));
  attention.add(rows.keys.subspan(before, steps * d), rows.values.subspan(before, steps * d), born);
  attention.finish(out, log_sum);
}

CausalAttention causal_attention(std::span<const float> q, std::span<const float> keys,
                                 std::span<const float> values, std::int32_t group,
                                 std::int32_t head_dim, std::int64_t tokens, std::int64_t first,
                                 double scale) {
  const std::int64_t d = head_dim;
  KVSIM_CHECK(std::ssize(keys) == tokens * d && std::ssize(values) == tokens * d &&
                  std::ssize(q) == group * tokens * d,
              "q {}, keys {}, values {} for {} tokens", q.size(), keys.size(), values.size(),
              tokens);
  KVSIM_CHECK(first >= 0 && first <= tokens, "first row {} of {}", first, tokens);
  const auto rows = static_cast<std::size_t>((tokens - first) * group);
  CausalAttention result;
  result.out.resize(rows * static_cast<std::size_t>(d));
  result.log_sum.resize(rows);
  RunningAttention attention{group, head_dim, scale};
  const std::size_t max = block_steps(static_cast<std::size_t>(group));
  for (std::int64_t at = first; at < tokens; at += static_cast<std::int64_t>(max)) {
    const std::size_t steps = std::min(max, static_cast<std::size_t>(tokens - at));
    const auto row = static_cast<std::size_t>((at - first) * group);
    const std::size_t count = steps * static_cast<std::size_t>(group);
    attend_causally(attention, {q, keys, values, head_dim, tokens}, at, steps,
                    std::span{result.out}.subspan(row * static_cast<std::size_t>(d),
                                                  count * static_cast<std::size_t>(d)),
                    std::span{result.log_sum}.subspan(row, count));
  }
  return result;
}

void each_causal_row(std::span<const float> q, std::span<const float> keys, std::int32_t group,
                     std::int32_t head_dim, std::int64_t tokens, std::int64_t prompt,
                     std::int64_t first, double scale,
                     const std::function<void(const CausalRow&)>& visit) {
  const std::int64_t d = head_dim;
  KVSIM_CHECK(std::ssize(keys) == tokens * d && std::ssize(q) == group * tokens * d,
              "q {}, keys {} for {} tokens", q.size(), keys.size(), tokens);
  KVSIM_CHECK(prompt >= 1 && prompt <= tokens && first >= 0 && first <= prompt,
              "rows {} to {} of {} tokens", first, prompt, tokens);
  constexpr std::int64_t kRows = 16;  // per query head; their logits fit in the caches
  const RowMajor<double> k =
      Eigen::Map<const RowMajor<float>>{keys.data(), tokens, d}.topRows(prompt).cast<double>();
  const std::int64_t stride = (prompt + 3) / 4 * 4;
  RowMajor<double> logits{group * kRows, stride};
  RowMajor<double> block{group * kRows, d};
  std::vector<double> probabilities(static_cast<std::size_t>(stride));
  for (std::int64_t at = first; at < prompt; at += kRows) {
    const std::int64_t count = std::min(kRows, prompt - at);
    const std::int64_t seen = at + count;
    for (std::int32_t g = 0; g < group; ++g) {
      block.middleRows(g * count, count) =
          Eigen::Map<const RowMajor<float>>{q.data() + (g * tokens + at) * d, count, d}
              .cast<double>();
    }
    logits.topLeftCorner(group * count, seen).noalias() =
        block.topRows(group * count) * k.topRows(seen).transpose();
    for (std::int64_t row = 0; row < count; ++row) {
      const auto visible = static_cast<std::size_t>(at + row + 1);
      const std::size_t padded = (visible + 3) / 4 * 4;
      for (std::int32_t g = 0; g < group; ++g) {
        double* p = logits.row(g * count + row).data();
        for (std::size_t i = visible; i < padded; ++i) p[i] = 0;  // later keys, or never written
        for (std::size_t i = 0; i < padded; i += 4) lanes::store(p + i, lanes::load(p + i) * scale);
        softmax_row(p, visible, probabilities.data());
        visit({.g = g,
               .t = at + row,
               .logits = {p, visible},
               .probabilities = {probabilities.data(), visible}});
      }
    }
  }
}

std::vector<double> prompt_column_sums(std::span<const float> q, std::span<const float> keys,
                                       std::int32_t group, std::int32_t head_dim,
                                       std::int64_t tokens, std::int64_t prompt, double scale,
                                       double decay) {
  const std::int64_t d = head_dim;
  KVSIM_CHECK(std::ssize(keys) == tokens * d && std::ssize(q) == group * tokens * d,
              "q {}, keys {} for {} tokens", q.size(), keys.size(), tokens);
  KVSIM_CHECK(prompt >= 1 && prompt <= tokens, "prompt {} of {}", prompt, tokens);
  const TileKernels& kernels = tile_kernels();
  constexpr std::size_t kQueries = 64;  // per block: their scores are kept
  const auto width = static_cast<std::size_t>(d);
  PanelLayout layout{
      .steps = 0, .group = static_cast<std::size_t>(group), .width = kernels.width_precise};
  const std::size_t max = std::max<std::size_t>(kQueries / layout.group, 1);
  std::vector<double> queries, scores, tile(kTileEntries * width), visible, weight;
  std::vector<double> sums(static_cast<std::size_t>(prompt), 0.0);
  for (std::size_t at = 0; at < sums.size(); at += max) {
    layout.steps = std::min(max, sums.size() - at);
    const std::size_t seen = at + layout.steps;  // keys visible to the block's last query
    pack_queries(q, tokens, static_cast<std::int64_t>(at), layout, width, queries);
    scores.resize(layout.panels() * seen * layout.width);
    for (std::size_t key = 0; key < seen; key += kTileEntries) {
      const std::size_t count = std::min(kTileEntries, seen - key);
      std::copy_n(keys.data() + key * width, count * width, tile.begin());
      for (std::size_t p = 0; p < layout.panels(); ++p) {
        kernels.score_precise(tile.data(), count, width, queries.data() + p * width * layout.width,
                              scores.data() + (p * seen + key) * layout.width);
      }
    }
    visible.assign(layout.panels() * layout.width, 0.0);
    weight.assign(visible.size(), 0.0);
    for (std::size_t step = 0; step < layout.steps; ++step) {
      for (std::size_t g = 0; g < layout.group; ++g) {
        const std::size_t lane = layout.panel(step, g) * layout.width + layout.lane(step, g);
        visible[lane] = static_cast<double>(at + step + 1);
        weight[lane] = std::pow(decay, static_cast<double>(sums.size() - 1 - (at + step)));
      }
    }
    for (std::size_t p = 0; p < layout.panels(); ++p) {
      kernels.add_columns(scores.data() + p * seen * layout.width, seen, scale,
                          visible.data() + p * layout.width, weight.data() + p * layout.width,
                          sums.data());
    }
  }
  return sums;
}

}  // namespace kvsim
