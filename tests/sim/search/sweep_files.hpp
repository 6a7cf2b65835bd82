#pragma once

// Scenario files for sweeps, in a separate folder.

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/sweep/sweep_plan.hpp"
#include "tests/support/files.hpp"

namespace kvsim::test {

/// A small scenario with `more` members, which start with a comma or are empty.
inline std::filesystem::path sweep_file(const std::filesystem::path& folder,
                                        std::string_view more) {
  const std::filesystem::path file = folder / "s.json";
  std::ofstream{file} << fmt::format(
      R"({{"model": "llama-2-7b", "gpu": "A100-80GB-SXM", "dtype": "fp16", "prompt_tokens": 1000,
          "output_tokens": 20{}}})",
      more);
  return file;
}

inline SweepPlan plan_of(const std::filesystem::path& file, const SweepChanges& changes = {}) {
  return {scenario_document(file, {}), file, changes};
}

/// The error message of an action; "" without an error.
template <class Action>
std::string complaint(Action&& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace kvsim::test
