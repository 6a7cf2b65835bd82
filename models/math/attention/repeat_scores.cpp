#include "models/math/attention/repeat_scores.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <Eigen/Dense>

#include "models/math/attention/attend.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Raises scores[i] to the largest weighted probability over the query heads. `first_slot` is the
/// index of prompt token `first` among the attended entries; tokens up to last - 1 follow it.
class Maximum {
 public:
  Maximum(const RepeatScoring& s, std::vector<double>& scores) : s_{s}, scores_{scores} {}
  void take(const GroupAttention& attention, std::int64_t repeated, std::int64_t first,
            std::int64_t last, std::int64_t first_slot) {
    const double by_query = s_.query_weights.empty() ? 1.0 : s_.query_weights[at(repeated)];
    for (std::int32_t g = 0; g < s_.group; ++g) {
      const auto p = attention.probabilities(g).subspan(at(first_slot));
      for (std::int64_t i = first; i < last; ++i) {
        const double by_key = s_.key_weights.empty() ? 1.0 : s_.key_weights[at(g * s_.prompt + i)];
        double& score = scores_[at(i)];
        const double found = by_query * by_key * p[at(i - first)];
        if (!(score >= found)) score = found;  // also replaces NaN, the initial score
      }
    }
  }

 private:
  const RepeatScoring& s_;
  std::vector<double>& scores_;
};

}  // namespace

std::vector<double> repeat_scores(const RepeatScoring& s) {
  const std::int64_t d = s.head_dim;
  KVSIM_CHECK(std::ssize(s.q) == s.group * s.tokens * d && std::ssize(s.keys) == s.tokens * d,
              "q {}, keys {} for {} tokens", s.q.size(), s.keys.size(), s.tokens);
  KVSIM_CHECK(s.prompt >= 1 && s.repeat_start >= s.prompt && s.repeat_tokens >= 0 &&
                  s.repeat_start + s.repeat_tokens <= s.tokens && s.chunk >= 1 && s.sinks >= 0,
              "repeat of {} tokens from {}, prompt {} of {} tokens, chunk {}, {} sinks",
              s.repeat_tokens, s.repeat_start, s.prompt, s.tokens, s.chunk, s.sinks);
  KVSIM_CHECK((s.key_weights.empty() || std::ssize(s.key_weights) == s.group * s.prompt) &&
                  (s.query_weights.empty() || std::ssize(s.query_weights) == s.repeat_tokens),
              "{} key and {} query weights", s.key_weights.size(), s.query_weights.size());
  std::vector<double> scores(at(s.prompt), std::numeric_limits<double>::quiet_NaN());
  Maximum maximum{s, scores};
  GroupAttention attention{s.group, s.head_dim, s.scale};
  std::vector<float> q(at(s.group * d));
  const auto queries_of = [&](std::int64_t t) {
    for (std::int64_t g = 0; g < s.group; ++g) {
      std::copy_n(s.q.begin() + (g * s.tokens + t) * d, d, q.begin() + g * d);
    }
  };
  if (!s.subsample) {
    for (std::int64_t r = 0; r < s.repeat_tokens; ++r) {
      queries_of(s.repeat_start + r);
      attention.run_weights(q, s.keys.first(at((s.repeat_start + r + 1) * d)), {});
      maximum.take(attention, r, 0, s.prompt, 0);
    }
    return scores;
  }
  const std::int64_t scored_end = std::min(s.prompt, kFirstRepeated + s.repeat_tokens);
  std::vector<float> keys;
  for (std::int64_t first = kFirstRepeated; first < scored_end; first += s.chunk) {
    const std::int64_t last = std::min(first + s.chunk, scored_end);
    const std::int64_t sinks = std::min(s.sinks, first);  // those in the chunk are included
    const std::int64_t repeat = s.repeat_start + first - kFirstRepeated;
    keys.clear();
    const auto add = [&](std::int64_t from, std::int64_t to) {
      keys.insert(keys.end(), s.keys.begin() + from * d, s.keys.begin() + to * d);
    };
    add(0, sinks);
    add(first, last);
    add(repeat, repeat + (last - first));
    for (std::int64_t r = 0; r < last - first; ++r) {
      queries_of(repeat + r);
      const std::int64_t seen = sinks + (last - first) + r + 1;
      attention.run_weights(q, std::span{keys}.first(at(seen * d)), {});
      maximum.take(attention, first - kFirstRepeated + r, first, last, sinks);
    }
  }
  return scores;
}

std::vector<double> projected_value_norms(std::span<const float> values, std::int64_t prompt,
                                          std::int32_t head_dim, std::int32_t group,
                                          std::span<const float> projection, std::int64_t columns,
                                          std::int64_t first_column) {
  const std::int64_t d = head_dim;
  KVSIM_CHECK(
      std::ssize(values) >= prompt * d && columns >= 1 && std::ssize(projection) % columns == 0 &&
          first_column >= 0 && first_column + group * d <= columns,
      "{} values of {} tokens, columns {} … of {}", values.size(), prompt, first_column, columns);
  const std::int64_t d_model = std::ssize(projection) / columns;
  using Floats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::Map<const Floats> w{projection.data(), d_model, columns};
  const RowMajor v = Eigen::Map<const Floats>{values.data(), prompt, d}.cast<double>();
  std::vector<double> norms;
  norms.reserve(at(group * prompt));
  for (std::int32_t g = 0; g < group; ++g) {
    // v^T (W^T W) v = |W v|^2 needs a d x d matrix instead of a d_model row per token.
    const RowMajor slice = w.middleCols(first_column + g * d, d).cast<double>();
    const RowMajor gram = slice.transpose() * slice;
    const RowMajor turned = v * gram;
    for (std::int64_t i = 0; i < prompt; ++i) {
      norms.push_back(std::sqrt(std::max(turned.row(i).dot(v.row(i)), 0.0)));
    }
  }
  return norms;
}

std::vector<double> row_norms(std::span<const float> rows, std::int64_t width, std::int64_t first,
                              std::int64_t count) {
  KVSIM_CHECK(width >= 1 && first >= 0 && std::ssize(rows) >= (first + count) * width,
              "rows {} … of {} numbers, {} wide", first, rows.size(), width);
  std::vector<double> norms;
  for (std::int64_t i = first; i < first + count; ++i) {
    double sum = 0;
    for (const float x : rows.subspan(at(i * width), at(width))) {
      sum += static_cast<double>(x) * static_cast<double>(x);
    }
    norms.push_back(std::sqrt(sum));
  }
  return norms;
}

}  // namespace kvsim
