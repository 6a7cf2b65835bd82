// The parts of a plan: searches for a boundary, confidence, sensitivities, the front, and keys of
// scenarios.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "models/stack/stack.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/batch/memory_end.hpp"
#include "sim/plan/boundary.hpp"
#include "sim/plan/confidence.hpp"
#include "sim/plan/knobs.hpp"
#include "sim/plan/quality.hpp"
#include "sim/report/plan/plan_report.hpp"
#include "tests/sim/search/plan_files.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using test::has;
using test::rel;

TEST_CASE("the largest feasible value is found from any start") {
  for (const std::int64_t last : {1, 2, 3, 7, 8, 63, 100}) {
    for (const std::int64_t start : {1, 5, 50, 100}) {
      for (const std::int64_t stride : {1, 4, 16}) {
        INFO(last, " from ", start, " by ", stride);
        const Boundary found =
            largest_feasible({.min = 1, .max = 100, .start = start, .stride = stride},
                             [&](std::int64_t n) { return n <= last; });
        CHECK(found.last == last);
        CHECK(found.at_most == (last == 100));
        CHECK(found.monotone);
      }
    }
  }
}

TEST_CASE("negative numbers work and nothing may be feasible") {
  const Boundary fewest = largest_feasible({.min = -64, .max = -1, .start = -1},
                                           [](std::int64_t n) { return -n >= 11; });
  CHECK(fewest.last == -11);
  const Boundary none =
      largest_feasible({.min = 1, .max = 100, .start = 1}, [](std::int64_t) { return false; });
  CHECK_FALSE(none.last.has_value());
}

TEST_CASE("feasible values beyond a gap are found and reported") {
  // Feasible up to 8, and again at 11.
  const auto holds = [](std::int64_t n) { return n <= 8 || n == 11; };
  const Boundary found = largest_feasible({.min = 1, .max = 100, .start = 1}, holds);
  CHECK(found.last == 11);
  CHECK_FALSE(found.monotone);
  // With fewer neighbours the gap is not searched; the answer is still a boundary.
  const Boundary blind =
      largest_feasible({.min = 1, .max = 100, .start = 1, .stride = 1, .neighbours = 0}, holds);
  CHECK(blind.last == 8);
}

TEST_CASE("a search out of its range is a contract violation") {
  const auto holds = [](std::int64_t) { return true; };
  CHECK_THROWS_AS((void)largest_feasible({.min = 2, .max = 3, .start = 1}, holds), ContractError);
  CHECK_THROWS_AS((void)largest_feasible({.min = 1, .max = 3, .start = 1, .stride = 0}, holds),
                  ContractError);
}

TEST_CASE("confidence: the prediction at 0, the known interval at 0.9, and wider beyond") {
  CHECK(confidence_power(0) == 0);
  CHECK(confidence_power(0.9) == 1);
  // Two-sided quantiles of the normal distribution: 0.6745 / 1.6449 and 2.5758 / 1.6449.
  CHECK(confidence_power(0.5) == rel(0.67448975 / 1.64485363, 1e-7));
  CHECK(confidence_power(0.99) == rel(2.57582930 / 1.64485363, 1e-7));
  double before = -1;
  for (double c = 0; c < 0.999; c += 0.01) {
    CHECK(confidence_power(c) > before);
    before = confidence_power(c);
  }
  for (const char* stack : {"hf-sdpa", "vllm"}) {
    CHECK(memory_end(find_stack(stack), 1, 0).end == MemoryEnd{});
    CHECK(memory_end(find_stack(stack), 1, 0.9).end == memory_ends(find_stack(stack), 1)->high);
  }
  CHECK(memory_end(find_stack("ideal"), 1, 0.99).end == MemoryEnd{});
  // For memory, no log shows how much wider than p90 the interval of a rarer case is. The end stays
  // the same, and the text reports this.
  for (const char* stack : {"hf-sdpa", "vllm", "sglang"}) {
    for (const std::int32_t gpus : {1, 4}) {
      INFO(stack, " on ", gpus);
      const auto at = [&](double c) { return memory_end(find_stack(stack), gpus, c); };
      for (const double c : {0.95, 0.99, 0.999}) {
        CHECK(at(c).end == at(0.9).end);
        CHECK(at(c).basis.find("counts as p90") != std::string::npos);
        CHECK(margin_text(at(c), 80_GiB, 2_GiB, c).find("(as at p90)") != std::string::npos);
      }
      CHECK(at(0.9).basis.find("counts as") == std::string::npos);
      // Higher confidence means more bytes, for bytes of any size, on both sides.
      for (const Bytes activations : {Bytes{}, 1_GiB, 7_GiB, 40_GiB}) {
        Bytes above, below;
        for (double c = 0; c < 0.9999; c += 0.05) {
          const Bytes more = beyond_prediction(at(c).end, activations);
          const Bytes less =
              beyond_prediction(better_memory_end(find_stack(stack), gpus, c).end, activations);
          CHECK(more >= above);
          CHECK(less <= below);
          CHECK(activations + less >= Bytes{});
          above = more;
          below = less;
        }
        CHECK(beyond_prediction(at(0).end, activations) == Bytes{});
      }
    }
  }
  CHECK(time_end(Seconds{2.0}, Interval{.low = Seconds{1.0}, .high = Seconds{3.0}}, 0.9).factor ==
        rel(1.5));
  CHECK(time_end(Seconds{2.0}, std::nullopt, 0.9).factor == 1);
}

TEST_CASE("sensitivities: the elasticity of power laws is their exponent") {
  const auto knob = [](const char* name, double exponent) {
    Knob out{name, {}};
    for (const double ratio : knob_ratios()) {
      out.steps.push_back(
          {times_text(ratio), ratio, [=] { return 2 * std::pow(ratio, -exponent); }});
    }
    return out;
  };
  const auto effects =
      try_knobs(2, {knob("weak", 0.5), knob("strong", 1), knob("none", 0), knob("harmful", -1)});
  REQUIRE(effects.size() == 2);
  CHECK(effects[0].knob == "strong");
  CHECK(effects[0].elasticity == rel(1));
  CHECK(effects[0].enough == "x 2");
  CHECK(effects[1].knob == "weak");
  CHECK(effects[1].elasticity == rel(0.5));
  CHECK(effects[1].enough == "x 4");
}

PlanResult front_of(const std::vector<OperatingPoint>& points,
                    PlanQuestion question = PlanQuestion::kLargestBatch) {
  PlanResult plan;
  plan.candidates.emplace_back();
  plan.candidates[0].points = points;
  plan.groups.push_back(
      {.question = question, .of = "", .keys = {}, .candidates = {0}, .best = {}});
  mark_pareto(plan);
  return plan;
}

OperatingPoint way(double cost, double latency, double error) {
  OperatingPoint point;
  point.cost = cost;
  point.latency_s = latency;
  point.error = error;
  return point;
}

TEST_CASE("the front holds no dominated point and the best of each objective") {
  std::uint64_t state = 7;
  const auto draw = [&] {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(state >> 40);
  };
  constexpr std::size_t kObjectives = 7;
  for (const PlanQuestion question : {PlanQuestion::kLongestContext, PlanQuestion::kHighestRate}) {
    std::vector<OperatingPoint> points;
    std::vector<std::array<double, kObjectives>> values;  // all to be minimised
    for (int i = 0; i < 200; ++i) {
      OperatingPoint point;
      point.cost = draw();
      point.ttft_s = draw();
      point.tpot_s = draw();
      point.latency_s = draw();
      point.error = draw();
      point.size = draw();
      // Only the throughput that belongs to the question is compared.
      point.tokens_s = draw();
      point.load = draw();
      const bool is_service = question == PlanQuestion::kHighestRate;
      values.push_back({point.cost, point.ttft_s, point.tpot_s, point.latency_s, *point.error,
                        -point.size, is_service ? -point.load : -point.tokens_s});
      points.push_back(point);
    }
    // Copies that are worse in one objective.
    for (std::size_t k = 0; k < kObjectives; ++k) {
      OperatingPoint worse = points[k];
      const std::array<double*, kObjectives> member{
          &worse.cost,
          &worse.ttft_s,
          &worse.tpot_s,
          &worse.latency_s,
          &*worse.error,
          &worse.size,
          question == PlanQuestion::kHighestRate ? &worse.load : &worse.tokens_s};
      *member[k] += k < 5 ? 1 : -1;
      values.push_back(values[k]);
      values.back()[k] += 1;
      points.push_back(worse);
    }
    const PlanResult plan = front_of(points, question);
    const auto& marked = plan.candidates[0].points;
    std::array<std::size_t, kObjectives> min{};
    for (std::size_t i = 0; i < marked.size(); ++i) {
      bool beaten = false;
      for (const auto& other : values) {
        bool as_good = true;
        for (std::size_t k = 0; k < kObjectives; ++k) as_good = as_good && other[k] <= values[i][k];
        beaten = beaten || (as_good && other != values[i]);
      }
      CHECK(marked[i].on_front == !beaten);
      for (std::size_t k = 0; k < kObjectives; ++k) {
        if (values[i][k] < values[min[k]][k]) min[k] = i;
      }
    }
    for (const std::size_t i : min) CHECK(marked[i].on_front);
    for (std::size_t k = 0; k < kObjectives; ++k) CHECK_FALSE(marked[200 + k].on_front);
  }
}

TEST_CASE("front by hand: ties stay and points that are nowhere better are removed") {
  const PlanResult plan =
      front_of({way(1, 4, 0), way(2, 2, 0), way(2, 2, 0), way(2, 3, 0), way(3, 3, 0.1)});
  const auto& marked = plan.candidates[0].points;
  CHECK(marked[0].on_front);
  CHECK(marked[1].on_front);
  CHECK(marked[2].on_front);
  CHECK_FALSE(marked[3].on_front);
  CHECK_FALSE(marked[4].on_front);
}

std::string complaint(std::string_view plan) {
  try {
    (void)test::static_plan("", plan);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no complaint";
}

TEST_CASE("keys of a plan are checked with file and place") {
  CHECK(complaint(R"("questions": "largest_batch")") == "no complaint");
  CHECK(has(complaint(""), "/plan"));
  CHECK(has(complaint(R"("questions": "largest_bach")"), "/plan/questions"));
  CHECK(has(complaint(R"("questions": [])"), "/plan/questions"));
  CHECK(has(complaint(R"("questions": ["largest_batch", "largest_batch"])"), "given twice"));
  CHECK(has(complaint(R"("questions": "highest_rate")"), "applies only to \"kind\": \"serve\""));
  CHECK(has(complaint(R"("questions": "largest_batch", "confidence": 1)"), "/plan/confidence"));
  CHECK(has(complaint(R"("questions": "largest_batch", "confidance": 0.9)"), "confidence"));
  const auto prices = [&](std::string_view text) {
    return complaint(fmt::format(R"("questions": "largest_batch", "prices": {{{}}})", text));
  };
  CHECK(prices(R"("A100-80GB-SXM": "2.5 USD/h")") == "no complaint");
  CHECK(has(prices(R"("A100-80GB-SXM": 2.5)"), "2.5 USD/h"));
  CHECK(has(prices(R"("A100-80GB-SXM": "2.5 USD")"), "2.5 USD/h"));
  CHECK(has(prices(R"("A100-80GB-SXM": "-1 USD/h")"), "2.5 USD/h"));
  CHECK(has(prices(R"("A100-81GB": "2.5 USD/h")"), "A100"));
  CHECK(has(prices(R"("A100-80GB-SXM": "2.5 USD/h", "H100-80GB-SXM": "3 EUR/h")"), "USD"));
  const auto quality = [&](std::string_view text) {
    return complaint(fmt::format(R"("questions": "largest_batch", "quality": {{{}}})", text));
  };
  const std::string trace = fmt::format(R"("trace": "{}")", test::sample_trace());
  CHECK(quality(trace + R"(, "max_rel_error": 0.1)") == "no complaint");
  CHECK(has(quality(trace), "neither"));
  CHECK(has(quality(trace + R"(, "max_rel_error": 0.1, "min_retained_mass": 0.9)"), "both"));
  CHECK(has(quality(R"("trace": "absent.safetensors", "max_rel_error": 0.1)"), "no such file"));
}

TEST_CASE("a missing price is requested by name") {
  const Scenario scenario = test::static_plan(
      "", R"("questions": "largest_batch", "prices": {"H100-80GB-SXM": "2.5 USD/h"})");
  CHECK_THROWS_WITH_AS(
      (void)run_plan(scenario),
      "plan/prices: A100-80GB-SXM has no price; prices are given for H100-80GB-SXM", InputError);
}

TEST_CASE("the smallest budget that meets the floor, given or bisected") {
  QualityFloor floor;
  floor.named = floor.trace = test::sample_trace();
  floor.max_rel_error = 0.15;
  std::vector<MethodSpec> specs{{"full", {}, {}}};
  for (const double share : {0.1, 0.3, 0.5, 0.7, 0.9}) {
    specs.push_back({"snapkv", {}, Budget{.fraction = share, .entries = 0}});
  }
  specs.push_back({"h2o", {}, Budget{.fraction = 0, .entries = 100}});
  const QualityReport given = measure_quality(floor, specs, 0, 1);
  const MethodQuality& full = given.of(specs[0]);
  REQUIRE(full.chosen.has_value());
  CHECK(*full.tries[*full.chosen].rel_error < 1e-5);  // due to rounding
  const MethodQuality& snapkv = given.of(specs[1]);
  REQUIRE(snapkv.chosen.has_value());
  for (std::size_t i = 0; i < snapkv.tries.size(); ++i) {
    INFO(i);
    CHECK(snapkv.tries[i].meets == (*snapkv.tries[i].rel_error <= 0.15));
    if (i < *snapkv.chosen) CHECK_FALSE(snapkv.tries[i].meets);
  }
  const MethodQuality& h2o = given.of(specs.back());
  CHECK_FALSE(h2o.chosen.has_value());
  CHECK(has(h2o.reason, "100 entries"));

  floor.bisect_step = 0.02;
  const QualityReport finer = measure_quality(floor, specs, 0, 2);
  const MethodQuality& found = finer.of(specs[1]);
  REQUIRE(found.chosen.has_value());
  const double min = found.tries[*found.chosen].budget->fraction;
  CHECK(min <= snapkv.tries[*snapkv.chosen].budget->fraction);
  // A budget one step smaller was tried and fails.
  bool tried = min < 0.11;
  for (const QualityTry& one : found.tries) {
    if (std::abs(one.budget->fraction - (min - 0.02)) < 1e-6) {
      tried = true;
      CHECK_FALSE(one.meets);
    }
  }
  CHECK(tried);
}

}  // namespace
}  // namespace kvsim
