#include "kernels/reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "models/math/attention/attend.hpp"
#include "models/math/attention/causal_attention.hpp"
#include "models/math/attention/surrogate.hpp"
#include "models/math/quantise.hpp"
#include "models/units/check.hpp"

namespace kvsim::kernels {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

void check(const SelectShape& s, std::size_t n_scores) {
  KVSIM_CHECK(s.rows >= 1 && s.entries >= 1 && s.stride >= s.entries, "{} rows of {}", s.rows,
              s.entries);
  KVSIM_CHECK(n_scores == at(s.rows * s.stride), "{} scores, {} rows of {}", n_scores, s.rows,
              s.stride);
}

}  // namespace

DecodeReference decode_reference(const DecodeShape& shape, double scale, std::span<const float> q,
                                 std::span<const float> keys, std::span<const float> values,
                                 std::span<const float> bias) {
  const std::int64_t heads = shape.batch * shape.n_heads;
  const std::int64_t stored = shape.batch * shape.n_kv_heads;
  const std::int64_t cache = stored * shape.capacity;
  KVSIM_CHECK(q.size() == at(heads * shape.head_dim), "q has {} elements", q.size());
  KVSIM_CHECK(keys.size() == at(cache * shape.head_dim) && values.size() == keys.size(),
              "keys have {} elements, values {}", keys.size(), values.size());
  KVSIM_CHECK(bias.empty() || bias.size() == at(cache), "{} biases", bias.size());
  const std::int64_t group = shape.group();
  GroupAttention attention{static_cast<std::int32_t>(group),
                           static_cast<std::int32_t>(shape.head_dim), scale};
  DecodeReference result;
  for (std::int64_t h = 0; h < stored; ++h) {
    const std::size_t first = at(h * shape.capacity * shape.head_dim);
    const std::size_t length = at(shape.entries * shape.head_dim);
    std::vector<double> entry_bias;
    if (!bias.empty()) {
      const auto row = bias.subspan(at(h * shape.capacity), at(shape.entries));
      entry_bias.assign(row.begin(), row.end());
    }
    attention.run(q.subspan(at(h * group * shape.head_dim), at(group * shape.head_dim)),
                  keys.subspan(first, length), values.subspan(first, length), entry_bias);
    const auto append = [](std::vector<double>& to, std::span<const double> more) {
      to.insert(to.end(), more.begin(), more.end());
    };
    append(result.out, attention.output());
    for (std::int32_t g = 0; g < group; ++g) {
      append(result.logits, attention.logits(g));
      append(result.probabilities, attention.probabilities(g));
      result.log_sum.push_back(attention.log_sum(g));
    }
  }
  return result;
}

DecodeReference ragged_reference(const DecodeShape& shape, double scale, std::span<const float> q,
                                 std::span<const float> keys, std::span<const float> values,
                                 std::span<const float> bias, std::span<const std::int32_t> lengths,
                                 std::span<const std::int32_t> cache_of) {
  KVSIM_CHECK(std::ssize(lengths) == shape.batch, "{} lengths", lengths.size());
  KVSIM_CHECK(cache_of.empty() || std::ssize(cache_of) == shape.batch, "{} caches",
              cache_of.size());
  DecodeReference all;
  DecodeShape one = shape;
  one.batch = 1;
  const std::int64_t cache = shape.n_kv_heads * shape.capacity;
  const std::int64_t row = shape.n_heads * shape.head_dim;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    one.entries = lengths[at(b)];
    if (one.entries == 0) {
      all.out.insert(all.out.end(), at(row), 0.0);
      all.log_sum.insert(all.log_sum.end(), at(shape.n_heads),
                         -std::numeric_limits<double>::infinity());
      continue;
    }
    const std::int64_t of = cache_of.empty() ? b : cache_of[at(b)];
    const std::size_t first = at(of * cache * shape.head_dim);
    const std::size_t length = at(cache * shape.head_dim);
    const DecodeReference mine =
        decode_reference(one, scale, q.subspan(at(b * row), at(row)), keys.subspan(first, length),
                         values.subspan(first, length),
                         bias.empty() ? bias : bias.subspan(at(of * cache), at(cache)));
    all.out.insert(all.out.end(), mine.out.begin(), mine.out.end());
    all.log_sum.insert(all.log_sum.end(), mine.log_sum.begin(), mine.log_sum.end());
  }
  return all;
}

std::vector<double> update_scores_reference(const ScoreShape& s, double decay,
                                            std::span<const float> probabilities,
                                            std::span<const float> scores) {
  KVSIM_CHECK(probabilities.size() == at(s.rows * s.group * s.stride), "{} probabilities",
              probabilities.size());
  KVSIM_CHECK(scores.size() == at(s.rows * s.stride), "{} scores", scores.size());
  std::vector<double> result;
  result.reserve(at(s.rows * s.entries));
  for (std::int64_t r = 0; r < s.rows; ++r) {
    for (std::int64_t e = 0; e < s.entries; ++e) {
      double sum = 0;
      for (std::int64_t g = 0; g < s.group; ++g) {
        sum += static_cast<double>(probabilities[at((r * s.group + g) * s.stride + e)]);
      }
      result.push_back(decay * static_cast<double>(scores[at(r * s.stride + e)]) + sum);
    }
  }
  return result;
}

std::vector<std::int64_t> argmin_reference(const SelectShape& s, std::span<const float> scores) {
  check(s, scores.size());
  std::vector<std::int64_t> result;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const auto row = scores.subspan(at(r * s.stride), at(s.entries));
    result.push_back(std::min_element(row.begin(), row.end()) - row.begin());
  }
  return result;
}

std::vector<std::int32_t> top_reference(const SelectShape& s, std::span<const float> scores) {
  check(s, scores.size());
  std::vector<std::int32_t> result;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const auto row = scores.subspan(at(r * s.stride), at(s.entries));
    std::vector<std::int32_t> order(at(s.entries));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return row[at(a)] > row[at(b)]; });
    order.resize(at(std::min(s.keep, s.entries)));
    std::sort(order.begin(), order.end());
    result.insert(result.end(), order.begin(), order.end());
  }
  return result;
}

std::vector<double> prefill_score_reference(const PrefillScoreShape& s, double scale, double decay,
                                            std::span<const float> q, std::span<const float> keys) {
  const std::size_t head = at(s.tokens * s.head_dim);
  KVSIM_CHECK(q.size() == at(s.n_heads) * head && keys.size() == at(s.n_kv_heads) * head,
              "q has {} elements, keys {}", q.size(), keys.size());
  std::vector<double> mass(at(s.n_kv_heads * s.tokens), 0.0);
  for (std::int64_t h = 0; h < s.n_kv_heads; ++h) {
    const auto of_group = q.subspan(at(h * s.group()) * head, at(s.group()) * head);
    const auto add = [&](const CausalRow& row) {
      const double weight = std::pow(decay, static_cast<double>(s.tokens - 1 - row.t));
      for (std::size_t i = 0; i < row.probabilities.size(); ++i) {
        mass[at(h * s.tokens) + i] += weight * row.probabilities[i];
      }
    };
    each_causal_row(of_group, keys.subspan(at(h) * head, head),
                    static_cast<std::int32_t>(s.group()), static_cast<std::int32_t>(s.head_dim),
                    s.tokens, s.tokens, s.first, scale, add);
  }
  return mass;
}

std::vector<double> softmax_reference(const RowsShape& s, std::span<const float> logits) {
  KVSIM_CHECK(logits.size() == at(s.rows * s.width), "{} logits", logits.size());
  const std::size_t padded = at(ceil_div(s.width, 4) * 4);
  std::vector<double> row(padded);
  std::vector<double> p(padded);
  std::vector<double> result;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const auto from = logits.subspan(at(r * s.width), at(s.width));
    std::copy(from.begin(), from.end(), row.begin());
    softmax_row(row.data(), at(s.width), p.data());
    result.insert(result.end(), p.begin(), p.begin() + s.width);
  }
  return result;
}

std::vector<double> rms_norm_reference(const RowsShape& s, double epsilon, std::span<const float> x,
                                       std::span<const float> weight) {
  KVSIM_CHECK(x.size() == at(s.rows * s.width), "{} numbers", x.size());
  KVSIM_CHECK(weight.size() == at(s.width), "{} weights", weight.size());
  std::vector<double> result;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const auto row = x.subspan(at(r * s.width), at(s.width));
    double sum = 0;
    for (const float v : row) sum += static_cast<double>(v) * static_cast<double>(v);
    const double factor = 1 / std::sqrt(sum / static_cast<double>(s.width) + epsilon);
    for (std::size_t i = 0; i < row.size(); ++i) {
      result.push_back(static_cast<double>(row[i]) * factor * static_cast<double>(weight[i]));
    }
  }
  return result;
}

std::vector<double> gemm_reference(const GemmShape& s, std::span<const float> a,
                                   std::span<const float> b, std::span<const float> bias,
                                   bool with_gelu) {
  KVSIM_CHECK(a.size() == at(s.m * s.k) && b.size() == at(s.n * s.k), "a has {} elements, b {}",
              a.size(), b.size());
  KVSIM_CHECK(bias.empty() || bias.size() == at(s.n), "{} biases", bias.size());
  std::vector<double> result;
  for (std::int64_t m = 0; m < s.m; ++m) {
    for (std::int64_t n = 0; n < s.n; ++n) {
      const double x = dot(a.subspan(at(m * s.k), at(s.k)), b.subspan(at(n * s.k), at(s.k))) +
                       (bias.empty() ? 0.0 : static_cast<double>(bias[at(n)]));
      result.push_back(with_gelu ? gelu(x) : x);
    }
  }
  return result;
}

std::vector<float> kivi_reference(const QuantShape& s, std::int64_t bits, bool keys,
                                  std::span<const float> x) {
  KVSIM_CHECK(x.size() == at(s.rows * s.entries * s.head_dim), "{} numbers", x.size());
  const std::int32_t levels = (1 << bits) - 1;
  constexpr auto kGroup = static_cast<std::int32_t>(kQuantGroup);
  std::vector<float> result{x.begin(), x.end()};
  const std::span<float> all{result};
  if (keys) {
    const std::size_t row = at(s.entries * s.head_dim);
    for (std::size_t first = 0; first < all.size(); first += row) {
      round_asymmetric_columns(all.subspan(first, row), static_cast<std::int32_t>(s.head_dim),
                               kGroup, levels);
    }
  } else {
    const std::size_t row = at(s.head_dim);
    for (std::size_t first = 0; first < all.size(); first += row) {
      round_asymmetric_row(all.subspan(first, row), kGroup, levels);
    }
  }
  return result;
}

float dequantised(std::int32_t code, float step, float zero) {
  return asymmetric_value(code, {.step = step, .zero = zero});
}

std::vector<float> fp8_reference(float scale, std::span<const float> x) {
  std::vector<float> result{x.begin(), x.end()};
  round_fp8_row(result, scale, Fp8::kE4m3);
  return result;
}

float fp8_value(std::uint32_t code) {
  KVSIM_CHECK(code < 256 && (code & 0x7FU) != 0x7FU, "no number of code {}", code);
  const auto exponent = static_cast<int>((code >> 3U) & 0xFU);
  const auto mantissa = static_cast<int>(code & 7U) + (exponent > 0 ? 8 : 0);
  const float size = std::ldexp(static_cast<float>(mantissa), std::max(exponent, 1) - 10);
  return (code & 0x80U) != 0 ? -size : size;
}

}  // namespace kvsim::kernels
