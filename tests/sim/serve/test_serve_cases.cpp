// Hand-solved or closed-form cases: queueing, static batches, edge cases of a workload.

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>

#include "models/cost/rates/calibration.hpp"
#include "models/units/error.hpp"
#include "sim/batch/point/compiled_point.hpp"
#include "sim/engine/event_queue.hpp"
#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

using test::request;
using test::SmallService;

double s(SimTime t) { return to_seconds(t).count(); }

TEST_CASE("events run by time, then phase, then the order in which they were scheduled") {
  EventQueue<int> queue;
  queue.schedule(SimTime{5}, Phase::kSchedule, 1);
  queue.schedule(SimTime{5}, Phase::kArrival, 2);
  queue.schedule(SimTime{5}, Phase::kArrival, 3);
  queue.schedule(SimTime{5}, Phase::kRelease, 4);
  queue.schedule(SimTime{2}, Phase::kObserve, 5);
  std::vector<int> order;
  while (!queue.empty()) order.push_back(queue.pop().payload);
  CHECK(order == std::vector{5, 4, 2, 3, 1});
  CHECK(queue.now() == SimTime{5});
  CHECK_THROWS_AS(queue.schedule(SimTime{4}, Phase::kArrival, 0), ContractError);
}

TEST_CASE("a queue of events without progress is detected") {
  EventQueue<int> queue{100};
  const auto run = [&] {
    queue.schedule(SimTime{1}, Phase::kArrival, 0);
    for (int i = 0; i < 1000; ++i) {
      (void)queue.pop();
      queue.schedule(queue.now(), Phase::kArrival, 0);
    }
  };
  CHECK_THROWS_AS(run(), ContractError);
}

TEST_CASE("a request that waits for several arrives its pause after the last of them ends") {
  SmallService service{.times = {.iteration = 1e-3, .per_token = 0, .per_entry = 0},
                       .scheduler = {.name = "vllm-v1", .max_num_batched_tokens = 100}};
  // 0 takes 1 ms. 1 and 2 follow it with 5 and 9 iterations; 3 waits for both, 10 ms.
  service.trace.requests = {request(0, 10, 1), request(0, 10, 5), request(0, 10, 9),
                            request(0.01, 10, 1)};
  service.trace.requests[1].after = 0;
  service.trace.requests[2].after = 0;
  service.trace.requests[3].after = 1;
  service.trace.joins = {{.request = 3, .also = 2}};
  const ServeResult r = service.run();
  CHECK(s(r.outcomes[1].finish) == test::rel(6e-3));
  CHECK(s(r.outcomes[2].finish) == test::rel(10e-3));
  CHECK(s(r.outcomes[3].arrival) == test::rel(20e-3));
  CHECK(r.completed == 4);
  // The one that ends last counts.
  service.trace.requests[3].after = 2;
  service.trace.joins = {{.request = 3, .also = 1}};
  CHECK(service.run().outcomes[3].arrival == r.outcomes[3].arrival);
}

TEST_CASE("two requests by hand: a chunk with a decode, budgets, first tokens") {
  // An iteration takes 1 ms plus 1 us per token; entries cost no time.
  SmallService service{.times = {.iteration = 1e-3, .per_token = 1e-6, .per_entry = 0},
                       .scheduler = {.name = "vllm-v1", .max_num_batched_tokens = 100}};
  service.trace.requests = {request(0, 60, 3), request(0, 100, 2)};
  const ServeResult r = service.run();
  // 1: 60 of A, 40 of B: 1.1 ms. 2: 1 of A, 60 of B: 1.061 ms. 3: one of each: 1.002 ms.
  REQUIRE(r.iterations == 3);
  CHECK(s(r.outcomes[0].first_token) == test::rel(1.1e-3));
  CHECK(s(r.outcomes[1].first_token) == test::rel(2.161e-3));
  CHECK(s(r.outcomes[0].finish) == test::rel(3.163e-3));
  CHECK(s(r.outcomes[1].finish) == test::rel(3.163e-3));
  CHECK(r.ttft.mean == test::rel((1.1e-3 + 2.161e-3) / 2));
  CHECK(r.tpot.p50 == test::rel(1.002e-3));  // of B; A's is (3.163 - 1.1) / 2 ms
  CHECK(r.tpot.p99 == test::rel(1.0315e-3));
  CHECK(r.itl.n == 3);
  CHECK(r.output_tok_s == test::rel(5 / 3.163e-3));
  CHECK(r.total_tok_s == test::rel(165 / 3.163e-3));
  CHECK(r.busy == test::rel(1.0));
  CHECK(s(r.makespan) == test::rel(3.163e-3));

  SUBCASE("the share of a long prompt in an iteration is bounded") {
    service.scheduler.long_prefill_token_threshold = 20;
    const ServeResult bounded = service.run();
    // A: 20, 20, 20, then decodes; B: 20 five times: first tokens after 3 and 5 iterations.
    CHECK(bounded.iteration_ends[0][2] == bounded.outcomes[0].first_token);
    CHECK(bounded.iteration_ends[0][4] == bounded.outcomes[1].first_token);
  }
  SUBCASE("without chunks a prompt waits until it fits whole") {
    service.max_model_len = 110;
    service.scheduler.max_num_batched_tokens = 110;
    service.scheduler.chunked_prefill = false;
    const ServeResult whole = service.run();
    CHECK(s(whole.outcomes[0].first_token) == test::rel(1.06e-3));
    CHECK(s(whole.outcomes[1].scheduled) == test::rel(1.06e-3));
    CHECK(s(whole.outcomes[1].first_token) == test::rel(1.06e-3 + 1.101e-3));
  }
  SUBCASE("bounds that only one request meets") {
    service.slo = {.ttft = Seconds{2e-3}};
    const ServeResult judged = service.run();
    CHECK(*judged.slo_attained == test::rel(0.5));
    CHECK(*judged.goodput == test::rel(1 / 3.163e-3));
  }
}

TEST_CASE("one request at a time is an M/D/1 queue") {
  for (const double load : {0.3, 0.6, 0.8}) {
    INFO(load);
    // 10 iterations of 1 ms; a prompt of one token.
    SmallService service{.times = {.iteration = 1e-3, .per_token = 0, .per_entry = 0},
                         .scheduler = {.name = "vllm-v1", .max_num_seqs = 1}};
    test::Dice dice{17};
    double at = 0;
    for (int i = 0; i < 60000; ++i) {
      at -= std::log(dice.uniform()) * 0.01 / load;
      service.trace.requests.push_back(request(at, 1, 10));
    }
    const ServeResult r = service.run();
    // Pollaczek-Khinchine: rho / (2 mu (1 - rho)).
    const double wait = load * 0.01 / (2 * (1 - load));
    CHECK(r.queue.mean == doctest::Approx(wait).epsilon(load > 0.7 ? 0.06 : 0.03).scale(0));
    CHECK(r.busy == doctest::Approx(load).epsilon(0.02).scale(0));
    CHECK(r.tpot.mean == test::rel(1e-3));
    CHECK(r.tpot.p99 == test::rel(1e-3));
  }
}

ServeSpec static_spec(const Llm& llm, const Gpu& gpu, const std::string& stack, std::int64_t batch,
                      std::int32_t prompt, std::int32_t output) {
  auto trace = std::make_shared<RequestTrace>();
  for (std::int64_t i = 0; i < batch; ++i) trace->requests.push_back(request(0, prompt, output));
  return {.llm = &llm,
          .gpu = &gpu,
          .stack = &find_stack(stack),
          .requests = std::move(trace),
          .scheduler = {.name = "static", .batch = batch}};
}

TEST_CASE("equal requests in one static batch take the time of the static run") {
  const Llm llm = test::small_llm();
  const Gpu gpu = test::a800();
  for (const char* stack : {"ideal", "hf-sdpa", "hf-eager"}) {
    INFO(stack);
    const ServeSpec spec = static_spec(llm, gpu, stack, 4, 300, 50);
    const ServeResult r = run_serve(spec);
    CompiledPoint point{{.llm = &llm,
                         .gpu = &gpu,
                         .stack = &find_stack(stack),
                         .method = [](std::int64_t) -> std::shared_ptr<const Method> {
                           return std::make_shared<test::FullMethod>();
                         }}};
    // The first of 50 tokens is generated at the prompt's end.
    const PointResult one = point.at({.batch = 4, .prompt_tokens = 300, .output_tokens = 49});
    REQUIRE(one.times);
    CHECK(r.completed == 4);
    CHECK(r.iterations == 50);
    CHECK(r.ttft.mean == doctest::Approx(one.times->prefill.count()).epsilon(1e-6).scale(0));
    const double decode = s(r.outcomes[3].finish - r.outcomes[3].first_token);
    CHECK(decode == doctest::Approx(one.times->decode.count()).epsilon(1e-6).scale(0));
    CHECK(r.peak_hbm == one.peak());
    CHECK(r.preemptions == 0);
    CHECK(r.scheduler == "static, first come first served, batch 4");
  }
}

TEST_CASE("equal sequences in lockstep decode like a static batch of the paged stack") {
  const Llm& llm = find_llm("llama-3.1-8b");
  const Gpu& gpu = find_gpu("A100-80GB-SXM");
  for (const Calibration* calibration :
       {static_cast<const Calibration*>(nullptr), &builtin_calibration()}) {
    // A release that schedules synchronously with the GPU, without an API server.
    constexpr const char* kStack = "vllm@0.13";
    ServeSpec spec = static_spec(llm, gpu, kStack, 8, 500, 40);
    spec.options.front_end_latency = spec.options.front_end_request = Seconds{};
    spec.scheduler = {.name = "vllm-v1", .max_num_batched_tokens = 4000};  // one pass of prompts
    spec.calibration = calibration;
    const ServeResult r = run_serve(spec);
    CompiledPoint point{{.llm = &llm,
                         .gpu = &gpu,
                         .stack = &find_stack(kStack),
                         .method = [](std::int64_t) -> std::shared_ptr<const Method> {
                           return std::make_shared<test::FullMethod>();
                         },
                         .calibration = calibration}};
    REQUIRE(r.iterations == 40);
    for (std::int64_t step = 1; step < 40; ++step) {
      const auto i = static_cast<std::size_t>(step);
      const double took = s(r.iteration_ends[0][i] - r.iteration_ends[0][i - 1]);
      CHECK(took == test::rel(point.decode_step(8, 500, step).time.count(), 1e-6));
    }
  }
}

TEST_CASE("static batches wait for their number of requests or for all remaining ones") {
  const Llm llm = test::small_llm();
  const Gpu gpu = test::a800();
  auto trace = std::make_shared<RequestTrace>();
  for (const double at : {0.0, 1.0, 2.0, 5.0}) trace->requests.push_back(request(at, 10, 5));
  trace->requests.push_back(
      {.arrival = to_sim_time(Seconds{1.0}), .prompt_tokens = 10, .output_tokens = 0, .after = 3});
  ServeSpec spec = static_spec(llm, gpu, "hf-sdpa", 1, 1, 1);
  spec.requests = trace;
  spec.scheduler.batch = 3;
  const ServeResult r = run_serve(spec);
  CHECK(r.completed == 5);
  for (int i = 0; i < 3; ++i)
    CHECK(s(r.outcomes[static_cast<std::size_t>(i)].scheduled) == test::rel(2));
  // No request arrives before the fourth has ended: it runs alone in its batch.
  CHECK(s(r.outcomes[3].scheduled) == test::rel(5));
  CHECK(r.outcomes[4].arrival == r.outcomes[3].finish + to_sim_time(Seconds{1.0}));
  CHECK(r.outcomes[4].scheduled == r.outcomes[4].arrival);
  CHECK(r.outcomes[4].output_tokens == 0);
}

TEST_CASE("a static batch that is refused memory is lost and the next one runs") {
  const Llm llm = test::small_llm();
  Gpu gpu = test::a800();
  auto trace = std::make_shared<RequestTrace>();
  for (int i = 0; i < 2; ++i) trace->requests.push_back(request(0, 200, 4000));
  for (int i = 0; i < 2; ++i) trace->requests.push_back(request(1, 10, 5));
  ServeSpec spec = static_spec(llm, gpu, "ideal", 1, 1, 1);
  spec.requests = trace;
  spec.scheduler.batch = 2;
  // Memory for the prompts, but not for all generated tokens.
  const ServeResult roomy = run_serve(spec);
  REQUIRE(roomy.completed == 4);
  gpu.hbm_usable = roomy.peak_hbm - Bytes{1'000'000};
  const ServeResult r = run_serve(spec);
  CHECK(r.completed == 2);
  CHECK(r.rejected == 2);
  CHECK(r.oom_events == 1);
  REQUIRE(r.ooms.size() == 1);
  CHECK(r.ooms[0].owners.at("kv_cache") > Bytes{});
  CHECK(r.outcomes[0].output_tokens > 0);
  CHECK(r.outcomes[0].output_tokens < 4000);
  CHECK(r.outcomes[2].status == RequestStatus::kCompleted);
}

/// The number before `words` in `text`.
std::int64_t number_before(const std::string& text, const std::string& words) {
  const std::size_t end = text.find(words);
  INFO(text);
  REQUIRE(end != std::string::npos);
  std::size_t begin = end;
  while (begin > 0 && (std::isdigit(text[begin - 1]) != 0 || text[begin - 1] == ',')) --begin;
  std::string digits = text.substr(begin, end - begin);
  std::erase(digits, ',');
  REQUIRE(!digits.empty());
  return std::stoll(digits);
}

TEST_CASE("a static batch that raises reports its shortage and the number and length that fit") {
  const Llm llm = test::small_llm();
  for (const std::string stack : {"ideal", "hf-sdpa", "hf-eager"}) {
    INFO(stack);
    Gpu gpu = test::a800();
    ServeSpec spec = static_spec(llm, gpu, stack, 16, 3000, 200);
    const auto served = [&](std::int64_t batch, std::int32_t prompt) {
      ServeSpec one = static_spec(llm, gpu, stack, batch, prompt, 200);
      return run_serve(one).completed == batch;
    };
    const Bytes roomy = run_serve(spec).peak_hbm;
    gpu.hbm_usable = roomy - Bytes{40'000'000};
    const ServeResult r = run_serve(spec);
    REQUIRE(r.ooms.size() == 1);
    const std::string& what = r.ooms[0].what;
    INFO(what);
    CHECK(what.find("38.15 MiB too large") != std::string::npos);
    const std::int64_t batch = number_before(what, " of them fit at once");
    CHECK(served(batch, 3000));
    CHECK_FALSE(served(batch + 1, 3000));
    const auto prompt =
        static_cast<std::int32_t>(number_before(what.substr(what.find("or 16 with")), " tokens"));
    CHECK(served(16, prompt));
    CHECK_FALSE(served(16, prompt + 1));
    CHECK(std::any_of(r.notes.begin(), r.notes.end(), [](const std::string& note) {
      return note.find("1 of 1 batches ran out of memory") != std::string::npos;
    }));
    // A single request is too long: the message contains the possible length.
    gpu.hbm_usable = roomy;
    spec = static_spec(llm, gpu, stack, 2, 80'000, 200);
    const ServeResult long_one = run_serve(spec);
    if (long_one.rejected == 0) continue;
    const std::int64_t min = number_before(
        long_one.ooms[0].what.substr(long_one.ooms[0].what.find("not one")), " token");
    CHECK(served(1, static_cast<std::int32_t>(min)));
    CHECK_FALSE(served(1, static_cast<std::int32_t>(min) + 1));
  }
}

TEST_CASE("a model that static batches cannot load is reported once with a way to load it") {
  auto trace = std::make_shared<RequestTrace>();
  for (int i = 0; i < 40; ++i) trace->requests.push_back(request(0.1 * i, 100, 10));
  const ServeSpec spec{.llm = &find_llm("llama-3.1-405b"),
                       .gpu = &find_gpu("H100-80GB-SXM"),
                       .stack = &find_stack("hf-sdpa"),
                       .weight_dtype = Dtype::kBf16,
                       .kv_dtype = Dtype::kBf16,
                       .requests = trace,
                       .scheduler = {.name = "static", .batch = 4}};
  const ServeResult r = run_serve(spec);
  CHECK(r.rejected == 40);
  CHECK(r.oom_events == 1);
  REQUIRE(r.ooms.size() == 1);
  CHECK(r.ooms[0].request == -1);
  INFO(r.ooms[0].what);
  CHECK(r.ooms[0].what.find("are missing") != std::string::npos);
  const auto gpus =
      static_cast<std::int32_t>(number_before(r.ooms[0].what, " GPUs under tensor parallelism"));
  ServeSpec wide = spec;
  wide.tensor_parallel = gpus;
  CHECK(run_serve(wide).oom_events != 1);
  wide.tensor_parallel = gpus / 2;
  CHECK(run_serve(wide).ooms.at(0).request == -1);
}

TEST_CASE("more memory, more bandwidth or a smaller cache never slow a static workload") {
  const Llm llm = test::llama2_7b();
  Gpu gpu = test::a800();
  auto trace = std::make_shared<RequestTrace>();
  test::Dice dice{4};
  for (int i = 0; i < 48; ++i) {
    const std::int32_t output = dice.between(1, 200);
    trace->requests.push_back(request(0.05 * i, dice.between(200, 3000), output));
  }
  ServeSpec spec = static_spec(llm, gpu, "ideal", 1, 1, 1);
  spec.requests = trace;
  spec.scheduler.batch = 8;
  double last = 0;
  for (const double bandwidth : {0.5e12, 1e12, 2e12, 4e12}) {
    gpu.hbm_bandwidth = BytesPerSecond{bandwidth};
    const ServeResult r = run_serve(spec);
    CHECK(r.completed == 48);
    CHECK(r.output_tok_s >= last);
    last = r.output_tok_s;
  }
  std::int64_t done = 0;
  std::set<std::int64_t> served;
  last = 0;
  for (const std::int64_t gib : {16, 18, 20, 22, 24, 28, 32, 40, 80}) {
    INFO(gib, " GiB");
    gpu.hbm_usable = 1_GiB * gib;
    const ServeResult r = run_serve(spec);
    CHECK(r.output_tokens >= done);
    CHECK(r.output_tok_s >= last);
    done = r.output_tokens;
    last = r.output_tok_s;
    served.insert(r.completed);
  }
  CHECK(done > 0);
  CHECK(served.size() >= 3);  // none, some and all requests
  last = 1e300;
  for (const std::int64_t budget : {64, 128, 256, 1024, 4096}) {
    spec.method = {"streaming-llm", {}, Budget{.entries = budget}};
    const ServeResult r = run_serve(spec);
    CHECK(r.output_tok_s <= last);
    last = r.output_tok_s;
  }
}

TEST_CASE("empty workloads, single requests, and prompts without output") {
  SmallService service{};
  const ServeResult none = service.run();
  CHECK(none.completed == 0);
  CHECK(none.iterations == 0);
  CHECK(none.makespan == SimTime{});
  CHECK(none.output_tok_s == 0);
  CHECK(none.ttft.n == 0);
  CHECK(none.timeline.size() == 1);

  service.trace.requests = {request(3, 10, 1)};
  const ServeResult one = service.run();
  CHECK(one.completed == 1);
  CHECK(one.iterations == 1);
  CHECK(one.outcomes[0].first_token == one.outcomes[0].finish);
  CHECK(one.tpot.n == 0);
  CHECK(one.itl.n == 0);
  CHECK(s(one.makespan) == test::rel(1e-3 + 10e-6));

  service.trace.requests = {request(0, 600, 0), request(0, 20, 2)};
  const ServeResult prompt = service.run();
  CHECK(prompt.completed == 2);
  CHECK(prompt.outcomes[0].output_tokens == 0);
  CHECK(prompt.outcomes[0].first_token == SimTime{-1});
  CHECK(prompt.outcomes[0].finish > SimTime{});
  CHECK(prompt.ttft.n == 1);
  CHECK(prompt.e2e.n == 2);
}

TEST_CASE("every scheduler serves no request and one request, without and in a cluster") {
  for (const std::string name : {"static", "vllm-v1", "vllm-v0", "sglang", "trtllm"}) {
    for (const ClusterSpec& cluster :
         {ClusterSpec{}, ClusterSpec{.replicas = 3},
          ClusterSpec{.replicas = 2, .prefill_replicas = 1},
          ClusterSpec{.replicas = 2, .router = RouterPolicy::kPrefixAware}}) {
      INFO(name, ", ", cluster.replicas, " replicas, ", cluster.prefill_replicas, " to prefill");
      if (name == "static" && cluster.prefill_replicas > 0) continue;
      SmallService service{.blocks = 64, .scheduler = {.name = name}, .cluster = cluster};
      if (name == "static") {  // no block pool: weights are in the same memory
        service.blocks = 1 << 16;
        service.stack = "hf-sdpa";
      }
      const ServeResult none = service.run();
      CHECK(none.completed + none.rejected + none.unfinished == 0);
      CHECK(none.iterations == 0);
      CHECK(none.makespan == SimTime{});
      CHECK(none.output_tok_s == 0);
      CHECK(none.total_tok_s == 0);
      CHECK(none.request_s == 0);
      CHECK(none.ttft.n == 0);
      CHECK(none.oom_events == 0);

      service.trace.requests = {request(3, 40, 9)};
      const ServeResult one = service.run();
      CHECK(one.completed == 1);
      CHECK(one.preemptions == 0);
      CHECK(one.queue.mean == 0);
      CHECK(one.outcomes[0].output_tokens == 9);
      CHECK(one.outcomes[0].first_token > one.outcomes[0].arrival);
      CHECK(one.ttft.n == 1);
      CHECK(one.tpot.n == 1);
      CHECK(one.e2e.mean == test::rel(s(one.outcomes[0].finish - one.outcomes[0].arrival)));
      // One pass over the prompt, and one over each token after the first.
      CHECK(one.iterations == 9);
      CHECK(one.makespan == one.outcomes[0].finish - one.outcomes[0].arrival);
    }
  }
}

TEST_CASE("impossible requests are refused with a reason and no request waits behind them") {
  SmallService service{.blocks = 8};
  // 8 blocks of 16: 128 tokens. The last token is never computed.
  service.trace.requests = {request(0, 100, 29), request(0, 129, 0), request(0, 100, 30),
                            request(0, 3000, 1001), request(0, 20, 5)};
  const ServeResult r = service.run();
  CHECK(r.outcomes[0].status == RequestStatus::kCompleted);
  CHECK(r.outcomes[1].status == RequestStatus::kRejected);
  CHECK(r.outcomes[2].status == RequestStatus::kRejected);
  CHECK(r.outcomes[3].status == RequestStatus::kRejected);
  CHECK(r.outcomes[4].status == RequestStatus::kCompleted);
  CHECK(r.oom_events == 3);
  REQUIRE(r.ooms.size() == 3);
  CHECK(r.ooms[0].request == 1);
  CHECK(r.ooms[0].requested > r.ooms[0].free);
  // An engine configured for fewer tokens refuses before it checks its memory; an engine configured
  // for more tokens than its pool holds does not start.
  service.max_model_len = 128;
  const ServeResult few = service.run();
  CHECK(few.rejected == 2);  // by their prompts only; two outputs end at the 128th token
  CHECK(few.truncated_requests == 2);
  CHECK(few.oom_events == 0);
  service.max_model_len = 129;
  const ServeResult too_long = service.run();
  CHECK(too_long.rejected == 5);
  CHECK(too_long.ooms.at(0).request == -1);
  service.max_model_len.reset();
  service.trace.requests = {request(0, 5, 5)};
  service.blocks = 0;
  const ServeResult nothing = service.run();
  CHECK(nothing.rejected == 1);
  CHECK(nothing.ooms.at(0).request == -1);
}

TEST_CASE("incompatible schedulers and stacks are refused") {
  const Llm llm = test::small_llm();
  const Gpu gpu = test::a800();
  ServeSpec spec = static_spec(llm, gpu, "hf-sdpa", 1, 1, 1);
  spec.scheduler.name = "vllm-v1";
  CHECK_THROWS_AS((void)run_serve(spec), InputError);
  spec.scheduler.name = "vllm-v2";
  CHECK_THROWS_WITH_AS((void)run_serve(spec), doctest::Contains("vllm-v1"), InputError);
  spec.scheduler = {.name = "vllm-v1", .max_num_seqs = 0};
  spec.stack = &find_stack("vllm");
  CHECK_THROWS_AS((void)run_serve(spec), InputError);
  spec.scheduler = {};
  CHECK(run_serve(spec).scheduler.starts_with("vllm-v1"));
  spec.stack = &find_stack("hf-eager");
  CHECK(run_serve(spec).scheduler.starts_with("static"));
}

}  // namespace
}  // namespace kvsim
