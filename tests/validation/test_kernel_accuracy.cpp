#include <algorithm>
#include <optional>
#include <string>
#include <vector>

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

using Rows = std::vector<PredictedRow>;

/// What of a set of rows a gate is on.
struct Slice {
  const char* name;
  KernelOp op;
  bool (*takes)(const PredictedRow& row);
};

bool any(const PredictedRow&) { return true; }
bool is_16_bit(const PredictedRow& r) {
  return r.row->format.stored_bytes == 2 && r.row->format.operand_bytes == 2;
}
bool hopper_16_bit(const PredictedRow& r) {
  return is_16_bit(r) && r.row->gpu->generation == "hopper";
}
bool a100_16_bit(const PredictedRow& r) { return is_16_bit(r) && r.row->gpu->silicon == "A100"; }
bool fp8_cache(const PredictedRow& r) { return r.row->format.stored_bytes == 1; }
bool fp8(const PredictedRow& r) { return r.row->format.name == "fp8"; }
bool fp8_block(const PredictedRow& r) { return r.row->format.name == "fp8_block"; }
bool hopper(const PredictedRow& r) { return r.row->gpu->generation == "hopper"; }

ErrorSummary errors_of(const Rows& rows, const Slice& slice) {
  std::vector<double> errors;
  for (const PredictedRow& row : rows) {
    if (op_of(row.row->call) == slice.op && slice.takes(row)) errors.push_back(row.error());
  }
  return summarise(std::move(errors));
}

/// MAPE and worst error of a slice, and how many rows it has to have.
struct Gate {
  Slice slice;
  double mape;
  double worst;
  std::int64_t rows;
};

void hold(const Rows& rows, const std::vector<Gate>& gates) {
  for (const Gate& gate : gates) {
    const ErrorSummary s = errors_of(rows, gate.slice);
    fmt::print("{:24} {:6} rows, MAPE {:5.1f} %, p90 {:5.1f}, worst {:6.1f}, bias {:+5.1f}\n",
               gate.slice.name, s.n, 100 * s.mape, 100 * s.p90_ape, 100 * s.worst_ape,
               100 * s.bias);
    CHECK_MESSAGE(s.n >= gate.rows, gate.slice.name);
    CHECK_MESSAGE(s.mape <= gate.mape, gate.slice.name, ": MAPE ", s.mape);
    CHECK_MESSAGE(s.worst_ape <= gate.worst, gate.slice.name, ": worst ", s.worst_ape);
  }
}

constexpr Slice kDecodeHopper{"decode 16 bit, Hopper", KernelOp::kDecodeAttention, hopper_16_bit};
constexpr Slice kDecodeA100{"decode 16 bit, A100", KernelOp::kDecodeAttention, a100_16_bit};
constexpr Slice kDecodeFp8{"decode, fp8 cache", KernelOp::kDecodeAttention, fp8_cache};
constexpr Slice kPrefill{"prefill", KernelOp::kPrefillAttention, any};
constexpr Slice kGemm16{"gemm, 16 bit", KernelOp::kGemm, is_16_bit};
constexpr Slice kGemmFp8{"gemm, fp8", KernelOp::kGemm, fp8};
constexpr Slice kGemmBlock{"gemm, fp8 in blocks", KernelOp::kGemm, fp8_block};
constexpr Slice kMla{"mla", KernelOp::kMla, any};
constexpr Slice kMoe{"moe", KernelOp::kMoe, any};
constexpr Slice kGrouped{"grouped gemm", KernelOp::kGroupedGemm, any};
constexpr Slice kElementwise{"elementwise", KernelOp::kElementwise, any};
constexpr Slice kCollective{"collective", KernelOp::kCollective, any};

}  // namespace

TEST_CASE("accuracy on shapes that no fit has seen, by family: MAPE and worst case") {
  const auto data = test::data_dir();
  if (!data) return;
  const auto files = read_all_measured(*data / "measured");
  Rows rows = predict(files, KernelLibrary::builtin());
  std::erase_if(rows, [](const PredictedRow& row) {
    return !is_held_out(*row.row) || row.basis != KernelBasis::kMeasured;
  });
  hold(rows, {{kDecodeHopper, 0.08, 1.0, 900},
              {kDecodeA100, 0.11, 1.0, 700},
              {kDecodeFp8, 0.14, 1.0, 1000},
              {kPrefill, 0.10, 1.5, 2000},
              {kGemm16, 0.08, 2.0, 4000},
              {kGemmFp8, 0.15, 1.0, 500},
              {kGemmBlock, 0.15, 1.5, 500},
              {kMla, 0.12, 2.0, 1500},
              {kMoe, 0.20, 1.5, 300},
              {kGrouped, 0.15, 1.0, 100},
              {kElementwise, 0.15, 2.0, 250},
              {kCollective, 0.15, 1.0, 300}});
}

namespace {

/// Share of the rows that lie in their 90 % intervals, of a family or (nullopt) of all.
double covered(const Rows& rows, std::optional<KernelOp> op = std::nullopt) {
  double inside = 0, counted = 0;
  for (const PredictedRow& row : rows) {
    if (op && op_of(row.row->call) != *op) continue;
    inside += row.row->us >= row.estimate.low && row.row->us <= row.estimate.high;
    ++counted;
  }
  if (op) fmt::print("{:18} ", name_of(*op));
  fmt::print("{:.1f} % of {} rows lie in the 90 % interval\n", 100 * inside / counted, counted);
  return inside / counted;
}

}  // namespace

TEST_CASE("intervals cover the rows of shapes that neither a fit nor they have seen") {
  const auto data = test::data_dir();
  if (!data) return;
  const auto files = read_all_measured(*data / "measured");
  Rows rows = predict(files, KernelLibrary::builtin());
  std::erase_if(rows, [](const PredictedRow& row) {
    return !is_held_out(*row.row) || row.basis != KernelBasis::kMeasured;
  });
  const double all = covered(rows);
  CHECK(all >= 0.88);
  CHECK(all <= 0.93);
  for (const KernelOp op :
       {KernelOp::kDecodeAttention, KernelOp::kPrefillAttention, KernelOp::kMla, KernelOp::kGemm}) {
    const double family = covered(rows, op);
    CHECK(family >= 0.85);
    CHECK(family <= 0.97);
  }
  // Families of few shapes.
  for (const KernelOp op :
       {KernelOp::kGroupedGemm, KernelOp::kMoe, KernelOp::kElementwise, KernelOp::kCollective}) {
    CHECK(covered(rows, op) >= 0.75);
  }
}

TEST_CASE("intervals cover rows with what they would rest on hidden") {
  const auto data = test::data_dir();
  if (!data) return;
  const auto files = read_all_measured(*data / "measured");
  for (const Unseen unseen : {Unseen::kPair, Unseen::kGpu}) {
    const Rows rows = predict(files, KernelLibrary::builtin(), unseen);
    const double all = covered(rows);
    CHECK(all >= 0.88);
    CHECK(all <= 0.95);
    // Families of few pairs as well: those have wide intervals, not narrow ones of other families.
    for (std::size_t op = 0; op < kKernelOps; ++op) {
      const auto family = static_cast<KernelOp>(op);
      if (family != KernelOp::kCopy) CHECK(covered(rows, family) >= 0.85);
    }
  }
}

TEST_CASE("cases of reach that rest on what is hidden are hidden with it") {
  const KernelLibrary& all = KernelLibrary::builtin();
  CHECK(all.transfers().size() > 50);
  for (const KernelTransfer* one : all.transfers()) {
    CHECK(one->basis != KernelBasis::kMeasured);
    CHECK(one->errors.size() == kTransferErrors);
    CHECK(std::is_sorted(one->errors.begin(), one->errors.end()));
    for (const KernelSource& from : one->from) {
      CHECK((from.gpu != one->hidden.gpu || from.stack != one->hidden.stack));
    }
  }
}

TEST_CASE("accuracy with each row's pair of GPU and stack hidden") {
  const auto data = test::data_dir();
  if (!data) return;
  const auto files = read_all_measured(*data / "measured");
  hold(predict(files, KernelLibrary::builtin(), Unseen::kPair),
       {{kDecodeHopper, 0.13, 2.0, 5000},
        {kPrefill, 0.13, 5.0, 10000},
        {kGemm16, 0.12, 3.0, 10000},
        // Worst: a published time that leaves out the quantisation all others have in them.
        {kGemmFp8, 0.15, 10.0, 2000}});
}

TEST_CASE("accuracy with each row's GPU hidden, within the Hopper generation") {
  const auto data = test::data_dir();
  if (!data) return;
  const auto files = read_all_measured(*data / "measured");
  Rows rows = predict(files, KernelLibrary::builtin(), Unseen::kGpu);
  std::erase_if(rows, [](const PredictedRow& row) { return !hopper(row); });
  hold(rows, {{kDecodeHopper, 0.12, 2.0, 5000},
              {kDecodeFp8, 0.14, 2.0, 5000},
              {kPrefill, 0.12, 5.0, 5000},
              {kGemm16, 0.12, 3.0, 5000},
              {kGemmBlock, 0.25, 3.0, 500}});
}
