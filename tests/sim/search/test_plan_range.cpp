// The answer of a plan is the prediction; its range is listed next to it.

#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <regex>
#include <string>
#include <utility>

#include "sim/report/plan/plan_report.hpp"
#include "tests/sim/search/plan_files.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using test::changed_plan;
using test::serve_plan;
using test::static_plan;

PlanResult run(const Scenario& scenario) { return run_plan(scenario, {.threads = 1}); }

std::string with(std::string_view plan, double confidence) {
  return fmt::format(R"({}, "confidence": {})", plan, confidence);
}

/// A plan with default settings, compared with plans that request either end.
void check_ends(const PlanCandidate& plain, const PlanCandidate& safe) {
  INFO(plain.label);
  CHECK(plain.answer == plain.range.predicted);
  CHECK(safe.answer == safe.range.safe);
  REQUIRE(plain.range.is_known);
  CHECK(plain.range.safe == safe.range.safe);
  CHECK(plain.range.predicted == safe.range.predicted);
  CHECK(plain.range.optimistic == safe.range.optimistic);
}

TEST_CASE("a static plan answers with the prediction and its range contains the safe answer") {
  const std::string questions = R"("questions": ["largest_batch", "longest_context"])";
  for (const char* stack : {"hf-sdpa", "vllm"}) {
    const std::string more = fmt::format(
        R"(, "stack": "{}", "method": ["full", {{"name": "snapkv", "budget": 0.25}}])", stack);
    const PlanResult plain = run(static_plan(more, questions));
    const PlanResult safe = run(static_plan(more, with(questions, 0.9)));
    REQUIRE(plain.candidates.size() == 4);
    for (std::size_t c = 0; c < plain.candidates.size(); ++c) {
      const PlanCandidate& one = plain.candidates[c];
      check_ends(one, safe.candidates[c]);
      CHECK(one.memory.end == MemoryEnd{});
      REQUIRE(one.range.safe);
      REQUIRE(one.range.optimistic);
      CHECK(*one.range.safe <= *one.range.predicted);
      CHECK(*one.range.predicted <= *one.range.optimistic);
      CHECK(*one.range.safe < *one.range.optimistic);
      CHECK(plan_range(one) == fmt::format("{} to {}", plan_amount(one.question, *one.range.safe),
                                           plan_amount(one.question, *one.range.optimistic)));
    }
  }
}

TEST_CASE("missing ends of a range are reported and a bound has no range") {
  // The prediction fits, but the remaining memory is smaller than the width of the interval.
  const PlanResult tight =
      run(static_plan(R"(, "memory": {"hbm": "13.6 GiB"})", R"("questions": "longest_context")"));
  const PlanCandidate& one = tight.candidates.at(0);
  REQUIRE(one.answer);
  CHECK_FALSE(one.range.safe);
  CHECK(plan_range(one).starts_with("none to "));
  // The prediction does not fit: `predicted` is empty, but the optimistic end exists.
  const PlanResult never =
      run(static_plan(R"(, "memory": {"hbm": "12.5 GiB"})", R"("questions": "longest_context")"));
  const PlanCandidate& other = never.candidates.at(0);
  CHECK_FALSE(other.answer);
  CHECK_FALSE(other.range.predicted);
  CHECK(other.range.is_known);
  const PlanResult bound =
      run(static_plan(R"(, "stack": "ideal")", R"("questions": "longest_context")"));
  CHECK_FALSE(bound.candidates.at(0).range.is_known);
  CHECK(plan_range(bound.candidates.at(0)).empty());
}

/// Both sides of the "=" in a text like "79.2 GiB of GPU memory = 61 GiB of weights + ... - 2 GiB
/// that are missing", in GiB.
std::pair<double, double> sides_of(const std::string& text) {
  const std::regex amount{R"(([=+-])? ?([0-9.]+) (GiB|MiB|KiB|B)\b)"};
  const std::map<std::string, double> units{
      {"GiB", 1}, {"MiB", 1 / 1024.0}, {"KiB", 1 / 1048576.0}, {"B", 1 / 1073741824.0}};
  std::array<double, 2> sides{};
  std::size_t side = 0;
  for (std::sregex_iterator at{text.begin(), text.end(), amount}, end; at != end; ++at) {
    const std::string sign = (*at)[1];
    if (side == 1 && sign.empty()) break;  // text after the sum
    if (sign == "=") side = 1;
    const double value = std::strtod((*at)[2].str().c_str(), nullptr) * units.at((*at)[3]);
    sides[side] += sign == "-" ? -value : value;
  }
  return {sides[0], sides[1]};
}

TEST_CASE("terms of a shortage add up, as predicted and at either end") {
  int sums = 0;
  for (const char* stack : {"vllm", "sglang", "trtllm", "lmdeploy", "hf-sdpa"}) {
    for (const double confidence : {0.0, 0.9, 0.99}) {
      for (const char* hbm : {"13.5 GiB", "14 GiB", "14.5 GiB", "15 GiB", "16 GiB", "20 GiB"}) {
        const Scenario scenario =
            static_plan(fmt::format(R"(, "stack": "{}", "memory": {{"hbm": "{}"}})", stack, hbm),
                        with(R"("questions": "longest_context")", confidence));
        const PlanResult plan = run(scenario);
        const PlanCandidate& one = plan.candidates.at(0);
        const std::string text = one.impossible ? one.impossible->text
                                 : one.runs_out ? one.runs_out->why.text
                                                : "";
        if (text.find(" = ") == std::string::npos) continue;
        INFO(stack, ", ", confidence, ", ", hbm, ": ", text);
        ++sums;
        const auto [left, right] = sides_of(text);
        constexpr double kDigits = 0.02;  // GiB: five terms of four digits
        CHECK(std::abs(left - right) <= kDigits);
        CHECK(left > 5);
        // The memory of the GPU, for either end of its terms.
        if (text.find("of GPU memory") != std::string::npos) {
          CHECK(std::abs(left - std::strtod(hbm, nullptr)) < 0.01);
        }
      }
    }
  }
  CHECK(sums >= 10);
}

TEST_CASE("the ratio of a shortage is that of the quoted terms") {
  const std::regex quoted{R"(([0-9.]+) GiB are usable, they need ([0-9.]+) GiB; ([0-9.]+) times)"};
  int ratios = 0;
  for (const char* stack : {"vllm", "sglang", "hf-sdpa"}) {
    for (const char* hbm : {"8 GiB", "10 GiB", "12 GiB"}) {
      const PlanResult plan =
          run(static_plan(fmt::format(R"(, "stack": "{}", "memory": {{"hbm": "{}"}})", stack, hbm),
                          with(R"("questions": "longest_context")", 0)));
      REQUIRE(plan.candidates.at(0).impossible);
      const std::string& text = plan.candidates[0].impossible->text;
      INFO(text);
      std::smatch at;
      if (!std::regex_search(text, at, quoted)) continue;
      ++ratios;
      CHECK(std::abs(std::stod(at[2]) / std::stod(at[1]) - std::stod(at[3])) < 0.011);
    }
  }
  CHECK(ratios >= 6);
}

TEST_CASE("the prediction exists even without a safe size") {
  const auto plan = [](std::string_view memory, double confidence) {
    return run(changed_plan(
                   fmt::format(R"({{"model": "qwen3-32b", "gpu": "H100-80GB-SXM", "stack": "vllm",
                                   "prompt_tokens": 2048, "output_tokens": 512{}}})",
                               memory),
                   "", with(R"("questions": "longest_context")", confidence)))
        .candidates.at(0);
  };
  // Weights fit; non-PyTorch memory at its high end leaves no cache.
  const std::string_view small = R"(, "memory": {"hbm": "68 GiB"})";
  const PlanCandidate one = plan(small, 0.9);
  CHECK_FALSE(one.answer);
  CHECK_FALSE(one.range.safe);
  REQUIRE(one.range.predicted);
  REQUIRE(one.impossible);
  // The optimistic end uses the defaults of this GPU, not those of GPUs above 70 GiB.
  REQUIRE(one.range.optimistic);
  CHECK(*one.range.optimistic > *one.range.predicted);
  // Weights are not scaled: 61 GiB of weights leave memory for a cache in the engine's 71.3 GiB.
  const PlanCandidate whole = plan("", 0.9), surer = plan("", 0.999);
  REQUIRE(whole.answer);
  CHECK(*whole.answer > 0.7 * *whole.range.predicted);
  // Memory has no end beyond 0.9.
  CHECK(surer.answer == whole.answer);
  CHECK(*surer.range.predicted == *whole.range.predicted);
}

TEST_CASE("requests longer than the model's positions make a plan impossible") {
  constexpr const char* kLong =
      R"(, "requests": {"arrivals": {"kind": "poisson", "rate": 1}, "count": 8,
                        "prompt_tokens": 5000, "output_tokens": 60})";
  const PlanResult plan = run(serve_plan(kLong, R"("questions": "fewest_gpus")"));
  const PlanCandidate& one = plan.candidates.at(0);
  CHECK_FALSE(one.answer);
  REQUIRE(one.impossible);
  INFO(one.impossible->text);
  CHECK(one.impossible->constraint == "positions");
  CHECK(one.impossible->text.find("llama-2-7b has 4,096 positions, the longest has 5,060") !=
        std::string::npos);
}

TEST_CASE(
    "a service's plan answers with the prediction: GPUs, range, and more GPUs than were tried") {
  // A load for several GPUs: the ends of the time interval change their number.
  constexpr const char* kLoad =
      R"(, "requests": {"arrivals": {"kind": "poisson", "rate": 100}, "count": 300,
                        "prompt_tokens": 600, "output_tokens": 60})";
  const std::string questions = R"("questions": "fewest_gpus")";
  const PlanResult plain = run(serve_plan(kLoad, questions));
  const PlanResult safe = run(serve_plan(kLoad, with(questions, 0.9)));
  const PlanCandidate& one = plain.candidates.at(0);
  check_ends(one, safe.candidates.at(0));
  REQUIRE(one.range.safe);
  REQUIRE(one.range.optimistic);
  CHECK(*one.range.optimistic <= *one.range.predicted);
  CHECK(*one.range.predicted < *one.range.safe);
  CHECK(one.time_factor == 1);
  const std::string range = plan_range(one);
  CHECK(range == fmt::format("{:g} to {:g}", *one.range.optimistic, *one.range.safe));
  // In text and in the document, the prediction is listed first.
  const Scenario scenario = serve_plan(kLoad, questions);
  CHECK(plan_summary(scenario, plain, nullptr)
            .find(fmt::format("{:g} GPUs, range {}", *one.answer, range)) != std::string::npos);
  const auto document = plan_document(scenario, plain);
  CHECK(document.at("confidence") == 0);
  CHECK(document.at("range_confidence") == 0.9);
  CHECK(document.at("answers").at(0).at("range") == range);
  CHECK(document.at("answers").at(0).at("candidates").at(0).at("safe") == *one.range.safe);

  // The search ends at the predicted number of GPUs: the safe end is larger.
  const PlanResult few = run(
      serve_plan(kLoad, fmt::format(R"({}, "most_gpus": {:g})", questions, *one.range.predicted)));
  CHECK(few.candidates.at(0).answer == one.answer);
  CHECK_FALSE(few.candidates.at(0).range.safe);
  CHECK(plan_range(few.candidates.at(0)) ==
        fmt::format("{:g} to more than {:g}", *one.range.optimistic, *one.range.predicted));
}

TEST_CASE("the highest rate is predicted between a lower safe and a higher optimistic one") {
  const std::string questions = R"("questions": "highest_rate", "rate_step": 0.05)";
  constexpr const char* kBounds = R"("ttft": "400 ms", "tpot": "60 ms")";
  const PlanResult plain = run(serve_plan("", questions, kBounds));
  const PlanResult safe = run(serve_plan("", with(questions, 0.9), kBounds));
  check_ends(plain.candidates.at(0), safe.candidates.at(0));
  const AnswerRange& range = plain.candidates.at(0).range;
  REQUIRE(range.safe);
  REQUIRE(range.optimistic);
  CHECK(*range.safe < *range.predicted);
  CHECK(*range.predicted < *range.optimistic);
}

}  // namespace
}  // namespace kvsim
