// Prints the time of a service of 1,000 requests from files to files: the whole program, from the
// scenario and its CSV of requests to the results folder, without figures. Exits 1 if the median of
// the runs exceeds the gate. Also prints processor time, which other programs hardly change. Not a
// test.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

namespace {

namespace fs = std::filesystem;

constexpr int kRuns = 25;
constexpr double kGateSeconds = 0.05;

void write_inputs(const fs::path& folder) {
  std::ofstream requests{folder / "requests.csv"};
  requests << "arrival_s,prompt_tokens,output_tokens\n";
  std::uint64_t state = 1;
  const auto uniform = [&] {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (static_cast<double>(state >> 11U) + 0.5) / 9007199254740992.0;
  };
  double at = 0;
  for (int i = 0; i < 1000; ++i) {
    at -= std::log(uniform()) / 6;
    const double prompt = 500 + 1000 * uniform();
    const double output = 100 + 200 * uniform();
    requests << fmt::format("{:.6f},{:.0f},{:.0f}\n", at, prompt, output);
  }
  std::ofstream{folder / "scenario.json"} << R"({"kind": "serve", "model": "llama-2-7b",
    "gpu": "A100-80GB-SXM", "stack": "vllm", "requests": {"file": "requests.csv"}})";
}

/// Processor time of all children that have ended, on all of their threads.
double children_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double median_of(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

}  // namespace

int main() {
  const fs::path folder = fs::temp_directory_path() / fmt::format("bench_files_{}", getpid());
  fs::create_directories(folder);
  write_inputs(folder);
  const std::string command =
      fmt::format("cd '{}' && '{}' run scenario.json -o out --no-figures > run.log 2>&1",
                  folder.string(), KVSIM_PROGRAM);
  std::vector<double> seconds, cpu;
  bool ran = true;
  for (int i = 0; i < kRuns && ran; ++i) {
    fs::remove_all(folder / "out");
    const double cpu_before = children_cpu_seconds();
    const auto began = std::chrono::steady_clock::now();
    ran = std::system(command.c_str()) == 0;
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    cpu.push_back(children_cpu_seconds() - cpu_before);
  }
  if (!ran) {
    fmt::print("kvsim run failed: see {}\n", (folder / "run.log").string());
    return 1;
  }
  fs::remove_all(folder);
  const double median = median_of(seconds);
  fmt::print(
      "1,000 requests, files in to files out: median of {} runs {:.1f} ms, fastest {:.1f} ms (at "
      "most {:.0f} ms); processor time {:.1f} ms\n",
      kRuns, 1e3 * median, 1e3 * *std::min_element(seconds.begin(), seconds.end()),
      1e3 * kGateSeconds, 1e3 * median_of(cpu));
  return median <= kGateSeconds ? 0 : 1;
}
