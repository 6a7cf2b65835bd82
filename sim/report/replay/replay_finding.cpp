#include "sim/report/replay/replay_finding.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/report/replay/equal_bytes.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
std::string replay_finding(const ReplayResult& replay) {
  std::vector<EqualBytes> bands = equal_bytes(replay);
  const bool only_full =
      std::all_of(replay.methods.begin(), replay.methods.end(),
                  [](const ReplayMethod& method) { return method.name == "full"; });
  if (only_full) return "Only the full cache was replayed, so there is nothing to compare.";
  const auto others =
      std::count_if(replay.methods.begin(), replay.methods.end(),
                    [](const ReplayMethod& method) { return method.name != "full"; });
  if (bands.empty() && others == 1) {
    return "Only one method was replayed, so there is nothing to compare it with.";
  }
  if (bands.empty()) {
    return "No two methods hold equal bytes here, so their errors are not comparable.";
  }
  std::erase_if(bands, [](const EqualBytes& band) {
    return ranked_error(*band.methods[0]) < kRoundingError &&
           ranked_error(*band.methods[1]) < kRoundingError;
  });
  if (bands.empty()) return "Methods that hold equal bytes here have no error beyond rounding.";
  std::vector<std::pair<std::string, std::size_t>> wins;
  for (const EqualBytes& band : bands) {
    const std::string& name = band.methods.front()->name;
    const auto found = std::find_if(wins.begin(), wins.end(),
                                    [&](const auto& each) { return each.first == name; });
    if (found == wins.end()) {
      wins.emplace_back(name, 1);
    } else {
      ++found->second;
    }
  }
  const auto winner = std::max_element(
      wins.begin(), wins.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const EqualBytes& first_band = bands.front();
  const ReplayMethod& first = *first_band.methods.front();
  if (bands.size() == 1) {
    return fmt::format("Of the methods that hold {} of the bytes, {} has the least error{} ({}).",
                       share_range(first_band.low, first_band.high), first.name,
                       where_ranked(replay), amount(ranked_error(first)));
  }
  if (2 * winner->second > bands.size()) {
    return fmt::format("At equal bytes {} has the least error{} in {} of {} comparisons.",
                       winner->first, where_ranked(replay), winner->second, bands.size());
  }
  return fmt::format("No method leads in most of the {} comparisons at equal bytes.", bands.size());
}

ReplayResult replay_of_means(const std::vector<AggregateRow>& rows) {
  constexpr std::int64_t kFull = 1'000'000'000;  // bytes; shares are exact to nine digits
  std::size_t traces = 0;
  for (const AggregateRow& row : rows) traces = std::max(traces, row.traces.size());
  ReplayResult out;
  for (const AggregateRow& row : rows) {
    if (row.traces.size() < traces || !row.rel_error || !row.bytes_share) continue;
    ReplayMethod& one = out.methods.emplace_back();
    one.name = row.name;
    one.budget = row.budget;
    one.steps = 1;
    one.bytes_full_final = kFull;
    one.bytes_held_final = std::llround(row.bytes_share->mean * static_cast<double>(kFull));
    one.rel_error_mean = row.rel_error->mean;
    if (row.answer_error) one.answer_error_mean = row.answer_error->mean;
  }
  return out;
}

std::string aggregate_finding(const std::vector<AggregateRow>& rows) {
  return rows.empty() ? "" : replay_finding(replay_of_means(rows));
}

}  // namespace kvsim
