// The decode loop of kvsim validate e2e in the simulator, compared with its reference on the CPU.

#include <string>

#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "validation/e2e/check.hpp"
#include "validation/e2e/plan.hpp"
#include "validation/e2e/predict.hpp"

namespace kvsim {
namespace {

E2ePlan toy(const std::string& method, std::int64_t batch = 1) {
  return plan_e2e(toy_llm(2), Dtype::kFp32,
                  {.method = method, .budget = 24, .batch = batch, .prompt = 71, .output = 4});
}

TEST_CASE("e2e: every method's loop equals its reference entry by entry and byte by byte") {
  for (const std::string& method : e2e_methods()) {
    for (const std::int64_t batch : {1, 2}) {
      if (batch == 2 && method != "zeromerge")
        continue;  // the longest code path represents the
                   // others
      INFO(method, ", batch ", batch);
      const LoopCheck check = check_loop(toy(method, batch));
      for (const std::string& problem : check.problems) FAIL_CHECK(problem);
      CHECK(check.pass());
      CHECK(check.steps == 4);
      // Two layers of two heads: 24 entries after every step, or 72 to 75 of the full cache.
      CHECK(check.entries_compared == batch * 4 * (method == "full" ? 72 + 73 + 74 + 75 : 4 * 24));
      CHECK(check.attention_error > 0);  // two different computations, not the same one twice
      CHECK(check.logits_error <= check.allowed);
      for (const CheckedOp& op : check.ops) {
        INFO(op.name);
        CHECK(op.agrees());
        if (op.name == "sampling") continue;  // not included, and reported
        CHECK(op.loaded + op.stored > 0);
        CHECK(op.runs >= 4);
      }
    }
  }
}

TEST_CASE("e2e: a loop that differs from its method is detected") {
  E2ePlan plan = toy("h2o");
  plan.loop.decay = 0.5F;
  CHECK_FALSE(check_loop(plan).pass());
  plan = toy("zeromerge");
  plan.loop.alpha = 0;
  const LoopCheck unbiased = check_loop(plan);
  CHECK_FALSE(unbiased.pass());
  CHECK(unbiased.attention_error > unbiased.allowed);
}

TEST_CASE("e2e: unsupported requests are refused by the option's name") {
  const auto refused = [](const E2eRequest& request) -> std::string {
    try {
      (void)plan_e2e(toy_llm(1), Dtype::kFp32, request);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refused({.method = "h2", .prompt = 9}).find("--method") != std::string::npos);
  CHECK(refused({.method = "h2o", .budget = 9, .prompt = 9}).find("--prompt") != std::string::npos);
  CHECK_FALSE(refused({.method = "streaming-llm", .budget = 4, .prompt = 9}).empty());
}

TEST_CASE("e2e: predictions fall with fewer reads and the longest sequence is the last that fits") {
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  const Llm& llm = find_llm("llama-3-8b");
  const auto predict = [&](const char* method, std::int64_t layers, std::int64_t prompt) {
    return predict_e2e(plan_e2e(with_layers(llm, layers), Dtype::kBf16,
                                {.method = method, .budget = 1024, .prompt = prompt, .output = 8}),
                       gpu);
  };
  const E2ePrediction full = predict("full", 32, 32768);
  const E2ePrediction kept = predict("h2o", 32, 32768);
  CHECK(kept.tok_s > full.tok_s);
  CHECK(kept.peak < full.peak);
  CHECK_FALSE(kept.longest);
  CHECK(predict("full", 4, 4096).tok_s > 4 * full.tok_s);
  // The peak of a run is weights, context, 131072 B per token, and some activations. The longest
  // sequence is the remaining memory divided by the bytes per token.
  const double weights = 2.0 * static_cast<double>(parameters(llm));
  const double cache = 131072.0 * (32768 + 8);
  const double context = 0.5 * 1024 * 1024 * 1024;
  CHECK(static_cast<double>(full.peak.count()) ==
        doctest::Approx(weights + cache + context).epsilon(1e-3));
  REQUIRE(full.longest);
  const double room = static_cast<double>(full.usable.count()) - weights - context;
  CHECK(static_cast<double>(*full.longest) == doctest::Approx(room / 131072).epsilon(1e-3));
}

}  // namespace
}  // namespace kvsim
