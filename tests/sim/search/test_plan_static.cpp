// Plans of static batches: boundaries, monotonicity, agreement with runs of every candidate.

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/error.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/plan/confidence.hpp"
#include "sim/report/plan/plan_report.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/text.hpp"
#include "tests/sim/search/plan_files.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using test::has;
using test::rel;
using test::static_plan;

constexpr const char* kMethods =
    R"(, "method": ["full", {"name": "streaming-llm", "budget": 0.2}, {"name": "snapkv", "budget": 0.25}])";

/// Whether run_static fits into the memory that remains at the scenario's confidence.
bool fits(const Scenario& scenario, const PlanCandidate& one, std::int64_t batch,
          std::int64_t prompt) {
  StaticSpec spec = scenario.points[one.point].spec;
  spec.batch = batch;
  spec.prompt_tokens = prompt;
  spec.method = make_method(one.method, prompt, MethodContext{});
  // The memory of the run if all of it fits.
  Gpu gpu = *spec.gpu;
  gpu.hbm = gpu.hbm_usable = gpu.hbm * 1000;
  spec.gpu = &gpu;
  const StaticResult run = run_static(spec);
  const MemoryEnd end =
      memory_end(*spec.stack, spec.tensor_parallel, scenario.plan->confidence).end;
  const Bytes beyond = beyond_prediction(end, activations_of(*spec.stack, run.peak_owners));
  return run.peak_hbm + beyond <= scenario.points[one.point].spec.gpu->hbm_usable;
}

TEST_CASE("answers are on the boundary: n fits by run_static and n + 1 does not") {
  const Scenario scenario =
      static_plan(kMethods, R"("questions": ["largest_batch", "longest_context"])");
  const PlanResult plan = run_plan(scenario, {.threads = 1});
  REQUIRE(plan.candidates.size() == 6);
  for (const PlanCandidate& one : plan.candidates) {
    INFO(one.label);
    REQUIRE(one.answer.has_value());
    const auto n = static_cast<std::int64_t>(*one.answer);
    if (one.question == PlanQuestion::kLargestBatch) {
      CHECK(fits(scenario, one, n, 2048));
      CHECK_FALSE(fits(scenario, one, n + 1, 2048));
    } else {
      CHECK(fits(scenario, one, 1, n - 16));
      CHECK_FALSE(fits(scenario, one, 1, n - 16 + 1));
    }
  }
}

TEST_CASE("plans and runs agree on batches that the engine does not run simultaneously") {
  // vLLM 0.19 on a GPU below 70 GiB: 256 sequences, unless the scenario sets more.
  const auto engine = [](const std::string& more) {
    return R"(, "stack": "vllm@0.19", "gpu": "L40S", "prompt_tokens": 16, "output_tokens": 16)" +
           more;
  };
  const auto notes_of_run = [&](std::int64_t batch, const std::string& more) {
    const Scenario scenario = static_plan(engine(fmt::format(R"(, "batch": {}{})", batch, more)),
                                          R"("questions": ["longest_context"])");
    StaticSpec spec = scenario.points.front().spec;
    spec.prompt_tokens = 16;
    return fmt::format("{}", fmt::join(run_static(spec).notes, "\n"));
  };
  const auto answer = [&](const std::string& question, const std::string& more) {
    const Scenario scenario =
        static_plan(engine(more), fmt::format(R"("questions": ["{}"])", question));
    return run_plan(scenario, {.threads = 1}).candidates.front();
  };
  const std::string limit = "vllm runs 256 sequences at once unless max_num_seqs is at least";

  const PlanCandidate batch = answer("largest_batch", "");
  CHECK(batch.answer == 256);
  CHECK(has(fmt::format("{}", fmt::join(batch.notes, "\n")), "no more than max_num_seqs 256"));
  CHECK_FALSE(has(notes_of_run(256, ""), "max_num_seqs"));
  CHECK(has(notes_of_run(257, ""), limit + " the batch, 257"));

  const auto context_notes = [&](const std::string& more) {
    return fmt::format("{}", fmt::join(answer("longest_context", more).notes, "\n"));
  };
  CHECK_FALSE(has(context_notes(R"(, "batch": 256)"), "max_num_seqs"));
  CHECK(has(context_notes(R"(, "batch": 257)"), limit + " the batch, 257"));
  // If the engine is configured for that number, there is no note, and the plan continues to
  // memory.
  const std::string more = R"(, "engine": {"max_num_seqs": 400})";
  CHECK(answer("largest_batch", more).answer > 256);
  CHECK_FALSE(has(notes_of_run(257, more), "max_num_seqs"));
  CHECK_FALSE(has(context_notes(R"(, "batch": 257)" + more), "max_num_seqs"));
}

TEST_CASE("the longest context ignores the scenario's prompt length") {
  for (const char* stack : {"hf-sdpa", "vllm"}) {
    for (const char* questions :
         {R"("questions": "longest_context")", R"("questions": ["longest_context"])"}) {
      INFO(stack, " ", questions);
      const auto ask = [&](const char* prompt) {
        const Scenario scenario = static_plan(
            fmt::format(R"({}, "stack": "{}", "prompt_tokens": {})", kMethods, stack, prompt),
            questions);
        CHECK(scenario.points.front().keys.contains("prompt_tokens") ==
              (std::string_view{prompt} != "null"));
        std::vector<double> out;
        for (const PlanCandidate& one : run_plan(scenario, {.threads = 1}).candidates) {
          REQUIRE(one.answer.has_value());
          out.push_back(*one.answer);
        }
        return out;
      };
      const std::vector<double> without = ask("null");
      CHECK(without.size() == 3);
      CHECK(ask("256") == without);
      CHECK(ask("3000") == without);
    }
  }
  // Other questions require a prompt.
  for (const char* questions : {R"("questions": "largest_batch")",
                                R"("questions": ["longest_context", "largest_batch"])"}) {
    CHECK_THROWS_AS((void)static_plan(R"(, "prompt_tokens": null)", questions), InputError);
  }
}

/// Answers per candidate, in order; 0 if impossible.
std::vector<double> answers(const Scenario& scenario) {
  std::vector<double> out;
  for (const PlanCandidate& one : run_plan(scenario, {.threads = 1}).candidates) {
    out.push_back(one.answer.value_or(0));
  }
  return out;
}

void never_worse(const std::vector<double>& before, const std::vector<double>& after) {
  REQUIRE(before.size() == after.size());
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(after[i] >= before[i]);
}

TEST_CASE("more memory or less confidence never worsens an answer") {
  const auto at = [&](const char* hbm, double confidence) {
    return answers(static_plan(
        fmt::format(R"({}, "memory": {{"hbm": "{}"}})", kMethods, hbm),
        fmt::format(R"("questions": ["largest_batch", "longest_context"], "confidence": {})",
                    confidence)));
  };
  std::vector<double> before = at("30 GiB", 0.9);
  for (const char* hbm : {"31 GiB", "40 GiB", "80 GiB", "200 GiB"}) {
    INFO(hbm);
    const std::vector<double> after = at(hbm, 0.9);
    never_worse(before, after);
    before = after;
  }
  for (const double confidence : {0.99, 0.9, 0.5, 0.0}) {
    INFO(confidence);
    static std::map<double, std::vector<double>> known;
    known[-confidence] = at("40 GiB", confidence);
    const std::vector<double>* last = nullptr;
    for (const auto& [c, one] : known) {
      if (last != nullptr) never_worse(*last, one);
      last = &one;
    }
  }
  CHECK(at("40 GiB", 0.99)[0] < at("40 GiB", 0.0)[0]);  // the confidence has an effect
}

/// The constraint of the single candidate, and the change that is most effective.
Impossible why(const Scenario& scenario) {
  const PlanResult plan = run_plan(scenario, {.threads = 1});
  REQUIRE(plan.candidates.size() == 1);
  CHECK(plan.impossible());
  REQUIRE(plan.candidates[0].impossible.has_value());
  return *plan.candidates[0].impossible;
}

TEST_CASE("answers end at the model's positions unless the scenario allows more") {
  // Llama-2-7B has 4,096 positions; memory could hold many times that number.
  const char* both = R"("questions": ["longest_context", "largest_batch"])";
  const Scenario scenario =
      static_plan(kMethods, fmt::format(R"({}, "beyond_positions": false)", both));
  const PlanResult plan = run_plan(scenario, {.threads = 1});
  const auto document = plan_document(scenario, plan);
  for (const PlanCandidate& one : plan.candidates) {
    INFO(one.label);
    if (one.question != PlanQuestion::kLongestContext) continue;
    CHECK(one.answer == 4096.0);
    CHECK(one.range.predicted == 4096.0);
    CHECK(one.range.optimistic == 4096.0);
    CHECK_FALSE(one.at_most);
    REQUIRE(one.runs_out.has_value());
    CHECK(one.runs_out->why.constraint == "positions");
    CHECK(has(one.runs_out->why.text, "4,096 positions for a sequence of 4,097 tokens"));
  }
  CHECK(document.at("answers")[0].at("candidates")[0].at("limited_by") == "positions");
  CHECK(has(plan_summary(scenario, plan, nullptr), "positions"));
  // Without the limit, the same plan continues until memory is exhausted.
  const Scenario beyond = static_plan(kMethods, both);
  for (const PlanCandidate& one : run_plan(beyond, {.threads = 1}).candidates) {
    if (one.question != PlanQuestion::kLongestContext) continue;
    CHECK(*one.answer > 4096);
    CHECK(one.positions == 4096);
    CHECK(one.runs_out->why.constraint != "positions");
  }
  // A batch of prompts longer than the model's positions is not an answer.
  const Impossible batch = why(static_plan(
      R"(, "prompt_tokens": 5000)", R"("questions": "largest_batch", "beyond_positions": false)"));
  CHECK(batch.constraint == "positions");
  CHECK(batch.need == rel(5016.0 / 4096));
  CHECK(batch.knobs.empty());  // not a property of the machine
}

TEST_CASE("ties go to the full cache") {
  // Positions limit all answers, so a method has no advantage; it is first in the file.
  const Scenario scenario =
      static_plan(R"(, "method": [{"name": "streaming-llm", "budget": 0.2}, "full"])",
                  R"("questions": "longest_context", "beyond_positions": false)");
  const PlanResult plan = run_plan(scenario, {.threads = 1});
  REQUIRE(plan.groups.front().best.has_value());
  CHECK(plan.candidates[*plan.groups.front().best].method.name == "full");
  CHECK(has(plan_summary(scenario, plan, nullptr), "Compression changes nothing here"));
}

TEST_CASE("the time to first token of one request is not that of the whole batch") {
  const Scenario scenario = static_plan("", R"("questions": "largest_batch", "confidence": 0)");
  const PlanResult plan = run_plan(scenario, {.threads = 1});
  const PlanCandidate& one = plan.candidates.front();
  REQUIRE(one.at_answer.has_value());
  StaticSpec alone = scenario.points.front().spec;
  alone.batch = 1;
  CHECK(one.at_answer->ttft_one_s == rel(run_static(alone).prefill_time->count(), 1e-6));
  CHECK(one.at_answer->ttft_s > 4 * one.at_answer->ttft_one_s);
  const auto json = plan_document(scenario, plan).at("answers")[0].at("candidates")[0];
  CHECK(json.at("prefill_one_s") == one.at_answer->ttft_one_s);
  CHECK(json.at("prefill_s") == one.at_answer->ttft_s);
  CHECK(has(plan_screen(scenario, plan, nullptr), "TTFT one: a single request"));
  CHECK(has(plan_summary(scenario, plan, nullptr), "TTFT, one"));
}

TEST_CASE("scores of a small model are not evidence for the quality floor of a large one") {
  const Scenario scenario =
      static_plan(R"(, "method": ["full", {"name": "snapkv", "budget": 0.5}])",
                  fmt::format(R"("questions": "largest_batch",
                     "quality": {{"trace": "{}", "max_rel_error": 0.5}})",
                              test::sample_trace()));
  const PlanResult plan = run_plan(scenario, {.threads = 1});
  const std::string text = plan_summary(scenario, plan, nullptr, 1000);
  CHECK(has(text, "2.6M-parameter model, 384 + 128 tokens"));
  CHECK(has(text, "this is no evidence about llama-2-7b (6.74B parameters)"));
}

TEST_CASE("a plan agrees with running every candidate") {
  const Scenario scenario = static_plan(
      R"(, "gpu": ["A100-80GB-SXM", "A40"], "method": ["full", {"name": "snapkv", "budget": [0.25, 0.5]}])",
      R"("questions": "largest_batch", "confidence": 0,
         "prices": {"A100-80GB-SXM": "2 USD/h", "A40": "0.5 USD/h"})");
  const PlanResult plan = run_plan(scenario, {.threads = 1});
  REQUIRE(plan.candidates.size() == 6);
  REQUIRE(plan.groups.size() == 1);
  double max = 0;
  double cheapest = INFINITY;
  for (const PlanCandidate& one : plan.candidates) {
    INFO(one.label);
    StaticSpec spec = scenario.points[one.point].spec;
    std::int64_t batch = 0;
    StaticResult last;
    for (std::int64_t n = 1;; ++n) {
      spec.batch = n;
      StaticResult result = run_static(spec);
      if (result.oom) break;
      batch = n;
      last = std::move(result);
    }
    CHECK(one.answer == static_cast<double>(batch));
    const double hour = one.gpu == "A40" ? 0.5 : 2;
    const double cost = hour / 3600 / *last.throughput_tok_s * 1e6;
    CHECK(one.points.back().cost == rel(cost, 1e-6));
    CHECK(one.points.back().latency_s ==
          rel(last.prefill_time->count() + last.decode_time->count(), 1e-6));
    max = std::fmax(max, static_cast<double>(batch));
    cheapest = std::fmin(cheapest, cost);
  }
  CHECK(plan.candidates[*plan.groups[0].best].answer == max);
  double on_front = INFINITY;
  for (const PlanCandidate& one : plan.candidates) {
    for (const OperatingPoint& point : one.points) {
      if (point.on_front) on_front = std::fmin(on_front, point.cost);
    }
  }
  CHECK(on_front <= cheapest * (1 + 1e-6));
}

TEST_CASE("the same bytes at any number of threads") {
  const Scenario scenario =
      static_plan(kMethods, R"("questions": ["largest_batch", "longest_context"])");
  const auto text = [&](int threads) {
    const PlanResult plan = run_plan(scenario, {.threads = threads});
    return to_file_text(plan_document(scenario, plan)) + plan_csv(plan) + plan_front_csv(plan) +
           plan_summary(scenario, plan, nullptr);
  };
  const std::string one = text(1);
  CHECK(text(2) == one);
  CHECK(text(7) == one);
}

TEST_CASE("plan.csv gives the limit of each answer like plan.json") {
  const Scenario scenario =
      static_plan(kMethods, R"("questions": ["largest_batch", "longest_context"])");
  const PlanResult plan = run_plan(scenario, {.threads = 1});
  std::istringstream lines{plan_csv(plan)};
  const auto cells = [&] {
    std::string line, cell;
    std::getline(lines, line);
    std::vector<std::string> out;
    bool quoted = false;
    for (const char c : line + ",") {
      if (c == '"') quoted = !quoted;
      if (c == ',' && !quoted) {
        out.push_back(std::exchange(cell, {}));
      } else if (c != '"') {
        cell += c;
      }
    }
    return out;
  };
  const std::vector<std::string> head = cells();
  const auto column = std::find(head.begin(), head.end(), "limited_by") - head.begin();
  REQUIRE(column < std::ssize(head));
  const auto document = plan_document(scenario, plan);
  std::size_t limited = 0;
  for (const auto& answer : document.at("answers")) {
    for (const auto& one : answer.at("candidates")) {
      const auto& limit = one.at("limited_by");
      const std::vector<std::string> line = cells();
      REQUIRE(line.size() == head.size());
      CHECK(line[static_cast<std::size_t>(column)] ==
            (limit.is_null() ? "" : limit.get<std::string>()));
      limited += limit.is_null() ? 0U : 1U;
    }
  }
  CHECK(limited > 0);
}

TEST_CASE("methods use the smallest budget that meets the floor and misses are listed") {
  const Scenario scenario = static_plan(
      R"(, "method": ["full", {"name": "snapkv", "budget": [0.1, 0.5, 0.9]},
                      {"name": "streaming-llm", "budget": [0.05, 0.1]}])",
      fmt::format(R"("questions": "largest_batch",
                     "quality": {{"trace": "{}", "max_rel_error": 0.12}})",
                  test::sample_trace()));
  const PlanResult plan = run_plan(scenario, {.threads = 1});
  REQUIRE(plan.candidates.size() == 3);
  CHECK(plan.candidates[1].method.budget->fraction ==
        plan.quality->of(plan.candidates[1].method)
            .tries[*plan.quality->of(plan.candidates[1].method).chosen]
            .budget->fraction);
  CHECK(plan.candidates[1].points.back().error.value_or(1) <= 0.12);
  REQUIRE(plan.candidates[2].impossible.has_value());
  CHECK(plan.candidates[2].impossible->constraint == "quality");
  CHECK(plan.candidates[2].impossible->need > 1);
  CHECK_FALSE(plan.impossible());
}

TEST_CASE("impossible: weights, cache, activations and quality are distinguished") {
  // 13.5 GB of weights in 8 GiB.
  const Impossible weights = why(static_plan(R"(, "memory": {"hbm": "8 GiB"})",
                                             R"("questions": "largest_batch", "confidence": 0)"));
  CHECK(weights.constraint == "weights");
  REQUIRE_FALSE(weights.knobs.empty());
  CHECK(weights.need > 1);
  // 0.5 MiB per token: 64 Ki tokens take 32 GiB in addition to the weights.
  const Impossible cache =
      why(static_plan(R"(, "prompt_tokens": 65536, "memory": {"hbm": "30 GiB"})",
                      R"("questions": "largest_batch", "confidence": 0)"));
  CHECK(cache.constraint == "kv_capacity");
  bool hbm = false;
  for (const KnobEffect& knob : cache.knobs) {
    hbm = hbm || knob.knob == "hbm";
    if (knob.knob != "hbm") continue;
    CHECK(knob.elasticity > 0.9);
    CHECK_FALSE(knob.enough.empty());
  }
  CHECK(hbm);
  // Eager attention: 32 heads of 16 Ki x 16 Ki scores in addition to 8 GiB of cache and 13.5 GB of
  // weights.
  const Impossible scores = why(
      static_plan(R"(, "stack": "hf-eager", "prompt_tokens": 16384, "memory": {"hbm": "26 GiB"})",
                  R"("questions": "largest_batch", "confidence": 0)"));
  CHECK(scores.constraint == "activations");
  const Impossible quality =
      why(static_plan(R"(, "method": {"name": "streaming-llm", "budget": [0.1, 0.2]})",
                      fmt::format(R"("questions": "largest_batch",
                     "quality": {{"trace": "{}", "max_rel_error": 0.001}})",
                                  test::sample_trace())));
  CHECK(quality.constraint == "quality");
  REQUIRE_FALSE(quality.knobs.empty());
}

TEST_CASE("plans without a question and invalid static questions are refused") {
  Scenario scenario = static_plan("", R"("questions": "largest_batch")");
  scenario.plan.reset();
  CHECK_THROWS_AS((void)run_plan(scenario), InputError);
}

TEST_CASE("a summary fits its columns and starts with the answer") {
  const Scenario scenario =
      static_plan(kMethods, R"("questions": ["largest_batch", "longest_context"])");
  const PlanResult plan = run_plan(scenario, {.threads = 1});
  const std::string text = plan_summary(scenario, plan, nullptr, 80);
  std::size_t from = 0;
  while (from < text.size()) {
    const std::size_t end = text.find('\n', from);
    CHECK(display_width(text.substr(from, end - from)) <= 80);
    from = end + 1;
  }
  CHECK(text.find("Largest batch of llama-2-7b") < text.find("Largest batch of", 400));
  const FigureSet figures = plan_figures(plan);
  CHECK(figures.figures.size() == 4);
}

}  // namespace
}  // namespace kvsim
