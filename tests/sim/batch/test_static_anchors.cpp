// Static runs compared with hand-solved cases and with published runs.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "models/llm/catalogue.hpp"
#include "sim/batch/static_run.hpp"
#include "tests/support/check.hpp"
#include "tests/support/machines.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

double gib(Bytes n) { return n / 1_GiB; }

/// Llama-2-7B in fp32, 20,000 prompt and 40,000 output tokens: weights 25.10 GiB, cache 1
/// MiB/token.
struct Fp32Case {
  Llm llm = llama2_7b();
  Gpu gpu = a800();
  [[nodiscard]] StaticSpec spec(const char* stack, std::shared_ptr<const Method> method) const {
    return {.llm = &llm,
            .gpu = &gpu,
            .stack = &find_stack(stack),
            .method = std::move(method),
            .weight_dtype = Dtype::kFp32,
            .kv_dtype = Dtype::kFp32,
            .batch = 1,
            .prompt_tokens = 20000,
            .output_tokens = 40000};
  }
};

TEST_CASE("full cache, fp32, 20K prompt: prefill fits, decode runs out near 54K tokens") {
  const Fp32Case c;
  const auto r = run_static(c.spec("hf-sdpa", std::make_shared<FullMethod>()));
  // 79.33 - 0.5 - 25.10 = 53.73 GiB = 55,020 tokens of 1 MiB. One layer's longer values are held
  // next to the old ones: 1/64 of the cache, so 55,020 / (1 + 1/64) = 54,173 minus a few
  // activations.
  REQUIRE(r.oom);
  CHECK(r.oom->phase == "decode");
  CHECK(r.oom->tokens == doctest::Approx(54173).epsilon(0.001));
  CHECK(r.oom->tokens == 20000 + r.oom->step);
  CHECK(r.oom->requested == Bytes{r.oom->tokens * 4096 * 4});  // one layer's keys or values
  CHECK(r.oom->free < r.oom->requested);
  CHECK(r.oom->what == "longer copy of the values of layer 31");
  // At 20K: 0.5 + 25.10 + 20000/1024 = 45.13 GiB.
  CHECK(gib(r.timeline.front().held) == doctest::Approx(45.13).epsilon(0.001));
  CHECK(r.timeline.front().tokens == 20000);
  CHECK_FALSE(r.decode_time);
  Bytes sum = r.oom->free;
  for (const auto& [owner, n] : r.oom->owners) sum += n;
  CHECK(sum == r.usable_hbm);
}

TEST_CASE("a bounded ring of 18,000 entries stays at 43 GiB") {
  const Fp32Case c;
  const auto ring = std::make_shared<BoundedMethod>(
      BoundedOptions{.budget = 18000, .needs = eager_sums_with_retry()});
  const auto r = run_static(c.spec("hf-sdpa", ring));
  REQUIRE_FALSE(r.oom);
  // 0.5 + 25.10 + 18000/1024 = 43.18 GiB.
  CHECK(gib(r.timeline.front().held) == doctest::Approx(43.18).epsilon(0.001));
  for (const StaticSample& s : r.timeline) {
    CHECK(s.held == r.timeline.front().held);
    // One layer's longer values next to the old ones: 18,001 of 16 KiB.
    if (s.step > 0) CHECK(gib(s.peak - s.held) == doctest::Approx(0.2747).epsilon(0.03));
  }
  CHECK(r.peak_phase == "prefill");
  CHECK(r.prefill_peak > r.decode_peak);
  CHECK(gib(r.decode_peak) == doctest::Approx(43.18 + 0.2747).epsilon(0.002));
  // A matrix of all rows takes 51.2 GB, three matrices 143 GiB. A quarter of the rows takes 35.8
  // GiB, which together with the 43.2 held and the layer's activations is too much in the last
  // layers; a sixteenth fits.
  REQUIRE(r.notes.size() == 1);
  CHECK(r.notes[0].find("1250 query rows") != std::string::npos);
}

TEST_CASE("ZeroMerge with 18,000 entries: constant 43 GB as published") {
  // Section 4.2 of the ZeroMerge paper: Llama-2-7B fp32, 20K to 54K tokens. Scores and counts are
  // added to the ring above: 8 B per entry and head, 1/128 of the cache.
  const Fp32Case c;
  const LayerShape shape{.n_heads = 32, .n_kv_heads = 32, .head_dim = 128};
  const auto method = make_method(
      {.name = "zeromerge", .params = {}, .budget = Budget{.fraction = 0, .entries = 18000}}, 20000,
      {.recorded = Dtype::kFp32, .shape = shape});
  const auto r = run_static(c.spec("hf-sdpa", method));
  REQUIRE_FALSE(r.oom);
  CHECK(gib(r.timeline.front().held) == doctest::Approx(43).epsilon(0.6 / 43));
  CHECK(r.timeline.front().held == r.timeline.back().held);
  CHECK(r.prefill_peak > r.decode_peak);
}

TEST_CASE("eager attention fails on the score matrix with and without the full cache") {
  const Fp32Case c;
  const auto ring = std::make_shared<BoundedMethod>(
      BoundedOptions{.budget = 18000, .needs = eager_sums_with_retry()});
  const std::shared_ptr<const Method> full = std::make_shared<FullMethod>();
  for (const auto& method : {full, std::static_pointer_cast<const Method>(ring)}) {
    const auto r = run_static(c.spec("hf-eager", method));
    REQUIRE(r.oom);
    CHECK(r.oom->phase == "prefill");
    CHECK(r.oom->step == 0);
    // The first matrix fits next to the weights, but its fp32 softmax does not.
    CHECK(r.oom->requested == Bytes{32LL * 20000 * 20000 * 4});
    CHECK(r.oom->what == "masked attention scores of layer 0");
    CHECK(r.oom->owners.at("scores") == Bytes{32LL * 20000 * 20000 * 4});
    CHECK(r.oom->owners.at("weights") == Bytes{4 * 6738415616});
    CHECK(r.oom->owners.at("mask") == Bytes{20000LL * 20000 * 4});
    CHECK_FALSE(r.prefill_time);
  }
}

/// The same with shipped data: catalogue entries and presets instead of made-up ones.
StaticSpec shipped(const char* stack, const MethodSpec& method) {
  const LayerShape shape{.n_heads = 32, .n_kv_heads = 32, .head_dim = 128};
  return {.llm = &find_llm("llama-2-7b"),
          .gpu = &find_gpu("A800-80GB-SXM"),
          .stack = &find_stack(stack),
          .method = make_method(method, 20000, {.recorded = Dtype::kFp32, .shape = shape}),
          .weight_dtype = Dtype::kFp32,
          .kv_dtype = Dtype::kFp32,
          .batch = 1,
          .prompt_tokens = 20000,
          .output_tokens = 40000};
}
const MethodSpec kFull{.name = "full", .params = {}, .budget = {}};
const MethodSpec kZeroMerge{
    .name = "zeromerge", .params = {}, .budget = Budget{.fraction = 0, .entries = 18000}};

TEST_CASE("shipped data: the full cache runs out near 54K tokens on an A800") {
  const auto r = run_static(shipped("hf-sdpa", kFull));
  REQUIRE(r.oom);
  CHECK(r.oom->phase == "decode");
  CHECK(r.oom->tokens == doctest::Approx(54173).epsilon(0.001));
  CHECK(r.oom->requested == Bytes{r.oom->tokens * 4096 * 4});
  CHECK(r.oom->what.starts_with("longer copy of the values of layer "));
  CHECK(gib(r.timeline.front().held) == doctest::Approx(45.13).epsilon(0.001));
  REQUIRE(r.prefill_time);
  // Each term of the peak, with its numbers.
  const auto found = std::find_if(r.peak_terms.begin(), r.peak_terms.end(),
                                  [](const PeakTerm& t) { return t.owner == "weights"; });
  REQUIRE(found != r.peak_terms.end());
  CHECK(found->formula == "6,738,415,616 parameters x 4 B");
  CHECK(found->bytes == Bytes{4 * 6738415616});
}

TEST_CASE("shipped data: ZeroMerge with 18,000 entries stays at 43 GiB except in prefill") {
  const auto r = run_static(shipped("hf-sdpa", kZeroMerge));
  REQUIRE_FALSE(r.oom);
  CHECK(gib(r.timeline.front().held) == doctest::Approx(43).epsilon(0.6 / 43));
  CHECK(r.timeline.front().held == r.timeline.back().held);
  CHECK(gib(r.decode_peak) == doctest::Approx(43).epsilon(0.6 / 43));
  CHECK(std::any_of(r.peak_terms.begin(), r.peak_terms.end(), [](const PeakTerm& t) {
    return t.owner == "side_data" &&
           t.formula == "28 layers x batch 1 x 32 heads x 18,000 entries x 8 B";
  }));
  CHECK(r.peak_phase == "prefill");
  CHECK(r.prefill_peak > r.decode_peak);
}

TEST_CASE("shipped data: eager attention fails at prefill because of its 51 GB of scores") {
  for (const MethodSpec& method : {kFull, kZeroMerge}) {
    const auto r = run_static(shipped("hf-eager", method));
    REQUIRE(r.oom);
    CHECK(r.oom->phase == "prefill");
    CHECK(r.oom->what == "masked attention scores of layer 0");
    CHECK(r.oom->requested == Bytes{32LL * 20000 * 20000 * 4});
    CHECK(r.oom->owners.at("weights") == Bytes{4 * 6738415616});
    const auto found = std::find_if(r.peak_terms.begin(), r.peak_terms.end(),
                                    [](const PeakTerm& t) { return t.owner == "scores"; });
    REQUIRE(found != r.peak_terms.end());
    CHECK(found->what == "attention scores of layer 0");
    CHECK(found->formula == "batch 1 x 32 query heads x 20,000 query rows x 20,000 tokens x 4 B");
    CHECK(found->source == "stack hf-eager: attention");
  }
}

TEST_CASE("prefill peak of Hugging Face: W + KV + S * dtype * (3 d_ff + 4 d)") {
  const Llm llm = llama31_8b();
  const Gpu gpu = a800();
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kFp32}) {
    for (const char* stack : {"hf-sdpa", "hf-flash"}) {
      const std::int64_t s = 16000;
      const auto r = run_static({.llm = &llm,
                                 .gpu = &gpu,
                                 .stack = &find_stack(stack),
                                 .method = std::make_shared<FullMethod>(),
                                 .weight_dtype = dtype,
                                 .kv_dtype = dtype,
                                 .prompt_tokens = s});
      const std::int64_t beta = bits_of(dtype) / 8;
      const Bytes law = Bytes{8030261248 * beta} + Bytes{s * 32 * 2 * 8 * 128 * beta} +
                        Bytes{s * beta * (3 * 14336 + 4 * 4096)} + 512_MiB;
      CHECK(static_cast<double>(r.prefill_peak.count()) ==
            rel(static_cast<double>(law.count()), 1e-6));
    }
  }
}

TEST_CASE("R-KV's full cache on an 80 GB card: batch 62 fits and 63 does not") {
  // DeepSeek-R1-Distill-Llama-8B, bf16, FlashAttention-2, 8094 tokens generated after a short math
  // problem (assumed: 100 tokens). At 62: weights 14.96 + cache 62 * 8194 * 128 KiB = 62.02 GiB,
  // one layer's copy 0.97, context 0.5. Source: github.com/Zefan-Cai/R-KV, efficiency table.
  const Llm llm = llama31_8b();
  const Gpu gpu = a800();
  for (const std::int64_t batch : {62, 63}) {
    const auto r = run_static({.llm = &llm,
                               .gpu = &gpu,
                               .stack = &find_stack("hf-flash"),
                               .method = std::make_shared<FullMethod>(),
                               .weight_dtype = Dtype::kBf16,
                               .kv_dtype = Dtype::kBf16,
                               .batch = batch,
                               .prompt_tokens = 100,
                               .output_tokens = 8094});
    CHECK(r.oom.has_value() == (batch == 63));
    if (batch == 62) CHECK(gib(r.peak_hbm) == doctest::Approx(78.45).epsilon(0.001));
  }
}

/// Cells of one line of a CSV file with quoted fields.
std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> out(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

TEST_CASE("published peaks of kvpress on Llama-3.1-8B, 8K to 128K, ratios 0 to 0.8") {
  const auto data = data_dir();
  if (!data) return;
  std::ifstream file{*data / "published" / "results.csv"};
  REQUIRE(file);
  const Llm llm = llama31_8b();
  const Gpu gpu = a800();
  int rows = 0;
  double sum = 0, worst = 0;
  for (std::string line; std::getline(file, line);) {
    const auto row = cells(line);
    if (row.size() < 16 || row[13] != "peak_mem_gb" ||
        row[1].find("NVIDIA/kvpress notebooks/speed_and_memory.ipynb") == std::string::npos) {
      continue;
    }
    const std::string& params = row[9];
    const double ratio = std::stod(params.substr(params.find_last_of(' ')));
    const auto r = run_static({.llm = &llm,
                               .gpu = &gpu,
                               .stack = &find_stack("hf-flash"),
                               .method = std::make_shared<PromptFractionMethod>(1 - ratio),
                               .weight_dtype = Dtype::kBf16,
                               .kv_dtype = Dtype::kBf16,
                               .prompt_tokens = std::stoll(row[11]),
                               .output_tokens = std::stoll(row[12])});
    REQUIRE_FALSE(r.oom);
    // The values are torch's allocated bytes, which exclude the context.
    const double error = (gib(r.peak_hbm) - 0.5) / std::stod(row[14]) - 1;
    INFO(row[0], " prompt ", row[11], " ratio ", ratio, ": ", gib(r.peak_hbm) - 0.5, " against ",
         row[14]);
    CHECK(std::abs(error) < 0.006);
    ++rows;
    sum += std::abs(error);
    worst = std::max(worst, std::abs(error));
  }
  REQUIRE(rows > 30);
  INFO("mean ", sum / rows, " worst ", worst, " over ", rows);
  CHECK(sum / rows < 0.002);
  if (std::getenv("KVSIM_SHOW_ERRORS") != nullptr) {
    fmt::print("kvpress peaks: mean error {:.3f} %, worst {:.3f} % over {} rows\n",
               100 * sum / rows, 100 * worst, rows);
  }
}

}  // namespace
}  // namespace kvsim
