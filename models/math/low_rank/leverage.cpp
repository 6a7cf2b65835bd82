#include "models/math/low_rank/leverage.hpp"

#include <Eigen/Dense>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

std::vector<double> ridge_leverage(std::span<const double> rows, std::size_t d,
                                   std::span<const double> weights, double ridge) {
  KVSIM_CHECK(d >= 1 && ridge > 0 && rows.size() % d == 0, "{} numbers of {}, ridge {}",
              rows.size(), d, ridge);
  const auto n = static_cast<Eigen::Index>(rows.size() / d);
  const auto width = static_cast<Eigen::Index>(d);
  KVSIM_CHECK(weights.empty() || std::ssize(weights) == n, "{} weights of {} rows", weights.size(),
              n);
  const Eigen::Map<const Matrix> x{rows.data(), n, width};
  Eigen::MatrixXd gram = ridge * Eigen::MatrixXd::Identity(width, width);
  if (weights.empty()) {
    gram += x.transpose() * x;
  } else {
    const Eigen::Map<const Eigen::VectorXd> w{weights.data(), n};
    gram += x.transpose() * w.asDiagonal() * x;
  }
  const Eigen::LLT<Eigen::MatrixXd> factor{gram};
  Eigen::MatrixXd solved;
  if (factor.info() == Eigen::Success) {
    // x^T G^-1 x = |L^-1 x|^2.
    solved = factor.matrixL().solve(x.transpose());
  } else {
    // The ridge is below the rounding of large rows, which then span fewer than d dimensions.
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> eigen{gram};
    KVSIM_CHECK(eigen.info() == Eigen::Success, "no eigenvectors of [{}, {}]", d, d);
    const Eigen::VectorXd values = eigen.eigenvalues().cwiseMax(ridge);
    solved = values.cwiseSqrt().cwiseInverse().asDiagonal() * eigen.eigenvectors().transpose() *
             x.transpose();
  }
  std::vector<double> out(static_cast<std::size_t>(n));
  for (Eigen::Index i = 0; i < n; ++i) {
    out[static_cast<std::size_t>(i)] = solved.col(i).squaredNorm();
  }
  return out;
}

std::vector<double> leading_direction(std::span<const float> rows, std::size_t d) {
  KVSIM_CHECK(d >= 1 && !rows.empty() && rows.size() % d == 0, "{} numbers of {}", rows.size(), d);
  const auto n = static_cast<Eigen::Index>(rows.size() / d);
  const Matrix x =
      Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
          rows.data(), n, static_cast<Eigen::Index>(d))
          .cast<double>();
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver{Eigen::MatrixXd{x.transpose() * x}};
  KVSIM_CHECK(solver.info() == Eigen::Success, "no eigenvectors of [{}, {}]", d, d);
  Eigen::VectorXd direction = solver.eigenvectors().rightCols(1);  // ascending values
  const Eigen::VectorXd products = x * direction;
  const auto positive = 2 * (products.array() > 0).count();
  const auto negative = 2 * (products.array() < 0).count();
  const bool turn = negative > n || (positive <= n && products.sum() < 0);
  if (turn) direction = -direction;
  return {direction.data(), direction.data() + direction.size()};
}

}  // namespace kvsim
