// Published figures against predictions, where the data lies on the machine. Bounds are what was
// reached when they were written, with room for constants that move, and the targets beside them.

#include <algorithm>
#include <string>

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

TEST_CASE("published figures are expressed and met") {
  const auto data = test::data_dir();
  if (!data) return;
  const PublishedScore score = score_published(read_published_csv(*data / "published/results.csv"));
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
