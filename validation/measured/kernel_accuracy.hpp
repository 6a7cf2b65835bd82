#pragma once

#include <map>
#include <string>
#include <vector>

#include "models/cost/kernels/library.hpp"
#include "validation/measured/measured_rows.hpp"

namespace kvsim {

/// What is hidden on purpose from the prediction of a row.
enum class Unseen : std::uint8_t {
  kNothing,  // the calibrations as they are
  kPair,     // those of the row's (GPU, stack) are hidden
  kGpu       // those of the row's GPU (and of cards with equal times) are hidden
};

struct PredictedRow {
  const MeasuredRow* row = nullptr;
  KernelEstimate estimate;
  double ideal_us = 0;
  KernelBasis basis = KernelBasis::kNominal;
  bool held_out = false;  // not among the rows that any calibration was fitted to
  [[nodiscard]] double error() const { return estimate.us / row->us - 1; }
};

/// Predicts every row. With `unseen`, what it names is hidden first.
[[nodiscard]] std::vector<PredictedRow> predict(const std::vector<MeasuredFile>& files,
                                                const KernelLibrary& library,
                                                Unseen unseen = Unseen::kNothing);

/// The errors of the other calibrations of `library` in place of each of its calibrations, with its
/// pair of GPU and stack hidden and with its GPU: over the rows it was fitted to, none of which is
/// held out.
[[nodiscard]] std::vector<KernelTransfer> transfers_of(const std::vector<MeasuredFile>& files,
                                                       const KernelLibrary& library);

/// Errors of some rows together: errors are fractions, large calls those with 30 µs of ideal time.
struct AccuracyGroup {
  std::string op, gpu, stack, dtype;  // empty: pooled over it
  ErrorSummary all;
  ErrorSummary large;
  ErrorSummary held_out;
  double covered = 0;  // share of rows inside their 90 % interval
  std::int64_t extrapolated = 0;
  std::map<std::string, std::int64_t> bases;
};
[[nodiscard]] ErrorSummary summarise(std::vector<double> errors);
/// A group a (op, GPU, stack, dtype) in that order, then one an op with the rest pooled.
[[nodiscard]] std::vector<AccuracyGroup> group_rows(const std::vector<PredictedRow>& rows);

inline constexpr double kLargeMicroseconds = 30;

}  // namespace kvsim
