#include "sim/cli/options/overrides.hpp"

#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "sim/scenario/fields/document.hpp"
#include "sim/scenario/read/read_scenario.hpp"

namespace kvsim {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxSkipped = 100'000'000;  // the largest number of requests of a trace

}  // namespace

std::vector<Override> read_overrides(const Arguments& arguments) {
  std::vector<Override> overrides;
  for (const std::string& text : arguments.values("set")) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) {
      throw InputError{"--set", "/json/pointer=value", fmt::format("\"{}\"", text)};
    }
    overrides.push_back({text.substr(0, equals), text.substr(equals + 1)});
  }
  return overrides;
}

std::vector<Override> skip_bad_overrides(const Arguments& arguments, const json& document,
                                         const std::string& place) {
  const auto max = arguments.integer("skip-bad", 0, kMaxSkipped);
  if (!max) return {};
  std::vector<Override> overrides;
  const auto add = [&](const json& workload, const std::string& pointer) {
    if (!workload.is_object() || !workload.contains("file")) return;
    overrides.push_back({pointer + "/skip_bad", fmt::format("{}", *max)});
  };
  const auto requests = document.find("requests");
  if (requests != document.end() && requests->is_array()) {
    for (std::size_t i = 0; i < requests->size(); ++i) {
      add((*requests)[i], fmt::format("/requests/{}", i));
    }
  } else if (requests != document.end()) {
    add(*requests, "/requests");
  }
  if (overrides.empty()) {
    throw InputError{
        fmt::format("--skip-bad: expected a scenario with a file of requests (/requests/file), got "
                    "{}, which has none",
                    place)};
  }
  return overrides;
}

std::vector<Override> read_overrides(const Arguments& arguments,
                                     const std::filesystem::path& file) {
  std::vector<Override> overrides = read_overrides(arguments);
  if (!arguments.has("skip-bad")) return overrides;
  for (Override& change :
       skip_bad_overrides(arguments, scenario_document(file, overrides), file.string())) {
    overrides.push_back(std::move(change));
  }
  return overrides;
}

void refuse_plan_of_sweep(const json& document, const std::string& file) {
  if (!document.contains("plan") || document.at("plan").is_null()) return;
  throw InputError{fmt::format(
      "{}: /plan: expected a sweep or a plan, got both; --set /plan=null removes the plan", file)};
}

Option skip_bad_option() {
  return {"skip-bad", 0, "N", false,
          "skip up to this many malformed records in each request file of the scenario (0)"};
}

}  // namespace kvsim
