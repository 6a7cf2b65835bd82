#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvsim {

/// One value of a benchmark next to its prediction. Seconds, requests/s or tokens/s.
struct BenchComparedValue {
  std::string metric;  // of results: "ttft_s", …
  std::string stat;    // "mean", "p50", …; empty: one number
  double measured = 0, predicted = 0;
  std::optional<double> low{}, high{};  // the prediction's 90 % interval
};

/// One load point of a benchmark next to a point of a result.
struct BenchComparison {
  std::string place;  // of the benchmark
  std::string_view tool;
  std::string load;   // "4 req/s", "32 users"
  std::string point;  // its label in the result
  std::vector<BenchComparedValue> values;
  std::vector<std::string> notes;
};

/// Whether a file is one of a benchmark rather than a result of kvsim.
[[nodiscard]] bool is_bench_file(const std::filesystem::path& path);

/// Each load point of a benchmark's file (parse_bench) next to the point of `result` (a folder or
/// its result.json, of services) that has its rate or users; of a result of one point next to that.
/// Errors: InputError for files of another kind, and where no point has any load of the file.
[[nodiscard]] std::vector<BenchComparison> compare_bench(const std::filesystem::path& result,
                                                         const std::filesystem::path& file);

[[nodiscard]] std::string bench_comparison_text(const std::vector<BenchComparison>& all,
                                                std::size_t width);
[[nodiscard]] nlohmann::ordered_json bench_comparison_json(const std::vector<BenchComparison>& all);

}  // namespace kvsim
