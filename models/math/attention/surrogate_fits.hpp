#pragma once

// Internal to models/math: shared by the surrogate fits. Each fit has its own file because Eigen's
// templates take seconds to compile.

#include <vector>

#include <Eigen/Dense>

#include "models/math/attention/surrogate.hpp"
#include "models/units/check.hpp"

namespace kvsim::surrogate_fits {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Floats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Row = Eigen::Matrix<double, 1, Eigen::Dynamic>;

inline Matrix inputs_of(const SurrogateSamples& s) {
  return Eigen::Map<const Floats>{s.hidden.data(), s.size(), s.inputs}.cast<double>();
}
inline Matrix scores_of(const SurrogateSamples& s) {
  return Eigen::Map<const Matrix>{s.scores.data(), s.size(), s.outputs};
}

inline void check(const SurrogateSamples& train, const SurrogateSamples& validation) {
  for (const SurrogateSamples* s : {&train, &validation}) {
    KVSIM_CHECK(s->inputs >= 1 && s->outputs >= 1 && s->size() >= 1 &&
                    std::ssize(s->hidden) == s->size() * s->inputs &&
                    std::ssize(s->scores) == s->size() * s->outputs && s->inputs == train.inputs &&
                    s->outputs == train.outputs,
                "{} numbers and {} scores of {} inputs and {} outputs", s->hidden.size(),
                s->scores.size(), s->inputs, s->outputs);
  }
}

inline std::vector<float> to_floats(const Matrix& m) {
  std::vector<float> all;
  all.reserve(static_cast<std::size_t>(m.size()));
  for (Eigen::Index i = 0; i < m.size(); ++i) all.push_back(static_cast<float>(m.data()[i]));
  return all;
}

inline double squared_error(const Surrogate& surrogate, const SurrogateSamples& samples) {
  const std::vector<float> got = surrogate.predict(samples.hidden);
  double sum = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double off = static_cast<double>(got[i]) - samples.scores[i];
    sum += off * off;
  }
  return sum;
}

}  // namespace kvsim::surrogate_fits
