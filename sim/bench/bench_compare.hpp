#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvsim {

/// The text of a file and its name in messages.
struct PlacedText {
  std::string_view text;
  std::string place;
};

/// One value of a benchmark and its prediction, in seconds, requests/s or tokens/s.
struct BenchComparedValue {
  std::string metric;  // as in results: "ttft_s", …
  std::string stat;    // "mean", "p50", …; empty for a single number
  double measured = 0, predicted = 0;
  std::optional<double> low{}, high{};  // the prediction's 90 % interval
};

/// One load point of a benchmark and a point of a result.
struct BenchComparison {
  std::string place;  // of the benchmark
  std::string_view tool;
  std::string load;   // "4 req/s", "32 users"
  std::string point;  // label of the result's point
  std::vector<BenchComparedValue> values;
  std::vector<std::string> notes;
};

/// Whether the measured value is in the prediction's interval; false without an interval.
[[nodiscard]] bool is_in_interval(const BenchComparedValue& value);

/// Matches each load point of a benchmark (parse_bench) with the point of `result` (a document
/// "kvsim.run/1" of services) that has its rate or users; with the only point if there is one.
/// Errors: InputError for texts of another kind, or if no point matches any load of the benchmark.
[[nodiscard]] std::vector<BenchComparison> compare_bench(const PlacedText& result,
                                                         const PlacedText& bench);

/// Returns the document "kvsim.compare-bench/1".
[[nodiscard]] nlohmann::ordered_json bench_comparison_json(const std::vector<BenchComparison>& all);

}  // namespace kvsim
