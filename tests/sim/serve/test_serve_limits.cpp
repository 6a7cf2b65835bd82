// Information available to an engine when it accepts a request, limits of sequence lengths, and the
// cached tokens that the next turn of a conversation finds.

#include <algorithm>
#include <limits>
#include <string>

#include "models/llm/catalogue.hpp"
#include "models/stack/stack.hpp"
#include "sim/batch/memory_end.hpp"
#include "sim/serve/schedulers/limits.hpp"
#include "sim/serve/schedulers/scheduler.hpp"
#include "sim/serve/service/serve_run.hpp"
#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"
#include "traces/requests/formats/context_ids.hpp"
#include "traces/requests/generate/generate_requests.hpp"

namespace kvsim {
namespace {

using test::CheckingObserver;
using test::request;
using test::SmallService;

ServeSpec llama_on(const Gpu& gpu, const char* stack) {
  auto trace = std::make_shared<RequestTrace>();
  trace->requests = {request(0, 100, 10), request(1, 200, 20)};
  return {.llm = &find_llm("llama-3.1-8b"),
          .gpu = &gpu,
          .stack = &find_stack(stack),
          .weight_dtype = Dtype::kBf16,
          .kv_dtype = Dtype::kBf16,
          .requests = trace};
}

TEST_CASE("limits: the scheduler's setting, else the stack's, else the scheduler's default") {
  const Stack engine = with_options(find_stack("vllm"), {.max_num_seqs = 8, .prefill_chunk = 100},
                                    {nullptr, nullptr, 1});
  const ConfiguredLimits of_stack = resolve_limits(engine);
  CHECK(of_stack.seqs == 8);
  CHECK(of_stack.tokens == 100);
  CHECK(of_stack.iteration_tokens(true, 500, 7) == 100);
  // Without chunks, a default is increased to the longest sequence; a value set by the run is not.
  CHECK(of_stack.iteration_tokens(false, 500, 7) == 500);
  const ConfiguredLimits set =
      resolve_limits(engine, {.name = {}, .max_num_batched_tokens = 60, .max_num_seqs = 3});
  CHECK(set.seqs == 3);
  CHECK(set.iteration_tokens(false, 500, 7) == 60);
  const ConfiguredLimits none = resolve_limits(find_stack("ideal"));
  CHECK_FALSE(none.seqs.has_value());
  CHECK(none.iteration_tokens(true, 500, 7) == 7);
  CHECK(none.iteration_tokens(false, 500, 7) == 500);
  const StackOptions started = with_limits({.max_num_seqs = 8, .block_tokens = 32},
                                           {.name = {}, .max_num_batched_tokens = 60});
  CHECK(started.max_num_seqs == 8);
  CHECK(started.prefill_chunk == 60);
  CHECK(started.block_tokens == 32);
}

TEST_CASE("an engine is set up for the model's context unless configured otherwise") {
  ServeSpec spec = llama_on(find_gpu("H100-80GB-SXM"), "vllm");
  CHECK(run_serve(spec).startup->max_model_len == 131072);
  spec.options.longest_request = true;
  CHECK(run_serve(spec).startup->max_model_len == 220);
  spec.options.max_model_len = 4096;
  CHECK(run_serve(spec).startup->max_model_len == 4096);
}

TEST_CASE("if the cache does not hold one sequence vLLM does not start and others shorten it") {
  // 24 GB: weights of 15 GiB leave less than the 16 GiB required for 131072 tokens of 128 KiB.
  const Gpu& small = find_gpu("RTX-4090");
  ServeSpec spec = llama_on(small, "vllm");
  const ServeResult refused = run_serve(spec);
  CHECK(refused.completed == 0);
  REQUIRE(refused.ooms.size() == 1);
  CHECK(refused.ooms[0].what.find("max_model_len 131072") != std::string::npos);
  CHECK(refused.startup->sequence == Bytes{std::int64_t{131072} * 131072});
  CHECK_FALSE(refused.startup->serves());
  // It starts with the length suggested in the message.
  spec.options.max_model_len = refused.startup->tokens;
  CHECK(run_serve(spec).completed == 2);
  spec.options.max_model_len = refused.startup->tokens + refused.block_tokens + 1;
  CHECK(run_serve(spec).completed == 0);
  spec.options.max_model_len.reset();
  for (const char* stack : {"sglang", "trtllm"}) {
    INFO(stack);
    spec.stack = &find_stack(stack);
    const ServeResult served = run_serve(spec);
    CHECK(served.completed == 2);
    CHECK(served.startup->max_model_len == served.startup->tokens);
  }
}

TEST_CASE("a request is refused by its declared length and never by its generated length") {
  SmallService service{.blocks = 64, .max_model_len = 256};
  service.trace.requests = {request(0, 100, 5000), request(0, 100, 20), request(0, 256, 3),
                            request(0, 257, 0), request(0, 256, 0)};
  service.trace.requests[1].declared_tokens = 157;
  const ServeResult r = service.run();
  // Its length was unknown: it ends at the longest sequence.
  CHECK(r.outcomes[0].status == RequestStatus::kCompleted);
  CHECK(r.outcomes[0].output_tokens == 156);
  CHECK(r.truncated_requests == 1);
  CHECK(r.outcomes[1].status == RequestStatus::kRejected);  // 100 + 157 tokens
  CHECK(r.outcomes[2].status == RequestStatus::kRejected);  // no memory for a token
  CHECK(r.outcomes[3].status == RequestStatus::kRejected);
  CHECK(r.outcomes[4].status == RequestStatus::kCompleted);
  CHECK(r.oom_events == 0);
  service.trace.requests[1].declared_tokens = 156;
  CHECK(service.run().outcomes[1].status == RequestStatus::kCompleted);
  // SGLang and TensorRT-LLM reduce the declared length instead.
  for (const std::string name : {"sglang", "trtllm"}) {
    INFO(name);
    service.scheduler.name = name;
    service.trace.requests[1].declared_tokens = 1000;
    CHECK(service.run().outcomes[1].status == RequestStatus::kCompleted);
  }
}

TEST_CASE("only prompts whose score matrices do not fit are refused") {
  // Every pass of 8192 queries over 100,000 keys: 32 heads in 16 bit are 52 GB, plus fp32.
  ServeSpec spec = llama_on(find_gpu("A100-80GB-SXM"), "vllm");
  auto trace = std::make_shared<RequestTrace>();
  trace->requests = {request(0, 100'000, 10), request(1, 4000, 10)};
  spec.requests = trace;
  spec.scheduler.max_num_batched_tokens = 8192;
  spec.method = {"h2o", {}, Budget{.fraction = 0.1}};
  const ServeResult eager = run_serve(spec);
  CHECK(eager.outcomes[0].status == RequestStatus::kRejected);
  CHECK(eager.outcomes[1].status == RequestStatus::kCompleted);
  REQUIRE(eager.ooms.size() == 1);
  CHECK(eager.ooms[0].what.find("attention scores") != std::string::npos);
  CHECK(eager.ooms[0].requested > eager.ooms[0].free);
  // Smaller passes need less memory; scores of a window, or no scores, need almost none.
  spec.scheduler.max_num_batched_tokens = 256;
  CHECK(run_serve(spec).oom_events == 0);
  spec.scheduler.max_num_batched_tokens = 8192;
  for (const char* method : {"full", "snapkv", "streaming-llm"}) {
    INFO(method);
    spec.method = {method, {}, {}};
    if (spec.method.name != "full") spec.method.budget = Budget{.fraction = 0.1};
    const ServeResult r = run_serve(spec);
    CHECK(r.completed == 2);
    CHECK(r.oom_events == 0);
  }
}

/// vLLM V1, except that one sequence is preempted once after a certain number of generated tokens.
class PreemptsOnce : public Scheduler {
 public:
  PreemptsOnce(std::unique_ptr<Scheduler> inner, std::int32_t after)
      : inner_{std::move(inner)}, after_{after} {}
  void schedule(BatchBuilder& batch) override {
    if (!done_ && !batch.running().empty() &&
        batch.sequence(batch.running().front()).generated() == after_) {
      done_ = true;
      batch.preempt(batch.running().front());
    }
    inner_->schedule(batch);
  }
  [[nodiscard]] std::string describe() const override { return inner_->describe(); }

 private:
  std::unique_ptr<Scheduler> inner_;
  std::int32_t after_;
  bool done_ = false;
};

/// Records the prompt chunks of all iterations.
class RecordedCost : public IterationCost {
 public:
  RecordedCost(std::unique_ptr<IterationCost> inner, std::vector<PrefillChunk>& chunks)
      : inner_{std::move(inner)}, chunks_{&chunks} {}
  MixedCost cost(const MixedStep& step) override {
    chunks_->insert(chunks_->end(), step.chunks.begin(), step.chunks.end());
    return inner_->cost(step);
  }
  std::span<const LayerSpan> layer_classes() const override { return inner_->layer_classes(); }

 private:
  std::unique_ptr<IterationCost> inner_;
  std::vector<PrefillChunk>* chunks_;
};

TEST_CASE("a sequence longer than the longest scored prompt is scored again a few rows at a time") {
  static constexpr std::int32_t kPass = 8192, kGrown = 500;
  ServeSpec spec = llama_on(find_gpu("A100-80GB-SXM"), "vllm");
  spec.scheduler = {.name = "vllm-v1", .max_num_batched_tokens = kPass, .prefix_caching = false};
  spec.method = {"h2o", {}, Budget{.fraction = 0.1}};
  const auto with = [&](std::int32_t prompt, std::int32_t output) {
    auto trace = std::make_shared<RequestTrace>();
    trace->requests = {request(0, prompt, output)};
    spec.requests = trace;
  };
  std::int32_t longest = 4000, refused = 100'000;
  while (refused - longest > 1) {
    const std::int32_t middle = longest + (refused - longest) / 2;
    with(middle, 1);
    (run_serve(spec).completed == 1 ? longest : refused) = middle;
  }
  REQUIRE(longest > kPass);

  const auto preempted = [&](std::int32_t prompt, std::vector<PrefillChunk>& chunks) {
    with(prompt, kGrown + 40);
    ServeHooks hooks;
    hooks.cost = [&](const CostInput& in, const Roofline& roofline) {
      return std::make_unique<RecordedCost>(mixed_iteration_cost(in, roofline), chunks);
    };
    hooks.scheduler = [](const SchedulerSpec& of, const SchedulerContext& site) {
      return std::make_unique<PreemptsOnce>(find_scheduler("vllm-v1").make(of, site), kGrown);
    };
    const ServeResult r = run_serve(spec, {}, hooks);
    CHECK(r.completed == 1);
    CHECK(r.preemptions == 1);
    CHECK(r.oom_events == 0);
    // The prompt in whole passes, then everything again including the generated tokens.
    std::int64_t tokens = 0, max_pairs = 0;
    for (const PrefillChunk& c : chunks) {
      CHECK(c.before == (tokens < prompt ? tokens : tokens - prompt));
      CHECK(c.last == (tokens + c.tokens == prompt || tokens + c.tokens == 2 * prompt + kGrown));
      const std::int64_t keys = tokens < prompt ? prompt : prompt + kGrown;
      max_pairs = std::max(max_pairs, c.tokens * keys);
      tokens += c.tokens;
    }
    CHECK(tokens == 2 * prompt + kGrown);
    // Matrices have an element per pair of row and key: never more than fit.
    CHECK(max_pairs < std::int64_t{kPass} * (longest + 1));
    return r;
  };
  std::vector<PrefillChunk> whole, sliced;
  const ServeResult fits = preempted(longest - kGrown, whole);
  for (const PrefillChunk& c : whole) CHECK((c.tokens == kPass || c.last));
  const ServeResult grew = preempted(longest, sliced);
  const auto slices = std::count_if(sliced.begin(), sliced.end(), [](const PrefillChunk& c) {
    return c.tokens != kPass && !c.last;
  });
  CHECK(slices >= longest / kPass);
  const auto noted = [](const ServeResult& r) {
    return std::any_of(r.notes.begin(), r.notes.end(), [](const std::string& note) {
      return note.find("a few rows at a time") != std::string::npos;
    });
  };
  CHECK(noted(grew));
  CHECK_FALSE(noted(fits));
}

TEST_CASE("a batch that allocates its caches in advance uses the declared length") {
  const auto peak = [](std::int32_t output, std::int32_t declared, std::int32_t other = 4000) {
    ServeSpec spec = llama_on(find_gpu("A100-80GB-SXM"), "torch-static");
    auto trace = std::make_shared<RequestTrace>();
    for (const std::int32_t n : {output, other}) {
      trace->requests.push_back(request(0, 1000, n));
      trace->requests.back().declared_tokens = declared;
    }
    spec.requests = trace;
    spec.scheduler = {.name = "static", .batch = 1};
    return run_serve(spec).peak_owners.at("kv_cache");
  };
  // 131,072 bytes per token, of which the last is never stored.
  CHECK(peak(50, 4000) == Bytes{131072LL * 5000});
  CHECK(peak(50, 4000) == peak(2000, 4000));
  CHECK(peak(50, 6000, 50) == Bytes{131072LL * 7000});
  // A request without a declaration is assigned the longest length of the workload.
  CHECK(peak(50, 0) == peak(2000, 0));
}

/// Two turns of one conversation: 40 tokens, an answer of 25, and 20 more tokens.
RequestTrace two_turns(std::int32_t ids) {
  RequestTrace trace;
  trace.conversations = true;
  ContextIds context{trace, ids};
  std::vector<std::uint64_t> full;
  Request first = request(0, 40, 25);
  first.session = 0;
  context.turn(first, full);
  Request second = request(0.5, 85, 5);
  second.session = 0;
  second.after = 0;
  context.turn(second, full);
  trace.requests = {first, second};
  return trace;
}

TEST_CASE("the next turn of a conversation finds the answer before it") {
  // 40 + 25 tokens, the last of which was never computed: 64 are in blocks, all of which are full
  // for blocks of 1 to 16.
  for (const std::int32_t ids : {1, 7, 16, 48, 512}) {
    for (const std::int64_t block : {1, 16, 32}) {
      INFO(ids, " tokens an id, blocks of ", block);
      CheckingObserver observer{block};
      SmallService service{.blocks = 1024 / block, .block_tokens = block, .observer = &observer};
      service.trace = two_turns(ids);
      const ServeResult r = service.run();
      CHECK(r.completed == 2);
      CHECK(r.outcomes[1].cached_tokens == 64 / block * block);
      // An unrelated request does not find it: the answer has no prefix id.
      service.trace.requests[1].after = -1;
      service.trace.requests[1].arrival = to_sim_time(Seconds{100.0});
      service.observer = nullptr;
      const std::int64_t alone = service.run().outcomes[1].cached_tokens;
      CHECK(alone <= 40);
    }
  }
}

TEST_CASE("in a closed loop a request finds the shared prompt but not its user's answers") {
  // 512 of 513 to 712 tokens are shared; the later tokens and the answer are private.
  const GeneratorSpec spec{.arrivals = {.kind = ArrivalKind::kClosed, .users = 4},
                           .count = 200,
                           .prompt_tokens = {.kind = LengthKind::kUniform, .low = 1, .high = 200},
                           .output_tokens = {.kind = LengthKind::kFixed, .low = 16, .high = 16},
                           .shared_prefix = SharedPrefixSpec{.tokens = 512}};
  SmallService service{.blocks = 4096};
  service.trace = generate_requests(spec, 0);
  const ServeResult alone = service.run();
  CHECK(alone.completed == 200);
  CHECK(alone.prefix_hit_tokens > 190 * 512);
  for (const RequestOutcome& o : alone.outcomes) CHECK(o.cached_tokens <= 512);
  // Requests that continue each other find the earlier turns. Every turn starts a new id, since a
  // block has at most two ids.
  GeneratorSpec talks = spec;
  talks.prompt_tokens.low = 64;
  talks.sessions = SessionSpec{.turns = {.kind = LengthKind::kFixed, .low = 4, .high = 4}};
  service.trace = generate_requests(talks, 0);
  std::int32_t found = 0;
  const ServeResult turns = service.run();
  for (std::size_t i = 0; i < turns.outcomes.size(); ++i) {
    const Request& r = service.trace.requests[i];
    const bool goes_on =
        r.after >= 0 &&
        service.trace.requests[static_cast<std::size_t>(r.after)].session == r.session;
    const std::int32_t cached = turns.outcomes[i].cached_tokens;
    if (goes_on) {
      const Request& before = service.trace.requests[static_cast<std::size_t>(r.after)];
      CHECK(cached == (before.prompt_tokens + before.output_tokens - 1) / 16 * 16);
      ++found;
    } else {
      CHECK(cached <= 512);
    }
  }
  CHECK(found >= 120);
}

TEST_CASE("turns of a recorded conversation find answers in a closed loop, other requests do not") {
  // A conversation of two turns and, by the same user, a request that starts with the same 80
  // tokens.
  RequestTrace trace = two_turns(16);
  trace.requests[1].output_tokens = 25;
  ContextIds context{trace, 16};
  for (std::uint64_t skip = 0; skip < 100; ++skip) (void)context.fresh();
  const auto begin = trace.prefix_ids.begin() + trace.requests[1].prefix_first;
  std::vector<std::uint64_t> full{begin, begin + 5};
  Request other = request(0, 120, 5);
  other.session = 1;
  context.turn(other, full);
  trace.requests.push_back(other);
  replace_arrivals(trace, {.kind = ArrivalKind::kClosed, .users = 1}, {}, 0);
  REQUIRE(trace.requests[2].after == 1);
  SmallService service{.blocks = 1024};
  service.trace = trace;
  const ServeResult r = service.run();
  CHECK(r.outcomes[1].cached_tokens == 64);
  CHECK(r.outcomes[2].cached_tokens == 80);
}

TEST_CASE("answers kept for later turns conserve blocks under memory pressure") {
  for (const std::int64_t blocks : {24, 40, 400}) {
    for (const std::int32_t ids : {16, 48}) {
      INFO(blocks, " blocks, ", ids, " tokens an id");
      CheckingObserver observer;
      SmallService service{.blocks = blocks, .observer = &observer};
      service.trace.conversations = true;
      ContextIds context{service.trace, ids};
      for (std::int32_t talk = 0; talk < 12; ++talk) {
        std::vector<std::uint64_t> full;
        std::int32_t tokens = 0;
        for (std::int32_t turn = 0; turn < 4; ++turn) {
          Request r = request(0.001 * talk, tokens + 20 + 3 * talk, 15 + 5 * turn);
          r.session = talk;
          if (turn > 0) r.after = static_cast<std::int32_t>(service.trace.requests.size()) - 1;
          tokens = r.prompt_tokens + r.output_tokens;
          context.turn(r, full);
          service.trace.requests.push_back(r);
        }
      }
      const ServeResult r = service.run();
      CHECK(r.completed == 48);
      // The smallest pool has to evict each answer before it is requested.
      if (blocks > 24) CHECK(r.prefix_hit_tokens > 0);
      std::int64_t once = 0;
      for (const RequestOutcome& o : r.outcomes) once += o.prompt_tokens + o.output_tokens - 1;
      CHECK(observer.planned_tokens == once + r.recomputed_tokens - r.prefix_hit_tokens);
      for (const ServeSample& s : r.timeline[0]) CHECK(s.kv_logical <= s.kv_blocks);
      if (blocks == 400) {
        // All answers are found except for their partial last blocks.
        for (const RequestOutcome& o : r.outcomes) CHECK(o.preemptions == 0);
        CHECK(r.prefix_hit_tokens > 36 * 30);
      }
    }
  }
}

TEST_CASE("entries read by several requests count once") {
  SmallService service{.blocks = 100};
  service.trace.prefix_block = 32;
  for (int i = 0; i < 5; ++i) {
    Request r = request(i == 0 ? 0 : 1, 96, i == 0 ? 1 : 40);
    r.prefix_first = static_cast<std::int32_t>(service.trace.prefix_ids.size());
    r.prefix_count = 3;
    for (const std::uint64_t id : {1U, 2U, 3U}) service.trace.prefix_ids.push_back(id);
    service.trace.requests.push_back(r);
  }
  const ServeResult r = service.run();
  Bytes max;
  for (const ServeSample& s : r.timeline[0]) {
    CHECK(s.kv_logical <= s.kv_blocks);
    max = std::max(max, s.kv_logical);
  }
  // 5 blocks shared by four sequences, and for each the last block of its prompt and 38 tokens of
  // its answer: at least 80 + 4 x (16 + 38) tokens of 1 KiB, and not 4 x (96 + 38).
  CHECK(max >= Bytes{1024 * (80 + 4 * (16 + 38))});
  CHECK(max < Bytes{1024 * 4 * (96 + 38)});
}

TEST_CASE("a timeline ends where its engine does even if its last request was refused") {
  // It exceeds the pool of 128 tokens while it runs alone.
  SmallService service{.blocks = 8, .scheduler = {.name = "vllm-v1", .prefix_caching = false}};
  service.trace.requests = {request(0, 100, 80)};
  const ServeResult r = service.run();
  CHECK(r.rejected == 1);
  CHECK(r.oom_events == 1);
  REQUIRE(!r.timeline[0].empty());
  CHECK(r.timeline[0].back().running == 0);
  CHECK(r.timeline[0].back().kv_blocks == Bytes{});
  CHECK(r.timeline[0].back().at == r.iteration_ends[0].back());
}

TEST_CASE("waiting for memory reserved for future outputs is reported") {
  // 64 blocks; each prompt uses 4, and each may grow to 1024 tokens because none declares a length.
  for (const std::string name : {"trtllm", "sglang"}) {
    INFO(name);
    SmallService service{.blocks = 64, .max_model_len = 1024, .scheduler = {.name = name}};
    if (name == "sglang") service.scheduler.conservativeness = 2.0;
    for (int i = 0; i < 40; ++i) service.trace.requests.push_back(request(0, 60, 40));
    const ServeResult r = service.run();
    CHECK(r.completed == 40);
    CHECK(r.reservation_wait_share > 0.5);
    CHECK(r.reservation_wait_share <= 1.0);
    // vLLM does not reserve memory.
    service.scheduler = {.name = "vllm-v1"};
    CHECK(service.run().reservation_wait_share == 0);
  }
}

TEST_CASE("a pool of bytes keeps whole blocks free like a pool of blocks") {
  // Layers that are equal except for the number of kept entries: the unit is a byte.
  for (const double watermark : {0.0, 0.25}) {
    INFO(watermark);
    std::vector<std::int64_t> preemptions;
    for (const bool bytes : {false, true}) {
      CheckingObserver observer{16, !bytes};
      SmallService service{
          .blocks = 40,
          .scheduler = {.name = "vllm-v0", .prefix_caching = false, .watermark = watermark},
          .observer = &observer};
      // Budgets longer than any sequence: every layer keeps every token.
      if (bytes) service.method = {"pyramidkv", {}, Budget{.entries = 4000}};
      for (int i = 0; i < 30; ++i) service.trace.requests.push_back(request(0, 60, 60));
      const ServeResult r = service.run();
      CHECK(r.completed == 30);
      preemptions.push_back(r.preemptions);
    }
    CHECK(preemptions[0] == preemptions[1]);
  }
}

TEST_CASE("the pool is between its ends, which measured terms narrow to nothing") {
  ServeSpec spec = llama_on(find_gpu("H100-80GB-SXM"), "vllm");
  const ServeResult r = run_serve(spec);
  REQUIRE(r.pool_interval);
  CHECK(r.pool_interval->tokens_low < r.kv_capacity_tokens);
  CHECK(r.pool_interval->tokens_high > r.kv_capacity_tokens);
  CHECK(r.pool_interval->tokens_low == r.pool_interval->blocks_low * r.block_tokens);
  // Each uncertain term at its end; weights are known.
  const MemoryEnds residual = *memory_ends(find_stack("vllm"), 1);
  const EngineStartup& s = *r.startup;
  REQUIRE(s.counts_graphs);
  const auto of = [](Bytes b) { return static_cast<double>(b.count()); };
  const auto more = [&](const TermFactors& f) {
    return (f.activation - 1) * of(s.activation) + (f.non_torch - 1) * of(s.non_torch) +
           (f.graphs - 1) * of(s.graphs);
  };
  const auto off = [&](Bytes end) { return of(end - s.kv_cache); };
  CHECK(off(r.pool_interval->low) == test::rel(-more(residual.high.terms), 1e-6));
  CHECK(off(r.pool_interval->high) == test::rel(-more(residual.low.terms), 1e-6));
  spec.options.weights = s.weights;
  CHECK(run_serve(spec).pool_interval->low == r.pool_interval->low);
  CHECK(run_serve(spec).pool_interval->high == r.pool_interval->high);
  spec.options.non_torch = s.non_torch;
  spec.options.activation = s.activation;
  spec.options.graphs = s.graphs;
  const ServeResult measured = run_serve(spec);
  CHECK(measured.pool_interval->low == measured.pool_interval->high);
  CHECK(measured.pool_interval->tokens_low == measured.kv_capacity_tokens);
}

TEST_CASE("a pool that leaves no room for activations is refused with the remaining bytes") {
  ServeSpec spec = llama_on(find_gpu("H100-80GB-SXM"), "sglang");
  CHECK(run_serve(spec).completed > 0);
  spec.options.memory_fraction = 1.0;
  const ServeResult r = run_serve(spec);
  CHECK(r.completed == 0);
  REQUIRE(r.ooms.size() == 1);
  CHECK(r.ooms.front().what.find("for activations") != std::string::npos);
}

// Served or refused: memory never exceeds the card, including CUDA graphs.
TEST_CASE("the peak of a service is never more than its GPU") {
  for (const char* gpu : {"RTX-4090", "A100-40GB-SXM", "H100-80GB-SXM"}) {
    for (const char* stack : {"vllm", "vllm-v0", "sglang", "trtllm", "lmdeploy"}) {
      for (const double fraction : {0.0, 0.5, 0.97, 1.0}) {
        for (const char* model : {"llama-3.1-8b", "llama-3.1-70b"}) {
          INFO(gpu, " ", stack, " ", fraction, " ", model);
          ServeSpec spec = llama_on(find_gpu(gpu), stack);
          spec.llm = &find_llm(model);
          if (fraction > 0) spec.options.memory_fraction = fraction;
          const ServeResult r = run_serve(spec);
          CHECK(r.peak_hbm <= spec.gpu->hbm_usable);
          CHECK(r.peak_hbm <= r.usable_hbm);
          Bytes owners;
          for (const auto& [name, bytes] : r.peak_owners) owners += bytes;
          CHECK(owners == r.peak_hbm);
          if (!r.startup->starts()) CHECK(r.completed == 0);
          CHECK(r.peak_interval.has_value() == r.startup->starts());
          if (!r.peak_interval) continue;
          CHECK(r.peak_interval->low <= r.peak_hbm);
          CHECK(r.peak_hbm <= r.peak_interval->high);
          CHECK(r.peak_interval->high <= r.usable_hbm);
          // Additional bytes of weights, activations and other terms reduce the pool of vLLM.
          if (r.startup->fraction_of == FractionOf::kAll) {
            // The memory of graphs is in addition to the fraction if the engine does not count it.
            const Bytes graphs = r.startup->counts_graphs ? Bytes{} : r.startup->graphs;
            CHECK(r.peak_interval->high - r.peak_interval->low <= r.startup->block + graphs);
          }
        }
      }
    }
  }
}

TEST_CASE("preemptions are counted beyond 32767") {
  CHECK(std::numeric_limits<decltype(RequestOutcome::preemptions)>::max() >=
        std::numeric_limits<std::int32_t>::max());
}

}  // namespace
}  // namespace kvsim
