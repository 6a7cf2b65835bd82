#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "traces/trace.hpp"

namespace kvsim {

/// A statistic over a layer's heads.
struct HeadRange {
  double mean = 0, low = 0, high = 0;
};

/// Attention of one layer, recomputed in fp64 from its q and k: means over the used rows t >= T/2,
/// then over heads, with the lowest and the highest head. top5, top20 and heavy20 are those of an
/// oracle.
struct LayerCheck {
  HeadRange first_token;     // mass on token 0
  HeadRange last32;          // mass on the 32 most recent tokens, including the query's token
  HeadRange entropy;         // nats
  HeadRange entropy_norm;    // entropy over ln(t + 1), 1 for a uniform row
  HeadRange top5, top20;     // mass in a row's ceil(5 % or 20 % of visible) heaviest tokens
  HeadRange heavy20;         // share of these rows' mass in the ceil(T/5) heaviest key columns
  double worst_row_sum = 0;  // largest |row sum - 1| of all used rows
};

struct TraceCheck {
  std::vector<LayerCheck> layers;
  std::int64_t tokens = 0;
  std::int64_t rows_used = 0;       // query rows used for worst_row_sum
  std::int64_t late_rows_used = 0;  // of these, rows with t >= T/2, which are used for the other
                                    // values
  double uniform_first_token = 0;   // value of uniform attention over the late rows
  double uniform_last32 = 0;
};

/// Execution of the work; no result depends on it.
struct CheckWork {
  /// Calls task(i) for each i in [0, count) on any number of threads. Empty: one by one.
  std::function<void(std::size_t count, const std::function<void(std::size_t)>& task)> for_each;
  /// Called with the fraction done, 0 … 1, from the threads of `for_each`; may be empty.
  std::function<void(double)> progress;
};

/// Recomputes attention and measures it. Traces of more than `rows_limit` rows use that many rows,
/// evenly spaced and ending with the last. Errors: InputError from reading; ContractError if
/// rows_limit < 2.
[[nodiscard]] TraceCheck check_trace(const Trace& trace, std::int64_t rows_limit = 2048,
                                     const CheckWork& work = {});

/// The same for one layer, with queries and keys laid out as in TraceLayer.
[[nodiscard]] LayerCheck check_layer(const TraceInfo& info, const TraceLayer& layer,
                                     std::int64_t rows_limit = 2048, const CheckWork& work = {});

}  // namespace kvsim
