#include "models/math/low_rank/principal.hpp"

#include <algorithm>

#include <Eigen/Dense>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

std::vector<double> PrincipalBasis::coefficients(std::span<const float> row) const {
  const Eigen::Map<const Matrix> basis{vectors.data(), rank, width};
  const Eigen::Map<const Eigen::VectorXd> middle{mean.data(), width};
  const Eigen::VectorXd off =
      Eigen::Map<const Eigen::VectorXf>{row.data(), width}.cast<double>() - middle;
  const Eigen::VectorXd found = basis * off;
  return {found.data(), found.data() + found.size()};
}

void PrincipalBasis::restore(std::span<const double> coefficients, std::span<float> row) const {
  const Eigen::Map<const Matrix> basis{vectors.data(), rank, width};
  const Eigen::Map<const Eigen::VectorXd> of{coefficients.data(), rank};
  const Eigen::VectorXd sum =
      Eigen::Map<const Eigen::VectorXd>{mean.data(), width} + basis.transpose() * of;
  for (std::int64_t i = 0; i < width; ++i) {
    row[static_cast<std::size_t>(i)] = static_cast<float>(sum[i]);
  }
}

PrincipalBasis principal_basis(std::span<const float> rows, std::int64_t n, std::int64_t width,
                               std::int64_t rank) {
  KVSIM_CHECK(n >= 1 && rank >= 1 && static_cast<std::int64_t>(rows.size()) == n * width,
              "rank {} of [{}, {}] in {} elements", rank, n, width, rows.size());
  Matrix a =
      Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
          rows.data(), n, width)
          .cast<double>();
  const Eigen::RowVectorXd mean = a.colwise().mean();
  a.rowwise() -= mean;
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver{Eigen::MatrixXd{a.transpose() * a}};
  KVSIM_CHECK(solver.info() == Eigen::Success, "no eigenvectors of {} channels", width);
  PrincipalBasis out;
  out.width = width;
  out.mean.assign(mean.data(), mean.data() + width);
  // Eigenvalues ascend. Eigenvalues due to rounding have arbitrary vectors.
  constexpr double kRounding = 1e-12;
  const Eigen::VectorXd& values = solver.eigenvalues();
  const double min = kRounding * static_cast<double>(std::max(n, width)) * values[width - 1];
  const auto varied = static_cast<std::int64_t>((values.array() > min).count());
  out.rank = std::clamp<std::int64_t>(varied, 1, std::min(rank, width));
  Matrix leading = solver.eigenvectors().rightCols(out.rank).rowwise().reverse().transpose();
  for (std::int64_t i = 0; i < out.rank; ++i) {
    Eigen::Index at = 0;
    leading.row(i).cwiseAbs().maxCoeff(&at);
    if (leading(i, at) < 0) leading.row(i) *= -1;
  }
  out.vectors.assign(leading.data(), leading.data() + leading.size());
  return out;
}

}  // namespace kvsim
