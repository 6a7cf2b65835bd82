#include "traces/check.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>

#include <Eigen/Dense>

#include "models/math/lanes.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using FloatRows =
    Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

constexpr std::int64_t kBlock = 64;   // query rows per matrix product
constexpr std::int64_t kRecent = 32;  // the "last 32"
constexpr double kTop5 = 0.05, kTop20 = 0.2;

/// Returns at most `limit` of 0 … tokens-1, evenly spaced, ascending, including the last.
std::vector<std::int64_t> rows_of(std::int64_t tokens, std::int64_t limit) {
  const std::int64_t n = std::min(tokens, limit);
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 1; i <= n; ++i) rows.push_back(i * tokens / n - 1);
  return rows;
}

/// Returns x % of n as in the recorded statistics: rounded up, so at least one.
std::int64_t share_up(double share, std::int64_t n) {
  return static_cast<std::int64_t>(std::ceil(share * static_cast<double>(n)));
}

double sum_of(const double* p, std::int64_t n) {
  lanes::D4 total{};
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4) total += lanes::load(p + i);
  double sum = lanes::fold(total);
  for (; i < n; ++i) sum += p[i];
  return sum;
}

/// Turns scaled logits of n visible keys into probabilities.
void softmax(double* p, std::int64_t n, double scale) {
  const double highest = *std::max_element(p, p + n) * scale;
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    lanes::store(p + i, lanes::exp_nonpositive(lanes::load(p + i) * scale - highest));
  }
  for (; i < n; ++i) p[i] = std::exp(p[i] * scale - highest);
  const double sum = sum_of(p, n);
  for (i = 0; i < n; ++i) p[i] /= sum;
}

struct HeadStats {
  double first_token = 0, last32 = 0, entropy = 0, entropy_norm = 0, top5 = 0, top20 = 0;
  double heavy20 = 0;
  double worst_row_sum = 0;
};

HeadRange range_of(const std::vector<HeadStats>& heads, double HeadStats::*field) {
  HeadRange range{0, heads.front().*field, heads.front().*field};
  for (const HeadStats& head : heads) {
    range.mean += head.*field / static_cast<double>(heads.size());
    range.low = std::min(range.low, head.*field);
    range.high = std::max(range.high, head.*field);
  }
  return range;
}

/// Adds one row of probabilities to the sums of a head; `sorted` is scratch space.
void measure(const double* p, std::int64_t n, std::vector<double>& sorted, HeadStats& sums) {
  sums.first_token += p[0];
  const std::int64_t recent = std::min(kRecent, n);
  sums.last32 += sum_of(p + (n - recent), recent);
  double entropy = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (p[i] > 0) entropy -= p[i] * std::log(p[i]);
  }
  sums.entropy += entropy;
  sums.entropy_norm += n > 1 ? entropy / std::log(static_cast<double>(n)) : 0;
  sorted.assign(p, p + n);
  const std::int64_t n5 = share_up(kTop5, n), n20 = share_up(kTop20, n);
  std::nth_element(sorted.begin(), sorted.begin() + (n20 - 1), sorted.end(), std::greater<>{});
  std::sort(sorted.begin(), sorted.begin() + n20, std::greater<>{});
  sums.top5 += sum_of(sorted.data(), n5);
  sums.top20 += sum_of(sorted.data(), n20);
}

/// Computes the attention of query head `h`, a block of rows at a time.
HeadStats check_head(const TraceInfo& info, const TraceLayer& layer, std::int64_t h,
                     const std::vector<std::int64_t>& rows) {
  const std::int64_t tokens = info.tokens, d = info.head_dim;
  const std::int64_t group = info.n_heads / info.n_kv_heads;
  const auto n_rows = std::ssize(rows);
  const auto late =
      std::count_if(rows.begin(), rows.end(), [&](auto t) { return t >= tokens / 2; });
  const RowMajor keys =
      FloatRows{layer.k.data() + h / group * tokens * d, tokens, d}.cast<double>();
  RowMajor logits{kBlock, tokens}, block{kBlock, d};
  std::vector<double> columns(static_cast<std::size_t>(tokens)), sorted;
  HeadStats stats;
  for (std::int64_t at = 0; at < n_rows; at += kBlock) {
    const std::int64_t count = std::min(kBlock, n_rows - at);
    for (std::int64_t r = 0; r < count; ++r) {
      const float* from =
          layer.q.data() + (h * tokens + rows[static_cast<std::size_t>(at + r)]) * d;
      for (std::int64_t j = 0; j < d; ++j) block(r, j) = static_cast<double>(from[j]);
    }
    const std::int64_t seen = rows[static_cast<std::size_t>(at + count - 1)] + 1;
    logits.topLeftCorner(count, seen).noalias() =
        block.topRows(count) * keys.topRows(seen).transpose();
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t t = rows[static_cast<std::size_t>(at + r)];
      double* p = logits.row(r).data();
      softmax(p, t + 1, info.softmax_scale);
      stats.worst_row_sum = std::max(stats.worst_row_sum, std::abs(sum_of(p, t + 1) - 1));
      if (t < tokens / 2) continue;
      for (std::int64_t i = 0; i <= t; ++i) columns[static_cast<std::size_t>(i)] += p[i];
      measure(p, t + 1, sorted, stats);
    }
  }
  for (const auto field : {&HeadStats::first_token, &HeadStats::last32, &HeadStats::entropy,
                           &HeadStats::entropy_norm, &HeadStats::top5, &HeadStats::top20}) {
    stats.*field /= static_cast<double>(late);
  }
  const std::int64_t heavy = share_up(kTop20, tokens);
  std::sort(columns.begin(), columns.end(), std::greater<>{});
  stats.heavy20 = sum_of(columns.data(), heavy) / sum_of(columns.data(), tokens);
  return stats;
}

}  // namespace

LayerCheck check_layer(const TraceInfo& info, const TraceLayer& layer, std::int64_t rows_limit,
                       const CheckWork& work) {
  KVSIM_CHECK(rows_limit >= 2, "rows_limit {}", rows_limit);
  KVSIM_CHECK(std::ssize(layer.q) == info.n_heads * info.tokens * info.head_dim &&
                  std::ssize(layer.k) == info.n_kv_heads * info.tokens * info.head_dim,
              "q {}, k {}", layer.q.size(), layer.k.size());
  const std::vector<std::int64_t> rows = rows_of(info.tokens, rows_limit);
  std::vector<HeadStats> heads(static_cast<std::size_t>(info.n_heads));
  std::atomic<std::size_t> done{0};
  const auto check_one = [&](std::size_t h) {
    heads[h] = check_head(info, layer, static_cast<std::int64_t>(h), rows);
    if (!work.progress) return;
    work.progress(static_cast<double>(++done) / static_cast<double>(heads.size()));
  };
  if (work.for_each) {
    work.for_each(heads.size(), check_one);
  } else {
    for (std::size_t h = 0; h < heads.size(); ++h) check_one(h);
  }

  LayerCheck result;
  for (const HeadStats& head : heads) {
    result.worst_row_sum = std::max(result.worst_row_sum, head.worst_row_sum);
  }
  result.first_token = range_of(heads, &HeadStats::first_token);
  result.last32 = range_of(heads, &HeadStats::last32);
  result.entropy = range_of(heads, &HeadStats::entropy);
  result.entropy_norm = range_of(heads, &HeadStats::entropy_norm);
  result.top5 = range_of(heads, &HeadStats::top5);
  result.top20 = range_of(heads, &HeadStats::top20);
  result.heavy20 = range_of(heads, &HeadStats::heavy20);
  return result;
}

TraceCheck check_trace(const Trace& trace, std::int64_t rows_limit, const CheckWork& work) {
  KVSIM_CHECK(rows_limit >= 2, "rows_limit {}", rows_limit);
  TraceCheck result;
  result.tokens = trace.info().tokens;
  for (const std::int64_t t : rows_of(result.tokens, rows_limit)) {
    ++result.rows_used;
    if (t < result.tokens / 2) continue;
    ++result.late_rows_used;
    result.uniform_first_token += 1.0 / static_cast<double>(t + 1);
    result.uniform_last32 +=
        static_cast<double>(std::min(kRecent, t + 1)) / static_cast<double>(t + 1);
  }
  result.uniform_first_token /= static_cast<double>(result.late_rows_used);
  result.uniform_last32 /= static_cast<double>(result.late_rows_used);
  const std::int32_t n_layers = trace.info().n_layers;
  for (std::int32_t layer = 0; layer < n_layers; ++layer) {
    CheckWork of_layer{work.for_each, {}};
    if (work.progress) {
      of_layer.progress = [&](double done) { work.progress((layer + done) / n_layers); };
    }
    result.layers.push_back(
        check_layer(trace.info(), trace.read_layer(layer), rows_limit, of_layer));
  }
  return result;
}

}  // namespace kvsim
