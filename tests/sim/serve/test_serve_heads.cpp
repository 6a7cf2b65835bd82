// Heads that hold different numbers of entries: shared blocks, memory freed by dropping entries,
// and attention that waits for the longest head.

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "models/cost/kernels/form.hpp"
#include "models/cost/rates/calibration.hpp"
#include "models/gpu/gpu.hpp"
#include "sim/serve/account/mean_iteration.hpp"
#include "sim/serve/cache/fragmented_blocks.hpp"
#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

using test::CheckingObserver;
using test::request;
using test::SmallService;

constexpr std::size_t kLayers = 4;  // of test::small_llm, two KV heads each

/// The two heads of every layer keep these shares of a prompt and this number of entries per token.
std::shared_ptr<const MeasuredLaw> law_of(std::vector<double> kept, std::vector<double> growth) {
  const auto mean = [](const std::vector<double>& of) {
    return std::accumulate(of.begin(), of.end(), 0.0) / static_cast<double>(of.size());
  };
  return std::make_shared<MeasuredLaw>(
      MeasuredLaw{.trace = "by hand",
                  .kept = std::vector<double>(kLayers, mean(kept)),
                  .growth = std::vector<double>(kLayers, mean(growth)),
                  .head_kept = std::vector<std::vector<double>>(kLayers, kept),
                  .head_growth = std::vector<std::vector<double>>(kLayers, growth)});
}

SmallService service_of(std::vector<double> kept, std::vector<double> growth, bool per_head) {
  SmallService service{.blocks = 200,
                       .scheduler = {.name = "vllm-v1", .prefix_caching = false},
                       .method = {"adakv", {}, Budget{.fraction = 0.5}}};
  service.per_head_blocks = per_head;
  service.measured = law_of(std::move(kept), std::move(growth));
  return service;
}

/// AdaKV's counters, which are in addition to its rows: 8 B per head.
Bytes counters(std::int64_t sequences) {
  return Bytes{8 * 2 * static_cast<std::int64_t>(kLayers) * sequences};
}

TEST_CASE("equal heads give the result of a law without heads for any blocks") {
  for (const double growth : {0.0, 0.25, 1.0}) {
    ServeResult first;
    for (const bool per_head : {false, true}) {
      for (const bool named : {false, true}) {
        SmallService service = service_of({0.5, 0.5}, {growth, growth}, per_head);
        if (!named) {
          MeasuredLaw without = *service.measured;
          without.head_kept.clear();
          without.head_growth.clear();
          service.measured = std::make_shared<MeasuredLaw>(without);
        }
        service.trace = test::random_trace(4, 40, 60, 100, 30);
        const ServeResult r = service.run();
        REQUIRE(r.completed > 20);
        if (!per_head && !named) first = r;
        CHECK(r.makespan == first.makespan);
        CHECK(r.kv_dropped == first.kv_dropped);
        CHECK(r.kv_reclaimed == first.kv_reclaimed);
        REQUIRE(r.timeline[0].size() == first.timeline[0].size());
        for (std::size_t i = 0; i < r.timeline[0].size(); ++i) {
          CHECK(r.timeline[0][i].kv_blocks == first.timeline[0][i].kv_blocks);
          CHECK(r.timeline[0][i].kv_logical == first.timeline[0][i].kv_logical);
        }
      }
    }
  }
}

TEST_CASE(
    "a block of all heads is freed with the last of them, a block of one head with that head") {
  // 320 tokens. One head keeps all of them, the other a fifth: 64. An entry of one head in all
  // layers has 4 x 128 B.
  const auto run = [](bool per_head) {
    SmallService service = service_of({1.0, 0.2}, {0.0, 0.0}, per_head);
    service.trace.requests = {request(0, 320, 1)};
    return service.run();
  };
  const ServeResult shared = run(false);
  CHECK(shared.kv_dropped == Bytes{256 * 512});
  CHECK(shared.kv_reclaimed == Bytes{});
  const ServeResult own = run(true);
  CHECK(own.kv_dropped == Bytes{256 * 512});
  CHECK(own.kv_reclaimed == Bytes{256 * 512});
}

TEST_CASE("at most dropped entries are freed, and fewer the more heads differ") {
  constexpr int kRequests = 30;
  for (const bool lazy : {false, true}) {
    for (const bool per_head : {false, true}) {
      Bytes before{1LL << 60};
      for (const double spread : {0.0, 0.1, 0.25, 0.4}) {
        INFO("lazy ", lazy, " per head ", per_head, " spread ", spread);
        SmallService service =
            service_of({0.5 + spread, 0.5 - spread}, {0.5 + spread, 0.5 - spread}, per_head);
        service.lazy_compaction = lazy;
        for (int i = 0; i < kRequests; ++i) {
          service.trace.requests.push_back(request(0.01 * i, 48 + 16 * (i % 12), 1 + 16 * (i % 3)));
        }
        CheckingObserver observer{16, false};
        service.observer = &observer;
        const ServeResult r = service.run();
        REQUIRE(r.completed == kRequests);
        CHECK(r.kv_dropped > Bytes{});
        // Prompts and outputs are whole blocks: the freed bytes include only dropped entries.
        CHECK(r.kv_reclaimed <= r.kv_dropped);
        if (!per_head && !lazy) CHECK(r.kv_reclaimed <= before);
        before = r.kv_reclaimed;
        // Separate blocks per head require the blocks of their entries, and at most one more.
        if (per_head && !lazy) {
          CHECK(r.kv_dropped - r.kv_reclaimed <=
                Bytes{std::int64_t{kRequests} * 2 * 15 * 512} + counters(kRequests));
        }
        for (const ServeSample& sample : r.timeline[0]) {
          CHECK(sample.kv_logical <= sample.kv_blocks);
          CHECK(sample.kv_blocks <= r.kv_pool);
        }
      }
    }
  }
}

TEST_CASE("units add up with different heads under memory pressure") {
  for (const bool lazy : {false, true}) {
    for (const bool per_head : {false, true}) {
      SmallService service = service_of({0.8, 0.3}, {1.0, 0.1}, per_head);
      service.lazy_compaction = lazy;
      service.blocks = 24;
      service.trace = test::random_trace(11, 60, 80, 90, 60);
      CheckingObserver observer{16, false};
      service.observer = &observer;
      const ServeResult r = service.run();
      CHECK(r.completed + r.rejected == 60);
      CHECK(r.preemptions > 0);
    }
  }
}

TEST_CASE("attention reads every head as far as the longest unless lengths are per head") {
  const auto seconds = [](std::vector<double> kept, bool per_head) {
    SmallService service = service_of(std::move(kept), {1.0, 1.0}, per_head);
    service.times = {.iteration = 1e-6, .per_token = 0, .per_entry = 1e-6};
    service.trace.requests = {request(0, 320, 40)};
    const ServeResult r = service.run();
    return r.tpot.mean;
  };
  // 320, or 64 of them, or 192 on average, plus k at token k of the 39 decoded ones. The last token
  // of a request is never read.
  CHECK(seconds({1.0, 0.2}, false) == test::rel(1e-6 + 1e-6 * (320 + 20)));
  CHECK(seconds({1.0, 0.2}, false) == test::rel(seconds({1.0, 1.0}, true)));
  CHECK(seconds({1.0, 0.2}, true) == test::rel(1e-6 + 1e-6 * (192 + 20)));
}

TEST_CASE("a kernel waits exactly for the longest head") {
  const KernelForm& form = decode_attention_form();
  std::vector<double> c;
  for (const Coefficient& coefficient : form.coefficients) c.push_back(coefficient.start);
  const KernelGpu gpu = kernel_gpu(find_gpu("H100-80GB-SXM"));
  const KernelFormat format = attention_format(Dtype::kBf16, Dtype::kBf16);
  const auto us = [&](double batch, double mean, double longest) {
    return form.microseconds(
        DecodeAttentionCall{
            .batch = batch, .kv_len = mean, .longest = longest, .q_heads = 32, .kv_heads = 8},
        format, gpu, c.data());
  };
  for (const double batch : {1.0, 8.0, 64.0}) {
    for (const double mean : {100.0, 1000.0, 20000.0}) {
      CHECK(us(batch, mean, 0) == us(batch, mean, mean));
      double before = us(batch, mean, mean);
      for (const double times : {1.5, 2.0, 4.0, 8.0}) {
        const double now = us(batch, mean, times * mean);
        CHECK(now >= before);
        CHECK(now <= us(batch, times * mean, 0) * (1 + 1e-9));
        before = now;
      }
    }
  }
}

TEST_CASE("holes are closed if they are a quarter of the blocks and closing them frees one") {
  // 64 entries stay; one is added and one removed per step. Blocks of 16: at 81 rows, six blocks
  // have 96 slots, 32 of them holes, and four would be sufficient.
  FragmentedBlocks layout{1};
  layout.start(0, {64, 64});
  const std::vector<std::int64_t> held{64, 64};
  std::vector<std::int64_t> rows;
  for (std::int64_t step = 1; step <= 40; ++step) {
    layout.add(0, held, 16, false);
    layout.within(0, step, rows);
    const std::int64_t since = step <= 17 ? step : step <= 34 ? step - 17 : step - 34;
    CHECK(rows == std::vector<std::int64_t>{64 + since, 64 + since});
    CHECK(layout.after(0, step).from == (step < 17 ? 0 : step < 34 ? 17 : 34));
  }
  // A long head keeps its blocks, regardless of the other head; with separate blocks, the other
  // closes its holes.
  const std::vector<std::int64_t> written{160, 160}, ragged{160, 16};
  CHECK_FALSE(closes_holes(written, ragged, 16, false));
  CHECK(closes_holes(written, ragged, 16, true));
  CHECK(rows_in_blocks(ragged, 16, false) == 320);
  CHECK(rows_in_blocks(ragged, 16, true) == 176);
}

TEST_CASE("lazy compaction takes more blocks and moves entries more rarely") {
  const auto run = [](bool lazy) {
    SmallService service{.blocks = 60,
                         .scheduler = {.name = "vllm-v1", .prefix_caching = false},
                         .method = {"streaming-llm", {}, Budget{.entries = 64}}};
    service.lazy_compaction = lazy;
    for (int i = 0; i < 8; ++i) service.trace.requests.push_back(request(0, 200, 100));
    CheckingObserver observer{16, false};
    service.observer = &observer;
    return service.run();
  };
  const ServeResult at_once = run(false), lazy = run(true);
  CHECK(at_once.completed == 8);
  CHECK(lazy.completed == 8);
  const auto decoding = [](const ServeResult& r) {
    Bytes max;
    for (const ServeSample& s : r.timeline[0]) {
      if (s.prompt_tokens == 0 && s.running == 8) max = std::max(max, s.kv_blocks);
    }
    return max.count() / (16 * 1024);
  };
  CHECK(decoding(at_once) == 8 * 4);
  CHECK(decoding(lazy) == 8 * 5);  // after a step; six during it
}

TEST_CASE("streaming heads are distributed over the layers according to their share") {
  const Llm llm = test::small_llm();
  for (const double share : {0.0, 0.3, 0.5, 1.0}) {
    const auto method = make_method({"duo-attention", {{"streaming_fraction", share}}, {}}, 4000,
                                    method_site(llm, Dtype::kFp16));
    const auto law = expected_law(*method, 4000, 10, 8);
    REQUIRE(law);
    int streaming = 0;
    for (std::size_t l = 0; l < 10; ++l) {
      const auto here =
          static_cast<int>(std::count(law->head_growth[l].begin(), law->head_growth[l].end(), 0.0));
      streaming += here;
      CHECK(std::abs(here - 8 * share) < 1);
      double kept = 0;
      for (const double x : law->head_kept[l]) kept += x;
      CHECK(law->kept[l] == test::rel(kept / 8));
    }
    CHECK(streaming == static_cast<int>(std::nearbyint(80 * share)));
  }
}

TEST_CASE("a GPU with fewer heads than the law takes the longest of each run") {
  const Llm llm = test::small_llm();
  const auto method =
      make_method({"adakv", {}, Budget{.fraction = 0.5}}, 100, method_site(llm, Dtype::kFp16));
  const auto with = with_measured_law(method,
                                      {.trace = "by hand",
                                       .kept = {0.5},
                                       .growth = {1},
                                       .head_kept = {{0.2, 0.9, 0.4, 0.5}},
                                       .head_growth = {{1, 1, 1, 1}}},
                                      1);
  REQUIRE(with->ragged());
  const auto held = [&](std::size_t heads) {
    std::vector<std::int64_t> out(heads);
    with->heads_held(0, 100, 110, out);
    return out;
  };
  CHECK(held(4) == std::vector<std::int64_t>{100, 60, 50, 30});
  CHECK(held(2) == std::vector<std::int64_t>{100, 50});
  CHECK(held(1) == std::vector<std::int64_t>{100});
  CHECK(held(8) == std::vector<std::int64_t>{100, 100, 60, 60, 50, 50, 30, 30});
}

/// Checks that each running sequence in decode holds the kept part of the tokens with which it was
/// admitted, and all later tokens.
class Compressed : public CheckingObserver {
 public:
  explicit Compressed(std::int64_t kept) : CheckingObserver{16, false}, kept_{kept} {}
  void ended(const IterationView& v) override {
    CheckingObserver::ended(v);
    for (const RequestId id : v.running) {
      const Sequence& s = (*v.sequences)[static_cast<std::size_t>(id)];
      if (s.computed < s.target) continue;
      if (s.target > s.prompt) ++again;
      const std::int64_t entries = kept_ + s.computed - s.target;
      KVSIM_CHECK(v.memory->held(id) == (entries + 15) / 16, "{} blocks of {} entries",
                  v.memory->held(id), entries);
    }
  }
  std::int64_t again = 0;  // sequence steps after a recomputed prompt

 private:
  std::int64_t kept_;
};

TEST_CASE("a preempted sequence is compressed again with its generated tokens") {
  Compressed observer{32};
  SmallService service{.blocks = 30,
                       .scheduler = {.name = "vllm-v1", .prefix_caching = false},
                       .method = {"snapkv", {}, Budget{.entries = 32}},
                       .observer = &observer};
  for (int i = 0; i < 12; ++i) service.trace.requests.push_back(request(0.001 * i, 200, 100));
  const ServeResult r = service.run();
  CHECK(r.completed == 12);
  REQUIRE(r.preemptions > 0);
  CHECK(observer.again > 0);
  CHECK(r.recomputed_tokens > 0);
}

/// Llama-3.1-8B on A100s with fitted kernels.
ServeResult serve_real(const MethodSpec& method, bool per_head, std::int32_t gpus,
                       std::shared_ptr<const MeasuredLaw> measured, bool lazy = false) {
  auto trace = std::make_shared<RequestTrace>(test::random_trace(3, 40, 4, 6000, 80));
  CheckingObserver observer{16, false};
  const ServeSpec spec{
      .llm = &find_llm("llama-3.1-8b"),
      .gpu = &find_gpu("A100-80GB-SXM"),
      .stack = &find_stack("vllm"),
      .method = method,
      .measured = std::move(measured),
      .calibration = &builtin_calibration(),
      .tensor_parallel = gpus,
      .options = {.longest_request = true, .per_head_blocks = per_head, .lazy_compaction = lazy},
      .requests = trace,
      .scheduler = {.name = "vllm-v1", .prefix_caching = false}};
  const ServeResult r = run_serve(spec, {}, {.cost = {}, .scheduler = {}, .observer = &observer});
  CHECK(r.completed == 40);
  CHECK(r.kv_reclaimed <= r.kv_dropped + Bytes{40LL * 15 * 131072 / gpus});
  CHECK(mean_iteration(spec, r));
  return r;
}

TEST_CASE("a real engine frees no blocks that streaming heads share with retrieval heads") {
  for (const std::int32_t gpus : {1, 2, 8}) {
    const MethodSpec duo{"duo-attention", {{"streaming_fraction", 0.5}}, {}};
    const ServeResult full = serve_real({"full", {}, {}}, false, gpus, {});
    const ServeResult shared = serve_real(duo, false, gpus, {});
    const ServeResult own = serve_real(duo, true, gpus, {});
    CHECK((shared.kv_dropped > Bytes{}) == (gpus < 8));
    CHECK(shared.kv_reclaimed == Bytes{});
    // With one head per GPU, the longest head counts: no head streams on the slowest GPU.
    CHECK((own.kv_reclaimed > Bytes{}) == (gpus < 8));
    // Gaps, not the mean TPOT of requests: a request of two tokens may change the latter by a
    // tenth.
    CHECK(own.itl.mean <= shared.itl.mean);
    // The number of bytes read is also not smaller.
    CHECK(shared.itl.mean >= 0.99 * full.itl.mean);
  }
}

TEST_CASE("heads that differ in every layer are served by fitted kernels with any compaction") {
  MeasuredLaw law{.trace = "by hand", .kept = {}, .growth = {}};
  for (int layer = 0; layer < 32; ++layer) {
    std::vector<double>& kept = law.head_kept.emplace_back();
    for (int head = 0; head < 8; ++head) kept.push_back(0.1 + 0.02 * layer * head / 8.0);
    law.head_growth.emplace_back(8, 0.3 + 0.01 * layer);
    law.kept.push_back(std::accumulate(kept.begin(), kept.end(), 0.0) / 8);
    law.growth.push_back(0.3 + 0.01 * layer);
  }
  const auto shared = std::make_shared<MeasuredLaw>(law);
  const MethodSpec ada{"adakv", {}, Budget{.fraction = 0.5}};
  const ServeResult across = serve_real(ada, false, 1, shared);
  const ServeResult own = serve_real(ada, true, 1, shared);
  const ServeResult lazy = serve_real(ada, true, 1, shared, true);
  CHECK(own.kv_reclaimed > across.kv_reclaimed);
  CHECK(across.kv_reclaimed > Bytes{});
  CHECK(lazy.kv_reclaimed <= own.kv_reclaimed);
  CHECK(own.kv_dropped == across.kv_dropped);
}

}  // namespace
}  // namespace kvsim
