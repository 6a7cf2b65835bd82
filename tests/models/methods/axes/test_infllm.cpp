// InfLLM: blocks read by prompt and steps compared with a reference, a hand-solved case, sizes,
// traffic and limits.

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/methods/params.hpp"
#include "models/methods/resolve/prompt_share.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_reading.hpp"
#include "tests/support/session_run.hpp"

namespace kvsim {
namespace {

const std::string kSample = KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors";

struct Sizes {
  std::int64_t init = 3, local = 13, topk = 3, page = 4, representatives = 2, chunk = 8, cached = 4;
  bool one = false;
};

Params given(const Sizes& set) {
  return {{"n_init", set.init},
          {"n_local", set.local},
          {"topk", set.topk},
          {"page", set.page},
          {"representatives", set.representatives},
          {"chunk", set.chunk},
          {"cached_blocks", set.cached},
          {"far_positions", std::string{set.one ? "one" : "own"}}};
}

/// Heads of one layer under InfLLM.
struct Run {
  Run(std::vector<HeadVectors> vectors, const Params& params, std::optional<Budget> budget = {})
      : heads{std::move(vectors)},
        rope{heads.front().head_dim, 10000, false},
        method{make_method({"infllm", params, budget}, heads.front().prompt,
                           {.recorded = Dtype::kFp16, .shape = shape(), .n_layers = 1})},
        session{as_composed(*method),
                {.layer = 0,
                 .group = heads.front().group,
                 .head_dim = heads.front().head_dim,
                 .tokens = static_cast<std::int32_t>(heads.front().tokens),
                 .scale = heads.front().scale,
                 .rope = &rope},
                heads},
        scores{heads, 0, layer} {
    session.learn(scores);
    session.prefill(scores, {});
  }
  [[nodiscard]] LayerShape shape() const {
    const auto n = static_cast<std::int32_t>(heads.size());
    return {
        .n_heads = n * heads.front().group, .n_kv_heads = n, .head_dim = heads.front().head_dim};
  }
  std::vector<HeadVectors> heads;
  Rope rope;
  LayerVectors layer{};
  std::shared_ptr<const Method> method;
  CacheSession session;
  PromptScores scores;
};

/// The definition, token by token: tokens that each query reads, and attention that each token
/// receives.
struct ReferenceInfllm {
  Sizes set;
  const std::vector<HeadVectors>& heads;
  const Rope& rope;
  std::int64_t initial = 0, known = 0;
  std::vector<std::vector<std::int64_t>> blocks;  // positions
  // Attention received by each token, by head and query head; block keys.
  std::map<std::pair<std::size_t, std::int32_t>, std::vector<double>> received;
  std::map<std::pair<std::size_t, std::int32_t>, std::vector<std::vector<double>>> block_keys;
  std::vector<std::int64_t> recent;  // blocks on the GPU, the most recently used at the end
  std::set<std::int64_t> chosen;
  std::int64_t fetched = 0;
  double gap = 1e300;

  [[nodiscard]] std::int64_t tail() const {
    return initial + static_cast<std::int64_t>(blocks.size()) * set.page;
  }
  [[nodiscard]] std::vector<double> query(std::size_t h, std::int32_t g, std::int64_t t,
                                          bool far) const {
    const auto q = heads[h].query(g, t);
    std::vector<double> row{q.begin(), q.end()};
    if (far && set.one) rope.rotate(std::span{row}, set.local - 1 - t);
    return row;
  }
  [[nodiscard]] std::vector<double> key(std::size_t h, std::int64_t i, bool far) const {
    const auto k = heads[h].key(i);
    std::vector<double> row{k.begin(), k.end()};
    if (far && set.one) rope.rotate(std::span{row}, -i);
    return row;
  }
  [[nodiscard]] double logit(std::size_t h, std::int32_t g, std::int64_t t, std::int64_t i) const {
    const bool far = i <= t - set.local;
    const auto q = query(h, g, t, far), k = key(h, i, far);
    double sum = 0;
    for (std::size_t j = 0; j < q.size(); ++j) sum += q[j] * k[j];
    return sum * heads[h].scale;
  }
  [[nodiscard]] std::set<std::int64_t> positions(std::int64_t t) const {
    std::set<std::int64_t> all;
    for (std::int64_t i = 0; i < initial; ++i) all.insert(i);
    for (const std::int64_t b : chosen) {
      const auto& block = blocks[static_cast<std::size_t>(b)];
      all.insert(block.begin(), block.end());
    }
    for (std::int64_t i = tail(); i <= t; ++i) all.insert(i);
    return all;
  }

  void choose(std::int64_t first, std::int64_t last) {
    std::vector<std::pair<double, std::int32_t>> scored;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      double sum = 0;
      for (const auto& [place, keys] : block_keys) {
        for (std::int64_t t = first; t < last; ++t) {
          const auto q = query(place.first, place.second, t, true);
          for (std::size_t j = 0; j < q.size(); ++j) sum += q[j] * keys[b][j];
        }
      }
      scored.emplace_back(sum / static_cast<double>((last - first) * std::ssize(block_keys)),
                          static_cast<std::int32_t>(b));
    }
    const auto [best, near] = test::best(scored, static_cast<std::size_t>(set.topk));
    gap = std::min(gap, near);
    chosen = {best.begin(), best.end()};
    fetched = 0;
    for (const std::int64_t b : chosen) {
      fetched += std::find(recent.begin(), recent.end(), b) == recent.end() ? 1 : 0;
      std::erase(recent, b);
    }
    // Blocks last used at the same step leave in their order.
    recent.insert(recent.end(), chosen.begin(), chosen.end());
    const auto extra = std::max<std::int64_t>(0, std::ssize(recent) - set.cached);
    recent.erase(recent.begin(), recent.begin() + extra);
  }
  /// Runs the queries of positions first … last - 1 together.
  void run(std::int64_t first, std::int64_t last) {
    choose(first, last);
    for (std::size_t h = 0; h < heads.size(); ++h) {
      for (std::int32_t g = 0; g < heads[h].group; ++g) {
        auto& mine = received[{h, g}];
        mine.resize(static_cast<std::size_t>(heads[h].tokens), 0.0);
        for (std::int64_t t = first; t < last; ++t) {
          const auto read = positions(t);
          std::map<std::int64_t, double> weight;
          double total = 0;
          for (const std::int64_t i : read) total += weight[i] = std::exp(logit(h, g, t, i));
          for (const auto& [i, w] : weight) {
            if (i > t - set.local) mine[static_cast<std::size_t>(i)] += w / total;
          }
        }
      }
    }
    known = last;
    while (initial < set.init && known - initial > set.local) ++initial;
    while (known - tail() - set.page >= set.local) {
      std::vector<std::int64_t> block;
      for (std::int64_t i = tail(); i < tail() + set.page; ++i) block.push_back(i);
      for (const auto& [place, scores] : received) {
        std::vector<std::pair<double, std::int32_t>> scored;
        for (const std::int64_t i : block) {
          scored.emplace_back(scores[static_cast<std::size_t>(i)], static_cast<std::int32_t>(i));
        }
        const auto [top, near] = test::best(scored, static_cast<std::size_t>(set.representatives));
        gap = std::min(gap, near);
        std::vector<double> mean(static_cast<std::size_t>(heads.front().head_dim), 0.0);
        for (const std::int32_t i : top) {
          const auto k = key(place.first, i, true);
          for (std::size_t j = 0; j < mean.size(); ++j) {
            mean[j] += k[j] / static_cast<double>(top.size());
          }
        }
        block_keys[place].push_back(mean);
      }
      blocks.push_back(block);
    }
  }
};

std::vector<test::OwnedHead> random_layer(std::int32_t heads, std::int32_t group, std::int32_t d,
                                          std::int64_t tokens, std::int64_t prompt) {
  std::vector<test::OwnedHead> all;
  for (std::int32_t h = 0; h < heads; ++h) {
    all.push_back(test::random_head(group, d, tokens, prompt, static_cast<std::uint64_t>(60 + h)));
  }
  return all;
}
std::vector<HeadVectors> views(const std::vector<test::OwnedHead>& owned) {
  std::vector<HeadVectors> all;
  for (const auto& each : owned) all.push_back(each.view);
  return all;
}

TEST_CASE("infllm reads and fetches the same blocks as a reference, and its bytes follow the law") {
  std::int64_t compared = 0, fetched = 0, chosen = 0;
  const auto compare = [&](const Sizes& set, std::int32_t n, std::int32_t group,
                           std::int64_t prompt) {
    const std::int64_t tokens = prompt + 40;
    const auto owned = random_layer(n, group, 8, tokens, prompt);
    const auto heads = views(owned);
    Run run{heads, given(set)};
    ReferenceInfllm reference{.set = set,
                              .heads = heads,
                              .rope = run.rope,
                              .blocks = {},
                              .received = {},
                              .block_keys = {},
                              .recent = {},
                              .chosen = {}};
    for (std::int64_t first = 0; first < prompt; first += set.chunk) {
      reference.run(first, std::min(first + set.chunk, prompt));
    }
    for (std::int64_t t = prompt; t < tokens; ++t) {
      // The step reads the state before it.
      ReferenceInfllm before = reference;
      before.choose(t, t + 1);
      const auto read = before.positions(t);
      reference.run(t, t + 1);
      run.session.step();
      if (reference.gap < 1e-7) return;
      ++compared;
      fetched += reference.fetched;
      chosen += std::ssize(reference.chosen);
      CacheBytes held;
      for (std::size_t h = 0; h < heads.size(); ++h) {
        REQUIRE(run.session.events(h).read == static_cast<double>(read.size()));
        REQUIRE(run.session.max_read(h) == std::ssize(read));
        REQUIRE(run.session.fetched(h) == Bytes{reference.fetched * set.page * 2 * 8 * 2});
        held += run.session.bytes(h);
        for (std::int32_t g = 0; g < group; ++g) {
          double total = 0;
          std::vector<double> out(8, 0.0);
          for (const std::int64_t i : read) {
            const double w = std::exp(reference.logit(h, g, t, i));
            total += w;
            for (std::size_t j = 0; j < 8; ++j) {
              out[j] += w * static_cast<double>(heads[h].value(i)[j]);
            }
          }
          REQUIRE(run.session.log_sum(h, g) == doctest::Approx(std::log(total)).epsilon(1e-6));
          for (std::size_t j = 0; j < 8; ++j) {
            const double got = run.session.output(h)[static_cast<std::size_t>(g) * 8 + j];
            REQUIRE(std::abs(got - out[j] / total) < 1e-5);
          }
        }
      }
      const auto law = run.method->layer_bytes(0, run.shape(), Dtype::kFp16, prompt, t + 1);
      REQUIRE(law.has_value());
      CHECK(law->kv == held.kv);
      CHECK(law->side == held.side);
      CHECK(law->host == held.host);
      // Recomputed: blocks in host memory, resident tokens outside blocks, and `cached` blocks; a
      // key per block and query head, a score per token of the tail.
      const auto blocks = std::ssize(reference.blocks);
      const std::int64_t resident =
          t + 1 - blocks * set.page + std::min(blocks, set.cached) * set.page;
      CHECK(held.host == Bytes{blocks * set.page * 2 * 8 * 2 * n});
      CHECK(held.kv == Bytes{resident * 2 * 8 * 2 * n});
      CHECK(held.side == Bytes{(blocks * 8 + t + 1 - reference.tail()) * 2 * group * n});
      CHECK(run.method
                ->decode_traffic(0, run.shape(), Dtype::kFp16, static_cast<double>(t + 1), false)
                .attention_read == static_cast<double>(std::ssize(read) * 2 * 8 * 2 * n));
    }
  };
  for (const bool one : {false, true}) {
    compare({.one = one}, 2, 2, 120);
    compare({.topk = 5, .chunk = 13, .cached = 5, .one = one}, 1, 3, 90);
    compare({.init = 0, .local = 20, .topk = 1, .page = 7, .chunk = 5, .cached = 1, .one = one}, 2,
            1, 101);
    compare({.init = 5, .representatives = 1, .chunk = 1, .one = one}, 2, 2, 40);
    compare({.init = 8, .local = 30, .one = one}, 1, 2, 9);  // no block in the prompt
  }
  CHECK(compared > 350);
  CHECK(fetched > 50);
  CHECK(fetched < chosen);
}

TEST_CASE("infllm by hand: keys of blocks from attention received, choice, cache, ties") {
  // One head of 2 channels, scale 1; 1 initial token, 2 local, blocks of 2, of which 1 is read and
  // stays, described by 1 token. The prompt's 7 queries are 0, in chunks of 1, so that each
  // distributes its attention equally over the tokens that it reads:
  //   t            1    2    3    4    5    6
  //   tokens read  2    3    4    5    6    7      (block {1, 2} exists since t = 5)
  //   token 1 receives 1/2 + 1/3, token 2 1/3 + 1/4: token 1 describes block {1, 2}
  //   token 3 receives 1/4 + 1/5, token 4 1/5 + 1/6: token 3 describes block {3, 4}
  constexpr std::int64_t kTokens = 11;
  test::OwnedHead owned;
  owned.keys.assign(kTokens * 2, 0.F);
  owned.q.assign(kTokens * 2, 0.F);
  for (std::int64_t i = 0; i < kTokens * 2; ++i) {
    owned.values.push_back(static_cast<float>(i % 5));
  }
  const auto set = [](std::vector<float>& rows, std::size_t t, float x, float y) {
    rows[t * 2] = x;
    rows[t * 2 + 1] = y;
  };
  set(owned.keys, 1, 2, 0), set(owned.keys, 2, 0, 9);
  set(owned.keys, 3, 0, 2), set(owned.keys, 4, 9, 0);
  set(owned.keys, 5, -1, -1);
  set(owned.q, 7, 1, 0);
  set(owned.q, 8, 0, 1);
  set(owned.q, 9, -1, -1);
  set(owned.q, 10, 1, 1);
  owned.view = {.q = owned.q,
                .keys = owned.keys,
                .values = owned.values,
                .group = 1,
                .head_dim = 2,
                .tokens = kTokens,
                .prompt = 7,
                .scale = 1};
  Run run{{owned.view},
          given({.init = 1,
                 .local = 2,
                 .topk = 1,
                 .page = 2,
                 .representatives = 1,
                 .chunk = 1,
                 .cached = 1})};
  const auto expect = [&](std::int64_t t, const std::set<std::int32_t>& read,
                          std::int64_t fetched) {
    run.session.step();
    const auto [out, log_sum] = test::reference_output(owned.view, 0, t, read);
    CHECK(run.session.log_sum(0, 0) == doctest::Approx(log_sum).epsilon(1e-12));
    CHECK(run.session.output(0)[1] == doctest::Approx(out[1]).epsilon(1e-12));
    CHECK(run.session.fetched(0) == Bytes{fetched * 2 * 2 * 2 * 2});
  };
  // Blocks {1, 2} and {3, 4} have keys (2, 0) and (0, 2). Token 4 has the best score for (1, 0),
  // but it does not describe its block. Block {1, 2} is on the GPU since t = 5.
  expect(7, {0, 1, 2, 5, 6, 7}, 0);
  expect(8, {0, 3, 4, 5, 6, 7, 8}, 1);
  // Block {5, 6}: token 5 received 1/6 + 1/7 = .31. Token 6 received 1/7, and at t = 7
  // 1 / (4 + e^-1 + e^2) = .085: token 5 describes it, key (-1, -1).
  expect(9, {0, 5, 6, 7, 8, 9}, 1);
  // (1, 1): blocks {1, 2} and {3, 4} score 2, {5, 6} -2: the older of the first two is read.
  expect(10, {0, 1, 2, 7, 8, 9, 10}, 1);
  CHECK(run.session.counts().at("infllm_blocks_chosen") == 4);
  CHECK(run.session.counts().at("infllm_blocks_fetched") == 3);
}

TEST_CASE(
    "infllm that reads everything is exact, and with whole-block keys more never retain less") {
  const auto owned = random_layer(2, 2, 8, 160, 100);
  const auto heads = views(owned);
  Run all{heads, {}, Budget{0, 160}};
  for (std::int64_t t = 100; t < 160; ++t) {
    all.session.step();
    std::set<std::int32_t> read;
    for (std::int32_t i = 0; i <= t; ++i) read.insert(i);
    CHECK(all.session.events(1).read == static_cast<double>(t + 1));
    const auto [out, log_sum] = test::reference_output(heads[1], 1, t, read);
    CHECK(all.session.log_sum(1, 1) == doctest::Approx(log_sum).epsilon(1e-9));
  }
  // The tokens that describe a block depend on the reads of the prompt's queries. If all tokens
  // describe the block, a larger choice contains the smaller one.
  std::vector<double> before;
  for (const std::int64_t topk : {0, 1, 2, 4, 8, 40}) {
    Run run{heads, given({.topk = topk, .representatives = 4})};
    std::vector<double> now;
    for (std::int64_t t = 100; t < 160; ++t) {
      run.session.step();
      for (std::int32_t g = 0; g < 2; ++g) now.push_back(run.session.log_sum(0, g));
    }
    for (std::size_t i = 0; i < before.size(); ++i) REQUIRE(now[i] >= before[i] - 1e-12);
    before = now;
  }
}

TEST_CASE("infllm's sizes and traffic by hand, its defaults and what it refuses") {
  const MethodContext site{.recorded = Dtype::kFp16,
                           .shape = {.n_heads = 8, .n_kv_heads = 2, .head_dim = 128},
                           .n_layers = 4};
  const auto method = make_method({"infllm", {}, {}}, 20000, site);
  CHECK(param_integer(method->params(), "token_budget") == 6272);
  // 20,000 tokens: 128 initial; 15,776 others before the last 4,096: 123 blocks and 32 tokens.
  const auto bytes = method->layer_bytes(0, site.shape, Dtype::kFp16, 20000, 20000);
  REQUIRE(bytes.has_value());
  CHECK(bytes->host == Bytes{2 * 123 * 128 * 512});
  CHECK(bytes->kv == Bytes{2 * (128 + 4096 + 32 + 32 * 128) * 512});
  CHECK(bytes->side == Bytes{8 * (123 * 256 + 4128 * 2)});
  // The step after it: 16 blocks, the tail and the new token.
  const StepTraffic step = method->decode_traffic(0, site.shape, Dtype::kFp16, 20001, false);
  CHECK(step.attention_read == 2 * (128 + 2048 + 4128 + 1) * 512);
  CHECK(step.link_read == 2 * 2048 * 512);
  CHECK(step.link_write == 2 * 512);
  CHECK(step.move_write == step.link_read);
  CHECK(step.move_read == 2 * 4096 * 256);
  CHECK(step.side_read == 8 * (123 * 256 + 4096 * 2));
  CHECK(step.side_write == 8 * (256.0 / 128 + 4096 * 2));
  CHECK(step.extra_flops == 8 * (123 * 256.0 + 4096 * 257));
  // No block is fetched before the first block exists.
  CHECK(method->decode_traffic(0, site.shape, Dtype::kFp16, 4352, false).link_read == 0);
  CHECK(method->decode_traffic(0, site.shape, Dtype::kFp16, 4353, false).link_read ==
        2 * 128 * 512);

  // A prompt of 5,000 in 10 chunks. Blocks existing at the start of a chunk: (4608 - 4224) / 128 =
  // 3 for the last, none before. At its end: (5000 - 4224) / 128 = 6.
  const PrefillExtra prefill = method->prefill_extra(0, site.shape, Dtype::kFp16, 5000);
  const double local = 4096.0 * 4097 / 2 + 904.0 * 4096;
  CHECK(prefill.flops == 8 * 128.0 * (2 * local + 5000));
  // Keys of the windows: chunks 0 to 7 read from the start, chunk 8 from 1, chunk 9 from 513.
  const double rows = 512.0 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8) + 4607 + 4487;
  CHECK(prefill.read == 512 * (rows + 2 * 6 * 128));
  CHECK(prefill.written == 512 * 2.0 * (6 + 3) * 128 + 2048.0 * 6);
  CHECK(prefill.launches == 40);
  // All three blocks are read: no pair is omitted.
  CHECK(prompt_attention_share(*method, 5000) == test::rel(1, 1e-12));
  for (const std::int64_t prompt : {1, 30, 97, 160}) {
    const Sizes set;
    const auto small = make_method({"infllm", given(set), {}}, prompt, site);
    double pairs = 0;
    for (std::int64_t t = 0; t < prompt; ++t) {
      const std::int64_t n = t / set.chunk * set.chunk;
      const std::int64_t initial = std::clamp<std::int64_t>(n - set.local, 0, set.init);
      const std::int64_t blocks = std::max<std::int64_t>(0, n - set.local - set.init) / set.page;
      pairs += static_cast<double>(t + 1 - std::max<std::int64_t>(0, blocks - set.topk) * set.page);
      CHECK(initial + blocks * set.page <= n);
    }
    const auto n = static_cast<double>(prompt);
    CHECK(prompt_attention_share(*small, prompt) == test::rel(pairs / (n * (n + 1) / 2), 1e-12));
  }

  // A budget is divided in the proportions of the released sizes, or sets the parameters without a
  // value.
  const auto sizes = [&](Params params, std::int64_t budget) {
    const auto p =
        make_method({"infllm", std::move(params), Budget{0, budget}}, 20000, site)->params();
    return std::vector<std::int64_t>{param_integer(p, "n_init"), param_integer(p, "n_local"),
                                     param_integer(p, "topk"), param_integer(p, "page")};
  };
  CHECK(sizes({}, 6272) == std::vector<std::int64_t>{128, 4096, 16, 128});
  CHECK(sizes({}, 98) == std::vector<std::int64_t>{2, 64, 16, 2});
  CHECK(sizes({}, 5) == std::vector<std::int64_t>{0, 4, 1, 1});
  CHECK(sizes({}, 12544) == std::vector<std::int64_t>{128, 8320, 32, 128});
  CHECK(sizes({{"topk", std::int64_t{4}}, {"page", std::int64_t{8}}}, 98) ==
        std::vector<std::int64_t>{2, 64, 4, 8});
  CHECK(sizes({{"n_local", std::int64_t{50}}, {"page", std::int64_t{8}}}, 98) ==
        std::vector<std::int64_t>{2, 50, 5, 8});

  const auto why = [&](const Params& params, const std::string& name,
                       std::optional<Budget> budget) -> std::string {
    try {
      (void)make_method({name, params, budget}, 1000, site);
      return "";
    } catch (const InputError& error) {
      return error.what();
    }
  };
  const auto says = [&](const Params& params, const char* text) {
    return why(params, "infllm", Budget{0, 98}).find(text) != std::string::npos;
  };
  CHECK(says({{"n_local", std::int64_t{98}}}, "at most the 98"));
  CHECK(says({{"topk", std::int64_t{48}}}, "fewer than the 98"));
  CHECK(says({{"topk", std::int64_t{4}}, {"n_local", std::int64_t{9}}}, "both given"));
  CHECK(says({{"granularity", std::string{"query_head"}}}, "kv_head"));
  CHECK(why({}, "infllm+store=kivi", {}).find("floating-point store") != std::string::npos);
  CHECK(why({}, "infllm+select=knorm", {}).find("select=all") != std::string::npos);
  const auto one = make_method({"infllm", {{"far_positions", std::string{"one"}}}, {}}, 1000, site);
  CHECK(one->needs().inputs.rope);
  CHECK_FALSE(as_composed(*one).has_retained_mass());
  CHECK_FALSE(method->needs().inputs.rope);
}

TEST_CASE("a replay of infllm follows its law, and its link carries blocks") {
  const auto result = replay(Trace::open(kSample),
                             {{"infllm", {}, Budget{0.2, 0}},
                              {"infllm", {}, Budget{0.6, 0}},
                              {"infllm", {{"far_positions", std::string{"one"}}}, Budget{0.2, 0}}},
                             {});
  for (const ReplayMethod& m : result.methods) {
    CHECK(m.bytes_held_final == *m.closed_form_bytes_final);
    CHECK(m.host_bytes_final > 0);
    const double fetched = m.counts.at("infllm_blocks_fetched");
    CHECK(fetched > 0);
    CHECK(fetched <= m.counts.at("infllm_blocks_chosen"));
    const TraceInfo info = Trace::open(kSample).info();
    const double row = 2.0 * info.head_dim * 2;
    const double rows = static_cast<double>(m.steps) * info.n_kv_heads * info.n_layers;
    const auto page = static_cast<double>(param_integer(m.params, "page"));
    CHECK(m.link_bytes_total == doctest::Approx((rows + fetched * page) * row).epsilon(1e-12));
  }
  CHECK(result.methods[1].rel_error_mean < result.methods[0].rel_error_mean);
  CHECK_FALSE(result.methods[2].retained_mass_mean.has_value());
}

}  // namespace
}  // namespace kvsim
