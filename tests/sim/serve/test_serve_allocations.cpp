// Static batches of a service, with every allocation simulated on an allocator that exists for the
// whole run.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/units/error.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/report/service/serve_json.hpp"
#include "sim/serve/service/serve_run.hpp"
#include "tests/support/check.hpp"
#include "tests/support/machines.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

using test::request;

struct Case {
  std::string stack = "hf-sdpa";
  std::int64_t batch = 4;
  std::vector<Request> requests{};
  std::string conf{};
  bool simulates = true;
  Llm llm = test::small_llm();
  Gpu gpu = test::a800();

  [[nodiscard]] ServeSpec spec() const {
    auto trace = std::make_shared<RequestTrace>();
    trace->requests = requests;
    ServeSpec spec{.llm = &llm,
                   .gpu = &gpu,
                   .stack = &find_stack(stack),
                   .requests = trace,
                   .scheduler = {.name = "static", .batch = batch}};
    if (simulates) spec.allocator = parse_alloc_conf(conf, "conf");
    return spec;
  }
  [[nodiscard]] ServeResult run() const { return run_serve(spec()); }
  /// Adds `n` requests that are all present from the start.
  void add(std::int64_t n, std::int32_t prompt, std::int32_t output) {
    for (std::int64_t i = 0; i < n; ++i) requests.push_back(request(0, prompt, output));
  }
};

Bytes weights_of(const Llm& llm) {
  Bytes sum;
  for (const WeightTensor& t : weight_tensors(llm, Dtype::kFp16)) sum += round_up(t.bytes, 512_B);
  return sum;
}

/// Requests of different lengths: each batch leaves pieces that do not fit any tensor of the next
/// batch.
Case mixed(const std::string& stack) {
  Case c{.stack = stack};
  test::Dice dice{5};
  for (int i = 0; i < 32; ++i) {
    const std::int32_t prompt = dice.between(50, 1500);
    c.requests.push_back(request(0, prompt, dice.between(2, 120)));
  }
  return c;
}

TEST_CASE("one batch of a service makes the allocations of the static run of its shape") {
  for (const char* stack : {"hf-sdpa", "hf-eager", "hf-flash", "hf-legacy", "torch-static",
                            "torch-standard", "gpt-fast"}) {
    for (const char* conf : {"", "expandable_segments:True"}) {
      INFO(std::string{stack}, " ", std::string{conf});
      Case c{.stack = stack, .batch = 3, .conf = conf};
      c.add(3, 700, 60);
      const ServeResult served = c.run();
      REQUIRE(served.allocator.has_value());
      StaticSpec spec{.llm = &c.llm,
                      .gpu = &c.gpu,
                      .stack = &find_stack(stack),
                      .method = std::make_shared<test::FullMethod>(),
                      .batch = 3,
                      .prompt_tokens = 700,
                      .output_tokens = 59,  // the first token is generated at the prompt's end
                      .allocator = parse_alloc_conf(conf, "conf")};
      // A service reserves for all tokens of a request, including the last one.
      if (spec.stack->growth == CacheGrowth::kStatic) spec.options.max_model_len = 760;
      const StaticResult alone = run_static(spec);
      REQUIRE(alone.allocator.has_value());
      CHECK(served.allocator->end.reserved_peak == alone.allocator->end.reserved_peak);
      CHECK(served.allocator->end.allocated_peak == alone.allocator->end.allocated_peak);
      CHECK(served.allocator->end.device_allocs == alone.allocator->end.device_allocs);
      CHECK(served.allocator->tensor_peak == alone.allocator->tensor_peak);
      CHECK(served.allocator->worst_fragmentation == alone.allocator->worst_fragmentation);
      CHECK(served.allocator->owners_at_peak == alone.allocator->owners_at_peak);
      CHECK(served.allocator->steps == alone.allocator->steps);
      CHECK(served.reserved_hbm == find_stack(stack).context + alone.allocator->end.reserved_peak);
    }
  }
}

TEST_CASE("all memory of a batch is free when it has ended and segments outlive it") {
  for (const char* stack : {"hf-sdpa", "hf-eager", "hf-legacy", "torch-static", "gpt-fast"}) {
    INFO(std::string{stack});
    const Case c = mixed(stack);
    const ServeResult r = c.run();
    REQUIRE(r.allocator.has_value());
    CHECK(r.completed == 32);
    const AllocatorStats& end = r.allocator->end;
    // Blocks may exceed the request by a remainder that is too small to split, 1 MiB per tensor.
    const Bytes weights = weights_of(c.llm);
    CHECK(end.requested <= weights);
    CHECK(end.allocated >= weights);
    CHECK(end.allocated <=
          weights + 1_MiB * static_cast<std::int64_t>(weight_tensors(c.llm, Dtype::kFp16).size()));
    CHECK(end.reserved > end.allocated);
    CHECK(end.reserved_peak >= end.allocated_peak);
    CHECK(end.allocated_peak >= r.allocator->tensor_peak);
    // The rounded bytes of the operators' graphs: the allocator has one block per weight tensor,
    // and a step's input is one tensor, not two.
    const Bytes tensors = r.peak_hbm - find_stack(stack).context;
    CHECK(static_cast<double>(r.allocator->tensor_peak.count()) ==
          test::rel(static_cast<double>(tensors.count()), 0.02));
    CHECK(r.reserved_hbm >= r.peak_hbm);
    CHECK(r.reserved_hbm <= r.usable_hbm);
    bool sampled = false;
    for (const ServeSample& s : r.timeline.at(0)) {
      CHECK(s.reserved <= r.reserved_hbm);
      sampled = sampled || s.reserved > Bytes{};
    }
    CHECK(sampled);
  }
}

TEST_CASE("simulated allocations change nothing as long as they fit") {
  Case c = mixed("hf-sdpa");
  const ServeResult simulated = c.run();
  c.simulates = false;
  const ServeResult analytic = c.run();
  CHECK(!analytic.allocator.has_value());
  CHECK(analytic.reserved_hbm == Bytes{});
  CHECK(simulated.makespan == analytic.makespan);
  CHECK(simulated.peak_hbm == analytic.peak_hbm);
  CHECK(simulated.iterations == analytic.iterations);
}

TEST_CASE("the same service makes the same allocations") {
  const Case c = mixed("hf-eager");
  const AllocationReport a = c.run().allocator.value();
  const AllocationReport b = c.run().allocator.value();
  CHECK(a.end.reserved_peak == b.end.reserved_peak);
  CHECK(a.end.reserved == b.end.reserved);
  CHECK(a.end.device_allocs == b.end.device_allocs);
  CHECK(a.worst_fragmentation == b.worst_fragmentation);
  CHECK(a.owners_at_peak == b.owners_at_peak);
}

TEST_CASE("a longer batch cannot use the segments that a shorter one left") {
  const auto serve = [](const std::vector<std::int32_t>& prompts) {
    Case c{.batch = 1, .llm = test::llama2_7b()};
    for (const std::int32_t prompt : prompts) c.requests.push_back(request(0, prompt, 10));
    return c.run();
  };
  // Keys of a layer: 8 MiB, two per segment of 20 MiB; and 24 MiB, for which such a segment is too
  // small.
  const ServeResult one = serve({1024}), other = serve({3072}), both = serve({1024, 3072});
  CHECK(both.peak_hbm == std::max(one.peak_hbm, other.peak_hbm));
  CHECK(both.reserved_hbm >= std::max(one.reserved_hbm, other.reserved_hbm) + 256_MiB);
  CHECK(both.reserved_hbm <= one.reserved_hbm + other.reserved_hbm);
}

TEST_CASE("a batch that fits by its bytes may be lost because of fragmentation") {
  Case c{.stack = "hf-eager"};
  c.llm = test::llama2_7b();
  c.batch = 1;
  c.add(1, 4000, 300);
  c.requests.push_back(request(0, 100, 5));
  c.simulates = false;
  const ServeResult roomy = c.run();
  REQUIRE(roomy.completed == 2);
  c.gpu.hbm_usable = roomy.peak_hbm + 40_MiB;
  CHECK(c.run().completed == 2);
  c.simulates = true;
  const ServeResult r = c.run();
  // The script catches the exception and runs its next batch.
  CHECK(r.oom_events == 1);
  CHECK(r.rejected == 1);
  CHECK(r.completed == 1);
  REQUIRE(r.ooms.size() == 1);
  const ServeOom& oom = r.ooms[0];
  INFO(oom.what);
  CHECK(oom.request == 0);
  CHECK(oom.what.find("its tensors need") != std::string::npos);
  CHECK(oom.message.starts_with("CUDA out of memory. Tried to allocate "));
  CHECK(oom.message.find("Held by: weights ") != std::string::npos);
  CHECK(oom.owners.contains("weights"));
  CHECK(oom.owners.contains("context"));
  CHECK(oom.requested > Bytes{});
  CHECK(r.peak_hbm <= c.gpu.hbm_usable);
  CHECK(r.reserved_hbm <= c.gpu.hbm_usable);
  REQUIRE(r.allocator->oom.has_value());
  CHECK(r.allocator->end.requested <= weights_of(c.llm));
}

TEST_CASE("a batch that exceeds memory also by its bytes reports both") {
  Case c{.stack = "hf-sdpa"};
  c.add(8, 2000, 400);
  c.simulates = false;
  const Bytes peak = c.run().peak_hbm;
  c.gpu.hbm_usable = peak - 20_MiB;
  const ServeResult analytic = c.run();
  c.simulates = true;
  const ServeResult r = c.run();
  CHECK(analytic.oom_events == 2);
  CHECK(r.oom_events == 2);
  CHECK(r.rejected == 8);
  for (std::size_t i = 0; i < r.ooms.size(); ++i) {
    CHECK(r.ooms[i].what.find(" too large") != std::string::npos);
    CHECK(r.ooms[i].message.starts_with("CUDA out of memory. "));
    CHECK(r.ooms[i].at <= analytic.ooms.at(i).at);
  }
  CHECK(r.output_tok_s <= analytic.output_tok_s);
}

TEST_CASE("weights that do not load because of fragmentation are reported once") {
  Case c{.stack = "hf-sdpa"};
  c.llm = test::llama2_7b();
  c.add(8, 100, 5);
  // The separate segment of each weight is rounded up.
  c.gpu.hbm_usable = find_stack("hf-sdpa").context + weights_of(c.llm) + 512_B;
  const ServeResult r = c.run();
  CHECK(r.rejected == 8);
  REQUIRE(r.ooms.size() == 1);
  CHECK(r.ooms[0].request == -1);
  CHECK(r.ooms[0].what.find("does not load: CUDA out of memory") != std::string::npos);
}

TEST_CASE("results have keys for reserved memory only if it was simulated") {
  Case c{.stack = "hf-eager"};
  c.add(4, 300, 20);
  for (const bool simulates : {true, false}) {
    c.simulates = simulates;
    const ServeResult r = c.run();
    ScenarioPoint point;
    point.serve = c.spec();
    const auto json = serve_point_json(point, r, std::nullopt);
    CHECK(json.contains("reserved_hbm_bytes") == simulates);
    CHECK(json.contains("allocator") == simulates);
    if (!simulates) continue;
    CHECK(json.at("reserved_hbm_bytes") == r.reserved_hbm.count());
    CHECK(json.at("allocator").at("reserved_peak_bytes") == r.allocator->end.reserved_peak.count());
    CHECK(json.at("allocator").at("steps") == 19);
    CHECK(json.at("allocator").at("oom").is_null());
  }
}

TEST_CASE("a paged stack's service has one allocation for its caches and is refused") {
  Case c{.stack = "vllm"};
  c.add(4, 100, 5);
  CHECK_THROWS_WITH_AS((void)c.run(), doctest::Contains("stack vllm keeps the caches"), InputError);
}

}  // namespace
}  // namespace kvsim
