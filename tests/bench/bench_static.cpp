// Prints the time of a static point and of a long static run on this machine, and the time of
// points of one combination after it is compiled. Exits 1 if points with fitted kernels take more
// processor time than the gates: with random prompt, decode step and memory, including the
// resolution of a method that depends on the prompt; and runs on a grid. With methods on the
// command line, only these are printed ("keepkv@0.25" sets the budget). Not a test.

#include <ctime>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "models/cost/rates/calibration.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "sim/batch/point/compiled_point.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/serve/cache/sequence_footprint.hpp"
#include "tests/support/machines.hpp"

namespace {

using namespace kvsim;  // NOLINT

constexpr double kPointGateMicros = 30;
constexpr double kGridGateMicros = 10;  // a million points in ten seconds

/// Processor time of this process: other programs on the machine do not count.
double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

constexpr int kRounds = 5;

/// The fastest of several rounds, because other programs only add time. `prepare` runs before each
/// round and is not counted.
template <class Prepare, class F>
double micros_per_call(int calls, Prepare&& prepare, F&& f) {
  double min = 0;
  for (int round = 0; round < kRounds; ++round) {
    prepare();
    f();
    const double start = cpu_seconds();
    for (int i = 0; i < calls; ++i) f();
    const double took = cpu_seconds() - start;
    if (round == 0 || took < min) min = took;
  }
  return min * 1e6 / calls;
}

template <class F>
double micros_per_call(int calls, F&& f) {
  return micros_per_call(
      calls, [] {}, f);
}

void bench_runs() {
  const Llm llm = test::llama2_7b();
  const Gpu gpu = test::a800();
  const auto full = std::make_shared<test::FullMethod>();
  const auto ring = std::make_shared<test::BoundedMethod>(
      test::BoundedOptions{.budget = 4096, .needs = {}, .side_per_entry = 8});
  for (const char* stack : {"ideal", "hf-sdpa", "hf-eager"}) {
    const auto point = [&](std::shared_ptr<const Method> method, std::int64_t steps,
                           bool time_terms = false) {
      return run_static({.llm = &llm,
                         .gpu = &gpu,
                         .stack = &find_stack(stack),
                         .method = std::move(method),
                         .prompt_tokens = 8000,
                         .output_tokens = steps},
                        {.time_terms = time_terms});
    };
    double sink = 0;
    const double one = micros_per_call(2000, [&] { sink += point(full, 1).flops; });
    const double bounded = micros_per_call(2000, [&] { sink += point(ring, 1).flops; });
    const double with_utilization =
        micros_per_call(200, [&] { sink += point(full, 1, true).flops; });
    const double run = micros_per_call(10, [&] { sink += point(full, 34000).flops; });
    const double ring_run = micros_per_call(10, [&] { sink += point(ring, 34000).flops; });
    fmt::print(
        "{:9} one point {:6.1f} us (full) {:6.1f} us (ring) {:6.1f} us (full, time explained); "
        "34,000 steps {:7.0f} us (full) {:7.0f} us (ring){}\n",
        stack, one, bounded, with_utilization, run, ring_run, sink > 0 ? "" : "!");
  }
}

/// Points of one combination; true if they meet the gates.
bool bench_points(const Llm& llm, const std::string& stack_name, const std::string& method_name,
                  const Budget& budget = {.entries = 1000}) {
  Stack stack = find_stack(stack_name);
  for (const KernelOp op : {KernelOp::kDecodeAttention, KernelOp::kPrefillAttention, KernelOp::kMla,
                            KernelOp::kGemm, KernelOp::kElementwise}) {
    stack.kernels[std::string{name_of(op)}] = "*";
  }
  const MethodContext site = method_site(llm, Dtype::kFp16);
  const MethodSpec method{
      method_name, {}, takes_budget(method_name) ? std::optional{budget} : std::nullopt};
  const Calibration& calibration = builtin_calibration();
  const PointSpec spec{
      .llm = &llm,
      .gpu = &find_gpu("H200-141GB-SXM"),
      .stack = &stack,
      .method = [&](std::int64_t prompt) { return make_method(method, prompt, site); },
      .calibration = &calibration};
  double sink = 0;
  const auto ask = [&](CompiledPoint& compiled, const Point& point) {
    const PointResult got = compiled.at(point);
    sink += got.times ? got.times->tok_s : 1;
  };
  {
    CompiledPoint warm{spec};  // chooses kernels, once per process
    ask(warm, {.batch = 1, .prompt_tokens = 1000, .output_tokens = 1});
  }
  const double compile = micros_per_call(20, [&] {
    CompiledPoint compiled{spec};
    ask(compiled, {.batch = 1, .prompt_tokens = 1000, .output_tokens = 1});
  });
  std::optional<CompiledPoint> compiled;
  const auto recompile = [&] { compiled.emplace(spec); };
  std::uint64_t state = 1;
  const auto draw = [&](std::uint64_t n) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::int64_t>((state >> 33U) % n);
  };
  const int n_calls = method_name == "full" ? 20000 : 2000;
  // Batch and prompt are drawn again each time: only decode forms of the last point are reused.
  const double point = micros_per_call(n_calls, recompile, [&] {
    ask(*compiled, {.batch = 1 + draw(32), .prompt_tokens = 1000 + draw(4096), .output_tokens = 1});
  });
  // The same for known prompts: their resolved methods are reused.
  constexpr std::int64_t kPrompts = 64;
  const auto prompt_of = [](std::int64_t i) { return 1000 + 64 * i; };
  const auto resolved = [&] {
    compiled.emplace(spec);
    for (std::int64_t i = 0; i < kPrompts; ++i) {
      ask(*compiled, {.batch = 1, .prompt_tokens = prompt_of(i), .output_tokens = 1});
    }
  };
  const double again = micros_per_call(n_calls, resolved, [&] {
    ask(*compiled, {.batch = 1 + draw(32),
                    .prompt_tokens = prompt_of(draw(static_cast<std::uint64_t>(kPrompts))),
                    .output_tokens = 1});
  });
  const double run = micros_per_call(n_calls, recompile, [&] {
    ask(*compiled, {.batch = 1 + draw(32),
                    .prompt_tokens = 1000 + draw(256),
                    .output_tokens = 1 + draw(1024)});
  });
  fmt::print(
      "{:14} {:8} {:9} {}compiled with its first point in {:6.1f} us; a random point {:5.2f} us, "
      "of {} known prompts {:5.2f} us, a random run of up to 1024 steps {:7.2f} us\n",
      llm.name, stack_name, method_name,
      budget.fraction > 0 ? fmt::format("at {} ", budget.fraction) : "", compile, point, kPrompts,
      again, run);
  // 20 batches x 500 prompts x 100 outputs; a tenth of the prompts for methods.
  const bool full = method_name == "full";
  const std::int64_t stride = full ? 64 : 640;
  CompiledPoint fresh{spec};
  std::int64_t fit = 0, asked_for = 0;
  const double start = cpu_seconds();
  for (std::int64_t batch = 1; batch <= 20; ++batch) {
    for (std::int64_t prompt = stride; prompt <= 64 * 500; prompt += stride) {
      for (std::int64_t output = 10; output <= 1000; output += 10) {
        fit += fresh.at({batch, prompt, output}).fits ? 1 : 0;
        ++asked_for;
      }
    }
  }
  const double took = cpu_seconds() - start;
  const double each = 1e6 * took / static_cast<double>(asked_for);
  fmt::print("{:14} {:8} {:9} grid of {} points in {:.2f} s: {:.2f} us each, {} fit\n", llm.name,
             stack_name, method_name, asked_for, took, each, fit);
  return sink > 0 && point <= kPointGateMicros && each <= kGridGateMicros;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    bool good = true;
    for (int i = 1; i < argc; ++i) {
      const std::string requested{argv[i]};
      const std::size_t at = requested.find('@');
      const double budget = at == std::string::npos ? 1000 : std::stod(requested.substr(at + 1));
      good = bench_points(find_llm("llama-3.1-8b"), "hf-sdpa", requested.substr(0, at),
                          budget < 1 ? Budget{.fraction = budget, .entries = 0}
                                     : Budget{.entries = static_cast<std::int64_t>(budget)}) &&
             good;
    }
    return good ? 0 : 1;
  }
  bench_runs();
  bool good = true;
  for (const char* stack : {"ideal", "hf-sdpa", "hf-eager", "vllm"}) {
    good = bench_points(find_llm("llama-3.1-8b"), stack, "full") && good;
  }
  for (const char* method : {"streaming-llm", "h2o", "zeromerge", "snapkv", "kivi-4", "minicache",
                             "quest", "pyramidkv", "keepkv"}) {
    good = bench_points(find_llm("llama-3.1-8b"), "hf-sdpa", method) && good;
  }
  if (!good) {
    fmt::print("above {} us a point\n", kPointGateMicros);
  }
  return good ? 0 : 1;
}
