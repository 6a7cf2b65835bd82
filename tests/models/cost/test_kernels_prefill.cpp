// Times of prefill attention: laws over every GPU, hand-solved cases, and held-out measurements.

#include <cmath>
#include <limits>
#include <vector>

#include "models/cost/kernels/library.hpp"
#include "tests/support/check.hpp"
#include "validation/measured/calibrate_kernels.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

const KernelForm& form() { return prefill_attention_form(); }

std::size_t index_of(const KernelForm& of, std::string_view name) {
  for (std::size_t i = 0; i < of.coefficients.size(); ++i) {
    if (of.coefficients[i].name == name) return i;
  }
  FAIL("no coefficient ", std::string{name});
  return 0;
}

std::vector<double> typical() {
  std::vector<double> c;
  for (const Coefficient& one : form().coefficients) c.push_back(one.start);
  return c;
}
std::vector<double> typical_but(std::string_view name, double value) {
  std::vector<double> c = typical();
  c[index_of(form(), name)] = value;
  return c;
}

double us(const PrefillAttentionCall& call, const KernelGpu& gpu, const std::vector<double>& c) {
  return form().microseconds(call, attention_format(Dtype::kBf16, Dtype::kBf16), gpu, c.data());
}

KernelGpu board(std::string_view name) { return kernel_gpu(find_gpu(name)); }

TEST_CASE("prefill attention: finite and never above the arithmetic rate on every GPU") {
  const KernelFormat format = attention_format(Dtype::kBf16, Dtype::kFp8E4m3);
  for (const Gpu& gpu : builtin_gpus()) {
    const KernelGpu g = kernel_gpu(gpu);
    const std::vector<double> c = typical();
    for (const double tokens : {1.0, 7.0, 128.0, 129.0, 2047.5, 1e6}) {
      for (const double prefix : {0.0, 33.0, 131072.0}) {
        for (const double batch : {1.0, 3.0, 512.0}) {
          for (const std::int32_t heads : {1, 7, 64}) {
            for (const std::int32_t dim : {48, 128, 576}) {
              const PrefillAttentionCall call{batch, tokens, prefix, heads, heads == 64 ? 8 : 1,
                                              dim};
              const double t = form().microseconds(call, format, g, c.data());
              INFO(gpu.name, " ", batch, " x ", tokens, " after ", prefix, ", ", heads, " x ", dim);
              CHECK(std::isfinite(t));
              const double pairs = tokens * (prefix + (tokens + 1) / 2);
              CHECK(t > 4e6 * batch * pairs * heads * dim / g.peak(Dtype::kBf16));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("prefill attention: more work takes longer") {
  // Only without splits: measurements show that the switch to the split kernel may cost time.
  const std::vector<double> c = typical_but("split", 0);
  const KernelGpu gpu = board("H100-80GB-SXM");
  for (const std::int32_t heads : {4, 32}) {
    double last = 0;
    for (double tokens = 16; tokens < 3e5; tokens *= 1.5) {
      const double t = us({2, std::ceil(tokens), 0, heads, 4, 128}, gpu, c);
      INFO(tokens, " tokens");
      CHECK(t > last);
      last = t;
      CHECK(us({2, std::ceil(tokens), 640, heads, 4, 128}, gpu, c) > t);
      CHECK(us({3, std::ceil(tokens), 0, heads, 4, 128}, gpu, c) > t);
      CHECK(us({2, std::ceil(tokens), 0, 2 * heads, 4, 128}, gpu, c) > t);
      CHECK(us({2, std::ceil(tokens), 0, heads, 4, 192}, gpu, c) > t);
    }
  }
}

TEST_CASE("prefill attention: one wave of tiles solved by hand") {
  // 100 SMs of 128 lanes at 1.8 GHz.
  KernelGpu gpu{.bandwidth = 1e12, .fp32_flops = 4.608e13, .sms = 100, .l2 = 1e15};
  gpu.flops.fill(1e14);
  std::vector<double> c = typical();
  const auto set = [&](std::string_view name, double value) { c[index_of(form(), name)] = value; };
  set("fixed_us", 5);
  set("mma_share", 1);
  set("softmax_ps", 100);
  set("tile_us", 1);
  set("column_latency", 0.5);
  set("packed_heads", 0);
  set("split", 0);
  set("l2_gbps", 100);
  set("kv_write", 1);
  set("token_us", 0.001);
  set("power_cap", 0);
  // 100 heads of 128 queries: one tile per SM, 128 columns of 128 x (4 x 128 / 1e12 s + 100 ps):
  // 0.078336 us; tile 1 + 10.0270 = 11.0270 us. A single tile takes 5.5135, and the eighth-power
  // sum is 11.0270 x (1 + 2^-8)^(1/8) = 11.0324. Q and O 2 x 128 x 100 x 128 x 2 B = 6.5536 MB, K
  // and V of one head 65536 B: 6.619136 MB at 10 TB/s: 0.6619 us. Storing 131072 B: 0.0131 us, plus
  // 128 blocks of (1/4)^1.5 ns / 100, which is negligible.
  const double t = us({1, 128, 0, 100, 1, 128}, gpu, c);
  CHECK(t == rel(5 + 11.0324 + 0.6619 + 0.0131, 1e-4));
  // Twice the batch: two waves, and the tail of 1 - 1/4 of a tile.
  set("tail", 1);
  const double two = us({2, 128, 0, 100, 1, 128}, gpu, c);
  CHECK(two == rel(5 + 11.0270 * 2.75 + 2 * (0.6619 + 0.0131), 1e-4));
}

TEST_CASE("prefill attention: each mechanism applies only under its condition") {
  const KernelGpu gpu = board("A100-80GB-SXM");
  // 16 queries fill an eighth of a tile; eight packed heads fill a whole tile.
  const PrefillAttentionCall few{64, 16, 0, 64, 8, 128};
  CHECK(us(few, gpu, typical_but("packed_heads", 1)) <
        0.6 * us(few, gpu, typical_but("packed_heads", 0)));
  // Without shared heads, packing has no effect.
  const PrefillAttentionCall own{64, 16, 0, 8, 8, 128};
  CHECK(us(own, gpu, typical_but("packed_heads", 1)) ==
        rel(us(own, gpu, typical_but("packed_heads", 0))));
  // One sequence, one head, a long cache: a single tile leaves the GPU idle unless it is split.
  const PrefillAttentionCall lone{1, 64, 65536, 1, 1, 128};
  CHECK(us(lone, gpu, typical_but("split", 1)) < 0.2 * us(lone, gpu, typical_but("split", 0)));
  // A full batch has no benefit from splitting, and the partial results add traffic.
  const PrefillAttentionCall many{64, 512, 0, 8, 1, 128};
  CHECK(us(many, gpu, typical_but("split", 1)) > us(many, gpu, typical_but("split", 0)));
  // A power limit slows long calls but not short calls.
  const PrefillAttentionCall tall{8, 65536, 0, 64, 8, 128};
  CHECK(us(tall, gpu, typical_but("power_cap", 0.2)) >
        1.15 * us(tall, gpu, typical_but("power_cap", 0)));
  CHECK(us(few, gpu, typical_but("power_cap", 0.2)) <
        1.01 * us(few, gpu, typical_but("power_cap", 0)));
  // The same chip with slower links between GPUs.
  CHECK(us(many, board("A800-80GB-SXM"), typical()) == us(many, gpu, typical()));
}

TEST_CASE("kernels: a calibration of few rows is not used for an unknown stack") {
  const std::vector<double> c = typical();
  const auto entry = [&](const char* gpu, const char* stack, std::int64_t rows, double mape) {
    KernelCalibration e{.op = KernelOp::kPrefillAttention,
                        .gpu = gpu,
                        .stack = stack,
                        .format = "bf16/bf16",
                        .form = std::string{form().id},
                        .coefficients = c};
    e.fitted = {.n = rows, .mape = mape};
    return e;
  };
  KernelCalibrationFile file;
  file.entries = {entry("H100-80GB-SXM", "tiny-1.0", 25, 0.01),
                  entry("H100-80GB-SXM", "aic-vllm-0.24.0", 2000, 0.06),
                  entry("H200-141GB-SXM", "aic-vllm-0.24.0", 2000, 0.09)};
  const KernelLibrary library{{file}};
  const KernelFormat format = parse_kernel_format("bf16/bf16");
  const auto choose = [&](const char* gpu, const char* stack) {
    return library.choose(KernelOp::kPrefillAttention, find_gpu(gpu), stack, format);
  };
  CHECK(choose("H100-80GB-SXM", "other").factors()[0].calibration->stack == "aic-vllm-0.24.0");
  // A GPU's own calibration is preferred to calibrations of other boards with the same chip,
  // regardless of errors.
  CHECK(choose("H200-141GB-SXM", "aic-vllm-0.24.0").factors()[0].calibration->gpu ==
        "H200-141GB-SXM");
  // The name of the data set is not part of the stack's name.
  CHECK(choose("H100-80GB-SXM", "vllm-0.24.0").basis() == KernelBasis::kMeasured);
  CHECK(choose("H100-80GB-SXM", "vllm-0.30.0").basis() == KernelBasis::kOtherVersion);
  CHECK(choose("H100-80GB-SXM", "vllm").basis() == KernelBasis::kOtherVersion);
}

TEST_CASE("prefill attention: held-out head counts of measured GPUs") {
  const auto data = data_dir();
  if (!data) return;
  MeasuredFile file = read_measured(*data / "measured" / "attention_prefill.csv");
  std::erase_if(file.rows, [](const MeasuredRow& row) {
    return row.stack != "llmservingsim-v0" &&
           (row.gpu->name != "H200-141GB-SXM" || row.stack != "aic-trtllm-1.3.0rc20");
  });
  const auto files = calibrate_kernels({file}, "test", "2026-01-01");
  for (const KernelCalibrationFile& one : files) {
    for (const KernelCalibration& e : one.entries) {
      INFO(e.gpu, " ", e.stack, " ", e.format, ": ", e.fitted.mape, " ", e.held_out.mape);
      CHECK(e.fitted.mape < 0.06);
      if (e.held_out.n > 0) CHECK(e.held_out.mape < 0.10);
    }
  }
}

}  // namespace
}  // namespace kvsim
