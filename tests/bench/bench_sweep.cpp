// Prints the time of points of a sweep, the share of reading them, and the scaling of threads: wall
// time of one thread over n times that of n threads. For comparison, the limit of the machine: n
// processes that share nothing, each with its part of the points. Runs of one thread, n threads and
// n processes alternate and the smallest of each counts, because other programs only add time; for
// the same reason nothing is gated. Losses of threads relative to processes are caused by kvsim
// (locks, the allocator, uneven shares), losses of processes by the machine (caches, memory,
// clock). Processes of one sweep: time mpirun -n N kvsim sweep (docs/sweeps.md). Not a test.

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/engine/parallel.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/sweep/run_sweep.hpp"
#include "sim/sweep/runners.hpp"

namespace {

using namespace kvsim;  // NOLINT

struct Took {
  double wall_s = 0;
  double cpu_s = 0;  // of all threads: other programs are not counted
};

/// CPU time of this process and its finished children.
double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  rusage waited{};
  getrusage(RUSAGE_CHILDREN, &waited);
  const auto seconds = [](const timeval& of) {
    return static_cast<double>(of.tv_sec) + 1e-6 * static_cast<double>(of.tv_usec);
  };
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec) +
         seconds(waited.ru_utime) + seconds(waited.ru_stime);
}

template <class Work>
Took timed(Work&& work) {
  const auto began = std::chrono::steady_clock::now();
  const double cpu = cpu_seconds();
  work();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(),
          cpu_seconds() - cpu};
}

Took faster(const Took& a, const Took& b) {
  return {std::min(a.wall_s, b.wall_s), std::min(a.cpu_s, b.cpu_s)};
}

/// n processes of one thread that share only the points.
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
  constexpr int kTurns = 5;
  for (const int n : {2, 4}) {
    if (n > thread_count(0)) continue;
    const auto by_threads = [&](int threads) {
      return timed([&] {
        run_sweep_points(plan, todo, runner, {.threads = threads}, [](auto, const auto&) {});
      });
    };
    constexpr Took kLong{1e9, 1e9};
    Took alone = kLong, together = kLong, processes = kLong;
    for (int turn = 0; turn < kTurns; ++turn) {
      alone = faster(alone, by_threads(1));
      together = faster(together, by_threads(n));
      processes = faster(processes, apart(n, plan, todo, runner));
    }
    const auto say = [&](const char* who, const Took& took, int workers) {
      fmt::print("{:<32} a point {:6.1f} us of wall time, {:6.1f} us of processor time", who,
                 took.wall_s / kPoints * 1e6, took.cpu_s / kPoints * 1e6);
      if (workers > 1) {
        fmt::print("; efficiency {:.0f} % by wall, {:.0f} % by processor time",
                   100 * alone.wall_s / took.wall_s / workers, 100 * alone.cpu_s / took.cpu_s);
      }
      fmt::print("\n");
    };
    say("1 thread:", alone, 1);
    say(fmt::format("{} threads:", n).c_str(), together, n);
    say(fmt::format("{} processes that share nothing:", n).c_str(), processes, n);
    fmt::print("{} threads reach {:.0f} % of what {} processes do\n", n,
               100 * processes.wall_s / together.wall_s, n);
  }
  return 0;
}
