// Times of decode attention and of MLA: laws over wide ranges, and hand-solved cases.

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/library.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

const KernelGpu& h100() {
  static const KernelGpu gpu = kernel_gpu(find_gpu("H100-80GB-SXM"));
  return gpu;
}
const KernelFormat& bf16() {
  static const KernelFormat format = attention_format(Dtype::kBf16, Dtype::kBf16);
  return format;
}

/// Start values, some of them replaced by name.
struct Coefficients {
  explicit Coefficients(const KernelForm& form) : form_{form} {
    for (const Coefficient& c : form.coefficients) values_.push_back(c.start);
  }
  Coefficients& set(std::string_view name, double value) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (form_.coefficients[i].name == name) {
        values_[i] = value;
        return *this;
      }
    }
    FAIL("no coefficient ", name);
    return *this;
  }
  [[nodiscard]] double time(const KernelCall& call, const KernelFormat& format = bf16(),
                            const KernelGpu& gpu = h100()) const {
    return form_.microseconds(call, format, gpu, values_.data());
  }

 private:
  const KernelForm& form_;
  std::vector<double> values_;
};

const std::vector<double> kLengths{1, 2, 31, 128, 129, 700, 1024, 5000, 33333, 131072, 1e6};
const std::vector<double> kBatches{1, 2, 7, 16, 33, 132, 256, 1000, 4096};
struct Heads {
  std::int32_t q, kv, dim;
};
const std::vector<Heads> kHeads{{1, 1, 128}, {8, 1, 128}, {32, 8, 128},  {40, 40, 80},
                                {64, 4, 64}, {12, 2, 96}, {128, 1, 256}, {256, 2, 128}};

TEST_CASE("attention forms: coefficients have separate names and starts within bounds") {
  for (const KernelForm* form : {&decode_attention_form(), &mla_form()}) {
    std::set<std::string_view> names;
    for (const Coefficient& c : form->coefficients) {
      CHECK_MESSAGE(names.insert(c.name).second, c.name);
      CHECK(c.low > 0);
      CHECK(c.low <= c.start);
      CHECK(c.start <= c.high);
    }
    REQUIRE(form->starts.size() % form->coefficients.size() == 0);
    for (std::size_t i = 0; i < form->starts.size(); ++i) {
      const Coefficient& c = form->coefficients[i % form->coefficients.size()];
      CHECK(form->starts[i] >= c.low);
      CHECK(form->starts[i] <= c.high);
    }
  }
}

TEST_CASE("decode attention: larger calls take no less time and no less than HBM needs") {
  const Coefficients c{decode_attention_form()};
  for (const Heads& heads : kHeads) {
    for (const double batch : kBatches) {
      double before = 0;
      for (const double kv_len : kLengths) {
        const DecodeAttentionCall call{.batch = batch,
                                       .kv_len = kv_len,
                                       .q_heads = heads.q,
                                       .kv_heads = heads.kv,
                                       .head_dim = heads.dim};
        const double time = c.time(call);
        INFO("heads ", heads.q, "/", heads.kv, "x", heads.dim, " batch ", batch, " len ", kv_len);
        CHECK(std::isfinite(time));
        CHECK(time >= before);
        before = time;
        // Fewer splits need less combining: a larger call can save at most that time.
        DecodeAttentionCall more = call;
        more.batch *= 2;
        CHECK(c.time(more) >= time - 3);
        const double bytes = 2 * batch * kv_len * heads.kv * heads.dim * 2;
        if (bytes > 2 * h100().l2) CHECK(time > 1e6 * bytes / h100().bandwidth);
      }
    }
  }
}

TEST_CASE("decode attention: narrower caches and faster memory never take longer") {
  const Coefficients c{decode_attention_form()};
  KernelGpu faster = h100();
  faster.bandwidth *= 1.5;
  for (const double batch : kBatches) {
    for (const double kv_len : kLengths) {
      const DecodeAttentionCall call{
          .batch = batch, .kv_len = kv_len, .q_heads = 32, .kv_heads = 8};
      CHECK(c.time(call, bf16(), faster) <= c.time(call));
      KernelFormat format = bf16();
      double before = c.time(call, format);
      for (const double bytes : {1.0, 0.5625, 0.25}) {
        format.stored_bytes = bytes;
        const double time = c.time(call, format);
        CHECK(time <= before);
        before = time;
      }
    }
  }
}

TEST_CASE("decode attention: one sequence in two splits, by hand") {
  Coefficients c{decode_attention_form()};
  c.set("fixed", 10).set("split", 3).set("block", 1).set("tile", 2).set("max_splits", 2);
  c.set("row", 1).set("head", 20).set("resident", 1).set("narrow_below", 0.001);
  // 512 tokens are 4 tiles, 2 per split: 1 + 2 x 2 = 5 us. Reading 256 KiB from L2 takes 0.03 us,
  // which is hidden by the fourth root. Combining 3 x (1 - 1/2), rows 8 x 1 ns, head 20 ns, no
  // copies at batch 1.
  const DecodeAttentionCall call{.batch = 1, .kv_len = 512, .q_heads = 8, .kv_heads = 1};
  CHECK(c.time(call) == doctest::Approx(10 + 1.5 + 5 + 0.008 + 0.02).epsilon(1e-3));
  // One more token adds a fifth tile: 2.5 per split on average.
  DecodeAttentionCall longer = call;
  longer.kv_len = 513;
  CHECK(c.time(longer) - c.time(call) == doctest::Approx(1).epsilon(1e-2));
}

TEST_CASE("decode attention: a large call runs at the share of HBM, by hand") {
  Coefficients c{decode_attention_form()};
  c.set("fixed", 1).set("block", 0.02).set("tile", 0.04).set("memory", 0.5).set("tail", 0.01);
  c.set("row", 0.001).set("head", 0.001);
  // 64 x 16384 x 8 x 128 x 2 x 2 B = 4.295e9 B at 1.675 TB/s: 2564 us.
  const DecodeAttentionCall call{.batch = 64, .kv_len = 16384, .q_heads = 32, .kv_heads = 8};
  CHECK(c.time(call) == doctest::Approx(2565).epsilon(0.005));
  // A cache of 1 MiB stays in L2, regardless of the share of HBM.
  const DecodeAttentionCall small{.batch = 1, .kv_len = 256, .q_heads = 32, .kv_heads = 8};
  const double slow = c.time(small);
  c.set("memory", 1);
  CHECK(c.time(small) == doctest::Approx(slow).epsilon(1e-6));
  CHECK(c.time(call) == doctest::Approx(1283).epsilon(0.01));
}

TEST_CASE("decode attention: many small calls wait for the SMs, by hand") {
  Coefficients c{decode_attention_form()};
  c.set("fixed", 1).set("block", 4).set("tile", 1).set("resident", 1).set("head", 0.001);
  c.set("row", 0.001).set("tail", 0.01);
  // 1320 blocks of one tile on 132 SMs: 10 waves of 5 us.
  const DecodeAttentionCall call{.batch = 1320, .kv_len = 16, .q_heads = 8, .kv_heads = 1};
  CHECK(c.time(call) == doctest::Approx(51).epsilon(0.01));
}

TEST_CASE("MLA: times grow with batch, length and heads, and never beat HBM or tensor cores") {
  const Coefficients c{mla_form()};
  for (const bool decode : {true, false}) {
    for (const double batch : kBatches) {
      for (const std::int32_t heads : {1, 8, 16, 24, 128}) {
        double before = 0;
        for (const double seq_len : kLengths) {
          const MlaCall call{.decode = decode, .batch = batch, .seq_len = seq_len, .heads = heads};
          const double time = c.time(call);
          INFO((decode ? "decode " : "prefill "), batch, " x ", seq_len, ", heads ", heads);
          CHECK(std::isfinite(time));
          CHECK(time >= before);
          before = time;
          MlaCall more = call;
          more.heads = 2 * heads;
          CHECK(c.time(more) >= time - 5);
          MlaCall later = call;
          later.prefix = 1000;
          CHECK((decode ? c.time(later) == time : c.time(later) > time));
          const double bytes = decode ? batch * seq_len * 576 * 2 : 0;
          if (bytes > 2 * h100().l2) CHECK(time > 1e6 * bytes / h100().bandwidth);
          if (time > 100) CHECK(time > 0.99 * ideal_microseconds(call, bf16(), h100()));
        }
      }
    }
  }
}

TEST_CASE("MLA: decode from HBM, causal prefill, and a slow host, by hand") {
  Coefficients c{mla_form()};
  c.set("host", 0.1).set("fixed", 1).set("memory", 0.5).set("block", 0.02).set("tile", 0.02);
  c.set("tail", 0.01).set("row", 0.01).set("compute", 1).set("padded_rows", 0.1);
  c.set("split", 0.01);
  // 64 x 32768 x 576 x 2 B = 2.416e9 B at 1.675 TB/s: 1442 us.
  const MlaCall decode{.decode = true, .batch = 64, .seq_len = 32768, .heads = 8};
  CHECK(c.time(decode) == doctest::Approx(1443).epsilon(0.005));
  // 32768 x 32769 / 2 pairs x 128 heads x 2 x (192 + 128) flop = 43.98e12, at half of 989.4e12/s
  // 88.9 ms; streams: 32768 x 2 B x (128 x 640 + 576) / 3.35e12 B/s = 1.614 ms; launches 16 us.
  c.set("prefill_compute", 0.5).set("passes", 1).set("latent_passes", 1);
  c.set("short_passes", 0.001).set("prefill_fixed", 16);
  const MlaCall prefill{.decode = false, .batch = 1, .seq_len = 32768, .heads = 128};
  CHECK(c.time(prefill) == doctest::Approx(88910 + 1614 + 16).epsilon(0.002));
  // The second half after the first: pairs 16384 x (16384 + 8192.5), three quarters of the
  // arithmetic; keys and values of the prefix, 320 of 640 wide, and its latents in addition to the
  // streams.
  const MlaCall half{.decode = false, .batch = 1, .seq_len = 16384, .heads = 128, .prefix = 16384};
  CHECK(c.time(half) == doctest::Approx(88910 * 0.75 + 1614 * 0.75 + 16).epsilon(0.002));
  const MlaCall first{.decode = false, .batch = 1, .seq_len = 16384, .heads = 128};
  CHECK(c.time(first) + c.time(half) > c.time(prefill));
  // Device work that takes a tenth of the host time is hidden.
  c.set("host", 200);
  const MlaCall small{.decode = true, .batch = 1, .seq_len = 64, .heads = 8};
  CHECK(c.time(small) == doctest::Approx(200).epsilon(0.001));
}

/// A calibration of decode attention at its start values.
KernelCalibration measured(std::string gpu, std::string stack, std::string format, double mape) {
  KernelCalibration entry{.op = KernelOp::kDecodeAttention,
                          .gpu = std::move(gpu),
                          .stack = std::move(stack),
                          .format = std::move(format),
                          .form = "decode-attention"};
  for (const Coefficient& c : decode_attention_form().coefficients) {
    entry.coefficients.push_back(c.start);
  }
  entry.fitted = {.n = 100, .mape = mape};
  return entry;
}
KernelLibrary library(std::vector<KernelCalibration> entries) {
  KernelCalibrationFile file;
  file.entries = std::move(entries);
  return KernelLibrary{{std::move(file)}};
}
std::string_view stack_of(const KernelChoice& choice) {
  REQUIRE(choice.factors().size() == 1);
  return choice.factors()[0].calibration->stack;
}

TEST_CASE("attention over caches of unmeasured widths is timed by the nearest measured width") {
  const KernelLibrary all = library({measured("H100-80GB-SXM", "a-1", "bf16/bf16", 0.05),
                                     measured("H100-80GB-SXM", "a-1", "bf16/fp8", 0.05)});
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  const DecodeAttentionCall call{.batch = 32, .kv_len = 8192, .q_heads = 32, .kv_heads = 8};
  const auto choose = [&](Dtype kv) {
    return all.choose(KernelOp::kDecodeAttention, gpu, "a-1", attention_format(Dtype::kBf16, kv));
  };
  for (const Dtype kv : {Dtype::kInt8, Dtype::kInt4, Dtype::kInt2}) {
    const KernelChoice choice = choose(kv);
    REQUIRE(choice.factors().size() == 1);
    CHECK(choice.factors()[0].calibration->format == "bf16/fp8");
    CHECK(choice.basis() == KernelBasis::kOtherFormat);
  }
  CHECK(choose(Dtype::kInt8).microseconds(call) == rel(choose(Dtype::kFp8E4m3).microseconds(call)));
  CHECK(choose(Dtype::kInt2).microseconds(call) <= choose(Dtype::kInt4).microseconds(call));
  CHECK(choose(Dtype::kInt4).microseconds(call) < choose(Dtype::kInt8).microseconds(call));
  CHECK(choose(Dtype::kBf16).basis() == KernelBasis::kMeasured);
  // 32-bit queries use another kernel.
  CHECK(all.choose(KernelOp::kDecodeAttention, gpu, "a-1",
                   attention_format(Dtype::kFp32, Dtype::kFp32))
            .basis() == KernelBasis::kNominal);
}

TEST_CASE("SM-bound rates carry over in bytes per second, memory-bound ones as a share") {
  const Gpu &h100 = find_gpu("H100-80GB-SXM"), &h200 = find_gpu("H200-141GB-SXM");
  REQUIRE(h100.sms == h200.sms);
  const double less = h100.hbm_bandwidth.count() / h200.hbm_bandwidth.count();
  const auto& names = decode_attention_form().coefficients;
  const auto memory = static_cast<std::size_t>(
      std::find_if(names.begin(), names.end(), [](const auto& c) { return c.name == "memory"; }) -
      names.begin());
  // Share of the bandwidth on `to` for a kernel that reaches `share` of it on `from`.
  const auto carried = [&](const char* from, double share, const char* to) {
    KernelCalibration entry = measured(from, "a-1", "bf16/bf16", 0.05);
    entry.coefficients[memory] = share;
    const KernelLibrary all = library({std::move(entry)});
    const KernelChoice choice = all.choose(KernelOp::kDecodeAttention, find_gpu(to), "a-1",
                                           attention_format(Dtype::kBf16, Dtype::kBf16));
    REQUIRE(choice.factors().size() == 1);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const KernelChoice::Factor& f = choice.factors()[0];
      if (i != memory) CHECK(f.coefficients[i] == f.calibration->coefficients[i]);
    }
    return choice.factors()[0].coefficients[memory];
  };
  CHECK(carried("H100-80GB-SXM", 0.95, "H200-141GB-SXM") == 0.95);
  CHECK(carried("H100-80GB-SXM", 0.5, "H200-141GB-SXM") == rel(0.5 * less));
  CHECK(carried("H100-80GB-SXM", 0.7, "H200-141GB-SXM") == rel(0.7 * std::sqrt(less)));
  CHECK(carried("H200-141GB-SXM", 0.5, "H100-80GB-SXM") == rel(0.5 / less));
  // The share is limited to that of well-made kernels.
  CHECK(carried("H200-141GB-SXM", 0.69, "H100-80GB-SXM") <= 0.95);
  CHECK(carried("H100-80GB-SXM", 0.5, "H100-80GB-SXM") == 0.5);
  CHECK(carried("A100-80GB-SXM", 0.5, "A40") == 0.5);  // another chip, with other SMs
  // A kernel that reaches more bytes per second on one GPU also reaches more on the other.
  double before = 0;
  for (double share = 0.3; share < 1; share += 0.01) {
    const double after = carried("H100-80GB-SXM", share, "H200-141GB-SXM");
    CHECK(after > before);
    before = after;
  }
}

TEST_CASE("an unseen pair takes its stack from the same chip, then a newest version that fits") {
  const KernelLibrary all = library({measured("H100-80GB-SXM", "vllm-0.24.0", "bf16/bf16", 0.05),
                                     measured("H200-141GB-SXM", "vllm-0.14.0", "bf16/bf16", 0.02),
                                     measured("H200-141GB-SXM", "vllm-0.9.0", "bf16/bf16", 0.01),
                                     measured("H200-141GB-SXM", "trtllm-1.0", "bf16/bf16", 0.2)});
  const Gpu& gpu = find_gpu("H200-141GB-SXM");
  const auto choose = [&](std::string_view stack) {
    return all.choose(KernelOp::kDecodeAttention, gpu, stack, bf16());
  };
  CHECK(stack_of(choose("vllm-0.14.0")) == "vllm-0.14.0");
  CHECK(choose("vllm-0.14.0").basis() == KernelBasis::kMeasured);
  CHECK(stack_of(choose("vllm-0.24.0")) == "vllm-0.24.0");
  CHECK(choose("vllm-0.24.0").basis() == KernelBasis::kSibling);
  CHECK(stack_of(choose("sglang-0.5.14")) == "vllm-0.14.0");
  CHECK(choose("sglang-0.5.14").basis() == KernelBasis::kOtherStack);
}

}  // namespace
}  // namespace kvsim
