// A compiled point equals run_static: exactly in bytes, and up to rounding in time unless it
// reports otherwise.

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/cost/rates/calibration.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/weight_format.hpp"
#include "models/methods/resolve/masked.hpp"
#include "models/units/error.hpp"
#include "sim/batch/point/compiled_point.hpp"
#include "sim/batch/point/recently_used.hpp"
#include "sim/batch/point/step_sum.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/serve/cache/sequence_footprint.hpp"
#include "tests/support/check.hpp"
#include "tests/support/machines.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

template <class T>
const T& pick(const std::vector<T>& all, std::mt19937& random) {
  return all[random() % all.size()];
}

StaticResult run_of(const PointSpec& spec, const Point& point) {
  return run_static({.llm = spec.llm,
                     .gpu = spec.gpu,
                     .stack = spec.stack,
                     .method = spec.method(point.prompt_tokens),
                     .weight_dtype = spec.weight_dtype,
                     .kv_dtype = spec.kv_dtype,
                     .batch = point.batch,
                     .prompt_tokens = point.prompt_tokens,
                     .output_tokens = point.output_tokens,
                     .calibration = spec.calibration,
                     .weight_format = spec.weight_format,
                     .tensor_parallel = spec.tensor_parallel,
                     .options = spec.options});
}

/// Compares one point computed both ways; returns true if the run fits.
bool same_as_run(CompiledPoint& compiled, const PointSpec& spec, const Point& point) {
  INFO(fmt::format("batch {} prompt {} output {}", point.batch, point.prompt_tokens,
                   point.output_tokens));
  const StaticResult run = run_of(spec, point);
  const PointResult got = compiled.at(point);
  CHECK(got.fits == !run.oom.has_value());
  CHECK(got.usable == run.usable_hbm);
  CHECK(got.times.has_value() == !run.oom.has_value());
  if (run.oom || !got.times) return false;
  CHECK(got.prefill_peak == run.prefill_peak);
  CHECK(got.decode_peak == run.decode_peak);
  CHECK(got.kv_bytes == run.kv_bytes);
  CHECK(got.peak() == run.peak_hbm);
  CHECK(got.times->prefill.count() == rel(run.prefill_time->count(), 1e-9));
  if (point.output_tokens == 0) return true;
  CHECK(got.times->last_step.count() == rel(run.timeline.back().time.count(), 1e-9));
  const double within = got.approximation_reason.empty() ? 1e-9 : 1e-3;
  CHECK(got.times->decode.count() == rel(run.decode_time->count(), within));
  CHECK(got.times->tok_s == rel(*run.throughput_tok_s, within));
  const PointStep step =
      compiled.decode_step(point.batch, point.prompt_tokens, point.output_tokens);
  CHECK(step.time.count() == rel(got.times->last_step.count(), 1e-9));
  if (run.gpus.empty()) {
    CHECK(step.peak == run.timeline.back().peak);
    CHECK(step.kv == run.timeline.back().kv);
  }
  const PointResult memory = compiled.memory_at(point);
  CHECK(memory.peak() == got.peak());
  CHECK(!memory.times);
  return true;
}

TEST_CASE("points of the catalogue's models, stacks and methods equal run_static") {
  std::mt19937 random{20261121};
  const std::vector<Llm>& llms = builtin_llms();
  int fitted = 0, compared = 0;
  for (const MethodInfo& info : builtin_methods()) {
    const std::string& name = info.name;
    for (int combination = 0; combination < 3; ++combination) {
      const Llm& llm = pick(llms, random);
      const Gpu& gpu = pick(builtin_gpus(), random);
      Stack stack = pick(builtin_stacks(), random);
      stack.needs_cuda = false;  // with any GPU
      const bool calibrated = random() % 2 == 0;
      if (calibrated) {
        for (const KernelOp op : {KernelOp::kDecodeAttention, KernelOp::kPrefillAttention,
                                  KernelOp::kMla, KernelOp::kGemm, KernelOp::kElementwise}) {
          stack.kernels[std::string{name_of(op)}] = "*";
        }
      }
      const Budget budget = random() % 2 == 0 ? Budget{.fraction = 0.3} : Budget{.entries = 300};
      const MethodSpec method{name, {}, takes_budget(name) ? std::optional{budget} : std::nullopt};
      const MethodContext site = method_site(llm, Dtype::kFp16);
      INFO(fmt::format("{} {} {} {}{}", name, llm.name, gpu.name, stack.name,
                       calibrated ? " calibrated" : ""));
      const PointSpec spec{
          .llm = &llm,
          .gpu = &gpu,
          .stack = &stack,
          .method = [&](std::int64_t prompt) { return make_method(method, prompt, site); },
          .kv_dtype = combination == 2 ? Dtype::kFp8E4m3 : Dtype::kFp16,
          .calibration = calibrated ? &builtin_calibration() : nullptr};
      CompiledPoint compiled{spec};
      for (int i = 0; i < 5; ++i) {
        const Point point{
            .batch = 1 + static_cast<std::int64_t>(random() % 9),
            .prompt_tokens = 1 + static_cast<std::int64_t>(random() % 1500),
            .output_tokens = static_cast<std::int64_t>(random() % (i < 3 ? 40 : 700))};
        bool refuses = false;  // the size depends on data, or the budget on a longer prompt
        try {
          auto made = spec.method(point.prompt_tokens);
          if (stack.masks_evicted) made = masked(made);  // masks always have a law
          for (std::int32_t layer = 0; layer < llm.n_layers(); ++layer) {
            for (std::int64_t n = 0; n <= point.output_tokens; ++n) {
              refuses = refuses ||
                        !made->entries_held(layer, point.prompt_tokens, point.prompt_tokens + n);
            }
          }
        } catch (const InputError&) {
          refuses = true;
        }
        if (refuses) {
          CHECK_THROWS_AS((void)compiled.at(point), InputError);
          continue;
        }
        ++compared;
        fitted += same_as_run(compiled, spec, point) ? 1 : 0;
      }
    }
  }
  // Otherwise the comparison would consist mostly of refusals.
  CHECK(fitted > compared / 2);
}

/// The calls of one combination's methods, on a GPU with enough memory.
PointSpec resolved(const Llm& llm, const std::string& stack, const MethodSpec& method) {
  return {.llm = &llm,
          .gpu = &find_gpu("H200-141GB-SXM"),
          .stack = &find_stack(stack),
          .method = [method, site = method_site(llm, Dtype::kFp16)](std::int64_t prompt) {
            return make_method(method, prompt, site);
          }};
}

// The stored bytes of such a format depend on the kept part of the prompt, which differs per layer.
TEST_CASE("separate formats under budgets by layer equal run_static") {
  const Llm& llm = find_llm("llama-3.1-8b");
  int fitted = 0;
  for (const char* stack : {"vllm", "hf-sdpa", "ideal"}) {
    for (const char* name : {"pyramidkv", "snapkv+budget=cosine"}) {
      for (const char* store : {"think", "gear", "kivi"}) {
        const PointSpec spec = resolved(llm, stack,
                                        {.name = fmt::format("{}+store={}", name, store),
                                         .params = {},
                                         .budget = Budget{.entries = 256}});
        INFO(fmt::format("{} {}+store={}", stack, name, store));
        CompiledPoint compiled{spec};
        for (const Point& point : {Point{4, 1400, 64}, Point{1, 2000, 2}, Point{2, 777, 1}}) {
          fitted += same_as_run(compiled, spec, point) ? 1 : 0;
        }
      }
    }
  }
  CHECK(fitted == 54);
}

TEST_CASE("stairs in phase with the sample points of the sum are detected") {
  const Llm& llm = find_llm("gemma-3-4b");
  for (int chunk = 2; chunk <= 64; ++chunk) {
    const PointSpec spec = resolved(llm, "sglang",
                                    {.name = "shadowkv",
                                     .params = {{"chunk", std::int64_t{chunk}}},
                                     .budget = Budget{.entries = 645}});
    INFO(fmt::format("chunk {}", chunk));
    CompiledPoint compiled{spec};
    for (const Point& point : {Point{4, 813, 132}, Point{2, 1500, 257}}) {
      CHECK(same_as_run(compiled, spec, point));
    }
  }
}

TEST_CASE("a point that was refused is refused again") {
  const Llm& llm = find_llm("llama-3.1-8b");
  const PointSpec spec =
      resolved(llm, "vllm", {.name = "adakv", .params = {}, .budget = Budget{.entries = 256}});
  CompiledPoint compiled{spec};
  for (int i = 0; i < 2; ++i) CHECK_THROWS_AS((void)compiled.at({1, 500, 10}), InputError);
}

PointSpec hand_made(const Llm& llm, const Gpu& gpu, const Stack& stack,
                    std::shared_ptr<const Method> method) {
  return {.llm = &llm, .gpu = &gpu, .stack = &stack, .method = [method](std::int64_t) {
            return method;
          }};
}

TEST_CASE("several GPUs, packed weights and an engine's options equal run_static") {
  std::mt19937 random{7};
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  int fitted = 0;
  for (const char* name : {"llama-3.1-8b", "gpt-oss-20b", "deepseek-v2-lite"}) {
    const Llm& llm = find_llm(name);
    for (const Stack& stack : builtin_stacks()) {
      PointSpec spec = hand_made(llm, gpu, stack, std::make_shared<FullMethod>());
      spec.tensor_parallel = 2;
      spec.weight_format = &builtin_weight_formats()[random() % builtin_weight_formats().size()];
      spec.options.max_model_len = 9000;
      spec.options.memory_fraction = 0.8;
      INFO(name, " ", stack.name);
      CompiledPoint compiled{spec};
      for (int i = 0; i < 3; ++i) {
        fitted += same_as_run(compiled, spec,
                              {.batch = 1 + static_cast<std::int64_t>(random() % 4),
                               .prompt_tokens = 1 + static_cast<std::int64_t>(random() % 5000),
                               .output_tokens = 1 + static_cast<std::int64_t>(random() % 60)})
                      ? 1
                      : 0;
      }
    }
  }
  CHECK(fitted > 60);
}

TEST_CASE("entries dealt over GPUs equal run_static") {
  int fitted = 0;
  for (const auto& [name, ranks] : {std::pair{"deepseek-v2-lite", 4}, std::pair{"glm-4-9b", 8}}) {
    const Llm& llm = find_llm(name);
    for (const char* method : {"full", "int8-per-token-head"}) {
      PointSpec spec = resolved(llm, "vllm", {.name = method, .params = {}, .budget = {}});
      spec.tensor_parallel = ranks;
      spec.calibration = &builtin_calibration();
      for (const std::int32_t context : {2, 4}) {
        spec.options.context_parallel = context;
        INFO(name, " ", method, " over ", context);
        CompiledPoint compiled{spec};
        for (const Point& point : {Point{1, 1000, 40}, Point{7, 4097, 3}, Point{32, 1, 300}}) {
          fitted += same_as_run(compiled, spec, point) ? 1 : 0;
        }
      }
    }
  }
  CHECK(fitted == 24);
}

TEST_CASE("prompts split over GPUs equal run_static") {
  int fitted = 0;
  for (const auto& [name, ranks] :
       {std::pair{"deepseek-v2-lite", 2}, std::pair{"glm-5.2-fp8", 4}}) {
    const Llm& llm = find_llm(name);
    for (const char* method : {"full", "int8-per-token-head"}) {
      PointSpec spec = resolved(llm, "vllm", {.name = method, .params = {}, .budget = {}});
      spec.tensor_parallel = ranks;
      spec.calibration = &builtin_calibration();
      for (const std::int32_t experts : {1, 2 * ranks}) {
        spec.options.prefill_context = 2;
        spec.options.expert_parallel = experts;
        INFO(name, " ", method, " experts over ", experts);
        CompiledPoint compiled{spec};
        for (const Point& point : {Point{1, 1000, 40}, Point{7, 4097, 3}, Point{32, 1, 300}}) {
          fitted += same_as_run(compiled, spec, point) ? 1 : 0;
        }
      }
    }
  }
  CHECK(fitted >= 12);
}

TEST_CASE("a point does not depend on earlier points") {
  const Llm llm = small_llm();
  const Gpu gpu = a800();
  const auto ring = std::make_shared<BoundedMethod>(
      BoundedOptions{.budget = 300, .needs = {}, .budget_step = 40});
  const std::vector<Point> points{{1, 100, 500}, {2, 100, 20}, {1, 100, 499}, {1, 400, 1},
                                  {1, 100, 100}, {2, 100, 21}, {1, 100, 500}};
  for (const Stack& stack : builtin_stacks()) {
    const PointSpec spec = hand_made(llm, gpu, stack, ring);
    CompiledPoint all{spec};
    for (const Point& point : points) {
      CompiledPoint alone{spec};
      const PointResult a = all.at(point);
      const PointResult b = alone.at(point);
      REQUIRE(a.times);
      REQUIRE(b.times);
      CHECK(a.peak() == b.peak());
      CHECK(a.times->prefill == b.times->prefill);
      CHECK(a.times->decode == b.times->decode);
      CHECK(a.times->last_step == b.times->last_step);
    }
  }
}

TEST_CASE("points of more prompts than the cache keeps equal those of a fresh object") {
  const Llm llm = small_llm();
  for (const char* name : {"h2o", "pyramidkv", "kivi-4", "keepkv"}) {
    INFO(name);
    const PointSpec spec = resolved(
        llm, "hf-sdpa",
        {.name = name,
         .params = {},
         .budget = takes_budget(name) ? std::optional{Budget{.fraction = 0.5, .entries = 0}}
                                      : std::nullopt});
    CompiledPoint all{spec};
    for (std::int64_t prompt = 300; prompt < 4700; ++prompt) {
      (void)all.memory_at({.batch = 1 + prompt % 3, .prompt_tokens = prompt, .output_tokens = 2});
    }
    for (const std::int64_t prompt : {4699, 4400, 300, 777}) {
      const Point point{.batch = 1 + prompt % 3, .prompt_tokens = prompt, .output_tokens = 20};
      CompiledPoint alone{spec};
      const PointResult a = all.at(point);
      const PointResult b = alone.at(point);
      REQUIRE(a.times);
      CHECK(a.peak() == b.peak());
      CHECK(a.times->prefill == b.times->prefill);
      CHECK(a.times->decode == b.times->decode);
    }
  }
}

TEST_CASE("the largest batch and the longest prompt fit, and one more does not") {
  const Llm llm = llama2_7b();
  const Gpu gpu = a800();
  for (const char* name : {"ideal", "hf-sdpa", "hf-eager", "vllm"}) {
    const PointSpec spec = hand_made(llm, gpu, find_stack(name), std::make_shared<FullMethod>());
    CompiledPoint compiled{spec};
    const auto batch = compiled.largest_batch(1000, 50);
    REQUIRE(batch);
    CHECK(!run_of(spec, {*batch, 1000, 50}).oom);
    CHECK(run_of(spec, {*batch + 1, 1000, 50}).oom);
    const auto prompt = compiled.longest_prompt(2, 50);
    REQUIRE(prompt);
    CHECK(!run_of(spec, {2, *prompt, 50}).oom);
    CHECK(run_of(spec, {2, *prompt + 1, 50}).oom);
    CHECK(compiled.memory_at({2, *prompt, 50}).margin() >= Bytes{});
    CHECK(compiled.largest_batch(1000, 50, 3) == 3);
    CHECK(!compiled.largest_batch(1 << 24, 50));
  }
}

TEST_CASE("score chunks under pressure equal the run, which is simulated if memory runs out") {
  const Llm llm = llama2_7b();
  Gpu gpu = a800();
  const auto method = std::make_shared<BoundedMethod>(
      BoundedOptions{.budget = 1000, .needs = eager_sums_with_retry()});
  const PointSpec spec = hand_made(llm, gpu, find_stack("hf-sdpa"), method);
  CompiledPoint compiled{spec};
  const PointResult roomy = compiled.at({1, 2000, 4});
  CHECK(roomy.fallback_reason.empty());
  int retried = 0, simulated = 0;
  for (const std::int64_t prompt : {2000, 9000, 20000, 30000, 40000, 60000, 150000, 1500000}) {
    const Point point{1, prompt, 4};
    const PointResult got = compiled.at(point);
    const StaticResult run = run_of(spec, point);
    const bool chunks = std::any_of(run.notes.begin(), run.notes.end(), [](const std::string& n) {
      return n.find("prefill scores were chunked") != std::string::npos;
    });
    retried += chunks && got.fallback_reason.empty() ? 1 : 0;
    simulated += got.fallback_reason.empty() ? 0 : 1;
    CHECK((got.fallback_reason.empty() || !got.fits));
    same_as_run(compiled, spec, point);
  }
  CHECK(retried > 0);
  CHECK(simulated > 0);
}

TEST_CASE("a point that does not fit states its shortage and fits with that much more memory") {
  const Llm llm = llama2_7b();
  Gpu gpu = a800();
  const auto full = std::make_shared<FullMethod>();
  for (const char* name : {"ideal", "hf-sdpa", "hf-eager"}) {
    const Stack& stack = find_stack(name);
    Gpu small = gpu;
    small.hbm_usable = 20_GiB;
    const PointSpec calls = hand_made(llm, small, stack, full);
    const PointResult too_small = CompiledPoint{calls}.at({8, 3000, 30});
    REQUIRE(too_small.margin() < Bytes{});
    CHECK(!too_small.fits);
    CHECK(!too_small.times);
    Gpu enough = small;
    enough.hbm_usable = small.hbm_usable - too_small.margin();
    CHECK(!run_of(hand_made(llm, enough, stack, full), {8, 3000, 30}).oom);
    enough.hbm_usable = enough.hbm_usable - 1_B;
    CHECK(run_of(hand_made(llm, enough, stack, full), {8, 3000, 30}).oom);
  }
}

TEST_CASE("long runs of formats that grow in steps equal run_static") {
  const Llm& llm = find_llm("llama-3.1-8b");
  const MethodContext site = method_site(llm, Dtype::kFp16);
  for (const char* name :
       {"int8", "kivi-2", "gear", "think", "minicache", "quest", "shadowkv", "arkvale", "infllm"}) {
    for (const char* stack : {"hf-sdpa", "vllm"}) {
      INFO(fmt::format("{} {}", name, stack));
      const PointSpec spec{.llm = &llm,
                           .gpu = &find_gpu("H200-141GB-SXM"),
                           .stack = &find_stack(stack),
                           .method =
                               [&](std::int64_t prompt) {
                                 return make_method({name, {}, {}}, prompt, site);
                               },
                           .calibration = &builtin_calibration()};
      CompiledPoint compiled{spec};
      for (const std::int64_t output : {1, 3, 40, 333, 1500}) {
        CHECK(same_as_run(compiled, spec, {3, 777, output}));
      }
    }
  }
}

TEST_CASE("steps are summed: lines at once, kinks by halves, stairs within 1e-3") {
  int calls = 0;
  const auto line = [&](std::int64_t n) {
    ++calls;
    return 3.0 + 0.5 * static_cast<double>(n);
  };
  // 3 x 1000 + 0.5 x 1000 x 1001 / 2 = 253,250
  CHECK(integrate_steps(1, 1000, StepCurve::kConvex, line).sum == rel(253250));
  CHECK(calls == 3);
  CHECK(integrate_steps(7, 7, StepCurve::kSmooth, line).sum == rel(6.5));
  // A minimum of 100 up to step 200: 200 x 100 + (201 + … + 1000) / 2 = 20,000 + 240,200
  calls = 0;
  const auto kink = [&](std::int64_t n) {
    ++calls;
    return std::max(100.0, 0.5 * static_cast<double>(n));
  };
  // Whole bytes of a long line: the sum is approximate and reported as inexact.
  calls = 0;
  const auto whole = [&](std::int64_t n) {
    ++calls;
    return std::floor(1e8 + 1.7003 * static_cast<double>(n));
  };
  const StepSum rounded = integrate_steps(1, 1001, StepCurve::kRounded, whole);
  CHECK(rounded.sum == rel(1e8 * 1001 + 1.7003 * 501501 - 500.5, 1e-7));
  CHECK(!rounded.exact);
  CHECK(calls == 3);
  calls = 0;
  const StepSum kinked = integrate_steps(1, 1000, StepCurve::kConvex, kink);
  CHECK(kinked.sum == rel(260200));
  CHECK(kinked.exact);
  CHECK(calls < 60);
  // Stairs of 16 steps: equal to the sum step by step, with far fewer evaluations.
  calls = 0;
  const auto stairs = [&](std::int64_t n) {
    ++calls;
    return 50.0 + static_cast<double>((n + 15) / 16 % 1000);
  };
  double want = 0;
  for (std::int64_t n = 1; n <= 8000; ++n) want += stairs(n);
  calls = 0;
  const StepSum stepped = integrate_steps(1, 8000, StepCurve::kSmooth, stairs);
  CHECK(stepped.sum == rel(want, 1e-3));
  CHECK(!stepped.exact);
  CHECK(calls < 2000);
  const StepSum each = integrate_steps(1, 8000, StepCurve::kAny, stairs);
  CHECK(each.sum == rel(want, 1e-12));
  CHECK(each.exact);
}

TEST_CASE("a cache of recent values replaces the least recently used one") {
  RecentlyUsed<int, int, 2> cache;
  int made = 0;
  const auto square = [&](int key) {
    return cache.at(key, [&] {
      ++made;
      return key * key;
    });
  };
  CHECK(square(2) == 4);
  CHECK(square(3) == 9);
  CHECK(square(2) == 4);
  CHECK(made == 2);
  CHECK(square(4) == 16);  // replaces 3
  CHECK(square(2) == 4);
  CHECK(made == 3);
  CHECK(square(3) == 9);  // replaces 4
  CHECK(made == 4);
  CHECK_THROWS_AS((void)cache.at(5, []() -> int { throw 1; }), int);
  CHECK(square(2) == 4);
  CHECK(square(3) == 9);
  CHECK(made == 4);  // a failed construction did not replace any entry
  cache.clear();
  CHECK(square(2) == 4);
  CHECK(made == 5);
}

}  // namespace
}  // namespace kvsim
