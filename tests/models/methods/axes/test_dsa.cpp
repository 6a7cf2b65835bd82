// DSA: scores of an indexer, one set of tokens for all heads, and the law of a step's reads.

#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "models/math/attention/index_scores.hpp"
#include "models/math/quantise.hpp"
#include "models/methods/composed.hpp"
#include "models/methods/resolve/prompt_share.hpp"
#include "models/methods/session/session.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/vectors.hpp"

using namespace kvsim;
using test::rel;

namespace {

constexpr std::int32_t kHeads = 2, kGroup = 2, kWidth = 16;
constexpr std::int64_t kTokens = 80, kPrompt = 60;
constexpr std::int32_t kIndexHeads = 3, kIndexDim = 8;

/// A layer of two KV heads with an indexer.
struct Layer {
  std::vector<test::OwnedHead> heads;
  std::vector<float> index_q, index_k, index_w;
  LayerVectors view;

  explicit Layer(float weight = 1) {
    for (int h = 0; h < kHeads; ++h) {
      heads.push_back(
          test::random_head(kGroup, kWidth, kTokens, kPrompt, static_cast<std::uint64_t>(20 + h)));
    }
    test::Normal normal{9};
    for (std::int64_t i = 0; i < kTokens * kIndexHeads * kIndexDim; ++i) {
      index_q.push_back(static_cast<float>(normal()));
    }
    for (std::int64_t i = 0; i < kTokens * kIndexDim; ++i) {
      index_k.push_back(static_cast<float>(normal()));
    }
    for (std::int64_t i = 0; i < kTokens * kIndexHeads; ++i) {
      index_w.push_back(weight * static_cast<float>(normal()));
    }
    for (const auto& head : heads) view.heads.push_back(head.view);
    view.per_head["index.q"] = index_q;
    view.per_head["index.k"] = index_k;
    view.per_head["index.w"] = index_w;
  }
};

std::shared_ptr<const Method> method_of(const std::string& name, Params params = {}) {
  return make_method(
      {name, std::move(params), {}}, kPrompt,
      {.recorded = Dtype::kFp16,
       .shape = {.n_heads = kHeads * kGroup, .n_kv_heads = kHeads, .head_dim = kWidth},
       .n_layers = 1});
}

/// Retained mass, read entries and outputs of every step and head.
struct Run {
  std::vector<double> log_sums;
  std::vector<double> read;
  std::vector<double> out;
};
Run run(const Layer& layer, const std::string& name, const Params& params) {
  const auto method = method_of(name, params);
  std::vector<HeadVectors> heads = layer.view.heads;
  CacheSession session{as_composed(*method),
                       {.layer = 0,
                        .group = kGroup,
                        .head_dim = kWidth,
                        .tokens = static_cast<std::int32_t>(kTokens),
                        .scale = layer.view.heads.front().scale},
                       heads};
  PromptScores scores{heads, 0, layer.view};
  session.learn(scores);
  session.prefill(scores, {});
  Run out;
  for (std::int64_t t = kPrompt; t < kTokens; ++t) {
    session.step();
    for (std::size_t h = 0; h < heads.size(); ++h) {
      out.read.push_back(session.events(h).read);
      for (std::int32_t g = 0; g < kGroup; ++g) out.log_sums.push_back(session.log_sum(h, g));
      const auto o = session.output(h);
      out.out.insert(out.out.end(), o.begin(), o.end());
    }
  }
  return out;
}

Params with(std::int64_t topk, const std::string& format = "exact") {
  return {{"topk", topk}, {"index_format", format}};
}

}  // namespace

TEST_CASE("index scores: the worked example, and rows rounded under a power of two") {
  const std::vector<float> q{1, -1, 2, .5F, .5F, 2, -1, 1}, w{.5F, .25F};
  const std::vector<float> keys{1, 0, 1, 0, -1, 1, 0, 2, 0, -1, .5F, 1};
  std::vector<double> scores(3);
  index_scores(q, w, keys, scores);
  CHECK(scores == std::vector<double>{1.5, .875, 1.25});

  std::vector<float> row{3, -1, 0.5F, 2};
  std::vector<float> rotated{4.5F, 2.5F, -0.5F, 5.5F};  // times H, over 2: by hand next
  rotated = {(3 - 1 + 0.5F + 2) / 2, (3 + 1 + 0.5F - 2) / 2, (3 - 1 - 0.5F - 2) / 2,
             (3 + 1 - 0.5F + 2) / 2};
  round_index_row(row);
  // 2.75 / 448 rounds up to 2^-7.
  round_fp8_row(rotated, 0x1p-7F, Fp8::kE4m3);
  CHECK(row == rotated);
  std::vector<float> zero(8, 0.F);
  round_index_row(zero);
  CHECK(zero == std::vector<float>(8, 0.F));
}

TEST_CASE(
    "dsa: a topk of all tokens equals the full cache, and a smaller one selects by the index") {
  const Layer layer;
  const Run full = run(layer, "full", {});
  const Run all = run(layer, "dsa", with(kTokens));
  for (std::size_t i = 0; i < full.out.size(); ++i) CHECK(all.out[i] == rel(full.out[i], 1e-5));
  const Run some = run(layer, "dsa", with(7));
  for (const double read : some.read) CHECK(read == 7);
  // The last step by hand.
  const std::int64_t t = kTokens - 1;
  std::vector<double> scores(kTokens);
  index_scores(std::span{layer.index_q}.last(kIndexHeads * kIndexDim),
               std::span{layer.index_w}.last(kIndexHeads), layer.index_k, scores);
  std::vector<std::int32_t> order(kTokens);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  const HeadVectors& head = layer.view.heads.back();
  double sum = 0, max = -1e9;
  std::vector<double> logits;
  for (int i = 0; i < 7; ++i) {
    const auto q = head.query(kGroup - 1, t), k = head.key(order[static_cast<std::size_t>(i)]);
    logits.push_back(std::inner_product(q.begin(), q.end(), k.begin(), 0.0) * head.scale);
    max = std::max(max, logits.back());
  }
  for (const double x : logits) sum += std::exp(x - max);
  CHECK(some.log_sums.back() == rel(max + std::log(sum), 1e-5));
}

TEST_CASE("dsa: the scale of weights changes nothing, and the oracle retains at least as much") {
  const Run one = run(Layer{1}, "dsa", with(9));
  const Run scaled = run(Layer{0.125F}, "dsa", with(9));
  CHECK(one.log_sums == scaled.log_sums);
  const Layer layer;
  const Run full = run(layer, "full", {});
  for (const std::int64_t topk : {1, 9, 40}) {
    const Run indexed = run(layer, "dsa", with(topk)),
              rounded = run(layer, "dsa", with(topk, "fp8"));
    const Run oracle = run(layer, "dsa-oracle", {{"topk", topk}});
    const std::size_t per_step = kHeads * kGroup;
    for (std::size_t step = 0; step < full.log_sums.size() / per_step; ++step) {
      const auto mass = [&](const Run& of) {
        double sum = 0;
        for (std::size_t i = step * per_step; i < (step + 1) * per_step; ++i) {
          sum += std::exp(of.log_sums[i] - full.log_sums[i]);
        }
        return sum;
      };
      CHECK(mass(indexed) <= mass(oracle) + 1e-6);
      CHECK(mass(rounded) <= mass(oracle) + 1e-6);
    }
  }
}

TEST_CASE("dsa: bytes and traffic of a step by the law, and what is refused") {
  const auto method = method_of("dsa");
  const LayerShape shape{.n_heads = 4, .n_kv_heads = 2, .head_dim = kWidth};
  const auto bytes = method->layer_bytes(0, shape, Dtype::kFp16, 100, 5000);
  REQUIRE(bytes.has_value());
  CHECK(bytes->side == Bytes{132 * 5000});
  CHECK(bytes->kv == Bytes{2 * 5000 * kWidth * 2 * 2});
  const StepTraffic step = method->decode_traffic(0, shape, Dtype::kFp16, 5000, false);
  CHECK(step.side_read == rel(132.0 * 5000, 1e-12));
  CHECK(step.attention_read == rel(2048.0 * 2 * kWidth * 2 * 2, 1e-12));
  CHECK(step.extra_flops == rel(2.0 * 64 * 128 * 5000, 1e-12));
  CHECK(method->decode_traffic(0, shape, Dtype::kFp16, 100, false).attention_read ==
        rel(100.0 * 2 * kWidth * 2 * 2, 1e-12));
  CHECK(method->prefill_extra(0, shape, Dtype::kFp16, 4096).flops ==
        rel(2.0 * 64 * 128 * 4096 * 4096 / 2, 1e-12));
  CHECK(prompt_attention_share(*method, 2048) == rel(1, 1e-12));
  CHECK(prompt_attention_share(*method, 4096) ==
        rel((2048.0 * 2049 / 2 + 2048.0 * 2048) / (4096.0 * 4097 / 2), 1e-12));
  CHECK(method->needs().inputs.per_head.size() == 3);
  CHECK(method_of("dsa-oracle")->needs().inputs.per_head.empty());
  CHECK_THROWS_AS((void)method_of("snapkv+read=dsa"), InputError);
  CHECK_THROWS_AS((void)method_of("dsa-oracle", {{"index_format", std::string{"exact"}}}),
                  InputError);
}
