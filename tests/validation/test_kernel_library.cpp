#include <algorithm>
#include <cmath>
#include <utility>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "models/cost/kernels/library.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"

using namespace kvsim;
using kvsim::test::rel;

namespace {

const KernelCall kCall = GemmCall{.m = 64, .n = 4096, .k = 4096};
const KernelFormat kBf16 = parse_kernel_format("bf16");

/// A calibration with the form's start values, except that its first coefficient (a latency) is
/// multiplied by `factor`.
KernelCalibration entry(const char* gpu, const char* stack, double factor = 1,
                        const char* format = "bf16") {
  KernelCalibration out;
  out.op = KernelOp::kGemm;
  out.gpu = gpu;
  out.stack = stack;
  out.format = format;
  out.form = gemm_form().id;
  for (const Coefficient& c : gemm_form().coefficients) out.coefficients.push_back(c.start);
  out.coefficients[0] *= factor;
  out.q05 = -0.1;
  out.q95 = 0.2;
  for (KernelRange& range : out.ranges) range = {.low = 1, .high = 8192};
  return out;
}

/// A transfer case whose errors increase from 0 to `worst` in equal steps.
KernelTransfer transfer(KernelBasis basis, double worst, const char* hidden = "s") {
  KernelTransfer out{.op = KernelOp::kGemm,
                     .hidden = {.gpu = "A100-80GB-SXM", .stack = hidden, .format = "bf16"},
                     .basis = basis,
                     .from = {{.gpu = "A100-80GB-SXM", .stack = "other", .format = "bf16"}}};
  for (std::size_t i = 0; i < kTransferErrors; ++i) {
    out.errors.push_back(worst * static_cast<double>(i) / (kTransferErrors - 1));
  }
  return out;
}

KernelLibrary library(std::vector<KernelCalibration> entries,
                      std::vector<KernelTransfer> transfers = {}) {
  KernelCalibrationFile file;
  file.transfers = std::move(transfers);
  file.entries = std::move(entries);
  return KernelLibrary{{std::move(file)}};
}

/// `loads`: factor on the loads of an SM relative to the start values.
double start_time(const Gpu& gpu, double factor = 1, double loads = 1) {
  std::vector<double> c;
  for (const Coefficient& one : gemm_form().coefficients) {
    c.push_back(one.start * (one.carries == ScalingRule::kSmRate ? loads : 1));
  }
  c[0] *= factor;
  return gemm_form().microseconds(kCall, kBf16, kernel_gpu(gpu), c.data());
}

}  // namespace

TEST_CASE(
    "kernel library: names of shipped files state their contents so that others are not read") {
  const auto shipped = shipped_calibrations();
  REQUIRE(shipped.size() == builtin_calibrations().size());
  std::size_t entries = 0, transfers = 0;
  for (const ShippedCalibration& named : shipped) {
    INFO(named.name);
    const KernelCalibrationFile file = read_shipped(named);
    CHECK(find_gpu(file.gpu).generation == named.generation);
    for (const KernelCalibration& entry : file.entries) {
      CHECK(entry.op == named.op);
      CHECK(find_gpu(entry.gpu).generation == named.generation);
    }
    for (const KernelTransfer& one : file.transfers) CHECK(one.op == named.op);
    entries += file.entries.size();
    transfers += file.transfers.size();
  }
  CHECK(KernelLibrary::builtin().entries().size() == entries);
  CHECK(KernelLibrary::builtin().transfers().size() == transfers);
  // The choice is the same whether files are read or not.
  const KernelLibrary whole{builtin_calibrations()};
  for (std::size_t i = 0; i < kKernelOps; ++i) {
    const auto op = static_cast<KernelOp>(i);
    CHECK(find_kernel_op(name_of(op)) == op);
    for (const char* gpu : {"A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM", "B200", "T4"}) {
      for (const char* stack : {"vllm", "sglang", "unheard-of"}) {
        const KernelChoice a = whole.choose(op, find_gpu(gpu), stack, kBf16);
        const KernelChoice b = KernelLibrary::builtin().choose(op, find_gpu(gpu), stack, kBf16);
        CHECK(a.provenance() == b.provenance());
        CHECK(a.basis() == b.basis());
        REQUIRE(a.factors().size() == b.factors().size());
        for (std::size_t f = 0; f < a.factors().size(); ++f) {
          CHECK(a.factors()[f].coefficients == b.factors()[f].coefficients);
        }
      }
    }
  }
  CHECK_FALSE(find_kernel_op("gemms"));
}

TEST_CASE("kernel library: distance of the chosen calibration, nearest first") {
  const Gpu& a100 = find_gpu("A100-80GB-SXM");
  const Gpu& a800 = find_gpu("A800-80GB-SXM");
  const Gpu& h100 = find_gpu("H100-80GB-SXM");
  const Gpu& h200 = find_gpu("H200-141GB-SXM");
  const KernelLibrary all = library(
      {entry("A100-80GB-SXM", "aic-vllm-0.14.0"), entry("H100-80GB-SXM", "aic-vllm-0.14.0", 2),
       entry("H100-80GB-SXM", "aic-vllm-0.24.0", 1.5), entry("H100-80GB-SXM", "aic-trtllm-1.0", 3),
       entry("H200-141GB-SXM", "aic-trtllm-1.0", 1.2)});
  const auto basis = [&](const Gpu& gpu, const char* stack) {
    return all.choose(KernelOp::kGemm, gpu, stack, kBf16).basis();
  };
  CHECK(basis(a100, "aic-vllm-0.14.0") == KernelBasis::kMeasured);
  CHECK(basis(a800, "aic-vllm-0.14.0") == KernelBasis::kMeasured);  // the same silicon
  CHECK(basis(a100, "aic-vllm-0.20.0") == KernelBasis::kOtherVersion);
  CHECK(basis(a100, "aic-sglang-0.5") == KernelBasis::kOtherStack);
  // The same chip with different memory: the kernels of that stack are scaled by the data sheets'
  // ratios. An SM loads the same number of bytes per second.
  const double slower = h100.hbm_bandwidth.count() / h200.hbm_bandwidth.count();
  CHECK(basis(h200, "aic-vllm-0.14.0") == KernelBasis::kSibling);
  CHECK(all.choose(KernelOp::kGemm, h200, "aic-vllm-0.14.0", kBf16).microseconds(kCall) ==
        rel(start_time(h200, 2, slower), 1e-9));
  CHECK(basis(find_gpu("H100-PCIe"), "aic-vllm-0.14.0") != KernelBasis::kNominal);
  CHECK(basis(find_gpu("T4"), "aic-vllm-0.14.0") == KernelBasis::kNominal);
  CHECK(all.choose(KernelOp::kMla, a100, "x", kBf16).basis() == KernelBasis::kNominal);
  // An unmeasured stack: the geometric mean of this GPU's others, each in its newest version.
  CHECK(all.choose(KernelOp::kGemm, h100, "sglang", kBf16).microseconds(kCall) ==
        rel(std::sqrt(start_time(h100, 1.5) * start_time(h100, 3)), 1e-9));
}

// H100 and H200 are the same chip with different memory. A kernel that reaches a higher rate on one
// does so on the other, regardless of which was measured. SM-bound kernels keep their bytes per
// second.
TEST_CASE("kernel library: without NVLink frameworks leave collectives to NCCL") {
  const KernelCall call =
      CollectiveCall{.kind = CollectiveKind::kAllReduce, .bytes = 65536, .gpus = 4};
  const auto& all = KernelLibrary::builtin();
  const auto us = [&](const char* gpu, const char* stack) {
    return all.choose(KernelOp::kCollective, find_gpu(gpu), stack, kBf16).microseconds(call);
  };
  CHECK(us("L40S", "vllm") == us("L40S", "nccl"));
  CHECK(us("H100-80GB-SXM", "vllm") < us("H100-80GB-SXM", "nccl"));
  CHECK(us("L40S", "vllm") > 2 * us("H100-80GB-SXM", "vllm"));
}

TEST_CASE("kernel library: shares of bandwidth keep their order on the same chip") {
  const auto coefficients = gemm_form().coefficients;
  const auto at = static_cast<std::size_t>(
      std::find_if(coefficients.begin(), coefficients.end(),
                   [](const Coefficient& c) { return c.carries == ScalingRule::kHbmShare; }) -
      coefficients.begin());
  REQUIRE(at < coefficients.size());
  const char* h100 = "H100-80GB-SXM";
  const char* h200 = "H200-141GB-SXM";
  const auto carried = [&](const char* from, const char* to, double share) {
    KernelCalibration one = entry(from, "vllm");
    one.coefficients[at] = share;
    const KernelLibrary lib = library({std::move(one)});
    return lib.choose(KernelOp::kGemm, find_gpu(to), "vllm", kBf16).factors()[0].coefficients[at];
  };
  const double faster = find_gpu(h200).hbm_bandwidth.count() / find_gpu(h100).hbm_bandwidth.count();
  REQUIRE(faster > 1);
  for (const auto& [from, to] : {std::pair{h100, h200}, {h200, h100}}) {
    INFO(from, " to ", to);
    double before = 0;
    for (double share = 0.2; share <= 1; share += 0.01) {
      const double there = carried(from, to, share);
      CHECK(there >= before);
      CHECK(there <= std::max(share, 0.8));
      before = there;
    }
    for (const double share : {0.8, 0.85, 0.9, 1.0}) CHECK(carried(from, to, share) == share);
  }
  CHECK(carried(h100, h200, 0.5) * faster == doctest::Approx(0.5));
  CHECK(carried(h200, h100, 0.5) == doctest::Approx(0.5 * faster));
  // An SM-bound share is unchanged by a round trip.
  CHECK(carried(h200, h100, carried(h100, h200, 0.4)) == doctest::Approx(0.4));
}

TEST_CASE("kernel library: intervals contain the estimate and widen with the distance") {
  const Gpu& a100 = find_gpu("A100-80GB-SXM");
  const KernelLibrary all = library({entry("A100-80GB-SXM", "aic-vllm-0.14.0")});
  const auto width = [&](const char* stack, const KernelCall& call) {
    const KernelEstimate e = all.choose(KernelOp::kGemm, a100, stack, kBf16).estimate(call);
    CHECK(e.low <= e.us);
    CHECK(e.us <= e.high);
    return std::log(e.high / e.low);
  };
  CHECK(width("aic-vllm-0.14.0", kCall) == rel(0.3, 1e-9));
  CHECK(width("aic-vllm-0.9", kCall) > width("aic-vllm-0.14.0", kCall));
  CHECK(width("other", kCall) >= width("aic-vllm-0.9", kCall));
  const KernelCall far = GemmCall{.m = 1e6, .n = 4096, .k = 4096};
  CHECK(width("aic-vllm-0.14.0", far) > width("aic-vllm-0.14.0", kCall));
  CHECK(all.choose(KernelOp::kGemm, a100, "aic-vllm-0.14.0", kBf16).estimate(far).extrapolated);
  CHECK_FALSE(
      all.choose(KernelOp::kGemm, a100, "aic-vllm-0.14.0", kBf16).estimate(kCall).extrapolated);
}

TEST_CASE("kernel library: the interval of a distance is from cases of the same distance") {
  const Gpu& a100 = find_gpu("A100-80GB-SXM");
  const auto width = [&](double worst, std::size_t cases) {
    std::vector<KernelTransfer> transfers;
    for (std::size_t i = 0; i < cases; ++i) {
      transfers.push_back(transfer(KernelBasis::kOtherStack, worst));
      transfers.push_back(transfer(KernelBasis::kNominal, 9));  // not used
    }
    const KernelLibrary all = library({entry("A100-80GB-SXM", "aic-vllm-0.14.0")}, transfers);
    const KernelEstimate measured =
        all.choose(KernelOp::kGemm, a100, "aic-vllm-0.14.0", kBf16).estimate(kCall);
    CHECK(std::log(measured.high / measured.low) == rel(0.3, 1e-9));  // the interval of the
                                                                      // calibration
    const KernelEstimate e = all.choose(KernelOp::kGemm, a100, "other", kBf16).estimate(kCall);
    CHECK(std::log(e.high / e.us) == rel(std::log(e.us / e.low), 1e-9));
    return std::log(e.high / e.us);
  };
  // Similar cases: their 80 or more errors are all used, at the level 0.9 (n + 1) / n.
  const double n = 4 * kTransferErrors;
  CHECK(width(0.5, 4) >= 0.5 * 0.9);
  CHECK(width(0.5, 4) <= 0.5 * (0.9 * (n + 1) / n + 1.0 / kTransferErrors));
  CHECK(width(1.0, 4) == rel(2 * width(0.5, 4), 1e-9));
  CHECK(width(0.5, 8) == rel(width(0.5, 4), 0.01));
  // Too few cases at this distance: cases at other distances are used too.
  CHECK(width(0.5, 2) > 2);
}

TEST_CASE("kernel library: cached choices are the same object and the same answer") {
  const KernelLibrary& all = KernelLibrary::builtin();
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  const KernelChoice& a = all.kept_choice(KernelOp::kGemm, gpu, "vllm", kBf16);
  CHECK(&a == &all.kept_choice(KernelOp::kGemm, gpu, "vllm", kBf16));
  // A hypothetical GPU may have the same name.
  Gpu other = gpu;
  other.hbm_bandwidth = gpu.hbm_bandwidth * 0.5;
  other.sms = gpu.sms / 2;
  CHECK(&a != &all.kept_choice(KernelOp::kGemm, other, "vllm", kBf16));
  CHECK_FALSE(has_equal_times(gpu, other));
  other = gpu;
  other.hbm = gpu.hbm * 2;  // memory size does not change times
  CHECK(&a == &all.kept_choice(KernelOp::kGemm, other, "vllm", kBf16));
  CHECK(a.microseconds(kCall) ==
        all.choose(KernelOp::kGemm, gpu, "vllm", kBf16).microseconds(kCall));
}

TEST_CASE("calibration files: written files read back and broken ones are refused") {
  KernelCalibrationFile file{
      .gpu = "A100-80GB-SXM", .provenance = "made up", .date = "2026-01-01", .split = "none"};
  file.entries.push_back(entry("A100-80GB-SXM", "s"));
  file.entries[0].held_out = {
      .n = 3, .mape = 0.1, .median_ape = 0.1, .p90_ape = 0.2, .worst_ape = 0.3, .bias = -0.05};
  file.transfers.push_back(transfer(KernelBasis::kSibling, 0.7531));
  const std::string text = write_calibration(file);
  const KernelCalibrationFile back = read_calibration(Field::parse(text, "c.json"));
  CHECK(write_calibration(back) == text);
  CHECK(back.entries[0].coefficients == file.entries[0].coefficients);
  CHECK(back.entries[0].held_out.bias == -0.05);
  REQUIRE(back.transfers.size() == 1);
  CHECK(back.transfers[0].basis == KernelBasis::kSibling);
  CHECK(back.transfers[0].from[0].stack == "other");
  CHECK(back.transfers[0].errors.back() == 0.7531);

  const auto broken = [&](std::string_view what, std::string_view with) {
    std::string copy = text;
    const auto at = copy.find(what);
    REQUIRE(at != std::string::npos);
    copy.replace(at, what.size(), with);
    try {
      (void)read_calibration(Field::parse(copy, "c.json"));
      return std::string{};
    } catch (const InputError& e) {
      return std::string{e.what()};
    }
  };
  CHECK(broken("\"gemm\"", "\"gem\"").find("c.json: /entries/0/op") != std::string::npos);
  CHECK(broken("\"sibling\"", "\"siblin\"").find("/transfers/0/basis") != std::string::npos);
  CHECK(broken("0.7531", "0.7").find("/transfers/0/errors/") != std::string::npos);  // not
                                                                                     // ascending
  CHECK(broken("kvsim.calibration/1", "kvsim.calibration/9").find("/schema") != std::string::npos);
  CHECK(broken("A100-80GB-SXM", "A1000").find("A100") != std::string::npos);
  CHECK(broken("\"bf16\"", "\"bf17\"").find("bf16") != std::string::npos);
  CHECK(broken(fmt::format("\"{}\"", gemm_form().coefficients[0].name), "\"nonsense\"") != "");
}

TEST_CASE("shipped calibrations: each has a known form, is finite and grows with the call") {
  for (const KernelCalibrationFile& file : builtin_calibrations()) {
    CHECK_FALSE(file.provenance.empty());
    for (const KernelCalibration& e : file.entries) {
      const KernelForm& form = form_of(e.op);
      const KernelGpu gpu = kernel_gpu(find_gpu(e.gpu));
      const KernelFormat format = parse_kernel_format(e.format);
      const auto time = [&](const KernelCall& call) {
        return form.microseconds(call, format, gpu, e.coefficients.data());
      };
      const auto rises = [&](const KernelCall& call) {
        const double small = time(with_length(call, 300)), large = time(with_length(call, 30000));
        CHECK_MESSAGE(small > 0, e.stack);
        CHECK_MESSAGE(std::isfinite(large), e.stack);
        CHECK_MESSAGE(large > small, name_of(e.op), " ", e.gpu, " ", e.stack, " ", e.format);
      };
      switch (e.op) {
        case KernelOp::kDecodeAttention:
          rises(DecodeAttentionCall{.batch = 8, .q_heads = 32, .kv_heads = 8});
          break;
        case KernelOp::kPrefillAttention:
          rises(PrefillAttentionCall{.batch = 2, .q_heads = 32, .kv_heads = 8});
          break;
        case KernelOp::kMla:
          rises(MlaCall{.batch = 8, .heads = 16});
          break;
        case KernelOp::kGemm:
          rises(GemmCall{.m = 1, .n = 4096, .k = 4096});
          break;
        default:
          break;
      }
    }
  }
}
