// Three requests and a tiny pool for each scheduler, iteration by iteration, solved by hand.

#include <string>
#include <vector>

#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scheduling.hpp"

namespace kvsim {
namespace {

using test::PlanObserver;
using test::request;
using test::SmallService;

using Plans = std::vector<std::string>;

Request declares(Request r, std::int32_t tokens) {
  r.declared_tokens = tokens;
  return r;
}

struct Run {
  Plans plans;
  ServeResult result;
};

Run run(SmallService service) {
  PlanObserver observer{service.block_tokens};
  service.observer = &observer;
  service.scheduler.prefix_caching = service.scheduler.prefix_caching.value_or(false);
  Run out{.plans = {}, .result = service.run()};
  out.plans = observer.plans;
  return out;
}

SmallService tiny(std::int64_t blocks, std::int64_t block_tokens, SchedulerSpec scheduler) {
  return {.blocks = blocks,
          .block_tokens = block_tokens,
          .times = {.iteration = 1e-3, .per_token = 0, .per_entry = 0},
          .scheduler = std::move(scheduler)};
}

TEST_CASE("vllm-v0: prompts first and separately, and the last running sequence is preempted") {
  // Six blocks of four tokens.
  SmallService service = tiny(6, 4, {.name = "vllm-v0"});
  service.trace.requests = {request(0, 6, 5), request(0, 5, 4), request(0, 4, 3)};
  // 1: two, two and one blocks. 2: C uses the sixth for its fifth token. 3: A's eighth token fits
  // into its last block, but vLLM requires one free block: C is preempted with six known tokens. 4:
  // they use two blocks, in a batch of prompts; C's third token ends it. 5: A allocates a block, B
  // ends. 6: A ends.
  const Run recomputed = run(service);
  CHECK(recomputed.plans ==
        Plans{"0:6 1:5 2:4", "0:1 1:1 2:1", "0:1 1:1", "2:6", "0:1 1:1", "0:1"});
  CHECK(recomputed.result.preemptions == 1);
  CHECK(recomputed.result.recomputed_tokens == 5);

  // To host memory. 4: A allocates a block, one is left; C requires its two and one more. 5: B has
  // ended and freed two more: C returns and decodes with A.
  service.scheduler.swap = true;
  service.host_memory = 1_MiB;
  const Run swapped = run(service);
  CHECK(swapped.plans == Plans{"0:6 1:5 2:4", "0:1 1:1 2:1", "0:1 1:1", "0:1 1:1", "0:1 2:1"});
  CHECK(swapped.result.recomputed_tokens == 0);
  // Two blocks of 4 KiB over 25 GB/s, out in the third and back in the fifth iteration.
  const auto& ends = swapped.result.iteration_ends[0];
  const double moved = 2 * 4096 / 25e9;
  CHECK(to_seconds(ends[2] - ends[1]).count() == test::rel(1e-3 + moved));
  CHECK(to_seconds(ends[3] - ends[2]).count() == test::rel(1e-3));
  CHECK(to_seconds(ends[4] - ends[3]).count() == test::rel(1e-3 + moved));

  // A prompt that would fit waits until the swapped sequence is back.
  service.trace.requests.push_back(request(2.5e-3, 2, 1));
  CHECK(run(service).plans ==
        Plans{"0:6 1:5 2:4", "0:1 1:1 2:1", "0:1 1:1", "0:1 1:1", "0:1 2:1", "3:2"});
}

TEST_CASE("host memory belongs to a replica and its GPUs share it") {
  // The case above on two GPUs, each with six blocks of half the bytes. C's two blocks have 8 KiB
  // in total.
  SmallService service = tiny(3, 4, {.name = "vllm-v0", .swap = true});
  service.tensor_parallel = 2;
  service.trace.requests = {request(0, 6, 5), request(0, 5, 4), request(0, 4, 3)};
  service.host_memory = 8_KiB;
  CHECK(run(service).plans == Plans{"0:6 1:5 2:4", "0:1 1:1 2:1", "0:1 1:1", "0:1 1:1", "0:1 2:1"});
  service.host_memory = 6_KiB;
  CHECK(run(service).plans ==
        Plans{"0:6 1:5 2:4", "0:1 1:1 2:1", "0:1 1:1", "2:6", "0:1 1:1", "0:1"});
}

TEST_CASE("vllm-v0 in chunks: decodes, then chunks, then new prompts") {
  SmallService service =
      tiny(10, 4, {.name = "vllm-v0", .max_num_batched_tokens = 8, .chunked_prefill = true});
  service.trace.requests = {request(0, 6, 2), request(0, 7, 2), request(0, 3, 1)};
  const Run r = run(service);
  CHECK(r.plans == Plans{"0:6 1:2", "0:1 1:5 2:2", "1:1 2:1"});
  // A holds two of three blocks: B's prompt requires two, although its first chunk fits into one.
  // In addition to B, a token of C is computed in the third block, but it is discarded because B
  // requires one to touch.
  service.blocks = 3;
  const Run tight = run(service);
  CHECK(tight.plans == Plans{"0:6", "0:1", "1:7 2:1", "1:1", "2:3"});
  CHECK(tight.result.recomputed_tokens == 1);
}

TEST_CASE("vllm-v0 in chunks: a prompt holds all its blocks from its first chunk on") {
  SmallService service =
      tiny(5, 4, {.name = "vllm-v0", .max_num_batched_tokens = 5, .chunked_prefill = true});
  service.trace.requests = {request(0, 4, 6), request(0, 12, 1)};
  // B's three of five blocks are counted from iteration 1. 2: A uses the fifth. 3: A has none to
  // touch, and B is preempted; in 4 it starts again, in 5 it is preempted again; in 6 A uses a
  // third block. 7: A has ended.
  CHECK(run(service).plans ==
        Plans{"0:4 1:1", "0:1 1:4", "0:1", "0:1 1:4", "0:1", "0:1", "1:5", "1:5", "1:2"});
}

TEST_CASE("vllm-v0 keeps a watermark of whole blocks free of new prompts") {
  // floor(0.2 * 9) = 1: A and B leave one of nine blocks, so C has to wait until they end.
  SmallService service = tiny(9, 4, {.name = "vllm-v0", .watermark = 0.2});
  service.trace.requests = {request(0, 15, 2), request(0, 15, 2), request(0, 4, 1)};
  CHECK(run(service).plans == Plans{"0:15 1:15", "0:1 1:1", "2:4"});
  service.scheduler.watermark = 0.0;
  CHECK(run(service).plans == Plans{"0:15 1:15 2:4", "0:1 1:1"});
}

TEST_CASE("vllm-v0 requires a free block even if the last one has room") {
  // 33 + 64 - 1 tokens: six blocks of 16 each, 24 in total, and one to touch.
  SmallService service{.blocks = 24, .scheduler = {.name = "vllm-v0"}};
  for (int i = 0; i < 4; ++i) service.trace.requests.push_back(request(0, 33, 64));
  CHECK(run(service).result.preemptions > 0);
  service.blocks = 25;
  const Run one_more = run(service);
  CHECK(one_more.result.preemptions == 0);
  CHECK(one_more.result.peak_blocks == 24);
}

TEST_CASE("vllm-v0 by priority: the first request in the queue preempts a later one") {
  SmallService service =
      tiny(100, 4, {.name = "vllm-v0", .order = QueueOrder::kPriority, .max_num_seqs = 1});
  service.trace.requests = {request(0, 6, 3), request(1.5e-3, 5, 2)};
  service.trace.requests[0].priority = 1;
  CHECK(run(service).plans == Plans{"0:6", "0:1", "1:5", "1:1", "0:8"});
  service.trace.requests[0].priority = 0;
  CHECK(run(service).plans == Plans{"0:6", "0:1", "0:1", "1:5", "1:1"});
}

TEST_CASE("vllm-v1 admits a prompt by its first chunk, or only if all of it fits") {
  // Six blocks of four tokens, eight tokens per iteration.
  SmallService service =
      tiny(6, 4, {.name = "vllm-v1", .max_num_batched_tokens = 8, .reserve_full_isl = false});
  service.trace.requests = {request(0, 12, 3), request(0, 16, 1)};
  // 2: B's first four tokens use the fourth block. 3: A uses the fifth; B's next seven would
  // require two more, and B is the last: it starts again in the fourth iteration, A's last.
  const Run chunk = run(service);
  CHECK(chunk.plans == Plans{"0:8", "0:4 1:4", "0:1", "0:1 1:7", "1:8", "1:1"});
  CHECK(chunk.result.preemptions == 1);
  // B requires four blocks; A leaves three, then two.
  service.scheduler.reserve_full_isl = true;
  const Run whole = run(service);
  CHECK(whole.plans == Plans{"0:8", "0:4", "0:1", "0:1", "1:8", "1:8"});
  CHECK(whole.result.preemptions == 0);
  CHECK(whole.result.scheduler.find("prompts that fit as a whole") != std::string::npos);
}

TEST_CASE("sglang: prompts first, by an estimate of future tokens") {
  SmallService service = tiny(40, 1, {.name = "sglang", .max_num_batched_tokens = 12});
  service.max_model_len = 30;
  service.trace.requests = {declares(request(0, 10, 6), 8), declares(request(0, 10, 8), 8),
                            declares(request(0, 8, 3), 4)};
  // 1: A, and two tokens of B: 10 + 8 fit in 30 with A's 8. 2: the rest of B; C's 8 + 4 do not fit
  // in 20 with B's 8 and 0.7 of A's 7. 3 to 7: decodes; A ends. 8: the decode detects that a
  // sequence has ended. 9: C's 12 with B's last token. 10: B ends, 11: C ends.
  CHECK(run(service).plans == Plans{"0:10 1:2", "1:8", "0:1 1:1", "0:1 1:1", "0:1 1:1", "0:1 1:1",
                                    "0:1 1:1", "1:1", "2:8", "1:1 2:1", "2:1"});
  // Whole prompts: A, then B's 18 with A's 8 in 30; C's 12 with 16 do not fit in 20.
  service.scheduler = {.name = "sglang", .chunked_prefill = false};
  CHECK(run(service).plans.front() == "0:10 1:10");
}

TEST_CASE("sglang retracts the sequence with the fewest generated tokens to the end of the queue") {
  SmallService service = tiny(26, 1, {.name = "sglang", .conservativeness = 0.0});
  service.max_model_len = 26;
  service.trace.requests = {declares(request(0, 8, 8), 9), declares(request(1.5e-3, 8, 8), 8)};
  // B's 8 + 8 tokens fit into the 17 that A's nine leave, since no memory is reserved for A. Two
  // tokens per iteration: after four, one of the nine is left, and A uses it; B has generated fewer
  // than A and is retracted. It returns when A has ended.
  const Run r = run(service);
  CHECK(r.plans == Plans{"0:8", "0:1", "1:8", "0:1 1:1", "0:1 1:1", "0:1 1:1", "0:1 1:1", "0:1",
                         "0:1", "1:13", "1:1", "1:1"});
  CHECK(r.result.preemptions == 1);
  CHECK(r.result.recomputed_tokens == 12);
  // Its prompt stays in the radix tree, but its generated tokens do not.
  service.scheduler.prefix_caching = true;
  CHECK(run(service).plans == Plans{"0:8", "0:1", "1:8", "0:1 1:1", "0:1 1:1", "0:1 1:1", "0:1 1:1",
                                    "0:1", "0:1", "1:5", "1:1", "1:1"});
}

TEST_CASE("sglang: a retracted request waits behind the queue and the estimate is set again") {
  SmallService service = tiny(26, 1, {.name = "sglang", .conservativeness = 0.0});
  service.max_model_len = 26;
  service.trace.requests = {declares(request(0, 8, 8), 8), declares(request(1.5e-3, 8, 8), 8),
                            declares(request(4.5e-3, 4, 2), 7)};
  // As above, until B is retracted in the eighth iteration: the ratio is then (6 + 20) / 9, at most
  // 1. C's 4 + 7 do not fit in 12 with A's last token. When A has ended, C is first, and B's 13 + 3
  // do not fit in 22 with C's 7.
  CHECK(run(service).plans == Plans{"0:8", "0:1", "1:8", "0:1 1:1", "0:1 1:1", "0:1 1:1", "0:1 1:1",
                                    "0:1", "0:1", "2:4", "2:1", "1:13", "1:1", "1:1"});
}

TEST_CASE("sglang: a request that ends with its prompt frees memory before the next batch") {
  SmallService service = tiny(40, 1, {.name = "sglang"});
  service.max_model_len = 30;
  service.trace.requests = {declares(request(0, 10, 1), 8), declares(request(0, 10, 5), 8),
                            declares(request(0, 8, 3), 4)};
  // C's 12 do not fit in 20 with the 16 of A and B, but they fit immediately in 30 with 4.9 of B.
  CHECK(run(service).plans == Plans{"0:10 1:10", "2:8", "1:1 2:1", "1:1 2:1", "1:1", "1:1"});
}

TEST_CASE("sglang: the estimate falls with every decode and is reset on an idle server") {
  SmallService service = tiny(660, 1, {.name = "sglang"});
  service.max_model_len = 660;
  // After 300 decodes, 0.399 of the 339 future tokens are reserved in addition to 310 of 660: 214.7
  // are left for a prompt of ten and its declared output.
  for (const std::int32_t more : {204, 205}) {
    service.trace.requests = {declares(request(0, 10, 400), 640),
                              declares(request(300.5e-3, 10, 2), more)};
    CHECK(run(service).plans[301] == (more == 204 ? "1:10" : "0:1"));
  }
  // Again 0.7, of 639: 202.7 of 650.
  for (const std::int32_t more : {192, 193}) {
    service.trace.requests = {request(0, 10, 310), declares(request(10, 10, 400), 640),
                              declares(request(10.0005, 10, 2), more)};
    const Plans plans = run(service).plans;
    CHECK(plans[310] == "1:10");
    CHECK(plans[311] == (more == 192 ? "2:10" : "1:1"));
  }
}

TEST_CASE("sglang: a batch of prompts and the assumed output of a request are bounded") {
  SmallService service =
      tiny(30000, 1, {.name = "sglang", .chunked_prefill = false, .prefix_caching = true});
  service.max_model_len = 30000;
  // At most 16384 tokens per batch, except for a single longer prompt.
  for (int i = 0; i < 3; ++i) {
    service.trace.requests.push_back(declares(request(0, 8000, 1), 1));
  }
  service.trace.requests.push_back(declares(request(0, 20000, 1), 1));
  CHECK(run(service).plans == Plans{"0:8000 1:8000", "2:8000", "3:20000"});
  // 17000 and 4096 of its 12998 fit with 0.7 of 4096 of the other request's 20000.
  service.trace.requests = {declares(request(0, 10, 2), 20000),
                            declares(request(0.5e-3, 17000, 1), 20000)};
  CHECK(run(service).plans == Plans{"0:10", "1:17000", "0:1"});
}

TEST_CASE("sglang: max_prefill_tokens bounds the prompts of one iteration, not a single prompt") {
  SmallService service = tiny(100, 1, {.name = "sglang", .max_prefill_tokens = 15});
  service.max_model_len = 40;
  service.trace.requests = {declares(request(0, 10, 1), 1), declares(request(0, 5, 1), 1),
                            declares(request(0, 8, 1), 1), declares(request(0, 20, 1), 1)};
  service.scheduler.prefix_caching = true;
  // A prompt must be shorter than the remaining budget, unless it is the first.
  service.stack = "sglang@0.5.12";
  CHECK(run(service).plans == Plans{"0:10", "1:5 2:8", "3:20"});
  // Since 0.5.13 this applies only if prompts are not split: then some budget must remain.
  service.stack = "sglang@0.5.13";
  CHECK(run(service).plans == Plans{"0:10 1:5", "2:8 3:20"});
  service.scheduler.chunked_prefill = false;
  CHECK(run(service).plans == Plans{"0:10", "1:5 2:8", "3:20"});
}

TEST_CASE("sglang without the radix cache: requests of known length are admitted if all can end") {
  const auto joins = [](const char* stack, std::int64_t pool, bool caches) {
    SmallService service = tiny(pool, 1, {.name = "sglang", .prefix_caching = caches});
    service.stack = stack;
    service.max_model_len = 60;
    service.trace.requests = {declares(request(0, 10, 20), 20),
                              declares(request(0.5e-3, 10, 4), 4)};
    const Plans plans = run(service).plans;
    REQUIRE(plans.size() > 1);
    CHECK(plans[0] == "0:10");
    return plans[1] == "1:10";
  };
  // The second prompt has to fit next to 0.7 of the first one's 19 tokens: 10 + 13.3 + 10 of 34.
  // Then both have memory for 4 more, and the first for 19 after the second's 10 are free: 34 - 20
  // + 10.
  CHECK(joins("sglang@0.5.9", 34, false));
  CHECK_FALSE(joins("sglang@0.5.9", 33, false));
  // With the cache, all possible tokens of both count: 10 + 13.3 + 10 + 4, with memory left over.
  CHECK_FALSE(joins("sglang@0.5.9", 37, true));
  CHECK(joins("sglang@0.5.9", 38, true));
  // Before 0.4.8, both require memory for the 19 tokens of the request that ends last: 20 + 2 x 19.
  CHECK(joins("sglang@0.4.7", 59, false));
  CHECK_FALSE(joins("sglang@0.4.7", 58, false));
}

TEST_CASE("sglang with mixed chunks decodes in the iterations of prompts") {
  SmallService service =
      tiny(40, 1, {.name = "sglang", .max_num_batched_tokens = 12, .mixed_chunk = true});
  service.max_model_len = 30;
  service.trace.requests = {declares(request(0, 10, 6), 8), declares(request(0, 10, 8), 8),
                            declares(request(0, 8, 3), 4)};
  // 2: the rest of B and a token of A, 9 of 12; C's 8 + 4 do not fit in 20 with B's 8 and 0.7 of
  // A's 7. 3 to 6: decodes; A ends. 7: the decode detects that a sequence has ended. 8: C joins B.
  CHECK(run(service).plans == Plans{"0:10 1:2", "1:8 0:1", "0:1 1:1", "0:1 1:1", "0:1 1:1",
                                    "0:1 1:1", "1:1", "2:8 1:1", "1:1 2:1", "2:1"});
  // The share of decodes in the 12: after A's 10, B has at most 11.
  service.trace.requests = {declares(request(0, 10, 3), 3), declares(request(0.5e-3, 15, 1), 1)};
  CHECK(run(service).plans == Plans{"0:10", "1:11 0:1", "1:4 0:1"});
  // Without chunks, the engine does not mix.
  service.scheduler.chunked_prefill = false;
  CHECK(run(service).plans == Plans{"0:10", "1:15", "0:1", "0:1"});
}

TEST_CASE("sglang: a prefix taken from evictable blocks counts as memory too") {
  SmallService service = tiny(40, 1, {.name = "sglang", .prefix_caching = true});
  service.max_model_len = 40;
  service.trace.prefix_block = 4;
  service.trace.prefix_ids = {1, 2, 3, 4, 1, 2, 3, 4, 5};
  service.trace.requests = {request(0, 16, 1), declares(request(0.5e-3, 10, 10), 10),
                            declares(request(1.5e-3, 20, 1), 8)};
  service.trace.requests[0].prefix_count = 4;
  service.trace.requests[2].prefix_first = 4;
  service.trace.requests[2].prefix_count = 5;
  // 30 are free, including 16 of the first request's prompt. Four of C's 20 tokens are to be
  // computed, which fit in 30 with eight future tokens and 6.3 of B's nine, but not if the 16 may
  // not be evicted.
  CHECK(run(service).plans == Plans{"0:16", "1:10", "1:1", "1:1", "1:1", "1:1", "1:1", "1:1", "1:1",
                                    "1:1", "1:1", "2:4"});
}

TEST_CASE("sglang with lpm serves the longest cached prefix first") {
  SmallService service =
      tiny(100, 1, {.name = "sglang", .max_num_seqs = 1, .prefix_caching = true, .policy = "lpm"});
  service.trace.prefix_block = 4;
  service.trace.prefix_ids = {1, 2, 3, 4, 1, 5, 1, 2};
  service.trace.requests = {request(0, 8, 2), request(0.5e-3, 8, 1), request(0.5e-3, 8, 1),
                            request(0.5e-3, 8, 1)};
  for (int i = 0; i < 4; ++i) {
    service.trace.requests[static_cast<std::size_t>(i)].prefix_first = 2 * i;
    service.trace.requests[static_cast<std::size_t>(i)].prefix_count = 2;
  }
  // The last request shares seven tokens with the first, the one before it four, the second none.
  const Plans sorted{"0:8", "0:1", "3:1", "2:4", "1:8"};
  CHECK(run(service).plans == sorted);
  // The default up to 0.4.3.
  service.scheduler.policy.reset();
  service.stack = "sglang@0.4.3";
  CHECK(run(service).plans == sorted);
  service.stack = "sglang@0.4.4";
  CHECK(run(service).plans != sorted);
  service.stack = "vllm";
  service.scheduler.policy = "fcfs";
  CHECK(run(service).plans == Plans{"0:8", "0:1", "1:8", "2:4", "3:1"});
}

TEST_CASE("trtllm reserves the declared output before a request starts") {
  SmallService service = tiny(8, 4, {.name = "trtllm", .max_num_batched_tokens = 16});
  service.max_model_len = 16;
  service.trace.requests = {declares(request(0, 6, 3), 6), declares(request(0, 6, 5), 10),
                            declares(request(0, 3, 2), 2)};
  // Three, four and two of eight blocks are reserved: C starts when A has ended.
  const Run r = run(service);
  CHECK(r.plans == Plans{"0:6 1:6", "0:1 1:1", "0:1 1:1", "1:1 2:3", "1:1 2:1"});
  CHECK(r.result.preemptions == 0);
  // A request without a declaration may reach the longest sequence: 16 tokens, four blocks.
  service.trace.requests[1].declared_tokens = 0;
  service.trace.requests[2].declared_tokens = 0;
  CHECK(run(service).plans == Plans{"0:6 1:6", "0:1 1:1", "0:1 1:1", "1:1 2:3", "1:1 2:1"});
  service.blocks = 10;
  CHECK(run(service).plans.front() == "0:6 1:6");
  service.blocks = 11;
  CHECK(run(service).plans.front() == "0:6 1:6 2:3");
}

TEST_CASE("trtllm counts reservations again when other requests run") {
  SmallService service = tiny(8, 4, {.name = "trtllm"});
  service.max_model_len = 20;
  service.trace.requests = {declares(request(0, 4, 2), 4), declares(request(0.5e-3, 4, 3), 16),
                            declares(request(1.5e-3, 4, 1), 12)};
  // Of eight blocks, the first request reserves two and the second five more. When the first has
  // ended, the third's four do not fit together with those five.
  CHECK(run(service).plans == Plans{"0:4", "0:1 1:4", "1:1", "1:1", "2:4"});
}

TEST_CASE("trtllm cuts contexts at whole blocks") {
  SmallService service = tiny(20, 4, {.name = "trtllm", .max_num_batched_tokens = 8});
  service.trace.requests = {request(0, 5, 2), request(0, 10, 1)};
  // Three tokens are less than a block; seven tokens contain one.
  CHECK(run(service).plans == Plans{"0:5", "0:1 1:4", "1:6"});
  service.scheduler = {.name = "trtllm", .max_num_batched_tokens = 11, .chunked_prefill = false};
  CHECK(run(service).plans == Plans{"0:5", "0:1 1:10"});
}

TEST_CASE("trtllm takes prompts whole unless one is longer than an iteration") {
  SmallService service = tiny(20, 4, {.name = "trtllm", .max_num_batched_tokens = 8});
  service.trace.requests = {request(0, 5, 2), request(0, 8, 1)};
  CHECK(run(service).plans == Plans{"0:5", "0:1", "1:8"});
  service.scheduler.chunked_prefill = true;
  CHECK(run(service).plans == Plans{"0:5", "0:1 1:4", "1:4"});
}

TEST_CASE("trtllm counts cached tokens of a prompt as if they were computed") {
  SmallService service =
      tiny(20, 4, {.name = "trtllm", .max_num_batched_tokens = 12, .prefix_caching = true});
  service.trace.prefix_block = 4;
  service.trace.prefix_ids = {1, 2};
  service.trace.requests = {request(0, 8, 1), request(0.5e-3, 12, 1), request(0.5e-3, 4, 1)};
  service.trace.requests[0].prefix_count = 2;
  service.trace.requests[1].prefix_count = 2;
  CHECK(run(service).plans == Plans{"0:8", "1:4", "2:4"});
}

TEST_CASE("trtllm without chunks refuses prompts beyond its tokens, for any longest sequence") {
  SmallService service =
      tiny(20, 4, {.name = "trtllm", .max_num_batched_tokens = 8, .chunked_prefill = false});
  service.max_model_len = 40;
  service.trace.requests = {request(0, 8, 4), request(0, 9, 4)};
  for (Request& r : service.trace.requests) r.declared_tokens = r.output_tokens;
  const ServeResult refused = service.run();
  CHECK(refused.outcomes[0].status == RequestStatus::kCompleted);
  CHECK(refused.outcomes[1].status == RequestStatus::kRejected);
  service.scheduler.chunked_prefill = true;
  CHECK(service.run().completed == 2);
}

TEST_CASE("trtllm at most utilization pauses the last started sequence") {
  SmallService service = tiny(5, 4, {.name = "trtllm", .policy = "max-utilization"});
  service.trace.requests = {request(0, 6, 5), request(0, 5, 4), request(0, 4, 3)};
  // 1: all five blocks. 2: C's fifth token has no block: C is paused. 3: its five tokens require
  // two blocks, and one is free. 4: A uses it, B ends. 5: C starts again with A's last token.
  const Run r = run(service);
  CHECK(r.plans == Plans{"0:6 1:5 2:4", "0:1 1:1", "0:1 1:1", "0:1 1:1", "0:1 2:5", "2:1"});
  CHECK(r.result.preemptions == 1);
  CHECK(r.result.recomputed_tokens == 4);
}

TEST_CASE("trtllm at most utilization: a context holds all its blocks from its first chunk on") {
  SmallService service =
      tiny(5, 4, {.name = "trtllm", .max_num_batched_tokens = 10, .policy = "max-utilization"});
  service.trace.requests = {request(0, 19, 1), request(0, 2, 1)};
  // Two of ten tokens are left, and three of five blocks, which the first request will use.
  CHECK(run(service).plans == Plans{"0:8", "0:8", "0:3", "1:2"});
  service.blocks = 6;
  CHECK(run(service).plans == Plans{"0:8 1:2", "0:8", "0:3"});
}

TEST_CASE("trtllm at most utilization: a decode takes no block that a context will need") {
  SmallService service =
      tiny(5, 4, {.name = "trtllm", .max_num_batched_tokens = 8, .policy = "max-utilization"});
  service.trace.requests = {request(0, 7, 4), request(0, 12, 1)};
  // 3: A's ninth token requires a block; the two free ones belong to B, which is paused.
  CHECK(run(service).plans == Plans{"0:7", "0:1 1:4", "0:1", "0:1", "1:8", "1:4"});
}

TEST_CASE("unsupported options of a scheduler are refused with the supported ones") {
  const auto refuses = [](SchedulerSpec spec, const char* message) {
    SmallService service{.scheduler = std::move(spec)};
    service.trace.requests = {request(0, 600, 5)};
    CHECK_THROWS_WITH_AS((void)service.run(), doctest::Contains(message), InputError);
  };
  refuses({.name = "vllm-v1", .swap = true},
          "scheduler vllm-v1: swap: not an option of this scheduler (options: "
          "max_num_batched_tokens, max_num_seqs, ");
  refuses({.name = "vllm-v0", .long_prefill_token_threshold = 4}, "watermark, swap");
  refuses({.name = "sglang", .watermark = 0.1}, "policy, conservativeness");
  refuses({.name = "trtllm", .batch = 3}, "scheduler trtllm: batch");
  refuses({.name = "trtllm", .policy = "max-utilisation"}, "did you mean \"max-utilization\"");
  refuses({.name = "sglang", .policy = "lmp"}, "did you mean \"lpm\"?");
  refuses({.name = "sglang", .order = QueueOrder::kPriority, .policy = "lpm"},
          "\"lpm\" orders the queue itself, expected \"fcfs\" by priority");
  refuses({.name = "sglang", .order = QueueOrder::kShortestDeclared, .policy = "lpm"},
          "expected \"fcfs\" shortest declared output first");
  refuses({.name = "vllm-v0", .swap = true}, "host memory");
  refuses({.name = "vllm-v0", .max_num_batched_tokens = 500}, "longest sequence's 605");
  refuses({.name = "vllm-v0",
           .max_num_batched_tokens = 100,
           .chunked_prefill = true,
           .prefix_caching = true},
          "multiple of the block's 16");
  refuses({.name = "vllm-v0", .watermark = 1.0}, "share in [0, 1)");
  refuses({.name = "vllm-v0", .max_num_seqs = 0}, "at least 1, got 0");
  refuses({.name = "sglang", .conservativeness = -1.0}, "at least 0, got -1");
  refuses({.name = "sglang", .max_prefill_tokens = 0}, "at least 1, got 0");
  refuses({.name = "vllm-v1", .mixed_chunk = true}, "scheduler vllm-v1: mixed_chunk");
  refuses({.name = "trtllm", .max_num_batched_tokens = 8}, "at least 16, got 8");
  SmallService service{.scheduler = {.name = "static", .max_num_seqs = 4}, .stack = "hf-sdpa"};
  CHECK_THROWS_WITH_AS((void)service.run(),
                       doctest::Contains("options: batch, max_num_batched_tokens"), InputError);
}

TEST_CASE("stacks use the scheduler of their engine") {
  for (const char* stack : {"vllm", "vllm-v0", "sglang", "trtllm"}) {
    SmallService service{.stack = stack};
    service.trace.requests = {request(0, 60, 5)};
    const ServeResult r = service.run();
    CHECK(r.completed == 1);
    CHECK(r.scheduler.starts_with(std::string{stack} == "vllm" ? "vllm-v1" : stack));
    CHECK(r.scheduler.ends_with(std::string{stack} == "vllm-v0" ? "off" : "on"));
  }
}

}  // namespace
}  // namespace kvsim
