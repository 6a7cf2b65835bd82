// Weights in host memory that are read in every pass; transformers' quantised caches.

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/weight_format.hpp"
#include "models/methods/method.hpp"
#include "sim/batch/point/compiled_point.hpp"
#include "sim/batch/static_run.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

// Llama-2-7B in 16 bit: 4 x 4096^2 + 3 x 4096 x 11008 parameters per layer.
constexpr double kLayer = 2.0 * (4 * 4096.0 * 4096 + 3 * 4096.0 * 11008);

StaticSpec spec_of(const char* stack, double share, const char* method = "full") {
  constexpr std::int64_t kPrompt = 1024;
  const Llm& llm = find_llm("llama-2-7b");
  const LayerShape shape{.n_heads = 32, .n_kv_heads = 32, .head_dim = 128};
  StaticSpec spec{.llm = &llm,
                  .gpu = &find_gpu("A100-80GB-SXM"),
                  .stack = &find_stack(stack),
                  .method = make_method({method, {}, {}}, kPrompt,
                                        {.shape = shape, .n_layers = llm.n_layers()}),
                  .weight_dtype = Dtype::kFp16,
                  .kv_dtype = Dtype::kFp16,
                  .batch = 2,
                  .prompt_tokens = kPrompt,
                  .output_tokens = 300};
  spec.options.host_weights = share;
  return spec;
}

TEST_CASE("host weights: a step waits for the link if the transfer takes longer, solved by hand") {
  const StaticResult none = run_static(spec_of("flexgen", 0));
  const StaticResult all = run_static(spec_of("flexgen", 1));
  REQUIRE_FALSE(all.oom);
  // 404,750,336 B per layer over 0.81 of 32 GB/s take 15.6 ms plus 4 us of launch, longer than any
  // of the layer's operators at batch 2.
  const double read = kLayer / (0.81 * 32e9) + 4e-6;
  const double step = all.timeline.back().time.count();
  CHECK(step > 32 * read);
  CHECK(step < 32 * read + 0.01);  // embedding and logits
  // The weights of two of 32 layers are on the GPU.
  const Bytes held = none.timeline.back().held - all.timeline.back().held;
  CHECK(held == Bytes{static_cast<std::int64_t>(30 * kLayer)});
}

TEST_CASE("host weights: shares are between the extremes, and overlap is faster than serial") {
  double before = 0;
  Bytes held{std::int64_t{1} << 60};
  for (const double share : {0.0, 0.1, 0.25, 0.5, 0.75, 1.0}) {
    CAPTURE(share);
    const StaticResult run = run_static(spec_of("flexgen", share));
    REQUIRE_FALSE(run.oom);
    CHECK(run.decode_time->count() >= before);
    CHECK(run.timeline.back().held <= held + Bytes{static_cast<std::int64_t>(2 * kLayer * 0.1)});
    before = run.decode_time->count();
    held = run.timeline.back().held;

    StaticSpec serial = spec_of("flexgen", share);
    Stack stack = *serial.stack;
    stack.overlaps_weights = false;
    serial.stack = &stack;
    const StaticResult apart = run_static(serial);
    CHECK(apart.decode_time->count() >= run.decode_time->count() * (1 - 1e-12));
    CHECK(apart.timeline.back().held <= run.timeline.back().held);
  }
}

TEST_CASE(
    "host weights: compiled points, parts of a step and services agree or report the reason") {
  for (const char* stack : {"flexgen", "hf-sdpa", "zero-inference"}) {
    CAPTURE(stack);
    const StaticSpec spec = spec_of(stack, 0.5);
    const StaticResult run = run_static(spec, {.time_terms = true});
    REQUIRE_FALSE(run.oom);
    CompiledPoint point{{.llm = spec.llm,
                         .gpu = spec.gpu,
                         .stack = spec.stack,
                         .method = [&](std::int64_t) { return spec.method; },
                         .weight_dtype = spec.weight_dtype,
                         .kv_dtype = spec.kv_dtype,
                         .options = spec.options}};
    const PointResult at = point.at({2, 1024, 300});
    REQUIRE(at.fits);
    CHECK(at.peak() == run.peak_hbm);
    CHECK(at.times->decode.count() == test::rel(run.decode_time->count(), 1e-3));
    CHECK(at.times->prefill.count() == test::rel(run.prefill_time->count(), 1e-9));
  }
}

TEST_CASE("host weights: a model that does not fit runs") {
  StaticSpec spec = spec_of("hf-sdpa", 0);
  spec.llm = &find_llm("llama-3.1-70b");
  spec.method = make_method({"full", {}, {}}, 1024, {.n_layers = 80});
  CHECK(run_static(spec).oom);
  spec.options.host_weights = 1;
  const StaticResult run = run_static(spec);
  REQUIRE_FALSE(run.oom);
  // 80 layers of 855,638,016 parameters in 2 B over 32 GB/s: 4.278 s, and 0.1 to read them again.
  CHECK(run.timeline.back().time.count() == test::rel(4.38, 0.01));
}

TEST_CASE("quantised caches of transformers: bytes and traffic of a step solved by hand") {
  constexpr std::int64_t kPrompt = 1000;
  const LayerShape shape{.n_heads = 8, .n_kv_heads = 2, .head_dim = 128};
  const auto make = [&](const char* name) {
    return make_method({name, {}, {}}, kPrompt, {.shape = shape, .n_layers = 4});
  };
  const auto method = make("quanto-4");
  const auto bytes = [&](std::int64_t tokens) {
    return method->layer_bytes(0, shape, Dtype::kFp16, kPrompt, tokens)->kv.count();
  };
  // A row: 64 B of codes and two groups with 4 B each: 72 B; unquantised 256 B. Two heads, K and V.
  CHECK(bytes(1000) == 4 * 1000 * 72);
  CHECK(bytes(1001) == 4 * (1000 * 72 + 256));
  CHECK(bytes(1127) == 4 * (1000 * 72 + 127 * 256));
  CHECK(bytes(1128) == 4 * 1128 * 72);
  CHECK(bytes(1129) == 4 * (1128 * 72 + 256));

  // 1,064 entries, 64 of which wait on average: for 2 x 128 x 1000 elements per head, quanto reads
  // 0.5 + 1 + 2 B and writes 1 + 2 + 2, HQQ reads 0.5 + 0.25 + 0.5 + 2 + 2 and writes 0.5 + 0.25 +
  // 6. Every 128 steps, all 2 x 128 x 1064 are quantised, which reads 15 B and writes 9.5 B each.
  const double packed = 2 * 256.0 * 1000, all = 2 * 256.0 * 1064;
  const StepTraffic quanto = method->decode_traffic(0, shape, Dtype::kFp16, 1064, false);
  CHECK(quanto.side_read == test::rel(packed * 3.5 + all * 15 / 128, 1e-9));
  CHECK(quanto.side_write == test::rel(packed * 5 + all * 9.5 / 128, 1e-9));
  CHECK(quanto.attention_read == test::rel(all * 2, 1e-9));
  CHECK(quanto.recopied == test::rel((all + 2 * 256.0 * 64) * 2, 1e-9));
  CHECK(quanto.scratch == test::rel(packed * 2, 1e-9));
  const StepTraffic hqq = make("hqq-4")->decode_traffic(0, shape, Dtype::kFp16, 1064, false);
  CHECK(hqq.side_read == test::rel(packed * 5.25 + all * 15 / 128, 1e-9));
  CHECK(hqq.side_write == test::rel(packed * 6.75 + all * 9.5 / 128, 1e-9));
}

TEST_CASE("quantised caches of transformers: less memory, more time than the full cache") {
  const StaticResult full = run_static(spec_of("hf-sdpa", 0));
  for (const char* name : {"quanto-4", "quanto-2", "hqq-4"}) {
    CAPTURE(name);
    StaticSpec spec = spec_of("hf-sdpa", 0, name);
    const StaticResult run = run_static(spec);
    REQUIRE_FALSE(run.oom);
    CHECK(run.kv_bytes < Bytes{full.kv_bytes.count() / 3});
    CHECK(run.decode_time->count() > full.decode_time->count());
    // The dequantised rows and the tensors that attention reads, of one layer.
    const double rows = 2.0 * 2 * 1323 * 4096 * 2;
    CHECK(static_cast<double>((run.decode_peak - run.timeline.back().held).count()) > 1.8 * rows);
  }
}

}  // namespace
}  // namespace kvsim
