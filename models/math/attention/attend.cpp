#include "models/math/attention/attend.hpp"

#include <algorithm>
#include <cmath>

#include "models/math/lanes.hpp"
#include "models/math/tiles/tile_kernels.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

using lanes::D4;

/// Computes logits[g * stride + e] for G query rows and K keys at a time: a key is converted to
/// fp64 once for all rows, a query is loaded once for all keys, and G * K sums are in flight. Each
/// sum has one lane accumulator, so its value does not depend on K.
template <std::size_t G, std::size_t K>
std::size_t dot_blocks(const double* q, const float* keys, std::size_t first, std::size_t entries,
                       std::size_t d, double scale, double* logits, std::size_t stride) {
  const std::size_t whole = d / 4 * 4;
  std::size_t e = first;
  for (; e + K <= entries; e += K) {
    const float* key = keys + e * d;
    D4 sums[K][G] = {};
    for (std::size_t j = 0; j < whole; j += 4) {
      D4 k[K];
      for (std::size_t i = 0; i < K; ++i) k[i] = lanes::load(key + i * d + j);
      for (std::size_t g = 0; g < G; ++g) {
        const D4 x = lanes::load(q + g * d + j);
        for (std::size_t i = 0; i < K; ++i) sums[i][g] = lanes::multiply_add(x, k[i], sums[i][g]);
      }
    }
    for (std::size_t i = 0; i < K; ++i) {
      for (std::size_t g = 0; g < G; ++g) {
        double sum = lanes::fold(sums[i][g]);
        for (std::size_t j = whole; j < d; ++j) {
          sum += q[g * d + j] * static_cast<double>(key[i * d + j]);
        }
        logits[g * stride + e + i] = sum * scale;
      }
    }
  }
  return e;
}

template <std::size_t G>
void dot_rows(const double* q, const float* keys, std::size_t entries, std::size_t d, double scale,
              double* logits, std::size_t stride) {
  constexpr std::size_t kKeys = G == 1 ? 8 : G == 2 ? 4 : 2;  // about eight sums in flight
  const std::size_t done = dot_blocks<G, kKeys>(q, keys, 0, entries, d, scale, logits, stride);
  dot_blocks<G, 1>(q, keys, done, entries, d, scale, logits, stride);
}

/// out[g, :] += sum over e of p[g, e] v[e,:]. Processes values in runs that fit in the L1 cache.
/// Within a run, a few columns at a time are summed over all entries in registers.
template <std::size_t G>
void weighted_rows(const double* p, std::size_t stride, const float* values, std::size_t entries,
                   std::size_t d, double* out) {
  constexpr std::size_t kRun = 64;
  constexpr std::size_t kColumns = G == 1 ? 8 : 2;  // lanes of four: G * kColumns sums
  for (std::size_t first = 0; first < entries; first += kRun) {
    const std::size_t last = std::min(entries, first + kRun);
    std::size_t j = 0;
    const auto columns = [&]<std::size_t C>() {
      D4 sums[G][C] = {};
      for (std::size_t e = first; e < last; ++e) {
        const float* v = values + e * d + j;
        for (std::size_t c = 0; c < C; ++c) {
          const D4 x = lanes::load(v + 4 * c);
          for (std::size_t g = 0; g < G; ++g) {
            sums[g][c] = lanes::multiply_add(x, lanes::all(p[g * stride + e]), sums[g][c]);
          }
        }
      }
      for (std::size_t g = 0; g < G; ++g) {
        for (std::size_t c = 0; c < C; ++c) {
          double* to = out + g * d + j + 4 * c;
          lanes::store(to, lanes::load(to) + sums[g][c]);
        }
      }
      j += 4 * C;
    };
    while (j + 4 * kColumns <= d) columns.template operator()<kColumns>();
    while (j + 4 <= d) columns.template operator()<1>();
    for (; j < d; ++j) {
      for (std::size_t g = 0; g < G; ++g) {
        double sum = 0;
        for (std::size_t e = first; e < last; ++e) {
          sum += p[g * stride + e] * static_cast<double>(values[e * d + j]);
        }
        out[g * d + j] += sum;
      }
    }
  }
}

/// Calls `run` with blocks of at most four heads, so that all accumulators stay in registers.
template <class Run>
void by_head_blocks(std::size_t group, Run run) {
  std::size_t g = 0;
  for (; g + 4 <= group; g += 4) run.template operator()<4>(g);
  switch (group - g) {
    case 3:
      run.template operator()<3>(g);
      break;
    case 2:
      run.template operator()<2>(g);
      break;
    case 1:
      run.template operator()<1>(g);
      break;
    default:
      break;
  }
}

}  // namespace

double softmax_row(const double* logits, std::size_t entries, double* probabilities) {
  return tile_kernels().softmax(logits, entries, probabilities);
}

GroupAttention::GroupAttention(std::int32_t group, std::int32_t head_dim, double scale)
    : group_{static_cast<std::size_t>(group)},
      d_{static_cast<std::size_t>(head_dim)},
      scale_{scale},
      q_(group_ * d_),
      out_(group_ * d_),
      log_sum_(group_) {
  KVSIM_CHECK(group >= 1 && head_dim >= 1, "group {}, head_dim {}", group, head_dim);
}

void GroupAttention::run(std::span<const float> q, std::span<const float> keys,
                         std::span<const float> values, std::span<const double> bias) {
  KVSIM_CHECK(keys.size() == values.size(), "keys hold {} elements, values {}", keys.size(),
              values.size());
  run_weights(q, keys, bias);
  std::fill(out_.begin(), out_.end(), 0.0);
  by_head_blocks(group_, [&]<std::size_t G>(std::size_t g) {
    weighted_rows<G>(probabilities_.data() + g * stride_, stride_, values.data(), entries_, d_,
                     out_.data() + g * d_);
  });
}

void GroupAttention::run_weights(std::span<const float> q, std::span<const float> keys,
                                 std::span<const double> bias) {
  KVSIM_CHECK(q.size() == group_ * d_, "q has {} elements, expected {}", q.size(), group_ * d_);
  KVSIM_CHECK(!keys.empty() && keys.size() % d_ == 0, "keys hold {} elements", keys.size());
  resize(keys.size() / d_);
  std::copy(q.begin(), q.end(), q_.begin());
  by_head_blocks(group_, [&]<std::size_t G>(std::size_t g) {
    dot_rows<G>(q_.data() + g * d_, keys.data(), entries_, d_, scale_, logits_.data() + g * stride_,
                stride_);
  });
  weigh(bias);
}

void GroupAttention::resize(std::size_t entries) {
  KVSIM_CHECK(entries >= 1, "attention over no entry");
  entries_ = entries;
  const std::size_t padded = (entries_ + 3) / 4 * 4;
  if (padded <= stride_) return;
  stride_ = padded + padded / 2 / 4 * 4;  // headroom: one entry is added per step
  logits_.assign(group_ * stride_, 0);
  probabilities_.assign(group_ * stride_, 0);
}

void GroupAttention::weigh(std::span<const double> bias) {
  KVSIM_CHECK(bias.empty() || bias.size() == entries_ || bias.size() == group_ * entries_,
              "{} biases, {} entries", bias.size(), entries_);
  for (std::size_t g = 0; g < group_; ++g) {
    double* row = logits_.data() + g * stride_;
    if (!bias.empty()) {
      const double* more = bias.data() + (bias.size() == entries_ ? 0 : g * entries_);
      for (std::size_t e = 0; e < entries_; ++e) row[e] += more[e];
    }
    log_sum_[g] = softmax_row(row, entries_, probabilities_.data() + g * stride_);
  }
}

std::span<const double> GroupAttention::probabilities(std::int32_t g) const {
  return {probabilities_.data() + static_cast<std::size_t>(g) * stride_, entries_};
}

std::span<const double> GroupAttention::logits(std::int32_t g) const {
  return {logits_.data() + static_cast<std::size_t>(g) * stride_, entries_};
}

std::span<const double> GroupAttention::group_sum() {
  if (group_ == 1) return probabilities(0);
  sum_.assign(entries_, 0.0);
  for (std::size_t g = 0; g < group_; ++g) {
    const double* row = probabilities_.data() + g * stride_;
    for (std::size_t e = 0; e < entries_; ++e) sum_[e] += row[e];
  }
  return sum_;
}

double dot(std::span<const float> a, std::span<const float> b) {
  KVSIM_CHECK(a.size() == b.size(), "{} and {} elements", a.size(), b.size());
  D4 low{}, high{};
  const std::size_t whole = a.size() / 8 * 8;
  for (std::size_t j = 0; j < whole; j += 8) {
    low += lanes::load(a.data() + j) * lanes::load(b.data() + j);
    high += lanes::load(a.data() + j + 4) * lanes::load(b.data() + j + 4);
  }
  double sum = lanes::fold(low + high);
  for (std::size_t j = whole; j < a.size(); ++j) {
    sum += static_cast<double>(a[j]) * static_cast<double>(b[j]);
  }
  return sum;
}

double squared_distance(std::span<const float> a, std::span<const float> b) {
  KVSIM_CHECK(a.size() == b.size(), "{} and {} elements", a.size(), b.size());
  double sum = 0;
  for (std::size_t j = 0; j < a.size(); ++j) {
    const double difference = static_cast<double>(a[j]) - static_cast<double>(b[j]);
    sum += difference * difference;
  }
  return sum;
}

}  // namespace kvsim
