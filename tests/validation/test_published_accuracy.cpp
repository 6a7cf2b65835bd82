// Published figures against predictions, where the data lies on the machine.

#include <algorithm>
#include <string>

#include "tests/support/check.hpp"
#include "validation/published_score.hpp"

namespace kvsim {
namespace {

TEST_CASE("published figures are expressed and met") {
  const auto data = test::data_dir();
  if (!data) return;
  const PublishedScore score = score_published(read_published_csv(*data / "published/results.csv"));
  const auto pooled = [&](const std::string& name) -> const PublishedGroup& {
    const auto found =
        std::find_if(score.pooled.begin(), score.pooled.end(),
                     [&](const PublishedGroup& g) { return g.metric == name && !g.inconsistent; });
    REQUIRE(found != score.pooled.end());
    return *found;
  };
  CHECK(score.rows.size() > 1000);
  for (const ScoredRow& row : score.rows) {
    INFO(row.row.id);
    CHECK(row.prediction.expressed() == row.prediction.reason.empty());
    if (row.interval) {
      CHECK(row.interval->first <= row.interval->second);
    }
  }
  CHECK(*pooled("all cache size").mape < 0.02);
}

}  // namespace
}  // namespace kvsim
