#include "models/math/low_rank/gram.hpp"

#include <Eigen/Dense>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

std::vector<double> row_major(const Eigen::MatrixXd& matrix) {
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(matrix.size()));
  for (Eigen::Index i = 0; i < matrix.rows(); ++i) {
    for (Eigen::Index j = 0; j < matrix.cols(); ++j) out.push_back(matrix(i, j));
  }
  return out;
}

}  // namespace

std::vector<double> weighted_gram(std::span<const float> rows, std::size_t d,
                                  std::span<const double> weights) {
  KVSIM_CHECK(
      d >= 1 && rows.size() % d == 0 && (weights.empty() || weights.size() == rows.size() / d),
      "{} numbers in rows of {} with {} weights", rows.size(), d, weights.size());
  const auto n = static_cast<Eigen::Index>(rows.size() / d);
  const auto width = static_cast<Eigen::Index>(d);
  const Eigen::Map<const Matrix<float>> x{rows.data(), n, width};
  Eigen::MatrixXd gram = Eigen::MatrixXd::Zero(width, width);
  constexpr Eigen::Index kRows = 1024;  // converted at a time
  for (Eigen::Index first = 0; first < n; first += kRows) {
    const Eigen::Index count = std::min(kRows, n - first);
    const Eigen::MatrixXd part = x.middleRows(first, count).cast<double>();
    if (weights.empty()) {
      gram += part.transpose() * part;
    } else {
      const Eigen::Map<const Eigen::VectorXd> w{weights.data() + first, count};
      gram += part.transpose() * w.asDiagonal() * part;
    }
  }
  return row_major(gram);
}

std::vector<double> symmetric_eigenvectors(std::span<const double> matrix, std::size_t d) {
  KVSIM_CHECK(d >= 1 && matrix.size() == d * d, "{} numbers of a matrix of {}", matrix.size(), d);
  const auto width = static_cast<Eigen::Index>(d);
  const Eigen::Map<const Matrix<double>> m{matrix.data(), width, width};
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver{
      Eigen::MatrixXd{(m + m.transpose()) / 2}};
  KVSIM_CHECK(solver.info() == Eigen::Success, "no eigenvectors of [{}, {}]", d, d);
  return row_major(solver.eigenvectors());
}

}  // namespace kvsim
