#include "sim/plan/boundary.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "models/units/check.hpp"

namespace kvsim {

Boundary largest_feasible(const Search& search, const std::function<bool(std::int64_t)>& holds) {
  KVSIM_CHECK(search.min <= search.start && search.start <= search.max && search.stride >= 1,
              "a search from {} in [{}, {}] by {}", search.start, search.min, search.max,
              search.stride);
  Boundary out;
  std::map<std::int64_t, bool> known;
  const auto probe = [&](std::int64_t n) {
    const auto found = known.find(n);
    if (found != known.end()) return found->second;
    ++out.probes;
    return known.emplace(n, holds(n)).first->second;
  };
  // `good` holds. Returns the last number that holds before the first failure above it.
  const auto climb = [&](std::int64_t good) {
    std::int64_t step = search.stride;
    std::int64_t bad = good;
    for (;; step *= 2) {
      if (good == search.max) return good;
      bad = step < search.max - good ? good + step : search.max;
      if (!probe(bad)) break;
      good = bad;
    }
    while (bad - good > 1) {
      const std::int64_t middle = good + (bad - good) / 2;
      (probe(middle) ? good : bad) = middle;
    }
    return good;
  };

  std::int64_t good = search.start;
  bool any = probe(good);
  for (std::int64_t step = search.stride; !any && good > search.min; step *= 2) {
    const std::int64_t bad = good;
    good = step < good - search.min ? good - step : search.min;
    any = probe(good);
    if (!any) continue;
    std::int64_t above = bad;
    while (above - good > 1) {
      const std::int64_t middle = good + (above - good) / 2;
      (probe(middle) ? good : above) = middle;
    }
  }
  if (!any) {
    // A number just above the minimum may still hold.
    for (const std::int64_t n : {search.min + 1, search.min + 3}) {
      if (out.probes > 0 && search.neighbours > 0 && n <= search.max && probe(n)) {
        good = n;
        any = true;
        break;
      }
    }
    if (!any) return out;
  }
  for (bool again = true; again;) {
    again = false;
    good = climb(good);
    if (good == search.max) break;
    const std::int64_t span = std::max<std::int64_t>(1, good - search.min);
    const std::array<std::int64_t, 6> beyond{2, 3, 5, span / 64, span / 8, span};
    for (std::size_t i = 0; i < std::min(search.neighbours, beyond.size()); ++i) {
      if (beyond[i] < 2 || beyond[i] > search.max - good || !probe(good + beyond[i])) continue;
      good += beyond[i];
      again = true;
      break;
    }
  }
  bool failed = false;
  for (const auto& [n, held] : known) {
    if (held && failed) out.monotone = false;
    failed = failed || !held;
  }
  out.last = good;
  out.at_most = good == search.max;
  return out;
}

}  // namespace kvsim
