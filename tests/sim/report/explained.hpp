#pragma once

// Shared by the tests of `kvsim explain`: runs a scenario in a folder and explains its metrics.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/sim/cli/program.hpp"
#include "tests/support/files.hpp"

namespace kvsim::test {

/// Runs `scenario` (JSON) into `folder`/out.
inline void run(const std::filesystem::path& folder, std::string_view scenario) {
  write(folder / "s.json", scenario);
  const Outcome outcome = run_kvsim({"run", "s.json", "-o", "out", "--no-figures", "-q"}, folder);
  REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
}
inline nlohmann::json explain(const std::filesystem::path& folder, const std::string& key,
                              const std::string& point = "") {
  std::vector<std::string> words{"explain", "out", key, "--json"};
  if (!point.empty()) words.insert(words.end(), {"--point", point});
  const Outcome outcome = run_kvsim(words, folder);
  REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
  return nlohmann::json::parse(outcome.out);
}
inline std::string complaint(const std::vector<std::string>& words,
                             const std::filesystem::path& folder) {
  const Outcome outcome = run_kvsim(words, folder);
  CHECK(outcome.status == 2);
  CHECK(outcome.out.empty());
  return outcome.err;
}

/// Sum of the shares in a table.
inline double shares_of(const nlohmann::json& table) {
  double sum = 0;
  for (const nlohmann::json& row : table.at("rows")) sum += row.at("share").get<double>();
  return sum;
}

inline constexpr std::string_view kFits = R"({"model": "llama-2-7b", "gpu": "A100-80GB-SXM",
  "stack": "hf-sdpa", "dtype": "fp16", "batch": 2, "prompt_tokens": 1000, "output_tokens": 20,
  "memory": {"allocator": "simulate"}})";

}  // namespace kvsim::test
