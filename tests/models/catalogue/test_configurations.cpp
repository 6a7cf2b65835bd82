// Published configurations of hybrid models compared with an independent calculation
// (KVSIM_DATA_DIR).

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "models/llm/cache_summary.hpp"
#include "models/llm/catalogue.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using test::rel;
using Row = std::map<std::string, std::string>;

std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> out(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

std::vector<Row> rows_of(const std::filesystem::path& path) {
  std::ifstream file{path};
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> head = cells(line);
  std::vector<Row> out;
  while (std::getline(file, line)) {
    const std::vector<std::string> values = cells(line);
    REQUIRE(values.size() == head.size());
    for (std::size_t i = 0; i < head.size(); ++i) {
      if (i == 0) out.emplace_back();
      out.back()[head[i]] = values[i];
    }
  }
  return out;
}

/// Compares `got` with the cell; an empty cell is not compared.
void check(const Row& row, const std::string& column, double got, double tolerance = 0) {
  const std::string& cell = row.at(column);
  if (cell.empty()) return;
  INFO(column);
  if (tolerance > 0) {
    CHECK(got == rel(std::stod(cell), tolerance));
  } else {
    CHECK(got == std::stod(cell));
  }
}

TEST_CASE("every published configuration has the parameters, weights and caches of its row") {
  const auto data = test::data_dir();
  if (!data) return;
  const std::filesystem::path folder = *data / "configs";
  const std::vector<Row> rows = rows_of(folder / "expected.csv");
  CHECK(rows.size() >= 58);
  for (const Row& row : rows) {
    INFO(row.at("model"));
    const Llm llm = read_hf_config_file(folder / (row.at("model") + ".json"), "m");
    CHECK(llm.n_layers() == std::stoi(row.at("layers")));
    // The reference omits one scale of V4's hyper-connections and some fp32 vectors.
    check(row, "params_text", static_cast<double>(parameters(llm)), 1e-11);
    check(row, "params_active", static_cast<double>(active_parameters(llm)));
    check(row, "weight_bytes_text", static_cast<double>(published_weight_bytes(llm).count()), 3e-6);
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kFp8E4m3}) {
      const std::string word = dtype == Dtype::kBf16 ? "_bf16" : "_fp8";
      const CacheTerms terms = cache_terms(llm, dtype);
      check(row, "kv_per_token" + word, terms.per_token + terms.index_per_token);
      check(row, "index_per_token", terms.index_per_token);
      check(row, "window_full" + word, terms.window);
      check(row, row.at("state_dtype") == "float32" ? "state_fp32_tp1" : "state_bf16_tp1",
            terms.state);
      check(row, "held_8k_tp1" + word, held_bytes(llm, 8192, dtype));
      check(row, "held_128k_tp1" + word, held_bytes(llm, 131072, dtype));
      check(row, "held_1024k_tp1" + word, held_bytes(llm, 1048576, dtype));
      check(row, "read_128k" + word, read_bytes(llm, 131072, dtype));
    }
  }
}

}  // namespace
}  // namespace kvsim
