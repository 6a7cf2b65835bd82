#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "sim/plan/plan.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/scenario/scenario.hpp"
#include "tests/support/scratch.hpp"

namespace kvsim::test {

/// A scenario read from a file of that name with this text; test cases run in parallel.
inline Scenario plan_scenario(const std::string& text, const std::string& name = "plan.json") {
  const std::filesystem::path file =
      test::scratch_folder() / fmt::format("process-{}", getpid()) / name;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream{file} << text;
  Scenario scenario = read_scenario(file, {});
  std::filesystem::remove_all(file.parent_path());
  return scenario;
}

/// `base` with the members of `more` (which start with a comma, or are empty) instead of the
/// default ones.
inline Scenario changed_plan(const std::string& base, std::string_view more,
                             std::string_view plan) {
  nlohmann::json document = nlohmann::json::parse(base);
  const auto put = [&](const std::string& text) {
    const nlohmann::json members = nlohmann::json::parse(text);
    for (const auto& [key, value] : members.items()) document[key] = value;
  };
  put(fmt::format("{{{}}}", more.empty() ? more : more.substr(more.find(',') + 1)));
  put(fmt::format("{{\"plan\": {{{}}}}}", plan));
  return plan_scenario(document.dump());
}

/// Static batches; `plan` contains members of `plan`. Memory is the only limit unless `plan` sets
/// others: the model has 4,096 positions.
inline Scenario static_plan(std::string_view more, std::string_view plan) {
  return changed_plan(
      R"({"model": "llama-2-7b", "gpu": "A100-80GB-SXM", "stack": "hf-sdpa", "dtype": "fp16",
          "prompt_tokens": 2048, "output_tokens": 16})",
      more,
      plan.empty() || plan.find("beyond_positions") != std::string_view::npos
          ? std::string{plan}
          : fmt::format("{}, \"beyond_positions\": true", plan));
}

/// Services of 60 requests.
inline Scenario serve_plan(std::string_view more, std::string_view plan,
                           std::string_view slo = R"("ttft": "2 s", "tpot": "60 ms")") {
  return changed_plan(
      fmt::format(
          R"({{"kind": "serve", "model": "llama-2-7b", "gpu": "A100-80GB-SXM", "stack": "vllm",
              "requests": {{"arrivals": {{"kind": "poisson", "rate": 2}}, "count": 60,
                            "prompt_tokens": 600, "output_tokens": 60}},
              "slo": {{{}}}}})",
          slo),
      more, plan);
}

inline std::string sample_trace() {
  return (std::filesystem::path{KVSIM_SOURCE_DIR} / "traces/samples/books-treasure-512.safetensors")
      .string();
}

}  // namespace kvsim::test
