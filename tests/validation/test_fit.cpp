#include <cmath>
#include <random>

#include <doctest/doctest.h>

#include "models/cost/kernels/forms/plain.hpp"
#include "tests/support/check.hpp"
#include "validation/measured/fit.hpp"

using namespace kvsim;
using kvsim::test::rel;

namespace {

const KernelForm& plain_form() {
  static const KernelForm form{.id = "plain",
                               .op = KernelOp::kGemm,
                               .coefficients = kPlainCoefficients,
                               .microseconds = plain_microseconds};
  return form;
}

/// Rows of a form with these coefficients, each time multiplied by the factor that `noise` returns.
template <class Noise>
std::vector<MeasuredRow> made_up(const std::vector<double>& c, Noise&& noise) {
  std::vector<MeasuredRow> rows;
  const Gpu& gpu = find_gpu("A100-80GB-SXM");
  for (double m : {1., 16., 256., 4096.}) {
    for (double n : {512., 4096., 16384.}) {
      for (double k : {256., 2048., 8192.}) {
        MeasuredRow row;
        row.gpu = &gpu;
        row.format = parse_kernel_format("bf16");
        row.call = GemmCall{.m = m, .n = n, .k = k};
        row.us = plain_microseconds(row.call, row.format, kernel_gpu(gpu), c.data()) *
                 noise(rows.size());
        rows.push_back(row);
      }
    }
  }
  return rows;
}

std::vector<const MeasuredRow*> pointers(const std::vector<MeasuredRow>& rows) {
  std::vector<const MeasuredRow*> out;
  for (const MeasuredRow& row : rows) out.push_back(&row);
  return out;
}

}  // namespace

TEST_CASE("fit: recovers the coefficients that generated the rows") {
  const std::vector<double> truth{7.5, 0.61, 0.83};
  const auto rows = made_up(truth, [](std::size_t) { return 1.0; });
  FitOptions options;
  options.prior = 0;
  const FitResult fit = fit_form(plain_form(), pointers(rows), {}, options);
  for (std::size_t i = 0; i < truth.size(); ++i) CHECK(fit.coefficients[i] == rel(truth[i], 1e-4));
  CHECK(fit.mean_absolute < 1e-4);
}

TEST_CASE("fit: a few outliers do not move the fit") {
  const std::vector<double> truth{7.5, 0.61, 0.83};
  const auto rows = made_up(truth, [](std::size_t i) { return i % 12 == 5 ? 8.0 : 1.0; });
  const FitResult fit = fit_form(plain_form(), pointers(rows));
  for (std::size_t i = 0; i < truth.size(); ++i) CHECK(fit.coefficients[i] == rel(truth[i], 0.03));
}

TEST_CASE("fit: noise is reported as noise and fits are reproducible") {
  std::mt19937 random{5};
  std::normal_distribution<double> spread{0, 0.1};
  const std::vector<double> truth{5, 0.7, 0.8};
  const auto rows = made_up(truth, [&](std::size_t) { return std::exp(spread(random)); });
  const FitResult a = fit_form(plain_form(), pointers(rows));
  const FitResult b = fit_form(plain_form(), pointers(rows));
  CHECK(a.coefficients == b.coefficients);
  for (std::size_t i = 0; i < truth.size(); ++i) CHECK(a.coefficients[i] == rel(truth[i], 0.12));
  CHECK(a.mean_absolute < 0.1);
}

TEST_CASE("fit: stays within bounds for any rows") {
  const auto rows = made_up({5, 0.7, 0.8}, [](std::size_t) { return 1e-3; });
  const FitResult fit = fit_form(plain_form(), pointers(rows));
  for (std::size_t i = 0; i < fit.coefficients.size(); ++i) {
    CHECK(fit.coefficients[i] >= kPlainCoefficients[i].low);
    CHECK(fit.coefficients[i] <= kPlainCoefficients[i].high);
  }
}
