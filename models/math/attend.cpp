#include "models/math/attend.hpp"

#include <algorithm>
#include <cmath>

#include "models/math/lanes.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

using lanes::D4;

/// logits[g * stride + e] for `G` query rows at once, so that a key is converted to fp64 only once.
template <std::size_t G>
void dot_rows(const double* q, const float* keys, std::size_t entries, std::size_t d, double scale,
              double* logits, std::size_t stride) {
  const std::size_t whole = d / 8 * 8;
  for (std::size_t e = 0; e < entries; ++e) {
    const float* key = keys + e * d;
    D4 low[G] = {}, high[G] = {};
    for (std::size_t j = 0; j < whole; j += 8) {
      const D4 k0 = lanes::load(key + j);
      const D4 k1 = lanes::load(key + j + 4);
      for (std::size_t g = 0; g < G; ++g) {
        low[g] += lanes::load(q + g * d + j) * k0;
        high[g] += lanes::load(q + g * d + j + 4) * k1;
      }
    }
    for (std::size_t g = 0; g < G; ++g) {
      double sum = lanes::fold(low[g] + high[g]);
      for (std::size_t j = whole; j < d; ++j) sum += q[g * d + j] * static_cast<double>(key[j]);
      logits[g * stride + e] = sum * scale;
    }
  }
}

/// out[g, :] += sum over e of p[g, e] v[e,:], four entries at a time.
template <std::size_t G>
void weighted_rows(const double* p, std::size_t stride, const float* values, std::size_t entries,
                   std::size_t d, double* out) {
  std::size_t e = 0;
  for (; e + 4 <= entries; e += 4) {
    const float* v = values + e * d;
    std::size_t j = 0;
    for (; j + 4 <= d; j += 4) {
      const D4 v0 = lanes::load(v + j);
      const D4 v1 = lanes::load(v + d + j);
      const D4 v2 = lanes::load(v + 2 * d + j);
      const D4 v3 = lanes::load(v + 3 * d + j);
      for (std::size_t g = 0; g < G; ++g) {
        const double* w = p + g * stride + e;
        const D4 sum = (v0 * w[0] + v1 * w[1]) + (v2 * w[2] + v3 * w[3]);
        lanes::store(out + g * d + j, lanes::load(out + g * d + j) + sum);
      }
    }
    for (; j < d; ++j) {
      for (std::size_t g = 0; g < G; ++g) {
        const double* w = p + g * stride + e;
        out[g * d + j] +=
            (static_cast<double>(v[j]) * w[0] + static_cast<double>(v[d + j]) * w[1]) +
            (static_cast<double>(v[2 * d + j]) * w[2] + static_cast<double>(v[3 * d + j]) * w[3]);
      }
    }
  }
  for (; e < entries; ++e) {
    for (std::size_t g = 0; g < G; ++g) {
      const double w = p[g * stride + e];
      for (std::size_t j = 0; j < d; ++j)
        out[g * d + j] += w * static_cast<double>(values[e * d + j]);
    }
  }
}

/// Calls `run` with blocks of at most four heads: four keep all accumulators in registers.
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

/// probabilities and ln of their sum; `padded` entries are readable, those past `entries` are
/// ignored.
double softmax(const double* logits, std::size_t entries, std::size_t padded,
               double* probabilities) {
  double highest = logits[0];
  for (std::size_t e = 1; e < entries; ++e) highest = std::max(highest, logits[e]);
  D4 total{};
  for (std::size_t e = 0; e < padded; e += 4) {
    lanes::store(probabilities + e, lanes::exp_nonpositive(lanes::load(logits + e) - highest));
  }
  for (std::size_t e = entries; e < padded; ++e) probabilities[e] = 0;
  for (std::size_t e = 0; e < padded; e += 4) total += lanes::load(probabilities + e);
  const double sum = lanes::fold(total);
  const double inverse = 1.0 / sum;
  for (std::size_t e = 0; e < padded; e += 4) {
    lanes::store(probabilities + e, lanes::load(probabilities + e) * inverse);
  }
  return highest + std::log(sum);
}

}  // namespace

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
  KVSIM_CHECK(q.size() == group_ * d_, "q has {} elements, expected {}", q.size(), group_ * d_);
  KVSIM_CHECK(!keys.empty() && keys.size() % d_ == 0 && keys.size() == values.size(),
              "keys hold {} elements, values {}", keys.size(), values.size());
  entries_ = keys.size() / d_;
  KVSIM_CHECK(bias.empty() || bias.size() == entries_, "{} biases, {} entries", bias.size(),
              entries_);
  const std::size_t padded = (entries_ + 3) / 4 * 4;
  if (padded > stride_) {
    stride_ = padded + padded / 2 / 4 * 4;  // room to grow, one entry a step
    logits_.assign(group_ * stride_, 0);
    probabilities_.assign(group_ * stride_, 0);
  }
  std::copy(q.begin(), q.end(), q_.begin());
  by_head_blocks(group_, [&]<std::size_t G>(std::size_t g) {
    dot_rows<G>(q_.data() + g * d_, keys.data(), entries_, d_, scale_, logits_.data() + g * stride_,
                stride_);
  });
  for (std::size_t g = 0; g < group_; ++g) {
    double* row = logits_.data() + g * stride_;
    for (std::size_t e = 0; e < bias.size(); ++e) row[e] += bias[e];
    log_sum_[g] = softmax(row, entries_, padded, probabilities_.data() + g * stride_);
  }
  std::fill(out_.begin(), out_.end(), 0.0);
  by_head_blocks(group_, [&]<std::size_t G>(std::size_t g) {
    weighted_rows<G>(probabilities_.data() + g * stride_, stride_, values.data(), entries_, d_,
                     out_.data() + g * d_);
  });
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
