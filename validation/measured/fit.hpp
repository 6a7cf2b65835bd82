#pragma once

#include <span>
#include <vector>

#include "models/cost/kernels/form.hpp"
#include "validation/measured/measured_rows.hpp"

namespace kvsim {

/// Options of a fit: Levenberg-Marquardt on log(predicted / measured), reweighted to minimize
/// absolute instead of squared errors, within each coefficient's bounds.
struct FitOptions {
  int iterations = 60;
  int rounds = 6;       // of reweighting
  double soft = 0.03;   // errors below this are squared
  double prior = 1e-3;  // weight of the distance from the start, in ln² per row
};

struct FitResult {
  std::vector<double> coefficients;
  double mean_absolute = 0;    // of log(predicted / measured)
  std::vector<double> home{};  // typical values used as the prior's centre
};

/// Fits `form` to `rows`. Deterministic. `starts` are tried in addition to the form's start values.
/// Errors: ContractError without rows.
[[nodiscard]] FitResult fit_form(const KernelForm& form, std::span<const MeasuredRow* const> rows,
                                 std::span<const std::vector<double>> starts = {},
                                 const FitOptions& options = {});

/// Fits the same form to other rows of the same kernels: starts at the result of `near` and goes
/// only to the nearest minimum. Keeps the algorithm chosen by `near`. Errors: ContractError without
/// rows.
[[nodiscard]] FitResult refit_form(const KernelForm& form, std::span<const MeasuredRow* const> rows,
                                   const FitResult& near, const FitOptions& options = {});

}  // namespace kvsim
