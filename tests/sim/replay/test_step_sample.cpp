// A sample of decode steps: the drawn steps, unaffected results, and the uncertainty of the means.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <vector>

#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "sim/replay/step_sample.hpp"
#include "sim/run/replay_job.hpp"
#include "tests/support/check.hpp"
#include "traces/trace.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using test::rel;

const fs::path kTrace = fs::path{KVSIM_SOURCE_DIR} / "traces/samples/answers-896.safetensors";

TEST_CASE("a sample has runs of steps, numbered in order, and contains all steps if they fit") {
  for (const std::int64_t steps : {1, 7, 100, 384, 1024}) {
    for (const std::int64_t n : {1, 7, 8, 40, 100, 200, 1023}) {
      const StepSample sample{n, steps, 5};
      if (n >= steps) {
        CHECK(sample.is_all());
        continue;
      }
      CHECK(sample.size() <= n);
      CHECK(sample.size() >= n / 2);
      std::int64_t seen = 0;
      for (std::int64_t step = 0; step < steps; ++step) {
        const std::int64_t end = sample.run_end(step);
        CHECK((end == steps || sample.measures(end) != sample.measures(step)));
        CHECK(sample.measures(end - 1) == sample.measures(step));
        if (sample.measures(step)) CHECK(sample.rank(step) == seen++);
      }
      CHECK(seen == sample.size());
    }
  }
  CHECK(StepSample{0, 50, 1}.is_all());
  CHECK(StepSample{50}.run_end(0) == 50);
  CHECK(StepSample{0}.is_all());
}

TEST_CASE("every decode step is drawn equally often") {
  constexpr std::int64_t kSteps = 300, kSeeds = 4000;
  for (const std::int64_t n : {20, 70}) {
    std::vector<double> drawn(kSteps);
    double size = 0;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const StepSample sample{n, kSteps, seed};
      size += static_cast<double>(sample.size());
      for (std::int64_t step = 0; step < kSteps; ++step) {
        drawn[static_cast<std::size_t>(step)] += sample.measures(step) ? 1 : 0;
      }
    }
    const double expected = size / kSteps;
    for (const double count : drawn) CHECK(std::abs(count - expected) < 6 * std::sqrt(expected));
  }
}

TEST_CASE("a standard error of steps, solved by hand") {
  // 4 of 8 steps in runs of one, in one stratum: variance (1 - 1/2) s^2 / 4.
  const StepSample four{4, 8, 0};
  const std::vector<double> values{1, 3, 5, 7}, equal(4, 1.0);
  CHECK(*four.standard_error(values, equal) == rel(std::sqrt(0.5 * 20.0 / 3 / 4)));
  // Weighted: 28 / 6, and without each run 27 / 5, 25 / 5, 18 / 4 and 14 / 4; 3/4 of their squared
  // distances.
  const std::vector<double> weights{1, 1, 2, 2};
  const std::vector<double> sums{1, 3, 10, 14};
  double squares = 0;
  for (const double without : {27.0 / 5, 25.0 / 5, 18.0 / 4, 14.0 / 4}) {
    squares += std::pow(without - 28.0 / 6, 2);
  }
  CHECK(*four.standard_error(sums, weights) == rel(std::sqrt(0.5 * 0.75 * squares)));
  CHECK_FALSE(four.standard_error(values, std::vector<double>(4, 0.0)));
  CHECK_FALSE(StepSample{1, 8, 0}.standard_error(std::vector{1.0}, std::vector{1.0}));
  CHECK(*StepSample{2}.standard_error(std::vector{1.0, 9.0}, std::vector{1.0, 1.0}) == 0);
}

TEST_CASE("squared standard errors of steps have the mean of the squared errors") {
  // Errors of neighbouring steps are similar, and errors grow over the steps.
  constexpr std::int64_t kSteps = 384, kSeeds = 3000;
  std::vector<double> all;
  double sum = 0;
  for (std::int64_t i = 0; i < kSteps; ++i) {
    const auto x = static_cast<double>(i);
    all.push_back(0.2 + x / 2000 + 0.05 * std::sin(x / 9) + 0.03 * std::sin(x * x));
    sum += all.back();
  }
  for (const std::int64_t n : {24, 96}) {
    double squares = 0, errors = 0;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const StepSample sample{n, kSteps, seed};
      std::vector<double> values;
      double mean = 0;
      for (std::int64_t step = 0; step < kSteps; ++step) {
        if (!sample.measures(step)) continue;
        values.push_back(all[static_cast<std::size_t>(step)]);
        mean += values.back() / static_cast<double>(sample.size());
      }
      const std::vector<double> equal(values.size(), 1.0);
      squares += std::pow(*sample.standard_error(values, equal), 2) / kSeeds;
      errors += std::pow(mean - sum / kSteps, 2) / kSeeds;
    }
    CHECK(squares == rel(errors, 0.12));
  }
}

TEST_CASE("a sample of steps changes no size, and its errors are those of all steps") {
  const std::vector<MethodSpec> methods{
      {"full", {}, {}},
      {"snapkv", {}, Budget{.fraction = 0.2}},         // plain: not computed between the runs
      {"streaming-llm", {}, Budget{.fraction = 0.2}},  // the same, with entries that are evicted
      {"h2o", {}, Budget{.fraction = 0.2}},            // reads every step
      {"zeromerge", {}, Budget{.fraction = 0.2}},
      {"quest", {}, Budget{.fraction = 0.2}},
      {"kivi-2", {}, {}},
      {"minicache", {}, {}}};
  ReplayOptions options{.per_step = true, .kept_positions = true};
  const ReplayJob whole = run_replay_job(kTrace, methods, options);
  CHECK_FALSE(whole.result.steps);
  options.steps = 40;
  const ReplayJob some = run_replay_job(kTrace, methods, options);
  REQUIRE(some.result.steps);
  CHECK_FALSE(some.result.sample);
  CHECK(some.result.steps->of == whole.result.methods.front().steps);
  CHECK(some.result.steps->measured <= 40);
  REQUIRE(some.result.methods.size() == whole.result.methods.size());
  for (std::size_t m = 0; m < some.result.methods.size(); ++m) {
    const ReplayMethod& a = some.result.methods[m];
    const ReplayMethod& b = whole.result.methods[m];
    INFO(a.name);
    CHECK(a.kept == b.kept);
    CHECK(a.bytes_held_final == b.bytes_held_final);
    CHECK(a.bytes_read_total == b.bytes_read_total);
    CHECK(a.counts == b.counts);
    double sum = 0, masses = 0;
    std::int64_t measured = 0;
    for (std::size_t i = 0; i < a.series.size(); ++i) {
      CHECK(a.series[i].bytes_held == b.series[i].bytes_held);
      if (std::isnan(a.series[i].rel_error)) continue;
      ++measured;
      CHECK(std::abs(a.series[i].rel_error - b.series[i].rel_error) < 1e-6);
      sum += b.series[i].rel_error;
      masses += b.series[i].retained_mass.value_or(0);
    }
    CHECK(measured == some.result.steps->measured);
    const auto n = static_cast<double>(measured);
    CHECK(std::abs(a.rel_error_mean - sum / n) < 1e-6);
    if (a.retained_mass_mean) CHECK(*a.retained_mass_mean == rel(masses / n, 1e-5));
    REQUIRE(a.standard_errors);
    REQUIRE(a.standard_errors->rel_error_mean);
    CHECK(*a.standard_errors->rel_error_mean >= 0);
    if (b.best_mass_mean) {
      REQUIRE(a.best_mass_mean);
      CHECK(std::abs(*a.best_mass_mean - *b.best_mass_mean) <=
            5 * *a.standard_errors->best_mass_mean + 1e-6);
    }
  }
}

TEST_CASE("means of a sample of steps agree with the whole within their standard errors") {
  const std::vector<MethodSpec> methods{{"snapkv", {}, Budget{.fraction = 0.2}},
                                        {"h2o", {}, Budget{.fraction = 0.2}}};
  const ReplayJob whole = run_replay_job(kTrace, methods, {});
  int within = 0, all = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    ReplayOptions options{.seed = seed};
    options.steps = 24;
    const ReplayJob job = run_replay_job(kTrace, methods, options);
    for (std::size_t m = 0; m < methods.size(); ++m) {
      const ReplayMethod& of = job.result.methods[m];
      const double off = of.rel_error_mean - whole.result.methods[m].rel_error_mean;
      within += std::abs(off) <= 2 * *of.standard_errors->rel_error_mean ? 1 : 0;
      ++all;
    }
  }
  CHECK(within >= 0.8 * all);
}

TEST_CASE("means of one run of steps have no standard error, and a note says so") {
  ReplayOptions options;
  options.steps = 1;
  const ReplayJob job = run_replay_job(kTrace, {{"h2o", {}, Budget{.fraction = 0.2}}}, options);
  const ReplayMethod& of = job.result.methods.front();
  REQUIRE(of.standard_errors);
  CHECK_FALSE(of.standard_errors->rel_error_mean);
  CHECK(std::find(of.notes.begin(), of.notes.end(),
                  "its means have no standard error: one run of decode steps has no spread") !=
        of.notes.end());
}

TEST_CASE("more steps than a trace has are refused") {
  ReplayOptions options;
  options.steps = 1'000'000;
  CHECK_THROWS_AS(run_replay_job(kTrace, {{"full", {}, {}}}, options), InputError);
}

}  // namespace
}  // namespace kvsim
