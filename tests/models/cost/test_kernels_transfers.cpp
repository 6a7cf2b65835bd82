// Times of collectives and copies: laws over every GPU, hand-solved cases, held-out measurements.

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/library.hpp"
#include "tests/support/check.hpp"
#include "validation/measured/calibrate_kernels.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

constexpr std::array kKinds{CollectiveKind::kAllReduce,     CollectiveKind::kAllGather,
                            CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll,
                            CollectiveKind::kBroadcast,     CollectiveKind::kSendReceive};

std::vector<double> typical(const KernelForm& form) {
  std::vector<double> c;
  for (const Coefficient& one : form.coefficients) c.push_back(one.start);
  return c;
}
void set(const KernelForm& form, std::vector<double>& c, std::string_view name, double value) {
  bool found = false;
  for (std::size_t i = 0; i < form.coefficients.size(); ++i) {
    if (form.coefficients[i].name != name) continue;
    c[i] = value;
    found = true;
  }
  REQUIRE_MESSAGE(found, std::string{name});
}

double us(const KernelForm& form, const KernelCall& call, std::string_view gpu,
          const std::vector<double>& c) {
  return form.microseconds(call, parse_kernel_format("bf16"), kernel_gpu(find_gpu(gpu)), c.data());
}
double collective(CollectiveKind kind, double bytes, double gpus, double per_node,
                  std::string_view gpu) {
  return us(collective_form(), CollectiveCall{kind, bytes, gpus, per_node}, gpu,
            typical(collective_form()));
}
double copy(CopyKind kind, double bytes, double pieces, std::string_view gpu) {
  return us(copy_form(), CopyCall{kind, bytes, pieces}, gpu, typical(copy_form()));
}

TEST_CASE("collectives: finite, longer for more bytes, never above the links") {
  for (const Gpu& gpu : builtin_gpus()) {
    for (const CollectiveKind kind : kKinds) {
      for (const double gpus : {2.0, 3.0, 8.0, 64.0}) {
        double last = 0;
        for (double bytes = 1; bytes < 1e11; bytes *= 3) {
          const double t = collective(kind, bytes, gpus, 8, gpu.name);
          INFO(gpu.name, " kind ", static_cast<int>(kind), ", ", gpus, " GPUs, ", bytes, " B");
          CHECK(std::isfinite(t));
          CHECK(t > last);
          last = t;
          const double link = std::max(gpu.nvlink ? gpu.nvlink->count() / 2 : 0, gpu.pcie.count());
          CHECK(t > 1e6 * bytes * (gpus - 1) / gpus / link);
        }
      }
    }
  }
}

TEST_CASE("collectives: links of the data sheet set the time of large messages") {
  const double large = 1e9;
  for (const CollectiveKind kind : kKinds) {
    // 400 GB/s instead of 600 on the same chip.
    CHECK(collective(kind, large, 8, 8, "A800-80GB-SXM") ==
          rel(1.5 * collective(kind, large, 8, 8, "A100-80GB-SXM"), 0.02));
    // Two nodes are limited by the network.
    CHECK(collective(kind, large, 16, 8, "A100-80GB-SXM") >
          2 * collective(kind, large, 8, 8, "A100-80GB-SXM"));
  }
  // A bridge connects two cards; four cards communicate over PCIe.
  const auto reduce = CollectiveKind::kAllReduce;
  CHECK(collective(reduce, large, 2, 8, "A100-80GB-PCIe") ==
        rel(collective(reduce, large, 2, 8, "A100-80GB-SXM"), 1e-9));
  CHECK(collective(reduce, large, 4, 8, "A100-80GB-PCIe") >
        5 * collective(reduce, large, 4, 8, "A100-80GB-SXM"));
  // Small messages are limited by latency: more GPUs take more steps, regardless of links.
  CHECK(collective(CollectiveKind::kAllGather, 512, 8, 8, "A800-80GB-SXM") ==
        rel(collective(CollectiveKind::kAllGather, 512, 8, 8, "A100-80GB-SXM"), 0.01));
  CHECK(collective(CollectiveKind::kAllGather, 512, 8, 8, "A100-80GB-SXM") >
        1.5 * collective(CollectiveKind::kAllGather, 512, 2, 8, "A100-80GB-SXM"));
}

TEST_CASE("collectives: a ring solved by hand") {
  const KernelForm& form = collective_form();
  std::vector<double> c = typical(form);
  set(form, c, "base_us", 6);
  set(form, c, "least_us", 0.3);
  set(form, c, "simple_us", 4);
  set(form, c, "simple_step_us", 2);
  set(form, c, "simple_share", 0.5);
  set(form, c, "own_shard", 0);
  // The other protocols are made slow.
  set(form, c, "ll_share", 0.001);
  set(form, c, "ll128_share", 0.02);
  // All-gather of 480 MB over 8 A100: 7/8 of it at half of 300 GB/s takes 2800 us, 7 steps take 14,
  // and the start takes 10.
  CHECK(us(form, CollectiveCall{CollectiveKind::kAllGather, 480e6, 8, 8}, "A100-80GB-SXM", c) ==
        rel(2824, 1e-6));
  // Over two nodes of 8 at 5 GB/s per GPU: 15/16 of it at 40 GB/s takes 11250 us, 15 steps take 30,
  // the crossing takes 20.
  set(form, c, "network_gbps", 5);
  set(form, c, "network_us", 20);
  CHECK(us(form, CollectiveCall{CollectiveKind::kAllGather, 480e6, 16, 8}, "A100-80GB-SXM", c) ==
        rel(11310, 0.02));
}

TEST_CASE("collectives: the host's launch is a lower bound for small messages only") {
  const KernelForm& form = collective_form();
  std::vector<double> graph = typical(form), eager = typical(form);
  set(form, eager, "least_us", 40);
  const auto at = [&](double bytes, const std::vector<double>& c) {
    return us(form, CollectiveCall{CollectiveKind::kAllReduce, bytes, 8, 8}, "H100-80GB-SXM", c);
  };
  CHECK(at(1024, eager) == rel(40, 0.01));
  CHECK(at(1024, graph) < 20);
  CHECK(at(1e9, eager) == rel(at(1e9, graph), 1e-6));
}

TEST_CASE("copies: bytes over the link and the cost of many small pieces") {
  // 1 GB at 0.81 of 64 GB/s takes 19290.1 us, plus 8 us for the launch.
  CHECK(copy(CopyKind::kHostToDevice, 1e9, 1, "H100-80GB-SXM") == rel(19298.1, 1e-5));
  CHECK(copy(CopyKind::kDeviceToHost, 1e9, 1, "H100-80GB-SXM") == rel(19298.1, 1e-5));
  // Read and written: 2 GB at 0.83 of 3.35 TB/s.
  CHECK(copy(CopyKind::kDevice, 1e9, 1, "H100-80GB-SXM") == rel(8 + 719.3, 1e-4));
  // Superchips copy over their own link.
  CHECK(copy(CopyKind::kHostToDevice, 1e9, 1, "GH200-96GB") <
        0.3 * copy(CopyKind::kHostToDevice, 1e9, 1, "H100-80GB-SXM"));
  // Pages of 16 KiB are slow, pages of 64 KiB are fast (vLLM pull request 42212: 6.3 and 51 GB/s).
  const double pages = 50000;
  const auto rate = [&](double page) {
    return pages * page / copy(CopyKind::kHostToDevice, pages * page, pages, "H100-80GB-SXM") / 1e3;
  };
  CHECK(rate(16384) == rel(6.7, 0.1));
  CHECK(rate(65536) == rel(51.5, 0.05));
  for (const CopyKind kind :
       {CopyKind::kDevice, CopyKind::kHostToDevice, CopyKind::kDeviceToHost}) {
    for (const Gpu& gpu : builtin_gpus()) {
      double last = 0;
      for (const double pieces : {1.0, 16.0, 4096.0, 1e6}) {
        const double t = copy(kind, 1e8, pieces, gpu.name);
        CHECK(t >= last);
        last = t;
        CHECK(copy(kind, 2e8, 2 * pieces, gpu.name) > t);
      }
    }
  }
}

TEST_CASE("collectives: held-out octaves of measured GPUs") {
  const auto data = data_dir();
  if (!data) return;
  MeasuredFile file = read_measured(*data / "measured" / "collectives.csv");
  std::erase_if(file.rows, [](const MeasuredRow& row) {
    return row.stack != "aic-nccl-2.27.3:nccl-tests" &&
           row.stack != "aic-sglang-0.5.10:SGLang_CustomAllReduce_eager";
  });
  for (const KernelCalibrationFile& one : calibrate_kernels({file}, "test", "2026-01-01")) {
    for (const KernelCalibration& e : one.entries) {
      INFO(e.gpu, " ", e.stack, ": ", e.fitted.mape, " ", e.held_out.mape);
      CHECK(e.fitted.mape < 0.13);
      CHECK(e.held_out.mape < 0.15);
    }
  }
}

/// DeepGEMM's published products on H800, which has the chip of H100: TFLOP/s. Source:
/// deepseek-ai/DeepGEMM README of February 2025. Grouped products are fitted only to H20.
struct Published {
  double groups, rows, n, k, tflops;
  bool masked;
};
constexpr std::array<Published, 10> kDeepGemm{{{4, 8192, 4096, 7168, 1297, false},
                                               {4, 8192, 7168, 2048, 1099, false},
                                               {8, 4096, 4096, 7168, 1288, false},
                                               {8, 4096, 7168, 2048, 1093, false},
                                               {1, 1024, 4096, 7168, 1233, true},
                                               {1, 1024, 7168, 2048, 925, true},
                                               {2, 512, 4096, 7168, 1040, true},
                                               {2, 512, 7168, 2048, 916, true},
                                               {4, 256, 4096, 7168, 932, true},
                                               {4, 256, 7168, 2048, 815, true}}};

TEST_CASE(
    "transfers: grouped products on H800 from the fit to H20, which has a seventh of its FLOP/s") {
  const KernelChoice& choice = KernelLibrary::builtin().kept_choice(
      KernelOp::kGroupedGemm, find_gpu("H800-80GB-SXM"), "", parse_kernel_format("fp8_block"));
  CHECK(choice.basis() == KernelBasis::kSibling);
  std::vector<double> errors;
  for (const Published& row : kDeepGemm) {
    const double us = 2 * row.groups * row.rows * row.n * row.k / (row.tflops * 1e6);
    const GroupedGemmCall call{.rows = row.groups * row.rows,
                               .experts = row.groups,
                               .n = row.n,
                               .k = row.k,
                               .masked = row.masked};
    errors.push_back(std::abs(choice.microseconds(call) / us - 1));
    INFO(row.groups, " x ", row.rows, ", ", row.n, " x ", row.k, ": ", us, " us published, ",
         choice.microseconds(call), " predicted");
    CHECK(errors.back() < 0.25);
  }
  std::sort(errors.begin(), errors.end());
  CHECK(errors[errors.size() / 2] < 0.12);
}

TEST_CASE("transfers: at least the roofline and at most the fitted time on every GPU") {
  const KernelLibrary& library = KernelLibrary::builtin();
  for (const Gpu& gpu : builtin_gpus()) {
    for (const char* format : {"bf16", "fp8_block"}) {
      const KernelFormat stored = parse_kernel_format(format);
      for (const double rows : {1.0, 16.0, 256.0, 4096.0, 65536.0}) {
        for (const double k : {512.0, 7168.0}) {
          for (const KernelCall& call : std::vector<KernelCall>{
                   GemmCall{.m = rows, .n = 4096, .k = k},
                   GroupedGemmCall{.rows = 8 * rows, .experts = 8, .n = 4096, .k = k}}) {
            const KernelChoice& choice = library.kept_choice(op_of(call), gpu, "", stored);
            if (choice.factors().size() != 1 || !choice.factors()[0].transferred) continue;
            const auto& factor = choice.factors()[0];
            // fp8 is unpacked if the GPU has no fp8 products.
            const KernelFormat& multiplied = factor.format;
            const double fitted =
                factor.form->microseconds(call, multiplied, factor.gpu, factor.coefficients.data());
            const double us = choice.microseconds(call);
            const double ideal = ideal_microseconds(call, multiplied, kernel_gpu(gpu));
            INFO(gpu.name, " ", format, " rows ", rows, " k ", k);
            CHECK(us >= ideal);
            CHECK(us <= std::max(fitted, ideal));
          }
        }
      }
    }
  }
}

TEST_CASE("transfers: the sibling with the nearest ratio of arithmetic to bandwidth comes first") {
  // 206 FLOP per byte; H100 has 295, H200 206 and H20 37.
  const KernelChoice& choice =
      KernelLibrary::builtin().kept_choice(KernelOp::kGemm, find_gpu("GH200-144GB"),
                                           "trtllm-1.3.0rc20", parse_kernel_format("fp8_block"));
  REQUIRE(choice.factors().size() == 1);
  CHECK(choice.factors()[0].calibration->gpu == "H200-141GB-SXM");
}

}  // namespace
}  // namespace kvsim
