#include "models/math/attention/causal_attention.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <Eigen/Dense>

#include "models/math/attention/attend.hpp"
#include "models/math/tiles/panels.hpp"
#include "models/math/tiles/tile_kernels.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

template <class Scalar>
using RowMajor = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Unscaled fp64 scores of consecutive queries of a group over the keys that the last of them sees.
class PanelScores {
 public:
  PanelScores(std::span<const float> q, std::span<const float> keys, std::int32_t group,
              std::int32_t head_dim, std::int64_t tokens)
      : q_{q},
        keys_{keys},
        tokens_{tokens},
        width_{static_cast<std::size_t>(head_dim)},
        layout_{
            .steps = 0, .group = static_cast<std::size_t>(group), .width = kernels_.width_precise},
        tile_(kTileEntries * width_) {}

  [[nodiscard]] std::size_t max_steps() const {
    constexpr std::size_t kQueries = 64;  // of a block: their scores are kept
    return std::max<std::size_t>(kQueries / layout_.group, 1);
  }
  [[nodiscard]] const PanelLayout& layout() const { return layout_; }
  [[nodiscard]] std::size_t seen() const { return seen_; }
  /// [seen, width of a panel]
  [[nodiscard]] double* panel(std::size_t p) { return scores_.data() + p * seen_ * layout_.width; }

  void compute(std::size_t first, std::size_t steps) {
    layout_.steps = steps;
    seen_ = first + steps;
    pack_queries(q_, tokens_, static_cast<std::int64_t>(first), layout_, width_, queries_);
    scores_.resize(layout_.panels() * seen_ * layout_.width);
    for (std::size_t key = 0; key < seen_; key += kTileEntries) {
      const std::size_t count = std::min(kTileEntries, seen_ - key);
      std::copy_n(keys_.data() + key * width_, count * width_, tile_.begin());
      for (std::size_t p = 0; p < layout_.panels(); ++p) {
        kernels_.score_precise(tile_.data(), count, width_,
                               queries_.data() + p * width_ * layout_.width,
                               panel(p) + key * layout_.width);
      }
    }
  }
  /// Copies the first scores of query head `g` at `step` of the block, times `scale`.
  void copy_row(std::size_t step, std::size_t g, double scale, std::span<double> row) {
    const double* from = panel(layout_.panel(step, g)) + layout_.lane(step, g);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = from[i * layout_.width] * scale;
  }

 private:
  const TileKernels& kernels_ = tile_kernels();
  std::span<const float> q_, keys_;
  std::int64_t tokens_;
  std::size_t width_;
  PanelLayout layout_;
  std::size_t seen_ = 0;
  std::vector<double> queries_, scores_, tile_;
};

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
  PanelScores scores{q, keys, group, head_dim, tokens};
  const auto rows = static_cast<std::size_t>(prompt);
  std::vector<double> logits((rows + 3) / 4 * 4), probabilities(logits.size());
  for (auto at = static_cast<std::size_t>(first); at < rows; at += scores.max_steps()) {
    const std::size_t steps = std::min(scores.max_steps(), rows - at);
    scores.compute(at, steps);
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t visible = at + step + 1;
      for (std::size_t g = 0; g < static_cast<std::size_t>(group); ++g) {
        scores.copy_row(step, g, scale, std::span{logits}.first(visible));
        softmax_row(logits.data(), visible, probabilities.data());
        visit({.g = static_cast<std::int32_t>(g),
               .t = static_cast<std::int64_t>(at + step),
               .logits = {logits.data(), visible},
               .probabilities = {probabilities.data(), visible}});
      }
    }
  }
}

WeightedValues::WeightedValues(std::span<const float> values, std::int32_t head_dim)
    : d_{static_cast<std::size_t>(head_dim)}, values_(values.begin(), values.end()) {
  KVSIM_CHECK(head_dim >= 1 && values.size() % d_ == 0, "{} numbers are not rows of {}",
              values.size(), head_dim);
}

void WeightedValues::product(std::span<const double> weights, std::size_t rows, std::size_t seen,
                             std::size_t stride, std::span<double> out) const {
  KVSIM_CHECK(seen <= stride && weights.size() >= rows * stride && seen * d_ <= values_.size() &&
                  out.size() == rows * d_,
              "{} weights in {} rows of {}, {} values, {} outputs", weights.size(), rows, stride,
              values_.size(), out.size());
  const auto index = [](std::size_t n) { return static_cast<Eigen::Index>(n); };
  const Eigen::Map<const RowMajor<double>, 0, Eigen::OuterStride<>> w{
      weights.data(), index(rows), index(seen), Eigen::OuterStride<>{index(stride)}};
  const Eigen::Map<const RowMajor<double>> v{values_.data(), index(seen), index(d_)};
  Eigen::Map<RowMajor<double>>{out.data(), index(rows), index(d_)}.noalias() = w * v;
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
  PanelScores scores{q, keys, group, head_dim, tokens};
  std::vector<double> visible, weight;
  std::vector<double> sums(static_cast<std::size_t>(prompt), 0.0);
  for (std::size_t at = 0; at < sums.size(); at += scores.max_steps()) {
    scores.compute(at, std::min(scores.max_steps(), sums.size() - at));
    const PanelLayout& layout = scores.layout();
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
      kernels.add_columns(scores.panel(p), scores.seen(), scale, visible.data() + p * layout.width,
                          weight.data() + p * layout.width, sums.data());
    }
  }
  return sums;
}

}  // namespace kvsim
