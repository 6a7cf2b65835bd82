// Ends of intervals from errors in clusters: limits of the correction, and hand-solved cases.

#include <doctest/doctest.h>

#include "models/cost/kernels/spread.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using test::rel;

TEST_CASE("spread: quantiles interpolate linearly between neighbours") {
  CHECK(quantile_of({3, 1, 2}, 0.5) == rel(2));
  CHECK(quantile_of({0, 10}, 0.25) == rel(2.5));
  CHECK(quantile_of({7}, 0.9) == rel(7));
  CHECK_THROWS((void)quantile_of({}, 0.5));
}

TEST_CASE("spread: correlation of values beyond a limit, solved by hand") {
  ExceedanceCorrelation none;
  CHECK(none.value() == rel(1));  // no known data
  ExceedanceCorrelation whole;    // a cluster is entirely beyond or entirely within
  whole.add({{1, 1, 1}, {0, 0, 0}, {0, 0, 0}}, 0.5);
  CHECK(whole.value() == rel(1));
  ExceedanceCorrelation
      equal_shares;  // every cluster has the same share beyond: no variance between clusters
  equal_shares.add({{1, 0}, {0, 1}, {1, 0}}, 0.5);
  CHECK(equal_shares.value() == 0);
  // Two clusters of four, shares 3/4 and 1/4: between = 2 * 4 * (1/4)^2 / 1 = 0.5, within =
  // 2 * 4 * 3/16 / 6 = 0.25; (0.5 - 0.25) / (0.5 + 3 * 0.25) = 0.2.
  ExceedanceCorrelation some;
  some.add({{1, 1, 1, 0}, {1, 0, 0, 0}}, 0.5);
  CHECK(some.value() == rel(0.2));
}

TEST_CASE("spread: the effective number is between the number of clusters and of values") {
  const Clusters clusters{{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}};
  CHECK(effective_number(clusters, 0) == rel(12));
  CHECK(effective_number(clusters, 1) == rel(3));
  CHECK(effective_number(clusters, 0.2) == rel(12 / 1.6));
  CHECK(small_sample_level(0.9, 9) == rel(1));
  CHECK(small_sample_level(0.9, 90) == rel(0.91));
  CHECK(small_sample_level(0.9, 2) == rel(1));  // too few: the worst value
  double before = 0;
  for (const double correlation : {0.0, 0.1, 0.3, 1.0}) {
    const double limit = upper_limit(clusters, 0.8, correlation);
    CHECK(limit >= before);  // fewer data, wider interval
    CHECK(limit <= 12);
    before = limit;
  }
  CHECK(before == rel(12));
}

}  // namespace
}  // namespace kvsim
