// The terms of a step's time: their sum is that time, and the formula of each equals its seconds.

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/cost/rates/roofline.hpp"
#include "models/cost/step.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/method.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/serve/cache/sequence_footprint.hpp"
#include "tests/support/check.hpp"
#include "tests/support/machines.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

/// The value of "2 layers x (6 launches x 4 us + max(1e3 FLOP / 312 TFLOP/s, 8,192 B / 2 TB/s))" in
/// seconds: sums of products and quotients, with no words except units.
class Formula {
 public:
  explicit Formula(std::string_view text) : text_{text} {}
  double value() {
    const double v = sum();
    CHECK(at_ == text_.size());
    return v;
  }

 private:
  double sum() {
    double v = product();
    for (;;) {
      if (take("+"))
        v += product();
      else if (take("-"))
        v -= product();
      else
        return v;
    }
  }
  double product() {
    double v = factor();
    for (;;) {
      if (take("x "))
        v *= factor();
      else if (take("/"))
        v /= factor();
      else
        return v;
    }
  }
  double factor() {
    if (take("max(")) {
      const double a = sum();
      REQUIRE(take(","));
      const double b = sum();
      REQUIRE(take(")"));
      return std::max(a, b);
    }
    if (take("(")) {
      const double v = sum();
      REQUIRE(take(")"));
      return v;
    }
    std::string digits;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      const bool group = c == ',' && at_ + 1 < text_.size() && std::isdigit(text_[at_ + 1]) != 0;
      const bool sign = (c == '-' || c == '+') && !digits.empty() && digits.back() == 'e';
      if (group) continue;
      if (std::isdigit(static_cast<unsigned char>(c)) == 0 && c != '.' && c != 'e' && !sign) break;
      digits += c;
    }
    REQUIRE_MESSAGE(!digits.empty(), "at ", text_.substr(at_));
    double v = std::stod(digits);
    // Units and words up to the next operator.
    for (;;) {
      skip_blanks();
      std::size_t end = at_;
      while (end < text_.size() && (std::isalpha(static_cast<unsigned char>(text_[end])) != 0)) {
        ++end;
      }
      const std::string_view word = text_.substr(at_, end - at_);
      if (word.empty() || word == "x") return v;
      at_ = end;
      if (word.starts_with("T")) {
        v *= 1e12;
        REQUIRE(take("/s"));
      }
      if (word == "us") v *= 1e-6;
    }
  }
  void skip_blanks() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(std::string_view token) {
    skip_blanks();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

void check_step(const ExplainedStep& step) {
  double sum = 0;
  for (const TimeTerm& term : step.terms) {
    INFO(term.what, " = ", term.formula, " = ", term.time.count());
    // The term of a hidden copy is the difference of two times, which may be 0.
    const bool hides = term.formula.find("other operators hide") != std::string::npos;
    CHECK(Formula{term.formula}.value() ==
          doctest::Approx(term.time.count()).epsilon(1e-9).scale(hides ? 1e-6 : 0));
    CHECK(term.time >= Seconds{});
    if (term.interval) {
      CHECK(term.interval->low <= term.time * (1 + 1e-9));
      CHECK(term.interval->high >= term.time * (1 - 1e-9));
    }
    CHECK_FALSE(term.source.empty());
    CHECK((term.bound == "host") == (term.family == "host"));
    if (term.bound == "compute") CHECK(term.flops > 0);
    if (term.bound == "memory") CHECK(term.bytes_read + term.bytes_written > 0);
    if (term.bound == "launch") CHECK(term.launches > 0);
    sum += term.time.count();
  }
  CHECK(sum == rel(step.time.count(), 1e-9));
}

struct Whole {
  double flops = 0, bytes = 0;
};
Whole whole_of(const ExplainedStep& step) {
  Whole out;
  for (const TimeTerm& term : step.terms) {
    out.flops += term.flops;
    out.bytes += term.bytes_read + term.bytes_written;
  }
  return out;
}

std::vector<std::shared_ptr<const Method>> methods_of(const Llm& llm, std::int64_t prompt) {
  std::vector<std::shared_ptr<const Method>> out{
      std::make_shared<BoundedMethod>(BoundedOptions{.budget = 300,
                                                     .compaction = Compaction::kGather,
                                                     .needs = eager_sums_with_retry(),
                                                     .prefill_peak = PrefillPeak::kAllLayers,
                                                     .side_per_entry = 8,
                                                     .budget_step = 1,
                                                     .extra_launches = 12})};
  const AttentionSpec& a = llm.layers.front().attention;
  const MethodContext site{
      .recorded = Dtype::kBf16,
      .shape = {.n_heads = a.n_heads, .n_kv_heads = a.n_kv_heads, .head_dim = a.head_dim},
      .windows = {},
      .n_layers = llm.n_layers(),
      .d_model = llm.d_model};
  for (const MethodInfo& info : builtin_methods()) {
    MethodSpec spec{.name = info.name, .params = {}, .budget = std::nullopt};
    // In such a short prompt, most tokens are protected.
    if (takes_budget(info.name)) {
      const bool large = info.name == "duo-attention" || info.name.starts_with("pyramid-");
      spec.budget =
          Budget{.fraction = 0, .entries = large || info.name == "pyramidinfer" ? 450 : 200};
    }
    // Formats with a rotation require head sizes that are powers of two.
    const bool rotates = info.axes.at("store") == "int4-rht" || info.axes.at("store") == "quarot" ||
                         info.axes.at("store") == "turboquant" ||
                         info.axes.at("store") == "ultraquant" ||
                         info.axes.at("store") == "kvarn" || info.axes.at("store") == "oscar" ||
                         info.axes.at("store") == "rotatekv";
    if (rotates && !std::has_single_bit(static_cast<std::uint32_t>(a.head_dim))) continue;
    // vLLM cannot equalise the page sizes of windows and of TurboQuant.
    const bool windows = llm.layers.front().attention.window > 0;
    if (windows && info.axes.at("store") == "turboquant") continue;
    const auto made = make_method(spec, prompt, site);
    bool closed = true;  // otherwise a static run refuses it
    for (std::int32_t layer = 0; layer < llm.n_layers(); ++layer) {
      closed = closed && made->entries_held(layer, prompt, prompt + 1).has_value();
    }
    if (closed) out.push_back(made);
  }
  return out;
}

TEST_CASE("terms of prefill and decode steps sum to their times and formulas give their seconds") {
  const Gpu& gpu = find_gpu("H200-141GB-SXM");
  // Dense, grouped heads, a mixture of experts, windows and experts, latent attention and experts.
  for (const char* name :
       {"llama-2-7b", "llama-3.1-8b", "mixtral-8x7b", "gpt-oss-20b", "deepseek-v2-lite"}) {
    const Llm& llm = find_llm(name);
    for (const Stack& stack : builtin_stacks()) {
      for (const auto& method : methods_of(llm, 500)) {
        INFO(name, " ", stack.name, " ", method->name());
        const StaticSpec spec{.llm = &llm,
                              .gpu = &gpu,
                              .stack = &stack,
                              .method = method,
                              .weight_dtype = llm.published_dtype,
                              .kv_dtype = default_kv_dtype(llm, llm.published_dtype),
                              .batch = 3,
                              .prompt_tokens = 500,
                              .output_tokens = 2};
        const StaticResult r = run_static(spec, {.time_terms = true});
        REQUIRE_FALSE(r.oom);
        REQUIRE(r.explained.size() == 3);
        for (const ExplainedStep& step : r.explained) check_step(step);
        CHECK(r.explained[0].step == 0);
        CHECK(r.explained[0].tokens == 500);
        CHECK(r.explained[0].time == *r.prefill_time);
        CHECK(r.explained[2].tokens == 502);
        CHECK((r.explained[1].time + r.explained[2].time).count() == rel(r.decode_time->count()));
        CHECK(r.explained[2].time == r.timeline.back().time);
        Whole all;
        for (const ExplainedStep& step : r.explained) {
          all.flops += whole_of(step).flops;
          all.bytes += whole_of(step).bytes;
        }
        CHECK(all.flops == rel(r.flops, 1e-9));
        CHECK(all.bytes == rel(r.bytes_moved, 1e-9));
        // Explanations do not change the run.
        const StaticResult plain = run_static(spec);
        CHECK(plain.explained.empty());
        CHECK(plain.prefill_time == r.prefill_time);
        CHECK(plain.peak_hbm == r.peak_hbm);
      }
    }
  }
}

TEST_CASE("layers prefilled before a refusal keep their score chunks and later ones have smaller") {
  const Llm llm = llama2_7b();
  Gpu gpu = a800();
  StaticSpec spec{.llm = &llm,
                  .gpu = &gpu,
                  .stack = &find_stack("hf-sdpa"),
                  .method = std::make_shared<BoundedMethod>(
                      BoundedOptions{.budget = 3000, .needs = eager_sums_with_retry()}),
                  .prompt_tokens = 3000,
                  .output_tokens = 1};
  const StaticResult roomy = run_static(spec, {.time_terms = true});
  gpu.hbm_usable = roomy.peak_hbm - 200_MiB;
  const StaticResult tight = run_static(spec, {.time_terms = true});
  REQUIRE_FALSE(tight.oom);
  REQUIRE(tight.notes.size() > roomy.notes.size());
  const auto score_terms = [](const StaticResult& r) {
    return std::count_if(r.explained.at(0).terms.begin(), r.explained.at(0).terms.end(),
                         [](const TimeTerm& t) { return t.family == "score_pass"; });
  };
  CHECK(score_terms(roomy) == 1);
  CHECK(score_terms(tight) == 2);
  check_step(tight.explained.at(0));
}

TEST_CASE("the explanation describes the run itself") {
  const Llm llm = llama2_7b();
  Gpu gpu = a800();
  StaticSpec spec{.llm = &llm,
                  .gpu = &gpu,
                  .stack = &find_stack("ideal"),
                  .method = std::make_shared<FullMethod>(),
                  .prompt_tokens = 100,
                  .output_tokens = 0};
  const auto steps = [&] {
    std::vector<std::int64_t> out;
    for (const ExplainedStep& step : run_static(spec, {.time_terms = true}).explained) {
      out.push_back(step.step);
    }
    return out;
  };
  CHECK(steps() == std::vector<std::int64_t>{0});
  spec.output_tokens = 1;
  CHECK(steps() == std::vector<std::int64_t>{0, 1});
  spec.output_tokens = 4000;
  CHECK(steps() == std::vector<std::int64_t>{0, 1, 4000});
  // Memory for the prompt and 1,000 more tokens: the step after the last fitting one fails.
  gpu.hbm_usable = run_static(spec).peak_hbm - Bytes{3000LL * 512 * 1024};
  const StaticResult refused = run_static(spec, {.time_terms = true});
  REQUIRE(refused.oom);
  CHECK(refused.explained.at(2).step == refused.oom->step - 1);
  gpu.hbm_usable = 1_GiB;
  CHECK(steps().empty());
}

TEST_CASE("terms by hand: Llama-2-7B, 100 tokens, one sequence on an A800") {
  const Llm llm = llama2_7b();
  const Gpu gpu = a800();
  const StaticResult r = run_static({.llm = &llm,
                                     .gpu = &gpu,
                                     .stack = &find_stack("hf-sdpa"),
                                     .method = std::make_shared<FullMethod>(),
                                     .prompt_tokens = 100,
                                     .output_tokens = 1},
                                    {.time_terms = true});
  const auto term = [&](std::size_t step, std::string_view what) {
    const auto& terms = r.explained.at(step).terms;
    const auto found =
        std::find_if(terms.begin(), terms.end(), [&](const TimeTerm& t) { return t.what == what; });
    REQUIRE_MESSAGE(found != terms.end(), what);
    return *found;
  };
  // 4096 x 4096 x 2 B of weights, an input and an output row of 4096: 33,570,816 B; 2 x 4096^2
  // FLOP.
  const TimeTerm query = term(1, "query projection of 32 layers");
  CHECK(query.formula ==
        "32 layers x (4 us + max(33,554,432 FLOP / (312 TFLOP/s x 0.68), 33,570,816 B / (2.039 "
        "TB/s x 0.7)))");
  CHECK(query.source ==
        "gpu A800-80GB-SXM: peak fp16, hbm_bandwidth; stack hf-sdpa: launch_overhead, reached; "
        "nominal roofline, uncalibrated");
  CHECK(query.bound == "memory");
  CHECK(query.launches == 32);
  CHECK(query.bytes_read == 32.0 * (4096 * 4096 + 4096) * 2);
  CHECK(term(1, "residual add of 32 layers").calls == 2);
  CHECK(term(1, "residual add of 32 layers").bound == "launch");
  // 32 heads on 108 processors.
  CHECK(term(1, "attention of 32 layers").formula.ends_with("/ (2.039 TB/s x 32 / 108)))"));
  CHECK(term(1, "waiting for the host").formula.starts_with("32 layers x 900 us - "));
  CHECK(term(1, "logits").layers == 0);
  CHECK(term(0, "up projection of 32 layers").bound == "memory");  // 100 tokens: below the ridge
}

TEST_CASE("the host's time of steps without a CUDA graph is named by its key") {
  const StaticResult r = run_static({.llm = &find_llm("llama-2-7b"),
                                     .gpu = &find_gpu("H100-80GB-SXM"),
                                     .stack = &find_stack("trtllm@1.0"),
                                     .method = std::make_shared<FullMethod>(),
                                     .prompt_tokens = 16,
                                     .output_tokens = 1},
                                    {.time_terms = true});
  const auto& terms = r.explained.front().terms;
  const auto host = std::find_if(terms.begin(), terms.end(), [](const TimeTerm& t) {
    return t.what == "waiting for the host";
  });
  REQUIRE(host != terms.end());
  CHECK(host->formula.starts_with("32 layers x 290 us"));
  CHECK(host->source.find("eager_per_layer") != std::string::npos);
}

TEST_CASE("copies between GPU and host name their link") {
  const Llm llm = llama2_7b();
  const auto copy = [&](const Gpu& gpu, std::string_view stack) {
    const StaticResult r = run_static(
        {.llm = &llm,
         .gpu = &gpu,
         .stack = &find_stack(stack),
         .method = make_method({"shadowkv", {}, {}}, 8192, method_site(llm, Dtype::kFp16)),
         .prompt_tokens = 8192,
         .output_tokens = 2},
        {.time_terms = true});
    for (const ExplainedStep& step : r.explained) {
      for (const TimeTerm& term : step.terms) {
        if (term.family == "host_copy") return term;
      }
    }
    FAIL("no host copy");
    return TimeTerm{};
  };
  const TimeTerm pcie = copy(find_gpu("H100-80GB-SXM"), "hf-sdpa");
  CHECK(pcie.source.starts_with("gpu H100-80GB-SXM: pcie; stack hf-sdpa: launch_overhead;"));
  CHECK(pcie.formula.ends_with(" B / 0.064 TB/s)"));
  CHECK(pcie.basis == "data_sheet");
  const TimeTerm c2c = copy(find_gpu("GH200-96GB"), "ideal");
  CHECK(c2c.source.starts_with("gpu GH200-96GB: c2c;"));
  CHECK(c2c.formula.ends_with(" B / 0.45 TB/s"));
}

TEST_CASE("a calibration is named in the formula and gives intervals") {
  const Llm llm = small_llm();
  const Gpu gpu = a800();
  Calibration calibration{.id = "test", .provenance = "made up"};
  for (Efficiency& e : calibration.families) {
    e = {.flops = 0.5, .bandwidth = 0.75, .relative_residual = 0.1};
  }
  const StaticSpec spec{.llm = &llm,
                        .gpu = &gpu,
                        .stack = &find_stack("ideal"),
                        .method = std::make_shared<FullMethod>(),
                        .prompt_tokens = 100,
                        .output_tokens = 1,
                        .calibration = &calibration};
  const StaticResult r = run_static(spec, {.time_terms = true});
  for (const ExplainedStep& step : r.explained) {
    check_step(step);
    REQUIRE(step.interval);
    CHECK(step.interval->low < step.time);
    CHECK(step.time < step.interval->high);
  }
  CHECK(r.explained[0].terms[1].formula.find(" TB/s x 0.75)") != std::string::npos);
  CHECK(r.explained[0].terms[1].source.ends_with("; made up"));
}

}  // namespace
}  // namespace kvsim
