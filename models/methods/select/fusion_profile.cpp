#include "models/methods/select/fusion_profile.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvsim {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

}  // namespace

std::int32_t AttentionProfile::add_column() {
  const double nothing = space_ == ProfileSpace::kLogit ? kNever : 0.0;
  if (free_.empty()) {
    data_.resize(data_.size() + rows_, nothing);
    return static_cast<std::int32_t>(data_.size() / rows_) - 1;
  }
  const std::int32_t column = free_.back();
  free_.pop_back();
  std::fill_n(at(column), rows_, nothing);
  return column;
}

void AttentionProfile::take(std::int32_t column, std::span<const double> rows, bool add) {
  double* to = at(column);
  for (std::size_t r = 0; r < rows_; ++r) to[r] = add ? to[r] + rows[r] : rows[r];
}

void AttentionProfile::combine(std::int32_t into, std::int32_t from, bool take_max) {
  double* to = at(into);
  const double* other = at(from);
  for (std::size_t r = 0; r < rows_; ++r) {
    to[r] = take_max ? std::max(to[r], other[r]) : to[r] + other[r];
  }
}

void AttentionProfile::fuse(std::span<const std::int32_t> columns, bool take_max,
                            std::vector<double>& out) {
  out.assign(columns.size(), 0.0);
  const auto fuse_row = [take_max](double a, double b) {
    return take_max ? std::max(a, b) : a + b;
  };
  if (space_ == ProfileSpace::kProbability) {
    for (std::size_t c = 0; c < columns.size(); ++c) {
      double fused = 0;
      for (const double p : column(columns[c])) fused = fuse_row(fused, p);
      out[c] = fused;
    }
    return;
  }
  highest_.assign(rows_, kNever);
  for (const std::int32_t each : columns) {
    const double* logits = at(each);
    for (std::size_t r = 0; r < rows_; ++r) highest_[r] = std::max(highest_[r], logits[r]);
  }
  sum_.assign(rows_, 0.0);
  weight_.resize(columns.size() * rows_);
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const double* logits = at(columns[c]);
    for (std::size_t r = 0; r < rows_; ++r) {
      const double weight = logits[r] == kNever ? 0.0 : std::exp(logits[r] - highest_[r]);
      weight_[c * rows_ + r] = weight;
      sum_[r] += weight;
    }
  }
  for (std::size_t c = 0; c < columns.size(); ++c) {
    for (std::size_t r = 0; r < rows_; ++r) {
      if (sum_[r] > 0) out[c] = fuse_row(out[c], weight_[c * rows_ + r] / sum_[r]);
    }
  }
}

}  // namespace kvsim
