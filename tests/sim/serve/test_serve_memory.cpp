// Memory in the loop: exact blocks, prefixes, methods that keep only part of the tokens.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "models/gpu/gpu.hpp"
#include "models/units/error.hpp"
#include "sim/serve/cache/prefix_cache.hpp"
#include "sim/serve/schedulers/scheduler.hpp"
#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

using test::CheckingObserver;
using test::request;
using test::SmallService;

TEST_CASE("a pool that holds its sequences exactly causes no preemption") {
  for (const bool caching : {false, true}) {
    CheckingObserver observer;
    SmallService service{.blocks = 24,
                         .scheduler = {.name = "vllm-v1", .prefix_caching = caching},
                         .observer = &observer};
    // 33 + 64 - 1 = 96 tokens: exactly six blocks.
    for (int i = 0; i < 4; ++i) service.trace.requests.push_back(request(0, 33, 64));
    const ServeResult exact = service.run();
    CHECK(exact.preemptions == 0);
    CHECK(observer.max_running == 4);
    CHECK(exact.peak_blocks == 24);
    service.observer = nullptr;
    service.blocks = 23;
    const ServeResult short_of_one = service.run();
    CHECK(short_of_one.preemptions > 0);
    CHECK(short_of_one.completed == 4);
    service.blocks = 24;
    for (Request& r : service.trace.requests) r.output_tokens = 65;
    CHECK(service.run().preemptions > 0);
  }
}

TEST_CASE("preempted sequences are recomputed and their own cached blocks are not output") {
  SmallService service{.blocks = 20, .scheduler = {.name = "vllm-v1", .prefix_caching = false}};
  for (int i = 0; i < 12; ++i) service.trace.requests.push_back(request(0, 64, 48));
  const ServeResult plain = service.run();
  REQUIRE(plain.preemptions > 0);
  CHECK(plain.recomputed_tokens >= 64);
  service.scheduler.prefix_caching = true;
  CheckingObserver observer;
  service.observer = &observer;
  const ServeResult cached = service.run();
  for (const ServeResult* r : {&plain, &cached}) {
    CHECK(r->output_tokens == 12 * 48);
    CHECK(r->prompt_tokens == 12 * 64);
    CHECK(r->total_tok_s == test::rel(12 * 112 / to_seconds(r->makespan).count()));
  }
  CHECK(cached.recomputed_tokens <= plain.recomputed_tokens);
  // All prompts differ: no prefix is found at a first admission.
  CHECK(cached.prefix_hit_tokens == 0);
  CHECK(observer.planned_tokens == 12 * 111 + cached.recomputed_tokens);
}

TEST_CASE("a shared prefix is computed once, held once, and its last token always recomputed") {
  CheckingObserver observer;
  SmallService service{.blocks = 100, .observer = &observer};
  service.trace.prefix_block = 32;
  service.trace.prefix_ids = {1, 2, 3, 1, 2, 4, 1, 2, 3};
  service.trace.requests = {request(0, 96, 1), request(1, 96, 40), request(1, 96, 40)};
  for (int i = 0; i < 3; ++i) {
    service.trace.requests[static_cast<std::size_t>(i)].prefix_first = 3 * i;
    service.trace.requests[static_cast<std::size_t>(i)].prefix_count = 3;
  }
  const ServeResult r = service.run();
  CHECK(r.outcomes[0].cached_tokens == 0);
  CHECK(r.outcomes[1].cached_tokens == 64);
  CHECK(r.outcomes[2].cached_tokens == 80);  // of 96 one token has to be computed: a whole block is
  CHECK(r.prefix_hit_tokens == 144);
  CHECK(r.prefix_query_tokens == 288);
  CHECK(observer.planned_tokens == 96 + (32 + 39) + (16 + 39));
  // 96 + 39 tokens: 9 blocks each, 4 of which both share; a fifth block of the third was cached.
  CHECK(r.peak_blocks == 9 + 9 - 4);
  service.scheduler.prefix_caching = false;
  service.observer = nullptr;
  const ServeResult off = service.run();
  CHECK(off.prefix_hit_tokens == 0);
  CHECK(off.peak_blocks == 18);
}

TEST_CASE("trace blocks of another size than the engine's") {
  for (const std::int32_t ids : {7, 16, 24, 50, 512}) {
    for (const std::int64_t block : {1, 16, 64}) {
      INFO(ids, " tokens an id, blocks of ", block);
      CheckingObserver observer{block};
      SmallService service{.blocks = 4096 / block, .block_tokens = block, .observer = &observer};
      service.trace.prefix_block = ids;
      const std::int32_t prompt = 300;
      for (int i = 0; i < 2; ++i) {
        Request r = request(i, prompt, 2);
        r.prefix_first = static_cast<std::int32_t>(service.trace.prefix_ids.size());
        r.prefix_count = (prompt + ids - 1) / ids;
        for (int b = 0; b < r.prefix_count; ++b) {
          service.trace.prefix_ids.push_back(static_cast<std::uint64_t>(b));
        }
        service.trace.requests.push_back(r);
      }
      const ServeResult r = service.run();
      CHECK(r.completed == 2);
      CHECK(r.outcomes[1].cached_tokens == (prompt - 1) / block * block);
    }
  }
}

TEST_CASE("runs of blocks are evicted from the tail of the sequence released first") {
  PrefixCache cache;
  const auto a = cache.publish(1, 4);
  const auto b = cache.publish(2, 2);
  CHECK(cache.pinned() == 6);
  CHECK(cache.evictable() == 0);
  cache.release(b, 2);
  cache.release(a, 4);
  const PrefixCache::Left left = cache.leave(3);
  CHECK(cache.evictable() == 9);
  cache.evict(3);  // both of b, one of a
  CHECK(cache.find(2) == -1);
  CHECK(cache.blocks(a) == 3);
  CHECK(cache.acquire(a, 2) == 2);
  CHECK(cache.evictable() == 1 + 3);
  CHECK(cache.acquire(a, 2) == 0);
  cache.evict(2);  // the third of a, one of the remaining
  CHECK(cache.blocks(a) == 2);
  CHECK(cache.find_left(left) == 2);
  cache.take_back(left, 2);
  CHECK(cache.find_left(left) == 0);
  CHECK(cache.evictable() == 0);
  CHECK_THROWS_AS(cache.evict(1), ContractError);
  cache.extend(a, 5);  // by one of its two readers
  CHECK(cache.blocks(a) == 7);
  cache.release(a, 7);
  CHECK(cache.pinned() == 2);
  CHECK(cache.evictable() == 5);
  CHECK(cache.acquire(a, 6) == 4);
  cache.release(a, 2);
  CHECK(cache.evictable() == 1);
  cache.release(a, 6);
  CHECK(cache.evictable() == 7);
  CHECK(cache.pinned() == 0);
  CHECK_THROWS_AS(cache.release(a, 1), ContractError);
}

TEST_CASE("methods hold the bytes of their size law and every unit is accounted for") {
  for (const std::string name :
       {"streaming-llm", "h2o", "snapkv", "pyramidkv", "kivi-4", "zeromerge"}) {
    for (const bool caching : {false, true}) {
      for (const std::int64_t blocks : {30, 100}) {
        INFO(name, " caching ", caching, " blocks ", blocks);
        CheckingObserver observer{16, false};
        SmallService service{.blocks = blocks,
                             .scheduler = {.name = "vllm-v1",
                                           .max_num_batched_tokens = 128,
                                           .max_num_seqs = 8,
                                           .prefix_caching = caching},
                             .method = {name, {}, {}},
                             .trace = test::random_trace(9, 60, 40, 90, 40, caching),
                             .observer = &observer};
        if (takes_budget(name)) service.method.budget = Budget{.entries = 64};
        const ServeResult r = service.run();
        CHECK(r.completed + r.rejected == 60);
        CHECK(r.rejected == r.oom_events);
        if (blocks == 100) CHECK(r.rejected == 0);
        for (const ServeSample& sample : r.timeline[0]) {
          CHECK(sample.kv_blocks + sample.kv_cached <= r.kv_pool);
          if (!caching) CHECK(sample.kv_logical.count() <= sample.kv_blocks.count());
        }
        if (caching && name != "kivi-4") CHECK(r.prefix_hit_tokens > 0);
      }
    }
  }
}

TEST_CASE("a prompt's peak depends on its method: all layers at once or one after another") {
  const Llm llm = test::small_llm();
  std::int64_t at_once = 0, by_layer = 0;
  for (const MethodInfo& info : builtin_methods()) {
    if (!takes_budget(info.name)) continue;
    const MethodSpec spec{info.name, {}, Budget{.entries = 128}};
    std::shared_ptr<const Method> method;
    try {
      method = make_method(spec, 400, method_site(llm, Dtype::kFp16));
    } catch (const InputError&) {
      continue;
    }
    SmallService service;
    service.scheduler.name = "vllm-v1";
    service.method = spec;
    service.trace.requests = {request(0, 400, 1)};
    INFO(info.name);
    const auto peak = [&](std::int64_t chunk) {
      service.scheduler.max_num_batched_tokens = chunk;
      const ServeResult r = service.run();
      CHECK(r.iterations == (400 + chunk - 1) / chunk);
      return r.peak_blocks;
    };
    if (method->prefill_peak() == PrefillPeak::kAllLayers && method->plain_rows()) {
      ++at_once;
      service.measured =
          std::make_shared<MeasuredLaw>(MeasuredLaw{.trace = "a trace",
                                                    .kept = std::vector<double>(4, 0.25),
                                                    .growth = std::vector<double>(4, 1.0)});
      CHECK(peak(512) == 25);
      CHECK(peak(100) == 25);
      continue;
    }
    const auto kept = method->entries_held(0, 400, 400);
    if (!method->has_equal_layers() || !method->plain_rows() || !kept || *kept == 400) continue;
    // Side data that is independent of the number of entries has no separate blocks.
    const LayerShape shape{.n_heads = 8, .n_kv_heads = 2, .head_dim = 32};
    const auto side = [&](std::int64_t entries) {
      return method->rows_bytes(0, shape, Dtype::kFp16, entries, entries).side;
    };
    if (side(32) != side(16) * 2) continue;
    ++by_layer;
    CHECK(peak(512) == (*kept + 15) / 16);
    CHECK(peak(100) == 19);  // 300 tokens are held when the last chunk starts
  }
  CHECK(at_once > 0);
  CHECK(by_layer > 3);
}

TEST_CASE("a method that keeps less serves more sequences at once") {
  SmallService service{.blocks = 64, .scheduler = {.name = "vllm-v1", .max_num_seqs = 100}};
  for (int i = 0; i < 60; ++i) service.trace.requests.push_back(request(0, 200, 100));
  CheckingObserver full;
  service.observer = &full;
  const ServeResult all = service.run();
  service.method = {"snapkv", {}, Budget{.entries = 64}};
  CheckingObserver few{16, false};
  service.observer = &few;
  const ServeResult less = service.run();
  CHECK(less.completed == 60);
  CHECK(few.max_running > full.max_running);
  CHECK(less.output_tok_s > all.output_tok_s);
}

TEST_CASE("shared blocks are copied before a method drops entries in them") {
  SmallService service{.blocks = 200, .method = {"snapkv", {}, Budget{.entries = 32}}};
  service.trace.prefix_block = 16;
  for (int i = 0; i < 3; ++i) {
    Request r = request(i, 160, 20);
    r.prefix_first = 0;
    r.prefix_count = 10;
    service.trace.requests.push_back(r);
  }
  for (std::uint64_t b = 0; b < 10; ++b) service.trace.prefix_ids.push_back(b);
  CheckingObserver observer{16, false};
  service.observer = &observer;
  const ServeResult r = service.run();
  CHECK(r.completed == 3);
  // The whole prompt stays in the prefix cache, although each reader keeps only 32 of its entries.
  CHECK(r.outcomes[1].cached_tokens == 144);
  CHECK(r.outcomes[2].cached_tokens == 144);
  bool is_noted = false;
  for (const std::string& note : r.notes)
    is_noted = is_noted || note.find("copied") != std::string::npos;
  CHECK(is_noted);
}

TEST_CASE("a prompt is not refused for lack of room for a shared copy") {
  // Ten shared blocks of the prompt and two of kept entries exceed the pool: without the shared
  // blocks it runs in two.
  SmallService service{.blocks = 11, .method = {"snapkv", {}, Budget{.entries = 32}}};
  service.trace.prefix_block = 16;
  for (int i = 0; i < 2; ++i) {
    Request r = request(i, 160, 20);
    r.prefix_count = 10;
    service.trace.requests.push_back(r);
  }
  for (std::uint64_t b = 0; b < 10; ++b) service.trace.prefix_ids.push_back(b);
  CheckingObserver observer{16, false};
  service.observer = &observer;
  CHECK(service.run().completed == 2);
  // Also if part of it is found: six blocks left by a shorter prompt.
  service.observer = nullptr;
  service.trace.requests[0].prompt_tokens = 96;
  service.trace.requests[0].prefix_count = 6;
  const ServeResult r = service.run();
  CHECK(r.completed == 2);
  CHECK(r.outcomes[1].cached_tokens == 0);
  service.blocks = 12;
  CHECK(service.run().outcomes[1].cached_tokens == 96);
}

/// Real models with their costs, on a GPU that holds few sequences.
ServeResult serve_model(const std::string& model, const MethodSpec& method, ServeObserver& observer,
                        std::int32_t gpus = 1, std::int64_t prompt = 1500,
                        std::uint64_t seed = 21) {
  auto trace = std::make_shared<RequestTrace>(
      test::random_trace(seed, 60, 8, static_cast<std::int32_t>(prompt), 60));
  const ServeSpec spec{.llm = &find_llm(model),
                       .gpu = &find_gpu("A100-80GB-SXM"),
                       .stack = &find_stack("vllm"),
                       .method = method,
                       .tensor_parallel = gpus,
                       .options = {.longest_request = true},
                       .requests = trace,
                       .scheduler = {.name = "vllm-v1", .max_num_seqs = 32}};
  return run_serve(spec, {}, {.cost = {}, .scheduler = {}, .observer = &observer});
}

void check_units(const std::string& model, const std::string& method, std::uint64_t seed) {
  INFO(model, " ", method, " seed ", seed);
  CheckingObserver observer{16, false};
  MethodSpec spec{method, {}, {}};
  if (method != "full") spec.budget = Budget{.entries = 256};
  const ServeResult r =
      serve_model(model, spec, observer, model == "llama-3.1-70b" ? 4 : 1, 5000, seed);
  CHECK(r.completed == 60);
  CHECK(r.mfu > 0);
  CHECK(r.mfu < 1);
  CHECK(r.mbu > 0);
  CHECK(r.mbu < 1);
  CHECK(r.busy <= 1);
  CHECK(r.peak_blocks <= r.blocks);
  Bytes owners;
  for (const auto& [name, bytes] : r.peak_owners) owners += bytes;
  CHECK(owners == r.peak_hbm);
  // Graphs are captured in addition to the memory that the engine counts.
  CHECK(r.peak_hbm.count() <= (r.usable_hbm + r.startup->graphs).count());
  for (const ServeSample& s : r.timeline[0]) {
    CHECK(s.kv_logical.count() <= s.kv_blocks.count());
  }
}

TEST_CASE("models with windows, latents and several GPUs are served and their units add up") {
  for (const std::string model : {"llama-3.1-8b", "gemma-2-2b", "mistral-7b-v0.1",
                                  "deepseek-v2-lite", "gpt-oss-20b", "llama-3.1-70b"}) {
    for (const std::string method : {"full", "streaming-llm"}) {
      for (const std::uint64_t seed : {21U, 5U}) check_units(model, method, seed);
    }
  }
}

TEST_CASE("no engine has more blocks in use than its pool, whole blocks or not") {
  const auto trace = std::make_shared<RequestTrace>(test::random_trace(3, 150, 4, 3000, 300));
  std::int64_t full_pools = 0;
  for (const std::string stack : {"vllm", "vllm-v0", "sglang", "trtllm", "lmdeploy"}) {
    for (const std::string method : {"full", "kivi-4", "streaming-llm"}) {
      INFO(stack, " ", method);
      MethodSpec method_spec{method, {}, {}};
      if (method == "streaming-llm") method_spec.budget = Budget{.entries = 1000};
      // With so little memory, requests wait for blocks. The share refers to free memory after
      // loading the weights, or to all memory.
      const double memory = stack == "trtllm" || stack == "lmdeploy" ? 0.05 : 0.31;
      const ServeSpec spec{.llm = &find_llm("llama-3.1-8b"),
                           .gpu = &find_gpu("H100-80GB-SXM"),
                           .stack = &find_stack(stack),
                           .method = method_spec,
                           .options = {.longest_request = true, .memory_fraction = memory},
                           .requests = trace,
                           .scheduler = {.name = default_scheduler(find_stack(stack))}};
      const ServeResult r = run_serve(spec, {}, {});
      CHECK(r.completed > 0);
      CHECK(r.blocks > 0);
      CHECK(r.peak_blocks <= r.blocks);
      if (r.peak_blocks == r.blocks) ++full_pools;
    }
  }
  CHECK(full_pools > 0);
}

TEST_CASE("layers with a window hold no more than the window") {
  CheckingObserver observer{16, false};
  Llm plain = find_llm("gemma-2-2b");
  const Llm& windowed = find_llm("gemma-2-2b");
  for (LayerSpec& layer : plain.layers) layer.attention.window = 0;
  RequestTrace trace;
  for (int i = 0; i < 8; ++i) trace.requests.push_back(request(0, 12000, 40));
  ServeSpec spec{.llm = &windowed,
                 .gpu = &find_gpu("A100-80GB-SXM"),
                 .stack = &find_stack("vllm"),
                 .options = {.longest_request = true},
                 .requests = std::make_shared<RequestTrace>(trace)};
  const ServeResult few = run_serve(spec, {}, {.cost = {}, .scheduler = {}, .observer = &observer});
  spec.llm = &plain;
  const ServeResult all = run_serve(spec);
  const auto max_blocks = [](const ServeResult& r) {
    Bytes bytes;
    for (const ServeSample& s : r.timeline[0]) bytes = std::max(bytes, s.kv_blocks);
    return static_cast<double>(bytes.count());
  };
  // Half of the layers attend to 4096 of 12040 tokens; a chunk of 8192 may be held in addition to
  // one window.
  CHECK(max_blocks(few) < 0.75 * max_blocks(all));
  CHECK(max_blocks(few) > 0.6 * max_blocks(all));
  CHECK(few.completed == 8);
}

}  // namespace
}  // namespace kvsim
