#include "models/math/attention/causal_attention.hpp"

#include <algorithm>
#include <cmath>

#include <Eigen/Dense>

#include "models/math/attention/attend.hpp"
#include "models/math/lanes.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

// 64 query rows keep the product's left side in L1 and a row block of logits in L2.
constexpr std::int64_t kBlock = 64;

template <class Scalar>
using RowMajor = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

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
  const std::int64_t rows = tokens - first;
  CausalAttention result;
  result.out.resize(static_cast<std::size_t>(rows * group * d));
  result.log_sum.resize(static_cast<std::size_t>(rows * group));

  const Eigen::Map<const RowMajor<float>> k{keys.data(), tokens, d};
  const Eigen::Map<const RowMajor<float>> v{values.data(), tokens, d};
  RowMajor<float> logits{kBlock, tokens};
  RowMajor<float> out{kBlock, d};
  for (std::int64_t at = first; at < tokens; at += kBlock) {
    const std::int64_t count = std::min(kBlock, tokens - at);
    const std::int64_t seen = at + count;  // keys that the block's last row sees
    for (std::int32_t g = 0; g < group; ++g) {
      const Eigen::Map<const RowMajor<float>> block{q.data() + (g * tokens + at) * d, count, d};
      auto scores = logits.topLeftCorner(count, seen);
      scores.noalias() = block * k.topRows(seen).transpose();
      for (std::int64_t row = 0; row < count; ++row) {
        const std::int64_t visible = at + row + 1;
        auto line = scores.row(row).head(visible).array();
        const float highest = line.maxCoeff();
        const auto factor = static_cast<float>(scale);
        line = ((line - highest) * factor).exp();
        double sum = 0;  // fp64, in order: 4096 fp32 terms would lose three digits
        const float* p = scores.row(row).data();
        lanes::D4 total{};
        std::int64_t i = 0;
        for (; i + 4 <= visible; i += 4) total += lanes::load(p + i);
        sum = lanes::fold(total);
        for (; i < visible; ++i) sum += static_cast<double>(p[i]);
        line *= static_cast<float>(1.0 / sum);
        scores.row(row).tail(seen - visible).setZero();
        result.log_sum[static_cast<std::size_t>((at - first + row) * group + g)] =
            static_cast<double>(highest) * scale + std::log(sum);
      }
      out.topRows(count).noalias() = scores * v.topRows(seen);
      for (std::int64_t row = 0; row < count; ++row) {
        float* to = result.out.data() + ((at - first + row) * group + g) * d;
        std::copy_n(out.row(row).data(), d, to);
      }
    }
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
  constexpr std::int64_t kRows = 16;  // per query head; their logits stay in the caches
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
  const RowMajor<double> k =
      Eigen::Map<const RowMajor<float>>{keys.data(), tokens, d}.topRows(prompt).cast<double>();
  RowMajor<double> logits{kBlock, prompt};
  RowMajor<double> block{kBlock, d};
  std::vector<double> sums(static_cast<std::size_t>(prompt), 0.0);
  for (std::int64_t at = 0; at < prompt; at += kBlock) {
    const std::int64_t count = std::min(kBlock, prompt - at);
    const std::int64_t seen = at + count;
    for (std::int32_t g = 0; g < group; ++g) {
      block.topRows(count) =
          Eigen::Map<const RowMajor<float>>{q.data() + (g * tokens + at) * d, count, d}
              .cast<double>();
      auto scores = logits.topLeftCorner(count, seen);
      scores.noalias() = block.topRows(count) * k.topRows(seen).transpose();
      for (std::int64_t row = 0; row < count; ++row) {
        const std::int64_t visible = at + row + 1;
        double* p = scores.row(row).data();
        const double highest = *std::max_element(p, p + visible) * scale;
        double sum = 0;
        std::int64_t i = 0;
        lanes::D4 total{};
        for (; i + 4 <= visible; i += 4) {
          const lanes::D4 e = lanes::exp_nonpositive(lanes::load(p + i) * scale - highest);
          lanes::store(p + i, e);
          total += e;
        }
        sum = lanes::fold(total);
        for (; i < visible; ++i) {
          p[i] = std::exp(p[i] * scale - highest);
          sum += p[i];
        }
        const double weight = std::pow(decay, static_cast<double>(prompt - 1 - (at + row))) / sum;
        for (i = 0; i < visible; ++i) sums[static_cast<std::size_t>(i)] += p[i] * weight;
      }
    }
  }
  return sums;
}

}  // namespace kvsim
