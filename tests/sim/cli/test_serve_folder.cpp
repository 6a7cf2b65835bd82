// A service's results folder depends only on its scenario: all bytes are equal for any number of
// threads.

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/sim/cli/files_under.hpp"
#include "tests/sim/cli/program.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;
using test::files_under;
using test::fresh;
using test::Outcome;
using test::run_kvsim;

/// Little memory besides the weights, so that sequences wait and are preempted.
void write_service(const fs::path& folder, std::string_view more) {
  test::write(folder / "s.json", fmt::format(R"({{"kind": "serve",
    "model": "llama-2-7b", "gpu": "A100-80GB-SXM", "memory": {{"hbm": "15.5 GiB"}},
    "requests": {{"arrivals": {{"kind": "poisson", "rate": 8}}, "count": 40,
                 "prompt_tokens": {{"kind": "lognormal", "mean": 500, "p99": 1200}},
                 "output_tokens": 60}},
    "slo": {{"ttft": "2 s", "tpot": "80 ms"}},
    "figures": ["goodput", "ttft_cdf", "running_timeline", "memory_vs_load"]{}}})",
                                             more));
}
constexpr std::string_view kPaged = R"(, "stack": "vllm", "host_memory": "16 GiB",
    "method": ["full", {"name": "snapkv", "budget": 256}],
    "scheduler": ["vllm-v1", "vllm-v0", {"name": "vllm-v0", "swap": true}, "sglang", "trtllm"])";
constexpr std::string_view kStatic = R"(, "stack": "hf-sdpa", "method": ["full", "streaming-llm"],
    "scheduler": {"name": "static", "batch": 4})";

TEST_CASE("every scheduler's results folder has the same bytes on one thread or two") {
  for (const std::string_view stack : {kPaged, kStatic}) {
    INFO(std::string{stack});
    const fs::path folder = fresh("serve-bytes");
    write_service(folder, stack);
    std::map<std::string, std::string> first;
    for (const char* threads : {"1", "1", "2"}) {
      fs::remove_all(folder / "out");
      const Outcome outcome =
          run_kvsim({"run", "s.json", "-q", "-o", "out", "-j", threads}, folder);
      REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
      const auto files = files_under(folder / "out");
      if (first.empty()) first = files;
      REQUIRE(files.size() == first.size());
      for (const auto& [name, text] : first) {
        INFO(name);
        REQUIRE(files.contains(name));
        CHECK((files.at(name) == text));
      }
    }
    for (const char* name : {"result.json", "points.csv", "requests.csv", "timeline.csv",
                             "timeline.json", "report.html"}) {
      INFO(name);
      CHECK(first.contains(name));
    }
    CHECK(std::count_if(first.begin(), first.end(), [](const auto& file) {
            return file.first.starts_with("figures/") && file.first.ends_with(".csv");
          }) >= 3);
    // Schedulers with preemption did preempt.
    if (stack == kStatic) continue;
    const json result = json::parse(first.at("result.json"));
    REQUIRE(result.at("points").size() == 10);
    std::int64_t preemptions = 0;
    for (const json& point : result.at("points")) {
      preemptions += point.at("preemptions").get<std::int64_t>();
    }
    CHECK(preemptions > 10);
  }
}

TEST_CASE("a swept service has the same bytes on any number of threads and a run's metrics") {
  const fs::path folder = fresh("serve-sweep");
  write_service(folder, R"(, "stack": "vllm", "host_memory": "16 GiB")");
  const std::vector<std::string> axes{
      "--vary", R"(/scheduler="vllm-v1",{"name": "vllm-v0", "swap": true},"trtllm")", "--vary",
      R"(/method="full",{"name": "snapkv", "budget": 256})"};
  std::map<std::string, std::string> first;
  for (const char* threads : {"1", "2", "1"}) {
    fs::remove_all(folder / "out");
    std::vector<std::string> words{"sweep", "s.json", "-q", "-o", "out", "-j", threads};
    words.insert(words.end(), axes.begin(), axes.end());
    const Outcome outcome = run_kvsim(words, folder);
    REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
    if (first.empty()) first = files_under(folder / "out");
    CHECK((files_under(folder / "out") == first));
  }
  const json sweep = json::parse(first.at("sweep.json"));
  REQUIRE(sweep.at("points").size() == 6);
  const Outcome alone = run_kvsim(
      {"run", "s.json", "--json", "--set", R"(/scheduler={"name": "vllm-v0", "swap": true})",
       "--set", R"(/method={"name": "snapkv", "budget": 256})"},
      folder);
  REQUIRE_MESSAGE(alone.status == 0, alone.err);
  const json run = json::parse(alone.out);
  const auto same = std::find_if(
      sweep.at("points").begin(), sweep.at("points").end(),
      [&](const json& point) { return point.at("hash") == run.at("scenario").at("hash"); });
  REQUIRE(same != sweep.at("points").end());
  std::size_t compared = 0;
  for (const auto& [key, value] : same->at("results").items()) {
    if (!run.at("points").at(0).contains(key)) continue;
    INFO(key);
    CHECK(value == run.at("points").at(0).at(key));
    ++compared;
  }
  CHECK(compared >= 15);
}

}  // namespace
}  // namespace kvsim
