#include <cmath>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/support/check.hpp"
#include "validation/calibrate_kernels.hpp"
#include "validation/kernel_accuracy.hpp"

using namespace kvsim;
using kvsim::test::rel;

TEST_CASE("error summaries by hand") {
  const ErrorSummary s = summarise({0.1, -0.2, 0.3, -0.4, 0.0});
  CHECK(s.n == 5);
  CHECK(s.mape == rel(0.2));
  CHECK(s.median_ape == rel(0.2));
  CHECK(s.p90_ape == rel(0.36));
  CHECK(s.worst_ape == rel(0.4));
  CHECK(s.bias == rel(-0.04));
  CHECK(summarise({}).n == 0);
}

namespace {

/// Gates on rows that no fit has seen: pooled MAPE of a family, and of its worst group.
struct Gate {
  KernelOp op;
  double pooled;
  double worst_group;
};

std::vector<PredictedRow> held_out_rows(const std::vector<MeasuredFile>& files, Unseen unseen) {
  std::vector<PredictedRow> rows = predict(files, KernelLibrary::builtin(), unseen);
  std::erase_if(rows, [](const PredictedRow& row) { return !row.held_out; });
  return rows;
}

}  // namespace

TEST_CASE("accuracy on shapes no fit has seen stays within its gates") {
  const auto data = test::data_dir();
  if (!data) return;
  const auto files = read_all_measured(*data / "measured");
  const auto groups = group_rows(held_out_rows(files, Unseen::kNothing));
  for (const AccuracyGroup& g : groups) {
    if (!g.gpu.empty()) continue;
    fmt::print("{}: {} held-out rows, MAPE {:.1f} %\n", g.op, g.all.n, 100 * g.all.mape);
    CHECK_MESSAGE(g.all.mape < 0.5, g.op);
  }
}
