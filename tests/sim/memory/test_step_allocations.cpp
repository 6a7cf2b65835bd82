#include <memory>

#include "models/llm/catalogue.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/memory/step_allocations.hpp"
#include "tests/support/check.hpp"
#include "tests/support/machines.hpp"

namespace kvsim {
namespace {

struct Case {
  std::string stack = "hf-sdpa";
  std::int64_t batch = 1, prompt = 1000, output = 20;
  std::shared_ptr<const Method> method = std::make_shared<test::FullMethod>();
  AllocatorConfig config{};
  Llm llm = test::llama2_7b();
  Gpu gpu = test::a800();

  [[nodiscard]] StaticSpec spec() const {
    return {.llm = &llm,
            .gpu = &gpu,
            .stack = &find_stack(stack),
            .method = method,
            .batch = batch,
            .prompt_tokens = prompt,
            .output_tokens = output,
            .allocator = config};
  }
};

AllocatorConfig expandable() {
  AllocatorConfig config;
  config.expandable_segments = true;
  return config;
}

TEST_CASE("weight tensors add up to the model in its formats") {
  for (const Llm& llm : builtin_llms()) {
    INFO(llm.name);
    std::int64_t elements = 0;
    Bytes bytes;
    for (const WeightTensor& tensor : weight_tensors(llm, Dtype::kBf16)) {
      CHECK(tensor.elements > 0);
      elements += tensor.elements;
      bytes += tensor.bytes;
    }
    CHECK(elements == parameters(llm));
    CHECK(bytes == loaded_weight_bytes(llm, Dtype::kBf16));
  }
  // Llama-2-7B: embeddings, 32 layers of 4 + 3 matrices and 2 norms, a norm, the output head.
  CHECK(weight_tensors(test::llama2_7b(), Dtype::kFp16).size() == 1 + 32 * 9 + 1 + 1);
}

TEST_CASE("requested bytes of tensors peak where the run's own timeline does") {
  for (const char* stack : {"hf-sdpa", "hf-eager"}) {
    for (const std::int64_t batch : {1, 4}) {
      for (const std::int64_t prompt : {100, 1000}) {
        const Case c{.stack = stack, .batch = batch, .prompt = prompt, .output = 30};
        INFO(stack, " batch ", batch, " prompt ", prompt);
        const StaticResult r = run_static(c.spec());
        REQUIRE(r.allocator.has_value());
        const AllocationReport& report = *r.allocator;
        CHECK(!report.oom);
        CHECK(report.steps == 30);
        const Bytes expected = r.peak_hbm - find_stack(stack).context;
        // The allocator rounds each weight to 512 B blocks. The run has one block for all weights
        // and counts the step's input twice.
        CHECK(static_cast<double>(report.tensor_peak.count()) ==
              test::rel(static_cast<double>(expected.count()), 2e-4));
        CHECK(report.tensor_peak <= report.end.allocated_peak);
        CHECK(report.end.allocated_peak <= report.end.reserved_peak);
        CHECK(report.end.reserved_peak <= r.usable_hbm);
        Bytes held;
        for (const auto& [owner, bytes] : report.owners_at_peak) held += bytes;
        CHECK(held <= report.end.reserved_peak);
        CHECK(report.owners_at_peak.contains("weights"));
      }
    }
  }
}

TEST_CASE("methods that compress at prefill or at each step leave the bytes that the run states") {
  for (const Compaction how : {Compaction::kRing, Compaction::kGather}) {
    for (const PrefillPeak when : {PrefillPeak::kPerLayer, PrefillPeak::kAllLayers}) {
      Case c{.batch = 2, .prompt = 900, .output = 25};
      c.method = std::make_shared<test::BoundedMethod>(test::BoundedOptions{.budget = 300,
                                                                            .compaction = how,
                                                                            .needs = {},
                                                                            .prefill_peak = when,
                                                                            .side_per_entry = 8});
      const StaticResult r = run_static(c.spec());
      REQUIRE(r.allocator.has_value());
      CHECK(!r.allocator->oom);
      Bytes weights;
      for (const WeightTensor& t : weight_tensors(c.llm, Dtype::kFp16)) {
        weights += round_up(t.bytes, 512_B);
      }
      // Only weights and the cache are left at the end. Blocks may exceed the request by a
      // remainder that is too small to split, 1 MiB per tensor.
      const Bytes left = r.allocator->end.allocated;
      CHECK(left >= weights + r.kv_bytes);
      CHECK(left <= weights + r.kv_bytes + 1_MiB * (3 * 32));
    }
  }
}

TEST_CASE("a cache that grows by concatenation fragments unless segments expand or it is static") {
  // Long enough that sizes cross 2 MiB segments several times: 200 steps of 8 KiB per tensor.
  const auto gap = [](const Case& c) {
    const StaticResult r = run_static(c.spec());
    const AllocationReport& report = r.allocator.value();
    CHECK(!report.oom);
    return report.end.reserved_peak - report.tensor_peak;
  };
  for (const std::int64_t prompt : {4000, 8000}) {
    Case c{.prompt = prompt, .output = 1000};
    const Bytes fixed = gap(c);
    CHECK(fixed >= 512_MiB);
    c.config = expandable();
    const Bytes mapped = gap(c);
    CHECK(mapped <= 512_MiB);
    CHECK(mapped * 3 <= fixed);
  }
}

TEST_CASE("a run that fits by its bytes may fail because of fragmentation") {
  // Eager attention on a GPU with exactly its peak.
  Case c{.stack = "hf-eager", .prompt = 4000, .output = 400};
  const StaticResult free_run = run_static(c.spec());
  REQUIRE(!free_run.oom);
  c.gpu.hbm_usable = free_run.peak_hbm + 40_MiB;
  const StaticResult tight = run_static(c.spec());
  CHECK(!tight.oom);
  REQUIRE(tight.allocator->oom.has_value());
  const AllocationRefusal& oom = *tight.allocator->oom;
  CHECK(oom.reason.tried > oom.reason.free);
  CHECK(oom.reason.allocated + oom.reason.requested + find_stack("hf-eager").context <=
        tight.usable_hbm);
  CHECK(oom.reason.message().starts_with("CUDA out of memory. Tried to allocate "));
  CHECK(oom.reason.message().find("\nHeld by: weights ") != std::string::npos);
  CHECK(oom.what.find(" of layer ") != std::string::npos);
  CHECK(tight.allocator->end.retries > 0);
}

TEST_CASE("without memory the run ends immediately and reports where") {
  Case c{.output = 5};
  c.gpu.hbm_usable = 5_GiB;
  const StaticResult load = run_static(c.spec());
  REQUIRE(load.allocator->oom.has_value());
  CHECK(load.allocator->oom->phase == "load");
  CHECK(load.allocator->oom->tokens == 0);
  c.batch = 64;
  c.prompt = 500;
  c.output = 3000;
  c.gpu = test::a800();
  const StaticResult decode = run_static(c.spec());
  REQUIRE(decode.oom.has_value());
  REQUIRE(decode.allocator->oom.has_value());
  // The allocator cannot hold more than the exact bytes.
  CHECK(decode.allocator->oom->step <= decode.oom->step);
  CHECK(decode.allocator->oom->step * 10 >= decode.oom->step * 9);
  // Reserved but unallocated memory when nothing more can be released: at most 2 % of the GPU.
  const OutOfMemory& reason = decode.allocator->oom->reason;
  CHECK((reason.reserved - reason.allocated) * 50 <= decode.usable_hbm);
  CHECK(decode.allocator->oom->tokens == 500 + decode.allocator->oom->step);
}

TEST_CASE("the same run makes the same allocations") {
  const Case c{.batch = 3, .prompt = 300, .output = 50};
  const AllocationReport a = run_static(c.spec()).allocator.value();
  const AllocationReport b = run_static(c.spec()).allocator.value();
  CHECK(a.end.reserved_peak == b.end.reserved_peak);
  CHECK(a.end.reserved == b.end.reserved);
  CHECK(a.end.device_allocs == b.end.device_allocs);
  CHECK(a.worst_fragmentation == b.worst_fragmentation);
  CHECK(a.owners_at_peak == b.owners_at_peak);
}

}  // namespace
}  // namespace kvsim
