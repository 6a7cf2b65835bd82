#include "models/math/attention/attention_profile.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/math/lanes.hpp"

namespace kvsim {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr std::size_t kLanes = 4;
constexpr std::size_t kRun = 16;  // rows fused together

lanes::D4 larger(lanes::D4 a, lanes::D4 b) { return a > b ? a : b; }

double fold_max(lanes::D4 v) { return std::max(std::max(v[0], v[2]), std::max(v[1], v[3])); }

}  // namespace

AttentionProfile::AttentionProfile(std::int32_t rows, ProfileSpace space, bool fuse_max)
    : rows_{static_cast<std::size_t>(rows)},
      stride_{space == ProfileSpace::kLogit ? (rows_ + kLanes - 1) / kLanes * kLanes
                                            : (rows_ + kRun - 1) / kRun * kRun},
      n_parts_{space == ProfileSpace::kLogit ? 0 : stride_ / kRun},
      space_{space},
      fuse_max_{fuse_max} {}

std::int32_t AttentionProfile::add_column() {
  const double nothing = space_ == ProfileSpace::kLogit ? kNever : 0.0;
  if (free_.empty()) {
    data_.resize(data_.size() + stride_, nothing);
    parts_.resize(parts_.size() + n_parts_, 0.0);
    return static_cast<std::int32_t>(data_.size() / stride_) - 1;
  }
  const std::int32_t column = free_.back();
  free_.pop_back();
  std::fill_n(at(column), stride_, nothing);
  std::fill_n(parts_of(column), n_parts_, 0.0);
  return column;
}

void AttentionProfile::write(std::int32_t column, double attention) {
  at(column)[row_] = attention;
  if (n_parts_ > 0) fuse_part(column, row_ / kRun);
}

void AttentionProfile::take(std::int32_t column, std::span<const double> from, bool add) {
  double* to = at(column);
  for (std::size_t r = 0; r < stride_; ++r) to[r] = add ? to[r] + from[r] : from[r];
  fuse_parts(column);
}

void AttentionProfile::combine(std::int32_t into, std::int32_t from, bool take_max) {
  double* to = at(into);
  const double* other = at(from);
  for (std::size_t r = 0; r < stride_; ++r) {
    to[r] = take_max ? std::max(to[r], other[r]) : to[r] + other[r];
  }
  fuse_parts(into);
}

void AttentionProfile::fuse_part(std::int32_t column, std::size_t part) {
  const double* rows = at(column) + part * kRun;
  lanes::D4 fused = lanes::load(rows);
  for (std::size_t r = kLanes; r < kRun; r += kLanes) {
    const lanes::D4 more = lanes::load(rows + r);
    fused = fuse_max_ ? larger(fused, more) : fused + more;
  }
  parts_of(column)[part] = fuse_max_ ? fold_max(fused) : lanes::fold(fused);
}

void AttentionProfile::fuse_parts(std::int32_t column) {
  for (std::size_t part = 0; part < n_parts_; ++part) fuse_part(column, part);
}

void AttentionProfile::fuse(std::span<const std::int32_t> columns, std::vector<double>& out) {
  out.resize(columns.size());
  if (space_ == ProfileSpace::kLogit) {
    fuse_logits(columns, out);
    return;
  }
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const double* parts = parts_of(columns[c]);
    double fused = 0;
    for (std::size_t part = 0; part < n_parts_; ++part) {
      fused = fuse_max_ ? std::max(fused, parts[part]) : fused + parts[part];
    }
    out[c] = fused;
  }
}

void AttentionProfile::fuse_logits(std::span<const std::int32_t> columns,
                                   std::vector<double>& out) {
  highest_.assign(stride_, kNever);
  for (const std::int32_t each : columns) {
    const double* logits = at(each);
    for (std::size_t r = 0; r < stride_; r += kLanes) {
      lanes::store(&highest_[r], larger(lanes::load(&highest_[r]), lanes::load(logits + r)));
    }
  }
  for (double& x : highest_) {
    if (x == kNever) x = 0.0;  // an unwritten row: its weights are 0, not undefined
  }
  sum_.assign(stride_, 0.0);
  weight_.resize(columns.size() * stride_);
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const double* logits = at(columns[c]);
    double* weights = weight_.data() + c * stride_;
    for (std::size_t r = 0; r < stride_; r += kLanes) {
      const lanes::D4 weight =
          lanes::exp_nonpositive(lanes::load(logits + r) - lanes::load(&highest_[r]));
      lanes::store(weights + r, weight);
      lanes::store(&sum_[r], lanes::load(&sum_[r]) + weight);
    }
  }
  for (double& x : sum_) x = x > 0 ? 1.0 / x : 0.0;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const double* weights = weight_.data() + c * stride_;
    lanes::D4 fused{};
    for (std::size_t r = 0; r < stride_; r += kLanes) {
      const lanes::D4 share = lanes::load(weights + r) * lanes::load(&sum_[r]);
      fused = fuse_max_ ? larger(fused, share) : fused + share;
    }
    out[c] = fuse_max_ ? fold_max(fused) : lanes::fold(fused);
  }
}

}  // namespace kvsim
