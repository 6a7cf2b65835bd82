#pragma once

#include <map>
#include <string>
#include <vector>

#include "models/cost/kernels/library.hpp"
#include "validation/measured/measured_rows.hpp"

namespace kvsim {

/// Calibrations that are hidden from the prediction of a row.
enum class Unseen : std::uint8_t {
  kNothing,  // no calibration is hidden
  kPair,     // calibrations of the row's (GPU, stack)
  kGpu       // calibrations of the row's GPU (and of cards with equal times)
};

struct PredictedRow {
  const MeasuredRow* row = nullptr;
  KernelEstimate estimate;
  double ideal_us = 0;
  KernelBasis basis = KernelBasis::kNominal;
  bool held_out = false;  // not used in the fit of any calibration
  [[nodiscard]] double error() const { return estimate.us / row->us - 1; }
};

/// Predicts every row, with the calibrations named by `unseen` hidden.
[[nodiscard]] std::vector<PredictedRow> predict(const std::vector<MeasuredFile>& files,
                                                const KernelLibrary& library,
                                                Unseen unseen = Unseen::kNothing);

/// Errors when each calibration of `library` is replaced by the others, once with its pair of GPU
/// and stack hidden and once with its GPU hidden: over the rows it was fitted to, without held-out
/// rows.
[[nodiscard]] std::vector<KernelTransfer> transfers_of(const std::vector<MeasuredFile>& files,
                                                       const KernelLibrary& library);

/// Errors of a group of rows, as fractions; large calls are those with at least 30 µs of ideal
/// time.
struct AccuracyGroup {
  std::string op, gpu, stack, dtype;  // empty: pooled
  ErrorSummary all;
  ErrorSummary large;
  ErrorSummary held_out;
  double covered = 0;  // share of rows inside their 90 % interval
  std::int64_t extrapolated = 0;
  std::map<std::string, std::int64_t> bases;
};
[[nodiscard]] ErrorSummary summarise(std::vector<double> errors);
/// Returns one group per (op, GPU, stack, dtype), in that order, then one per op with the rest
/// pooled.
[[nodiscard]] std::vector<AccuracyGroup> group_rows(const std::vector<PredictedRow>& rows);

inline constexpr double kLargeMicroseconds = 30;

}  // namespace kvsim
