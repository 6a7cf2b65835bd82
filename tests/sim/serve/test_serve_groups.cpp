// The cache of an engine whose layers form groups: blocks held by sequences, and prefixes that are
// found. Hand-solved cases.

#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/memory/groups/group_sizes.hpp"
#include "sim/serve/cache/kv_cache_manager.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"
#include "tests/support/machines.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

using test::has;
using test::request;
using test::SmallService;

/// A group of full layers and a group for each of `others`, all with blocks of 16 tokens.
VllmGroups groups_with(std::vector<VllmGroup> others) {
  VllmGroups out;
  out.groups = {{.kind = "full", .layers = 2, .block_tokens = 16}};
  for (VllmGroup& group : others) out.groups.push_back(std::move(group));
  out.block_tokens = 16;
  out.block_id = Bytes{16 * 512};
  return out;
}
VllmGroup window_group(std::int64_t tokens) {
  return {.kind = "window", .growth = GroupGrowth::kWindow, .limit = tokens, .block_tokens = 16};
}
VllmGroup state_group() {
  return {.kind = "state", .growth = GroupGrowth::kState, .block_tokens = 16};
}

TEST_CASE("ids of a sequence: all of a full group, those within a window, one for a state") {
  const GroupSizes sizes{
      groups_with(
          {window_group(40),
           {.kind = "chunk", .growth = GroupGrowth::kChunk, .limit = 64, .block_tokens = 16},
           state_group()}),
      true, 0};
  CHECK(sizes.block_tokens() == 16);
  CHECK(sizes.full_ids() == 1);
  CHECK(sizes.window_ids() == 2);
  CHECK(sizes.state_ids() == 1);
  CHECK(sizes.ids(0, 0) == 0);
  // A prompt of 100 tokens at once: seven blocks in all three groups, and two states.
  CHECK(sizes.ids(100, 100) == 7 + 7 + 7 + 2);
  // One token at position 99: the window from 60 (block 3), the chunk from 64 (block 4), a state.
  CHECK(sizes.ids(100, 1) == 7 + 4 + 3 + 1);
  CHECK(sizes.same_until(100) == 103);  // token 104 attends to tokens from 64: one block fewer
  CHECK(sizes.ids(103, 1) == sizes.ids(100, 1));
  CHECK(sizes.ids(104, 1) == sizes.ids(100, 1) - 1);
  CHECK(sizes.first_seen(100) == 3);
  for (std::int64_t tokens = 1; tokens < 400; ++tokens) {
    INFO(tokens);
    const std::int64_t until = sizes.same_until(tokens);
    REQUIRE(until >= tokens);
    for (std::int64_t t = tokens; t <= until; ++t) REQUIRE(sizes.ids(t, 1) == sizes.ids(tokens, 1));
  }
}

TEST_CASE("sequences of equal prompts share the blocks of a step") {
  Llm llm = test::small_llm();
  llm.layers.resize(8, llm.layers.front());
  const Stack stack = with_options(find_stack("vllm"), {.block_tokens = 16}, {nullptr, &llm, 1});
  const AttentionSpec& a = llm.layers.front().attention;
  const auto method = make_method(
      {"pyramidkv", {}, Budget{0, 60}}, 200,
      {.shape = {.n_heads = a.n_heads, .n_kv_heads = a.n_kv_heads, .head_dim = a.head_dim},
       .n_layers = 8});
  const CostInput in{
      .llm = &llm, .method = method.get(), .stack = &stack, .kv_dtype = Dtype::kFp16};
  std::vector<LayerSpan> layers;
  for (std::int32_t l = 0; l < 8; ++l) layers.push_back({.layer = l, .layers = 1});
  const BlockSizes sizes{in, layers, {}};
  SequenceFootprint shared{method, in, sizes, 200};
  shared.users = 2;
  std::mt19937_64 random{3};
  std::set<std::int64_t> numbers;
  for (int i = 0; i < 600; ++i) {
    const auto step = static_cast<std::int64_t>(1 + random() % 200);
    SequenceFootprint alone{method, in, sizes, 200};
    const SequenceFootprint::Step got = shared.units(step), want = alone.units(step);
    CHECK(got.during == want.during);
    CHECK(got.after == want.after);
    CHECK(got.evicts == want.evicts);
    CHECK(got.until == want.until);
    numbers.insert(got.after);
  }
  CHECK(numbers.size() > 8);  // layers fill their blocks at different steps
  // Each layer is rounded up to whole blocks separately.
  SequenceFootprint alone{method, in, sizes, 200};
  for (std::int64_t step = 1; step <= 400; ++step) {
    std::int64_t units = 0;
    for (std::int32_t l = 0; l < 8; ++l) {
      const auto held = method->entries_held(l, 200, 200 + step);
      REQUIRE(held);
      units += (*held + 15) / 16 * sizes.layer_class(static_cast<std::size_t>(l)).units;
    }
    const SequenceFootprint::Step got = alone.units(step);
    REQUIRE(got.after == units);
    REQUIRE(got.during == units);
    REQUIRE(got.until >= step);
    REQUIRE(alone.units(got.until).after == units);
    REQUIRE(alone.logical(step) == alone.logical(0) + (alone.logical(1) - alone.logical(0)) * step);
    std::int64_t held = 0;
    for (std::int32_t l = 0; l < 8; ++l) held += *method->entries_held(l, 200, 200 + step);
    REQUIRE(alone.logical(step).count() == held * 2 * a.n_kv_heads * a.head_dim * 2);
  }
}

/// One engine's cache of 64 ids for sequences with one prompt each.
struct Cache {
  Llm llm = test::small_llm();
  Stack stack = with_options(find_stack("vllm"), {.block_tokens = 16}, {nullptr, &llm, 1});
  std::shared_ptr<const Method> method = make_method({"full", {}, {}}, 1);
  CostInput in{.llm = &llm, .method = method.get(), .stack = &stack, .kv_dtype = Dtype::kFp16};
  std::vector<LayerSpan> spans{{.layer = 0, .layers = llm.n_layers()}};
  BlockSizes sizes;
  SequenceFootprints footprints{{"full", {}, {}}, {.n_layers = 4}, nullptr, in};
  RequestTrace trace;
  std::vector<Sequence> sequences;
  std::unique_ptr<KvCacheManager> kv;

  /// All prompts begin with the same `shared` tokens; -1: their tokens have no ids.
  Cache(VllmGroups groups, const std::vector<std::int32_t>& prompts, std::int32_t shared,
        std::int64_t ids = 64)
      : sizes{in, spans, GroupSizes{std::move(groups), true, 0}} {
    trace.prefix_block = 16;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      Request r = request(0, prompts[i], 8);
      r.prefix_first = static_cast<std::int32_t>(trace.prefix_ids.size());
      r.prefix_count = shared < 0 ? 0 : (prompts[i] + 15) / 16;
      for (std::int32_t b = 0; b < r.prefix_count; ++b) {
        const bool own = (b + 1) * 16 > shared;
        trace.prefix_ids.push_back((own ? 1000 * (i + 1) : 0) + static_cast<std::uint64_t>(b) + 1);
      }
      trace.requests.push_back(r);
      Sequence s;
      s.prompt = s.known = s.target = prompts[i];
      sequences.push_back(s);
    }
    kv = std::make_unique<KvCacheManager>(KvCacheManager::Setup{.trace = &trace,
                                                                .sizes = &sizes,
                                                                .footprints = &footprints,
                                                                .pool_units = ids,
                                                                .prefix_caching = true});
  }
  std::int32_t found(RequestId id) { return kv->cached_tokens(id, sequences[at(id)]); }
  /// Computes a prompt in steps that end at `ends`.
  void compute(RequestId id, const std::vector<std::int32_t>& ends) {
    Sequence& s = sequences[at(id)];
    std::int32_t done = found(id);
    bool first = true;
    for (const std::int32_t end : ends) {
      if (first) {
        REQUIRE(kv->admit(id, s, done, end - done, 0));
      } else {
        REQUIRE(kv->grow(id, s, end - done));
      }
      first = false;
      s.planned = end - done;
      s.computed = done = end;
      kv->resolve(id, s);
      kv->check();
    }
  }
  void end(RequestId id) {
    kv->finish(id, sequences[at(id)]);
    kv->check();
  }
  static std::size_t at(RequestId id) { return static_cast<std::size_t>(id); }
};

TEST_CASE("a prefix is found where a state was kept: at the end of a step on a whole block") {
  Cache cache{groups_with({state_group()}), {100, 100, 60}, 96};
  cache.compute(0, {64, 96, 100});
  // The full group's six blocks and the state after 96 tokens exist.
  CHECK(cache.found(1) == 96);
  // 60 tokens: three blocks of the full group, but no state after 48 tokens.
  CHECK(cache.found(2) == 0);

  Cache other{groups_with({state_group()}), {100, 100}, 96};
  other.compute(0, {40, 100});  // no step ends at a block boundary
  CHECK(other.found(1) == 0);
  other.end(0);
  CHECK(other.found(1) == 0);

  Cache shorter{groups_with({state_group()}), {100, 100}, 48};
  shorter.compute(0, {96, 100});
  CHECK(shorter.found(1) == 0);  // prompts differ before the state
}

TEST_CASE("a window continues from any block whose last window of blocks is still cached") {
  Cache cache{groups_with({window_group(40)}), {100, 100, 200}, 96};
  cache.compute(0, {100});
  // 7 blocks of each group during the computation. The window then starts at 61: blocks 3 to 6.
  CHECK(cache.kv->held(0) == 7 + 4);
  CHECK(cache.found(1) == 48);  // blocks 3 to 5 are still in use and cannot be found
  cache.end(0);
  CHECK(cache.found(1) == 96);
  cache.compute(1, {100});
  CHECK(cache.kv->held(1) == 7 + 4);
  cache.end(1);
  CHECK(cache.kv->taken() == 0);

  // Two windows of different lengths: the longer one is decisive.
  Cache two{groups_with({window_group(40), window_group(90)}), {100, 100}, 96};
  two.compute(0, {100});
  two.end(0);
  CHECK(two.found(1) == 96);
}

TEST_CASE("a preempted sequence continues where it stopped if all groups can") {
  Cache cache{groups_with({window_group(40)}), {200, 1000}, -1};
  cache.compute(0, {96});
  cache.kv->release(0, cache.sequences[0]);
  cache.kv->check();
  // Six blocks of the full group, and three in the window after 96 tokens.
  CHECK(cache.kv->cached() == 6 + 3);
  CHECK(cache.kv->available() == 64);
  cache.sequences[0].computed = 0;
  CHECK(cache.found(0) == 96);
  SUBCASE("it reuses its blocks") {
    cache.compute(0, {200});
    CHECK(cache.kv->cached() == 0);
    CHECK(cache.kv->taken() == 13 + 3);  // the window starts at 161
    cache.end(0);
    CHECK(cache.kv->available() == 64);
  }
  SUBCASE("other sequences use free blocks first") {
    cache.compute(1, {432});  // 27 in each group: 54 of 55
    CHECK(cache.found(0) == 96);
    REQUIRE(cache.kv->grow(1, cache.sequences[1], 1));
    CHECK(cache.found(0) == 96);
  }
  SUBCASE("without its last block the window cannot continue") {
    cache.compute(1, {448});  // 28 in each group: one of the nine
    CHECK(cache.found(0) == 0);
  }

  // A state exists only if a step ended at a block boundary.
  for (const auto& [ends, found] : {std::pair{96, 96}, std::pair{100, 0}}) {
    Cache states{groups_with({state_group()}), {200}, -1};
    states.compute(0, {ends});
    states.kv->release(0, states.sequences[0]);
    states.sequences[0].computed = 0;
    CHECK(states.found(0) == found);
    states.compute(0, {200});
    states.end(0);
    CHECK(states.kv->available() == 64);
  }

  // For a prefix with ids, the window's blocks are found by these ids.
  Cache both{groups_with({window_group(40)}), {200}, 200};
  both.trace.requests[0].prefix_count = 5;
  both.trace.requests[0].prompt_tokens = 200;
  both.compute(0, {96});
  both.kv->release(0, both.sequences[0]);
  both.sequences[0].computed = 0;
  CHECK(both.found(0) == 96);
}

TEST_CASE("prompts that do not fit together are computed once, with windows") {
  Llm llm = test::small_llm();
  for (std::size_t l = 0; l < llm.layers.size(); l += 2) llm.layers[l].attention.window = 32;
  // 40 blocks in each group hold one prompt of 500 tokens and most of a second one.
  SmallService service{
      .blocks = 80,
      .scheduler = {.name = "vllm-v1", .prefix_caching = true, .reserve_full_isl = false}};
  service.llm = &llm;
  for (std::int32_t i = 0; i < 8; ++i) service.trace.requests.push_back(request(0, 500, 40));
  const ServeResult kept = service.run();
  CHECK(kept.completed == 8);
  CHECK(kept.preemptions > 0);
  service.scheduler.prefix_caching = false;
  const ServeResult lost = service.run();
  CHECK(lost.completed == 8);
  INFO(kept.preemptions, " ", kept.recomputed_tokens, " ", lost.recomputed_tokens);
  CHECK(kept.recomputed_tokens < lost.recomputed_tokens);
  CHECK(kept.recomputed_tokens <= 16 * std::int64_t{kept.preemptions});
}

TEST_CASE("blocks released longest ago are evicted first, over all groups") {
  // 200 tokens at once use 13 ids in each of two groups; 32 ids hold one such sequence.
  Cache cache{groups_with({window_group(40)}), {200, 96, 200}, 0, 32};
  cache.compute(0, {200});
  cache.end(0);
  cache.compute(1, {96});
  cache.end(1);
  cache.compute(2, {200});
  CHECK(cache.kv->taken() == 13 + 3);  // the window starts at 160
  cache.end(2);
  CHECK(cache.kv->available() == 32);
}

TEST_CASE("models with windows find prefixes, and free blocks behind the windows") {
  Llm llm = test::small_llm();
  for (std::size_t l = 0; l < llm.layers.size(); l += 2) llm.layers[l].attention.window = 32;
  SmallService service{.blocks = 64, .scheduler = {.name = "vllm-v1", .prefix_caching = true}};
  service.llm = &llm;
  service.trace.prefix_block = 16;
  for (std::int32_t i = 0; i < 2; ++i) {
    Request r = request(i, 160, 40);
    r.prefix_first = 10 * i;
    r.prefix_count = 10;
    service.trace.requests.push_back(r);
    for (std::uint64_t b = 0; b < 10; ++b) service.trace.prefix_ids.push_back(b + 1);
  }
  const ServeResult r = service.run();
  REQUIRE(r.startup);
  REQUIRE(r.startup->groups);
  CHECK(r.startup->groups->groups.size() == 2);
  CHECK(r.completed == 2);
  CHECK(r.prefix_hit_tokens == 144);  // the last block has the token that is computed again
  CHECK(r.no_hits.empty());
  // 10 blocks of each group; then 13 of the full group and up to three that the window covers.
  CHECK(r.peak_blocks == 20);

  SUBCASE("the reason for missing prefixes is reported") {
    service.trace.prefix_ids.resize(10);
    for (std::uint64_t b = 0; b < 10; ++b) service.trace.prefix_ids.push_back(b + 100);
    const ServeResult none = service.run();
    CHECK(none.prefix_hit_tokens == 0);
    CHECK(has(none.no_hits, "no two prompts begin with the same tokens"));
  }
  SUBCASE("lazy compaction has nothing to compact") {
    service.lazy_compaction = true;
    CHECK(service.run().peak_blocks == 20);
  }
  SUBCASE("a model whose layers all keep every token has one kind of blocks") {
    service.llm = nullptr;
    const ServeResult full = service.run();
    CHECK_FALSE(full.startup->groups);
    CHECK(full.prefix_hit_tokens == 144);
  }
}

TEST_CASE("ids add up for random operations, with windows and prefixes") {
  Llm llm = test::small_llm();
  for (std::size_t l = 0; l < llm.layers.size(); l += 2) llm.layers[l].attention.window = 32;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    INFO(seed);
    SmallService service{.blocks = 40,
                         .scheduler = {.name = "vllm-v1", .prefix_caching = true},
                         .trace = test::random_trace(seed, 120, 400, 60, 20, true)};
    service.llm = &llm;
    const ServeResult r = service.run();  // checks the sum of units after each step
    CHECK(r.completed + r.rejected == 120);
    CHECK(r.peak_blocks <= r.blocks);
    CHECK(r.prefix_hit_tokens > 0);
  }
}

}  // namespace
}  // namespace kvsim
