#include <algorithm>
#include <cmath>
#include <limits>

#include "models/math/attention/surrogate_fits.hpp"

namespace kvsim {
namespace {

using namespace surrogate_fits;

/// Centred normal equations, factored once for all penalties.
class Ridge {
 public:
  Ridge(const Matrix& x, const Matrix& y)
      : x_mean_{x.colwise().mean()}, y_mean_{y.colwise().mean()} {
    const Matrix xc = x.rowwise() - x_mean_;
    const Matrix yc = y.rowwise() - y_mean_;
    const Eigen::MatrixXd gram = xc.transpose() * xc;
    scale_ = std::max(gram.trace() / static_cast<double>(gram.rows()),
                      std::numeric_limits<double>::min());
    solver_.compute(gram);
    turned_ = solver_.eigenvectors().transpose() * (xc.transpose() * yc);
  }
  /// lambda is in units of the mean of the Gram matrix's diagonal.
  [[nodiscard]] Surrogate solve(double lambda) const {
    Eigen::MatrixXd scaled = turned_;
    for (Eigen::Index i = 0; i < scaled.rows(); ++i) {
      scaled.row(i) /= std::max(solver_.eigenvalues()[i], 0.0) + lambda * scale_;
    }
    const Eigen::MatrixXd w = solver_.eigenvectors() * scaled;  // [inputs, outputs]
    const Matrix wt = w.transpose();
    const Matrix b = y_mean_ - x_mean_ * w;
    Surrogate s;
    s.inputs = static_cast<std::int32_t>(w.rows());
    s.outputs = static_cast<std::int32_t>(w.cols());
    s.w2 = to_floats(wt);
    s.b2 = to_floats(b);
    return s;
  }

 private:
  Row x_mean_, y_mean_;
  double scale_ = 0;
  Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver_;
  Eigen::MatrixXd turned_;
};

}  // namespace

SurrogateFit fit_ridge(const SurrogateSamples& train, const SurrogateSamples& validation) {
  check(train, validation);
  const Ridge ridge{inputs_of(train), scores_of(train)};
  SurrogateFit fit;
  double best = std::numeric_limits<double>::infinity();
  for (int power = -4; power <= 4; ++power) {
    const double lambda = std::pow(10.0, power);
    const double error = squared_error(ridge.solve(lambda), validation);
    if (error < best) {
      best = error;
      fit.lambda = lambda;
    }
  }
  SurrogateSamples both = train;
  both.hidden.insert(both.hidden.end(), validation.hidden.begin(), validation.hidden.end());
  both.scores.insert(both.scores.end(), validation.scores.begin(), validation.scores.end());
  fit.surrogate = Ridge{inputs_of(both), scores_of(both)}.solve(fit.lambda);
  return fit;
}

}  // namespace kvsim
