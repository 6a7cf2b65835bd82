#pragma once

// Means of each combination of a sweep over the traces it ran on.

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/report/replay/replay_aggregate.hpp"
#include "sim/report/replay_sweep/replay_sweep.hpp"

namespace kvsim {

/// The mean of a combination over the traces that it ran on.
struct SweepMean {
  std::size_t cell = 0;  // index into ReplaySweep::cells
  AggregateRow over;
};
/// In the order of the cells. Traces without decode steps have no errors and are omitted.
[[nodiscard]] std::vector<SweepMean> sweep_means(const ReplaySweep& sweep);

/// For each budget the index in `means` of the smallest mean error; ties go to the first.
/// Candidates have a varied parameter and ran on every trace: means over other traces are not
/// comparable.
[[nodiscard]] std::vector<std::size_t> best_means(const ReplaySweep& sweep,
                                                  const std::vector<SweepMean>& means);

/// As the rows of `aggregate_json`, plus `values`.
[[nodiscard]] nlohmann::ordered_json sweep_means_json(const ReplaySweep& sweep,
                                                      const std::vector<SweepMean>& means);
/// One line per combination: method, budget, the varied parameters, then the columns of
/// aggregate.csv.
[[nodiscard]] std::string sweep_means_csv(const ReplaySweep& sweep);
/// For the terminal, at most `width` columns.
[[nodiscard]] std::string sweep_means_table(const ReplaySweep& sweep,
                                            const std::vector<SweepMean>& means, std::size_t width);

}  // namespace kvsim
