#pragma once

#include <span>
#include <vector>

#include "models/cost/kernels/form.hpp"
#include "validation/measured/measured_rows.hpp"

namespace kvsim {

/// How a form is fitted: Levenberg-Marquardt on log(predicted / measured), reweighted so that the
/// sum of absolute errors counts rather than that of squares, within each coefficient's bounds.
struct FitOptions {
  int iterations = 60;
  int rounds = 6;       // of reweighting
  double soft = 0.03;   // errors below this count as squares
  double prior = 1e-3;  // weight of staying near the start, in ln² per row of all
};

struct FitResult {
  std::vector<double> coefficients;
  double mean_absolute = 0;    // of log(predicted / measured)
  std::vector<double> home{};  // typical values that the prior held it near
};

/// Fits `form` to `rows`. Deterministic. `starts` are tried in addition to the form's start values.
/// Errors: ContractError without rows.
[[nodiscard]] FitResult fit_form(const KernelForm& form, std::span<const MeasuredRow* const> rows,
                                 std::span<const std::vector<double>> starts = {},
                                 const FitOptions& options = {});

/// The same form on other rows of the same kernels: from the result of `near`, only to the nearest
/// minimum. The algorithm that `near` chose is kept. Errors: ContractError without rows.
[[nodiscard]] FitResult refit_form(const KernelForm& form, std::span<const MeasuredRow* const> rows,
                                   const FitResult& near, const FitOptions& options = {});

}  // namespace kvsim
