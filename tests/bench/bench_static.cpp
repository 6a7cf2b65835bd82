// Prints what a static point and a long static run cost on this machine. Not a test.

#include <chrono>

#include <fmt/format.h>

#include "models/cost/compiled.hpp"
#include "sim/serve/static_run.hpp"
#include "tests/support/machines.hpp"

namespace {

template <class F>
double micros_per_call(int calls, F&& f) {
  f();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) f();
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  return took.count() / calls;
}

}  // namespace

int main() {
  using namespace kvsim;  // NOLINT
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
    const double told = micros_per_call(200, [&] { sink += point(full, 1, true).flops; });
    const double run = micros_per_call(10, [&] { sink += point(full, 34000).flops; });
    const double ring_run = micros_per_call(10, [&] { sink += point(ring, 34000).flops; });
    fmt::print(
        "{:9} one point {:6.1f} us (full) {:6.1f} us (ring) {:6.1f} us (full, time explained); "
        "34,000 steps {:7.0f} us (full) {:7.0f} us (ring){}\n",
        stack, one, bounded, told, run, ring_run, sink > 0 ? "" : "!");
  }
  return 0;
}
