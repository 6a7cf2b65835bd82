// Prints what points of a sweep cost, how much of that is reading them, and how well threads share
// them: wall time of one thread over that of n, by n; beside it what the machine allows: as many
// processes that share nothing, each with its part of the points. Other programs on the machine
// count against both, so that nothing is gated. Processes: time mpirun -n N kvsim sweep
// (docs/sweeps.md). Not a test.

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <vector>

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/engine/parallel.hpp"
#include "sim/sweep/run_sweep.hpp"
#include "sim/sweep/runners.hpp"

namespace {

using namespace kvsim;  // NOLINT

struct Took {
  double wall_s = 0;
  double cpu_s = 0;  // of all threads: what other programs do not count against
};

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class Work>
Took timed(Work&& work) {
  const auto began = std::chrono::steady_clock::now();
  const double cpu = cpu_seconds();
  work();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(),
          cpu_seconds() - cpu};
}

/// The wall time of n processes of one thread that share the points and nothing else.
Took apart(int n, const SweepPlan& plan, const std::vector<std::size_t>& todo,
           const PointRunner& runner) {
  return timed([&] {
    for (int part = 0; part < n; ++part) {
      if (fork() != 0) continue;
      std::vector<std::size_t> mine;
      for (std::size_t i = static_cast<std::size_t>(part); i < todo.size();
           i += static_cast<std::size_t>(n)) {
        mine.push_back(todo[i]);
      }
      run_sweep_points(plan, mine, runner, {.threads = 1}, [](auto, const auto&) {});
      _exit(0);
    }
    while (wait(nullptr) > 0) {
    }
  });
}

}  // namespace

int main() {
  constexpr int kPoints = 4000;
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / fmt::format("bench_sweep_{}.json", getpid());
  std::ofstream{file} << fmt::format(
      R"({{"model": "llama-3.1-8b", "gpu": ["A100-80GB-SXM", "H100-80GB-SXM"], "stack": "hf-sdpa",
           "prompt_tokens": 8192, "output_tokens": 256, "method": "h2o",
           "sweep": {{"mode": "random", "samples": {}, "axes": [
             {{"key": "/batch", "low": 1, "high": 64, "integer": true}},
             {{"key": "/method/budget", "low": 0.05, "high": 0.9}}]}}}})",
      kPoints);
  const SweepPlan plan{scenario_document(file, {}), file, {}};
  std::filesystem::remove(file);
  std::vector<std::size_t> todo(plan.size());
  for (std::size_t i = 0; i < todo.size(); ++i) todo[i] = i;
  const PointRunner runner = runner_of("static");
  const Took reading = timed([&] {
    for (const std::size_t i : todo) (void)plan.scenario(i);
  });
  fmt::print("reading a point alone: {:.1f} us of processor time\n", reading.cpu_s / kPoints * 1e6);
  Took alone;
  for (const int threads : {1, 2, 4}) {
    if (threads > thread_count(0)) continue;
    const Took took = timed([&] {
      run_sweep_points(plan, todo, runner, {.threads = threads}, [](auto, const auto&) {});
    });
    if (threads == 1) alone = took;
    fmt::print(
        "{} threads: a point {:7.1f} us of processor time, {:7.1f} us of wall time; efficiency by "
        "wall {:.0f} %, by processor time {:.0f} %\n",
        threads, took.cpu_s / kPoints * 1e6, took.wall_s / kPoints * 1e6,
        100 * alone.wall_s / took.wall_s / threads, 100 * alone.cpu_s / took.cpu_s);
    if (threads == 1) continue;
    const double best = apart(threads, plan, todo, runner).wall_s;
    fmt::print("{} processes that share nothing: {:7.1f} us of wall time, {:.0f} % of one's each\n",
               threads, best / kPoints * 1e6, 100 * alone.wall_s / best / threads);
  }
  return 0;
}
