#include <memory>
#include <string>

#include <fmt/format.h>

#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/method.hpp"
#include "models/stack/stack.hpp"
#include "sim/batch/point/compiled_point.hpp"
#include "sim/batch/static_run.hpp"
#include "tests/support/check.hpp"
#include "tests/support/machines.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

constexpr std::int64_t kChunk = 2048;                              // vLLM's on an L4
constexpr std::int64_t kRow = std::int64_t{2} * 32 * 8 * 128 * 2;  // bytes per token: 131,072

MethodSpec keeps_a_fifth() { return {"snapkv", {}, Budget{.fraction = 0.2}}; }

StaticSpec spec_of(const MethodSpec& method, std::int64_t batch, std::int64_t prompt) {
  return {.llm = &find_llm("llama-3.1-8b"),
          .gpu = &find_gpu("L4"),
          .stack = &find_stack("vllm"),
          .method = make_method(method, prompt, {}),
          .weight_dtype = Dtype::kBf16,
          .kv_dtype = Dtype::kBf16,
          .batch = batch,
          .prompt_tokens = prompt,
          .output_tokens = 16};
}

/// Bytes of the cache and of uncompressed prompts at the peak, which is in prefill.
std::int64_t cache_in_prefill(const StaticSpec& spec) {
  const StaticResult r = run_static(spec);
  REQUIRE_FALSE(r.oom);
  REQUIRE(r.peak_phase == "prefill");
  return r.peak_owners.at("kv_cache").count();
}

std::int64_t blocks_of(std::int64_t entries) { return (entries + 15) / 16; }

}  // namespace

TEST_CASE("rows of earlier chunks of a prompt stay in the pool until the last chunk") {
  const std::int64_t pool = run_static(spec_of(keeps_a_fifth(), 1, 100)).startup->kv_cache.count();
  const std::int64_t blocks = pool / (16 * kRow);
  // The last chunk is compressed layer by layer; the earlier chunks have to fit.
  const std::int64_t longest = (blocks * 16 / kChunk + 1) * kChunk;
  CHECK_FALSE(run_static(spec_of(keeps_a_fifth(), 1, longest)).oom);
  const StaticResult refused = run_static(spec_of(keeps_a_fifth(), 1, longest + 1));
  REQUIRE(refused.oom);
  CHECK(refused.oom->tokens == longest + 1);
  CHECK(refused.oom->requested.count() == (longest / 16) * 16 * kRow);
  // The next prompt starts after the previous one is compressed.
  const std::int64_t kept = blocks_of(8192 / 5 + 16);
  CHECK(cache_in_prefill(spec_of(keeps_a_fifth(), 1, 8192)) == (8192 - kChunk) * kRow);
  CHECK(cache_in_prefill(spec_of(keeps_a_fifth(), 4, 8192)) ==
        (8192 - kChunk) * kRow + 3 * kept * 16 * kRow);
}

TEST_CASE("prompts within one chunk are compressed layer by layer") {
  StaticSpec spec = spec_of(keeps_a_fifth(), 3, 1000);
  const std::int64_t kept = blocks_of(1000 / 5 + 16) * 16 * kRow;
  CHECK(cache_in_prefill(spec) == 3 * kept);  // in two chunks, neither of which splits a prompt
  spec.options.prefill_chunk = 3000;
  CHECK(cache_in_prefill(spec) == 3 * kept);
}

TEST_CASE("methods that need all layers hold the prompts that end in one chunk") {
  StaticSpec spec = spec_of({"full", {}, {}}, 3, 1000);
  spec.method = std::make_shared<BoundedMethod>(
      BoundedOptions{.budget = 200, .prefill_peak = PrefillPeak::kAllLayers});
  const std::int64_t kept = blocks_of(200) * 16 * kRow;
  const std::int64_t whole = blocks_of(1000) * 16 * kRow;
  CHECK(cache_in_prefill(spec) == kept + 2 * whole);  // two prompts in a chunk of 2048
  spec.options.prefill_chunk = 3000;
  CHECK(cache_in_prefill(spec) == 3 * whole);
  spec.options.prefill_chunk = 500;
  CHECK(cache_in_prefill(spec) == 2 * kept + whole);
}

TEST_CASE("formats pack their rows at the end of the prompt") {
  const StaticSpec spec = spec_of({"kivi-4", {}, {}}, 1, 8192);
  CHECK(cache_in_prefill(spec) == (8192 - kChunk) * kRow);
  const StaticSpec fp8 = spec_of({"full", {}, {}}, 1, 8192);
  CHECK(cache_in_prefill(fp8) == blocks_of(8192 + 16) * 16 * kRow);
}

TEST_CASE("longer chunks hold less, and points equal their runs") {
  for (const std::int64_t batch : {1, 3}) {
    std::int64_t last = 0;
    for (const std::int64_t chunk : {1024, 2048, 4096, 8192}) {
      StaticSpec spec = spec_of(keeps_a_fifth(), batch, 8000);
      spec.options.prefill_chunk = chunk;
      INFO(fmt::format("batch {}, chunk {}", batch, chunk));
      const StaticResult run = run_static(spec);
      REQUIRE_FALSE(run.oom);
      const std::int64_t cache = run.peak_owners.at("kv_cache").count();
      if (last > 0) CHECK(cache <= last);
      last = cache;
      CompiledPoint compiled{
          {.llm = spec.llm,
           .gpu = spec.gpu,
           .stack = spec.stack,
           .method = [](std::int64_t p) { return make_method(keeps_a_fifth(), p, {}); },
           .weight_dtype = spec.weight_dtype,
           .kv_dtype = spec.kv_dtype,
           .options = spec.options}};
      const PointResult point =
          compiled.at({.batch = batch, .prompt_tokens = 8000, .output_tokens = 16});
      CHECK(point.prefill_peak == run.prefill_peak);
      CHECK(point.kv_bytes == run.kv_bytes);
      CHECK(point.usable == run.usable_hbm);
    }
  }
}

}  // namespace kvsim
