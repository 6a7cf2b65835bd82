// Forms of matrix products, experts and elementwise kernels: laws, hand-solved cases, measured
// rows.

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "models/cost/kernels/calibration.hpp"
#include "models/cost/kernels/forms/tiles.hpp"
#include "models/cost/kernels/library.hpp"
#include "models/cost/kernels/marlin.hpp"
#include "models/gpu/gpu.hpp"
#include "tests/support/check.hpp"
#include "validation/measured/fit.hpp"

using namespace kvsim;
using kvsim::test::rel;

namespace {

using Values = std::vector<double>;

struct Set {
  std::string_view name;
  double value;
};

/// Start values of a form, some of them replaced.
Values coefficients(const KernelForm& form, std::initializer_list<Set> sets = {}) {
  Values out;
  for (const Coefficient& c : form.coefficients) out.push_back(c.start);
  for (const Set& set : sets) {
    bool found = false;
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (form.coefficients[i].name != set.name) continue;
      out[i] = set.value;
      found = true;
    }
    REQUIRE_MESSAGE(found, set.name);
  }
  return out;
}

double time(const KernelForm& form, const KernelCall& call, std::string_view format,
            std::string_view gpu, const Values& c) {
  return form.microseconds(call, parse_kernel_format(format), kernel_gpu(find_gpu(gpu)), c.data());
}

/// A GEMM whose only cost is the term under test.
Values free_gemm(std::initializer_list<Set> sets) {
  Values c = coefficients(gemm_form(), {{"launch", 0.3},
                                        {"arithmetic", 1},
                                        {"tile_bandwidth", 50},
                                        {"tile_latency", 0.01},
                                        {"step_latency", 0.005},
                                        {"memory", 1},
                                        {"sm_bandwidth", 20},
                                        {"overlap", 16},
                                        {"throttle", 0.001},
                                        {"epilogue", 0.001},
                                        {"wave_overlap", 1},
                                        {"dispatch", 0.001}});
  for (const Set& set : sets) {
    for (std::size_t i = 0; i < c.size(); ++i) {
      if (gemm_form().coefficients[i].name == set.name) c[i] = set.value;
    }
  }
  return c;
}

}  // namespace

TEST_CASE("tiles: waves over the multiprocessors and overlapping times") {
  CHECK(tiles::waves(1, 132, 0) == 1);
  CHECK(tiles::waves(132, 132, 0) == 1);
  CHECK(tiles::waves(133, 132, 0) == 2);
  CHECK(tiles::waves(198, 132, 0) == 2);
  CHECK(tiles::waves(198, 132, 1) == rel(1.5));
  CHECK(tiles::waves(198, 132, 0.5) == rel(1.75));
  CHECK(tiles::waves(3, 132, 1) == 1);
  for (double x : {0., 0.25, 1., 1.5, 132., 132.0001, 1e15}) CHECK(tiles::whole(x) == std::ceil(x));
  CHECK(tiles::overlap(3, 4, 2) == rel(5));
  CHECK(tiles::overlap(4, 3, 2) == rel(5));
  CHECK(tiles::overlap(10, 0, 1.2) == 10);
  CHECK(tiles::overlap(10, 9.9, 16) > 10);
}

TEST_CASE("gemm by hand: weights streamed, arithmetic, one more wave, activations quantised") {
  // 65536 x 8192 weights of 2 bytes at half of 3.35 TB/s.
  const double stream = 65536.0 * 8192 * 2 / (3.35e6 * 0.5);
  CHECK(time(gemm_form(), GemmCall{.m = 1, .n = 65536, .k = 8192}, "bf16", "H100-80GB-SXM",
             free_gemm({{"launch", 2}, {"memory", 0.5}})) == rel(2 + stream, 2e-3));
  // int4: a quarter of that, plus scales.
  CHECK(time(gemm_form(), GemmCall{.m = 1, .n = 65536, .k = 8192}, "int4_wo", "H100-80GB-SXM",
             free_gemm({{"launch", 2}, {"memory", 0.5}})) == rel(2 + stream * 0.516 / 2, 5e-3));
  // 2 * 8192^3 operations at half of 989.4 TFLOP/s.
  const GemmCall cube{.m = 8192, .n = 8192, .k = 8192};
  const double arithmetic = 2 * std::pow(8192.0, 3) / (989.4e6 * 0.5);
  CHECK(time(gemm_form(), cube, "bf16", "H100-80GB-SXM", free_gemm({{"arithmetic", 0.5}})) ==
        rel(arithmetic, 0.02));
  // The A100 has 108 SMs: 108 tiles of 128 x 128 in one wave take half the time of 109 or more.
  const Values turns = free_gemm({{"wave_overlap", 0.01}, {"dispatch", 1}});
  const auto tiles_of = [&](double n) {
    return time(gemm_form(), GemmCall{.m = 256, .n = 128 * n, .k = 8192}, "bf16", "A100-80GB-SXM",
                turns);
  };
  const double turn = 2 * 128.0 * 128 * 8192 / (312e6 / 108);
  CHECK(tiles_of(54) == rel(turn, 0.02));
  CHECK(tiles_of(55) == rel(2 * turn, 0.02));
  CHECK(tiles_of(40) == rel(tiles_of(54), 0.01));
  // Quantising 4096 rows of 8192: a launch, the rows, 3 bytes per element.
  const Values plain =
      free_gemm({{"quantise_latency", 0.05}, {"quantise_row", 1e-5}, {"quantise_bandwidth", 2}});
  const Values slow =
      free_gemm({{"quantise_latency", 3}, {"quantise_row", 0.01}, {"quantise_bandwidth", 0.5}});
  const GemmCall wide{.m = 4096, .n = 1024, .k = 8192};
  const double bytes = 3.0 * 4096 * 8192;
  CHECK(time(gemm_form(), wide, "fp8", "H100-80GB-SXM", slow) -
            time(gemm_form(), wide, "fp8", "H100-80GB-SXM", plain) ==
        rel(2.95 + 4096 * (0.01 - 1e-5) + bytes / 3.35e6 * (1 / 0.5 - 1 / 2.0), 1e-9));
  CHECK(time(gemm_form(), wide, "bf16", "H100-80GB-SXM", slow) ==
        time(gemm_form(), wide, "bf16", "H100-80GB-SXM", plain));
}

TEST_CASE("gemm: a split of k fills the GPU if its reduction is cheap") {
  const GemmCall deep{.m = 16, .n = 256, .k = 65536};
  const auto with = [&](double latency) {
    return time(gemm_form(), deep, "bf16", "H100-80GB-SXM",
                coefficients(gemm_form(), {{"split_latency", latency}, {"dispatch", 0.001}}));
  };
  CHECK(with(10) == rel(with(1) + 9, 1e-3));
  // Block scales: never split, so the latency of 1024 steps stays.
  const Values c = coefficients(gemm_form());
  CHECK(time(gemm_form(), deep, "fp8_block", "H100-80GB-SXM", c) > 1024 * c[4]);
  CHECK(with(1) < 1024 * c[4] / 4);
}

TEST_CASE("gemm: shipped coefficients respect the data sheet and grow with every side") {
  std::vector<std::pair<const KernelCalibration*, KernelGpu>> all;
  for (const KernelCalibrationFile& file : builtin_calibrations()) {
    for (const KernelCalibration& e : file.entries) {
      if (e.op == KernelOp::kGemm) all.emplace_back(&e, kernel_gpu(find_gpu(e.gpu)));
    }
  }
  REQUIRE_FALSE(all.empty());
  for (const auto& [e, gpu] : all) {
    const KernelFormat format = parse_kernel_format(e->format);
    const auto us = [&](double m, double n, double k) {
      return gemm_form().microseconds(GemmCall{.m = m, .n = n, .k = k}, format, gpu,
                                      e->coefficients.data());
    };
    for (double m : {1., 7., 64., 100., 513., 3000., 40000.}) {
      for (double n : {96., 1000., 4096., 30000.}) {
        for (double k : {64., 1500., 8192., 50000.}) {
          const double t = us(m, n, k);
          const std::string where =
              fmt::format("{} {} {} {}x{}x{}", e->gpu, e->stack, e->format, m, n, k);
          REQUIRE_MESSAGE(std::isfinite(t), where);
          CHECK_MESSAGE(us(2 * m, n, k) > 0.95 * t, where);
          CHECK_MESSAGE(us(m, 2 * n, k) > 0.95 * t, where);
          // Splitting k over idle SMs may save more than it adds.
          CHECK_MESSAGE(us(m, n, 2 * k) > 0.94 * t, where);
          if (format.operand_bytes == 2 && !format.quantises) {
            CHECK_MESSAGE(t > ideal_microseconds(GemmCall{.m = m, .n = n, .k = k}, format, gpu),
                          where);
          }
        }
      }
    }
  }
}

TEST_CASE("experts by hand: the weights of the visited ones and the arithmetic of every row") {
  const Values c = coefficients(moe_form(), {{"launch", 5},
                                             {"arithmetic", 1},
                                             {"tile_edge", 0.1},
                                             {"tile_latency", 0.001},
                                             {"step_latency", 0.005},
                                             {"memory", 0.5},
                                             {"sm_bandwidth", 20},
                                             {"stream", 3},
                                             {"overlap", 16},
                                             {"wave_overlap", 1},
                                             {"remote", 0.001},
                                             {"token", 1e-5}});
  MoeCall call{.tokens = 4, .hidden = 4096, .inter = 1536, .top_k = 8, .experts = 128};
  const double expert = 3.0 * 4096 * 1536 * 2 / (3.35e6 * 0.5);
  CHECK(time(moe_form(), call, "bf16", "H100-80GB-SXM", c) == rel(5 + 32 * expert, 0.01));
  call.tokens = 16;
  CHECK(time(moe_form(), call, "bf16", "H100-80GB-SXM", c) == rel(5 + 128 * expert, 0.01));
  call.ep = 8;
  CHECK(time(moe_form(), call, "bf16", "H100-80GB-SXM", c) == rel(5 + 16 * expert, 0.02));
  call.ep = 1;
  call.tp = 4;
  CHECK(time(moe_form(), call, "bf16", "H100-80GB-SXM", c) == rel(5 + 32 * expert, 0.03));
  call = {.tokens = 65536, .hidden = 4096, .inter = 1536, .top_k = 8, .experts = 128};
  const double rows = 6.0 * 65536 * 8 * 4096 * 1536 / 989.4e6;
  CHECK(time(moe_form(), call, "bf16", "H100-80GB-SXM", c) == rel(rows, 0.1));
}

TEST_CASE("experts: more tokens never cost less, sharing divides, skew costs the busiest GPU") {
  const Values c = coefficients(moe_form());
  for (std::string_view gpu : {"A100-80GB-SXM", "H200-141GB-SXM"}) {
    for (double skew : {0.0, 0.6, 1.0, 1.2, 2.0}) {
      for (double ep : {1., 8.}) {
        double before = 0;
        for (double tokens = 1; tokens <= 65536; tokens *= 1.5) {
          const MoeCall call{.tokens = tokens,
                             .hidden = 7168,
                             .inter = 2048,
                             .top_k = 8,
                             .experts = 256,
                             .ep = ep,
                             .skew = skew};
          const double us = time(moe_form(), call, "fp8_block", gpu, c);
          REQUIRE(std::isfinite(us));
          CHECK_MESSAGE(us > 0.97 * before, gpu, " ", skew, " ", ep, " ", tokens);
          before = us;
        }
      }
    }
  }
  MoeCall call{.tokens = 8192, .hidden = 4096, .inter = 1536, .top_k = 8, .experts = 128};
  const double whole = time(moe_form(), call, "bf16", "H100-80GB-SXM", c);
  call.ep = 8;
  const double even = time(moe_form(), call, "bf16", "H100-80GB-SXM", c);
  call.skew = 1.2;
  const double skewed = time(moe_form(), call, "bf16", "H100-80GB-SXM", c);
  CHECK(even < whole / 3);
  CHECK(skewed > even);
  CHECK(skewed < whole);
}

TEST_CASE("grouped products: an expert's rows cost a tile, then by the row") {
  const Values c = coefficients(grouped_gemm_form());
  const auto us = [&](double per_expert, bool masked = true) {
    return time(grouped_gemm_form(),
                GroupedGemmCall{.rows = 32 * per_expert,
                                .experts = 32,
                                .rows_padded = 32 * per_expert,
                                .n = 4096,
                                .k = 7168,
                                .masked = masked},
                "fp8_block", "H20", c);
  };
  CHECK(us(32) == rel(us(1), 0.1));
  CHECK(us(64) < 1.2 * us(1));
  CHECK(us(2048) == rel(2 * us(1024), 0.05));
  CHECK(us(512, false) == us(512));  // equal until fitted
}

TEST_CASE("elementwise by hand: launches, one row's time, the stream") {
  const Values c = coefficients(elementwise_form(), {{"add_launch", 1.5},
                                                     {"add_row", 0.25},
                                                     {"add_bandwidth", 0.5},
                                                     {"cache_share", 0.01},
                                                     {"cache_rate", 1},
                                                     {"overlap", 16},
                                                     {"embedding_launch", 2},
                                                     {"gather", 0.7}});
  ElementwiseCall call{
      .kind = ElementwiseKind::kAdd, .rows = 1, .bytes_read = 16384, .bytes_written = 8192};
  CHECK(time(elementwise_form(), call, "bf16", "H100-80GB-SXM", c) == rel(1.5 + 24 * 0.25, 1e-3));
  call.kernels = 3;
  CHECK(time(elementwise_form(), call, "bf16", "H100-80GB-SXM", c) == rel(4.5 + 24 * 0.25, 1e-3));
  call = {.kind = ElementwiseKind::kAdd, .rows = 65536, .bytes_read = 2e9, .bytes_written = 1e9};
  CHECK(time(elementwise_form(), call, "bf16", "H100-80GB-SXM", c) ==
        rel(1.5 + 3e9 / (3.35e6 * 0.5), 2e-3));
  call = {.kind = ElementwiseKind::kEmbedding, .rows = 10, .bytes_read = 100, .bytes_written = 100};
  CHECK(time(elementwise_form(), call, "bf16", "H100-80GB-SXM", c) == rel(2 + 7, 1e-9));
  call.rows = 17;
  CHECK(time(elementwise_form(), call, "bf16", "H100-80GB-SXM", c) < 3);
}

TEST_CASE("streams limited by an SM keep their bytes per clock on another chip") {
  const Gpu &a100 = find_gpu("A100-80GB-SXM"), &a40 = find_gpu("A40");
  const KernelForm& form = elementwise_form();
  const auto place = [&](std::string_view name) {
    const auto found = std::find_if(form.coefficients.begin(), form.coefficients.end(),
                                    [&](const Coefficient& c) { return c.name == name; });
    REQUIRE(found != form.coefficients.end());
    return static_cast<std::size_t>(found - form.coefficients.begin());
  };
  KernelCalibration entry{.op = KernelOp::kElementwise,
                          .gpu = a100.name,
                          .stack = "a-1",
                          .format = "fp16",
                          .form = std::string{form.id}};
  for (const Coefficient& c : form.coefficients) entry.coefficients.push_back(c.start);
  entry.coefficients[place("embedding_bandwidth")] = 0.15;
  entry.coefficients[place("norm_bandwidth")] = 0.5;
  entry.coefficients[place("add_bandwidth")] = 0.9;
  entry.fitted = {.n = 100, .mape = 0.05};
  KernelCalibrationFile file;
  file.entries.push_back(entry);
  const KernelLibrary library{{std::move(file)}};
  const KernelFormat fp16 = parse_kernel_format("fp16");
  const KernelChoice choice = library.choose(KernelOp::kElementwise, a40, "a-1", fp16);
  REQUIRE(choice.factors().size() == 1);
  const auto& carried = choice.factors()[0].coefficients;
  // A100: 19.5 TFLOP/s of 108 SMs x 64 lanes x 2: 1.410 GHz; A40: 37.4 of 84 x 128 x 2: 1.739 GHz.
  const double clocks = (37.4 / (84 * 128)) / (19.5 / (108 * 64));
  const double share = 0.15 * (2039.0 / 108) / (696.0 / 84) * clocks;
  CHECK(carried[place("embedding_bandwidth")] == rel(share));
  CHECK(carried[place("norm_bandwidth")] == 0.8);  // its bytes exceed the A40's memory
  CHECK(carried[place("add_bandwidth")] == 0.9);   // limited by memory bandwidth on both
  CHECK(carried[place("norm_launch")] == entry.coefficients[place("norm_launch")]);
  const KernelChoice own = library.choose(KernelOp::kElementwise, a100, "a-1", fp16);
  CHECK(own.factors()[0].coefficients == entry.coefficients);
}

TEST_CASE("gemm: fitted to some shapes of one GPU it predicts others and its sibling") {
  const auto data = test::data_dir();
  if (!data) return;
  const MeasuredFile file = read_measured(*data / "measured" / "gemm.csv");
  std::vector<const MeasuredRow*> fitted, held, sibling;
  for (const MeasuredRow& row : file.rows) {
    if (row.stack != "aic-trtllm-1.3.0rc20" || row.format.name != "bf16") continue;
    if (row.gpu->name == "H200-141GB-SXM") {
      sibling.push_back(&row);
    } else if (row.gpu->name == "H100-80GB-SXM") {
      (is_held_out(row) ? held : fitted).push_back(&row);
    }
  }
  if (fitted.empty() || held.empty() || sibling.empty()) {
    fmt::print("KVSIM-SKIPPED: KVSIM_DATA_DIR has no such rows\n");
    return;
  }
  FitOptions options;
  options.iterations = 15;
  options.rounds = 3;
  const FitResult fit = fit_form(gemm_form(), fitted, {}, options);
  const auto mape = [&](const std::vector<const MeasuredRow*>& rows) {
    double sum = 0;
    for (const MeasuredRow* row : rows) {
      sum += std::abs(gemm_form().microseconds(row->call, row->format, kernel_gpu(*row->gpu),
                                               fit.coefficients.data()) /
                          row->us -
                      1);
    }
    return sum / static_cast<double>(rows.size());
  };
  CHECK(mape(held) < 0.06);
  CHECK(mape(sibling) < 0.08);
}

TEST_CASE(
    "vLLM unpacks MXFP4 experts by Marlin on Hopper before its packages have triton_kernels") {
  const auto chosen = [](std::string_view gpu, std::string_view stack) {
    return KernelLibrary::builtin().choose(KernelOp::kMoe, find_gpu(gpu), stack,
                                           parse_kernel_format("mxfp4"));
  };
  const auto is_marlin = [&](std::string_view gpu, std::string_view stack) {
    return chosen(gpu, stack).provenance().find("int4_wo") != std::string::npos;
  };
  for (const char* gpu : {"H100-80GB-SXM", "H200-141GB-SXM"}) {
    CHECK(is_marlin(gpu, "vllm-0.10.2"));
    CHECK(is_marlin(gpu, "vllm-0.11.0"));
    CHECK_FALSE(is_marlin(gpu, "vllm-0.12.0"));
    CHECK_FALSE(is_marlin(gpu, "vllm"));
    CHECK_FALSE(is_marlin(gpu, "sglang-0.5.3"));
    CHECK_FALSE(is_marlin(gpu, "trtllm-1.0.0"));
  }
  CHECK_FALSE(is_marlin("B200", "vllm-0.11.0"));
  // gpt-oss-20b's experts: Marlin's tiles stay below 300 TFLOP/s on an H100.
  const MoeCall call{.tokens = 8192, .hidden = 2880, .inter = 2880, .top_k = 4, .experts = 32};
  CHECK(chosen("H100-80GB-SXM", "vllm-0.11.0").microseconds(call) >
        1.4 * chosen("H100-80GB-SXM", "vllm-0.12.0").microseconds(call));
}

TEST_CASE("products that unpack weights stay at the rate of Marlin's tiles on Ampere") {
  const auto rate = [](std::string_view gpu, std::string_view stack, std::string_view format,
                       double rows) {
    const KernelChoice choice = KernelLibrary::builtin().choose(KernelOp::kGemm, find_gpu(gpu),
                                                                stack, parse_kernel_format(format));
    const GemmCall call{.m = rows, .n = 8192, .k = 8192};
    return 2 * call.m * call.n * call.k / choice.microseconds(call) * 1e-6;  // TFLOP/s
  };
  // Measured: 141 TFLOP/s from 64 rows to 4,000 (vllm-project/vllm pull request 2497).
  for (const double rows : {1024.0, 4000.0}) {
    CHECK(rate("A100-80GB-SXM", "vllm-0.11", "int4_wo", rows) == rel(141.4, 0.01));
    CHECK(rate("A100-80GB-SXM", "sglang-0.5", "int8_wo", rows) == rel(141.4, 0.01));
    // An A100 has no fp8 products: weights are unpacked.
    CHECK(rate("A100-80GB-SXM", "vllm-0.11", "fp8_block", rows) == rel(141.4, 0.01));
    CHECK(rate("A100-80GB-SXM", "vllm-0.11", "bf16", rows) > 200);
    CHECK(rate("A100-80GB-SXM", "trtllm-1.0.0", "int4_wo", rows) > 200);
  }
  // With few rows, the time is that of reading the weights.
  CHECK(rate("A100-80GB-SXM", "vllm-0.11", "int4_wo", 8) < 80);
  // 2,048 operations per clock and SM at 1.44 GHz and 56 SMs.
  CHECK(marlin_flops(KernelOp::kGemm, find_gpu("A30"), "vllm-0.11",
                     parse_kernel_format("int4_wo")) == rel(928 * 56 * 1.44e9, 0.02));
  for (const char* gpu : {"H100-80GB-SXM", "RTX-4090", "L40S", "A40"}) {
    CHECK(marlin_flops(KernelOp::kGemm, find_gpu(gpu), "vllm-0.11",
                       parse_kernel_format("int4_wo")) == 0);
  }
}

TEST_CASE("experts of 8 bits on an A100 use Marlin's blocks if their width was not measured") {
  const auto is_law = [](std::string_view gpu, std::string_view stack, std::string_view format) {
    return KernelLibrary::builtin()
               .choose(KernelOp::kMoe, find_gpu(gpu), stack, parse_kernel_format(format))
               .provenance()
               .find("blocks of Marlin") != std::string::npos;
  };
  for (const char* gpu : {"A100-80GB-SXM", "A100-40GB-PCIe", "A800-80GB-SXM", "A30"}) {
    INFO(gpu);
    CHECK(is_law(gpu, "vllm-0.11.0", "fp8_block"));
    CHECK(is_law(gpu, "vllm", "fp8_block"));
  }
  CHECK(is_law("A100-80GB-SXM", "vllm-0.8.5", "fp8_block"));
  CHECK_FALSE(is_law("A100-80GB-SXM", "vllm-0.8.4", "fp8_block"));
  CHECK_FALSE(is_law("A100-80GB-SXM", "sglang-0.5.10", "fp8_block"));
  CHECK_FALSE(is_law("A100-80GB-SXM", "vllm-0.11.0", "int4_wo"));  // timed under SGLang
  CHECK_FALSE(is_law("A100-80GB-SXM", "vllm-0.11.0", "bf16"));
  CHECK_FALSE(is_law("H100-80GB-SXM", "vllm-0.11.0", "fp8_block"));
  CHECK_FALSE(is_law("H100-80GB-SXM", "vllm-0.14.0", "int4_wo"));
  CHECK_FALSE(is_law("L40S", "vllm-0.24.0", "int4_wo"));
  CHECK(is_law("H20", "vllm-0.20.0", "int4_wo"));
}

TEST_CASE(
    "blocks of Marlin reproduce the times of 4-bit experts on an H20 used to fit their rate") {
  // flagos-ai/FlagGems pull request 3609: vLLM's kernel. The rows have on average at least 4 tokens
  // per expert, so that even routing visits all experts.
  struct Row {
    double tokens, experts, hidden, inter, top_k, ms;
  };
  constexpr std::array kRows{
      Row{16, 8, 4096, 14336, 2, 0.457},     Row{64, 8, 4096, 14336, 2, 1.206},
      Row{256, 512, 4096, 1024, 10, 2.227},  Row{1024, 512, 4096, 1024, 10, 5.646},
      Row{2048, 512, 4096, 1024, 10, 8.665}, Row{4096, 512, 4096, 1024, 10, 20.824}};
  const KernelChoice choice = KernelLibrary::builtin().choose(
      KernelOp::kMoe, find_gpu("H20"), "vllm-0.20.0", parse_kernel_format("int4_wo"));
  for (const Row& row : kRows) {
    INFO(row.tokens, " tokens, ", row.experts, " experts");
    const MoeCall call{.tokens = row.tokens,
                       .hidden = row.hidden,
                       .inter = row.inter,
                       .top_k = row.top_k,
                       .experts = row.experts};
    CHECK(choice.microseconds(call) == rel(1e3 * row.ms, 0.14));
  }
}

TEST_CASE("blocks of Marlin pad the rows of an expert, and grow with tokens and width") {
  const KernelFormat format = parse_kernel_format("int8_wo");
  const KernelGpu gpu = kernel_gpu(find_gpu("A100-80GB-SXM"));
  const auto us = [&](MoeCall call) { return marlin_moe_us(call, format, gpu, 141e12); };
  const MoeCall qwen{
      .tokens = 512, .hidden = 4096, .inter = 1536, .top_k = 8, .experts = 128, .tp = 4};
  // 32 rows per expert fill a block of 48: 128 x 48 x 4.7 million weights x 2, and the weights'
  // bytes.
  const double weights = 128 * 3.0 * 4096 * 384;
  const double streams = 2 * 4096 * (3.0 * 384 + 4096) + 2 * 512 * 4096;
  CHECK(us(qwen) ==
        rel(28 + 1e6 * (2 * 48 * weights / 141e12 + (weights + streams) / 2.039e12), 1e-3));
  for (const double skew : {0.0, 1.2}) {
    double before = 0;
    for (double tokens = 1; tokens <= 16384; tokens *= 2) {
      MoeCall call = qwen;
      call.tokens = tokens;
      call.skew = skew;
      INFO(tokens, " ", skew);
      CHECK(us(call) > before);
      before = us(call);
      // A GPU with a quarter of the experts as a whole has the same work as a GPU with a quarter of
      // each expert, except for the block size, which is chosen for the rows of all GPUs.
      call.tp = 1;
      call.ep = 4;
      CHECK(us(call) >= 0.8 * before);
    }
  }
}
