// Prints the time of a plan on this machine: the highest rate of 6 methods on 4 GPUs under 3
// workloads of 2,000 requests each, searched on the threads of the machine, with wall time,
// processor time and number of runs. Exits 1 if it takes longer than the gate. Not a test.
// `bench_plan N` uses N threads.

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <unistd.h>

#include "sim/engine/parallel.hpp"
#include "sim/plan/plan.hpp"
#include "sim/scenario/read/read_scenario.hpp"

int main(int argc, char** argv) {
  using namespace kvsim;  // NOLINT
  const int threads = argc > 1 ? std::atoi(argv[1]) : 0;
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / fmt::format("bench_plan_{}.json", getpid());
  std::ofstream{file} << R"({
    "kind": "serve", "model": "llama-3.1-8b", "stack": "vllm",
    "gpu": ["A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM", "L40S"],
    "method": ["full", {"name": "streaming-llm", "budget": 0.2}, {"name": "h2o", "budget": 0.2},
               {"name": "snapkv", "budget": 0.2}, {"name": "pyramidkv", "budget": 0.2},
               {"name": "zeromerge", "budget": 0.2}],
    "requests": [
      {"arrivals": {"kind": "poisson", "rate": 6}, "count": 2000, "prompt_tokens": 1000,
       "output_tokens": 200},
      {"arrivals": {"kind": "gamma", "rate": 2, "cv": 2}, "count": 2000, "prompt_tokens": 4000,
       "output_tokens": 100},
      {"arrivals": {"kind": "poisson", "rate": 4}, "count": 2000,
       "prompt_tokens": {"kind": "lognormal", "mean": 1200, "p99": 6000},
       "output_tokens": {"kind": "lognormal", "mean": 200, "p99": 800}}],
    "slo": {"ttft": "3 s", "tpot": "100 ms"},
    "plan": {"questions": ["highest_rate"]}})";
  const Scenario scenario = read_scenario(file, {});
  std::filesystem::remove(file);
  const auto cpu = [] {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const auto began = std::chrono::steady_clock::now();
  const double cpu_began = cpu();
  const PlanResult plan = run_plan(scenario, {.threads = threads});
  const double wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::size_t runs = 0;
  std::size_t answered = 0;
  for (const PlanCandidate& one : plan.candidates) {
    runs += one.probes;
    answered += one.answer ? 1U : 0U;
  }
  fmt::print("plan of 6 methods x 4 GPUs x 3 workloads of 2,000 requests\n");
  fmt::print("  candidates      {} ({} with an answer)\n", plan.candidates.size(), answered);
  fmt::print("  runs            {} (without those of ranges and probabilities)\n", runs);
  fmt::print("  threads         {}\n", thread_count(threads));
  constexpr double kGateSeconds = 60;  // on two cores
  fmt::print("  wall            {:.2f} s (at most {} s on two cores)\n", wall, kGateSeconds);
  fmt::print("  processor time  {:.2f} s\n", cpu() - cpu_began);
  return wall <= kGateSeconds ? 0 : 1;
}
