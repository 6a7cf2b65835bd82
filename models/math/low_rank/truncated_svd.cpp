#include "models/math/low_rank/truncated_svd.hpp"

#include <Eigen/Dense>

#include "models/units/check.hpp"

namespace kvsim {

std::vector<float> nearest_of_rank(std::span<const float> rows, std::int64_t m, std::int64_t n,
                                   std::int64_t rank) {
  KVSIM_CHECK(m >= 1 && n >= 1 && rank >= 1 && static_cast<std::int64_t>(rows.size()) == m * n,
              "rank {} of [{}, {}] in {} elements", rank, m, n, rows.size());
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  if (rank >= std::min(m, n)) return {rows.begin(), rows.end()};
  const Matrix a =
      Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
          rows.data(), m, n)
          .cast<double>();
  const bool tall = m >= n;
  const Eigen::MatrixXd gram =
      tall ? Eigen::MatrixXd{a.transpose() * a} : Eigen::MatrixXd{a * a.transpose()};
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver{gram};
  KVSIM_CHECK(solver.info() == Eigen::Success, "no eigenvectors of [{}, {}]", gram.rows(),
              gram.cols());
  const Eigen::MatrixXd leading = solver.eigenvectors().rightCols(rank);  // ascending values
  const Matrix near = tall ? Matrix{(a * leading) * leading.transpose()}
                           : Matrix{leading * (leading.transpose() * a)};
  std::vector<float> out(rows.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(near.data()[i]);
  return out;
}

}  // namespace kvsim
