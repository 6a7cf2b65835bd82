// Published figures against predictions, where the data lies on the machine. Bounds are what was
// reached when they were written, with room for constants that move, and the targets beside them.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "models/cost/kernels/spread.hpp"
#include "models/stack/stack.hpp"
#include "sim/serve/time_residual.hpp"
#include "tests/support/check.hpp"
#include "validation/published_score.hpp"

namespace kvsim {
namespace {

const PublishedGroup& pooled(const PublishedScore& score, const std::string& name) {
  const auto found =
      std::find_if(score.pooled.begin(), score.pooled.end(),
                   [&](const PublishedGroup& g) { return g.metric == name && !g.inconsistent; });
  REQUIRE(found != score.pooled.end());
  return *found;
}

/// The score of the whole table, worked out once.
const PublishedScore& whole_score(const std::filesystem::path& data) {
  static const PublishedScore score =
      score_published(read_published_csv(data / "published/results.csv"));
  return score;
}

TEST_CASE("published figures are expressed and met") {
  const auto data = test::data_dir();
  if (!data) return;
  const PublishedScore& score = whole_score(*data);
  REQUIRE(score.rows.size() > 1000);

  // Coverage: target 95 % of those in scope and 70 % of all; reached 98 and 93 %.
  const auto of = [](std::size_t part, std::size_t all) {
    return static_cast<double>(part) / static_cast<double>(all);
  };
  std::size_t expressed = 0;
  for (const ScoredRow& row : score.rows) expressed += row.prediction.expressed() ? 1U : 0U;
  CHECK(of(score.n_in_scope_expressed, score.n_in_scope) >= 0.95);
  CHECK(of(expressed, score.rows.size()) >= 0.85);

  // Peak memory: target 4 % MAPE; reached 2.4 % of all and 3.7 % of those held out.
  CHECK(*pooled(score, "all peak memory").mape < 0.04);
  CHECK(*pooled(score, "all peak memory").mape_held_out < 0.045);
  // Caches and pools: reached a median of 1.1 %; start-up logs of old engines miss by more.
  CHECK(*pooled(score, "all cache size").median_ape < 0.015);
  // Throughput and latency: target a median of 15 %; reached 11.5 %, also of those held out.
  CHECK(*pooled(score, "all time").median_ape < 0.15);
  CHECK(*pooled(score, "all time").median_ape_held_out < 0.15);
  CHECK(*pooled(score, "all time").mape < 0.30);
  // Verdicts: 35 of 38; H2O's and LESS's score copies and one original implementation are missed.
  const PublishedGroup& verdicts = pooled(score, "all oom");
  CHECK(of(verdicts.oom_right, verdicts.oom_total) >= 0.90);
  // Figures of runs that were predicted not to fit: 2.
  CHECK(pooled(score, "all").oom_total - verdicts.oom_total <= 6);

  for (const ScoredRow& row : score.rows) {
    INFO(row.row.id);
    CHECK(row.prediction.expressed() == row.prediction.reason.empty());
    if (row.interval) CHECK(row.interval->first <= row.interval->second);
    if (row.prediction.value) CHECK(*row.prediction.value >= -1e-9);
  }
}

TEST_CASE("intervals of published figures cover rows of documents that did not make them") {
  const auto data = test::data_dir();
  if (!data) return;
  const PublishedScore& score = whole_score(*data);
  std::map<std::string, std::pair<double, double>> documents;  // inside, counted
  double inside = 0, counted = 0;
  for (const ScoredRow& row : score.rows) {
    if (!row.interval || !row.error() || row.inconsistent) continue;
    const bool in = row.interval->first <= *row.value && *row.value <= row.interval->second;
    auto& [its_inside, its_counted] = documents[row.document];
    inside += in;
    its_inside += in;
    ++counted;
    ++its_counted;
  }
  double mean = 0;
  for (const auto& [name, counts] : documents) {
    mean += counts.first / counts.second / static_cast<double>(documents.size());
  }
  fmt::print(
      "{:.1f} % of {} rows lie in the 80 % interval; of a document on the average {:.1f} %\n",
      100 * inside / counted, counted, 100 * mean);
  CHECK(counted > 900);
  CHECK(inside / counted >= 0.76);
  CHECK(inside / counted <= 0.95);
  CHECK(mean >= 0.70);
  CHECK(mean <= 0.92);
}

TEST_CASE("intervals of whole runs are what published times say, and cover those of others") {
  const auto data = test::data_dir();
  if (!data) return;
  const PublishedScore& score = whole_score(*data);
  std::map<CacheGrowth, std::map<std::string, std::vector<double>>> times;
  for (const ScoredRow& row : score.rows) {
    const auto error = row.log_error();
    if (!error || row.inconsistent || row.kind != MetricKind::kTime) continue;
    const CacheGrowth growth = find_stack(row.stack).growth;
    const bool other = growth != CacheGrowth::kPaged && growth != CacheGrowth::kStatic;
    times[other ? CacheGrowth::kConcatLayer : growth][row.document].push_back(*error);
  }
  REQUIRE(times.size() == 3);
  constexpr double kEnd = 0.95;  // of a 90 % interval, either side
  // Of all documents but the one of that name: low and high.
  const auto ends = [&](CacheGrowth growth, const std::string& without) {
    Clusters up, down;
    for (const auto& [name, errors] : times.at(growth)) {
      if (name == without) continue;
      up.push_back(errors);
      down.push_back(errors);
      for (double& error : down.back()) error = -error;
    }
    return std::pair{-upper_limit(down, kEnd), upper_limit(up, kEnd)};
  };
  for (const char* name : {"vllm", "torch-static", "hf-sdpa"}) {
    const Stack& stack = find_stack(name);
    const CacheGrowth growth =
        name == std::string{"hf-sdpa"} ? CacheGrowth::kConcatLayer : stack.growth;
    const TimeResidual residual = time_residual(stack);
    const auto [low, high] = ends(growth, "");
    double inside = 0, counted = 0;
    for (const auto& [document, errors] : times.at(growth)) {
      const auto [without_low, without_high] = ends(growth, document);
      for (const double error : errors) inside += without_low <= error && error <= without_high;
      counted += static_cast<double>(errors.size());
    }
    fmt::print("{:13} {} times, {} documents: {:.3f} to {:.3f}; left out, {:.1f} % inside\n", name,
               counted, times.at(growth).size(), std::exp(low), std::exp(high),
               100 * inside / counted);
    CHECK(residual.low == doctest::Approx(std::exp(low)).epsilon(0.03));
    CHECK(residual.high == doctest::Approx(std::exp(high)).epsilon(0.03));
    CHECK(inside / counted >= 0.84);
    CHECK(inside / counted <= 0.97);
  }
}

TEST_CASE("the score does not depend on the order of rows") {
  const auto data = test::data_dir();
  if (!data) return;
  auto rows = read_published_csv(*data / "published/results.csv");
  rows.resize(200);
  const PublishedScore forward = score_published(rows);
  std::reverse(rows.begin(), rows.end());
  const PublishedScore backward = score_published(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(forward.rows[i].prediction.value == backward.rows[rows.size() - 1 - i].prediction.value);
  }
}

}  // namespace
}  // namespace kvsim
