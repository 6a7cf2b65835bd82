// Methods that read blocks of tokens: hand-solved selections, blocks that are always read, laws of
// bytes and reads.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

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
constexpr std::int64_t kTokens = 83, kPrompt = 60;
constexpr std::int64_t kPage = 8, kBlocks = (kTokens + kPage - 1) / kPage;
constexpr std::int32_t kIndexHeads = 4, kIndexDim = 8;

/// A layer of two KV heads, each with two index heads.
struct Layer {
  std::vector<test::OwnedHead> heads;
  std::vector<float> index_q, index_k;
  LayerVectors view;

  explicit Layer(std::int32_t index_heads = kIndexHeads) {
    for (int h = 0; h < kHeads; ++h) {
      heads.push_back(
          test::random_head(kGroup, kWidth, kTokens, kPrompt, static_cast<std::uint64_t>(30 + h)));
    }
    test::Normal normal{4};
    for (std::int64_t i = 0; i < kTokens * index_heads * kIndexDim; ++i) {
      index_q.push_back(static_cast<float>(normal()));
    }
    for (std::int64_t i = 0; i < kTokens * kIndexDim; ++i) {
      index_k.push_back(static_cast<float>(normal()));
    }
    for (const auto& head : heads) view.heads.push_back(head.view);
    view.per_head["index.q"] = index_q;
    view.per_head["index.k"] = index_k;
  }
};

std::shared_ptr<const Method> method_of(const std::string& name, Params params = {},
                                        std::int32_t n_layers = 1) {
  return make_method(
      {name, std::move(params), {}}, kPrompt,
      {.recorded = Dtype::kFp16,
       .shape = {.n_heads = kHeads * kGroup, .n_kv_heads = kHeads, .head_dim = kWidth},
       .n_layers = n_layers});
}

struct Run {
  std::vector<double> log_sums, read, out;
};
Run run(const Layer& layer, const std::string& name, const Params& params, std::int32_t at = 0) {
  const auto method = method_of(name, params, at + 1);
  std::vector<HeadVectors> heads = layer.view.heads;
  CacheSession session{as_composed(*method),
                       {.layer = at,
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

Params with(std::int64_t topk, const std::string& digest = "index", std::int64_t first = 0) {
  Params params{{"topk", topk}, {"page", kPage}, {"first", first}, {"dense", std::int64_t{0}}};
  if (digest != "index") params["digest"] = digest;
  return params;
}

double dot(std::span<const float> a, std::span<const float> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

/// Blocks by decreasing score, with the last block first; ties are resolved in favour of the older
/// block.
std::vector<std::int64_t> ranked(std::vector<double> scores) {
  scores.back() = std::numeric_limits<double>::infinity();
  std::vector<std::int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  return order;
}

/// Log-sum-exp of query head g of `head` at the last token, over whole blocks.
double log_sum(const HeadVectors& head, std::int32_t g, std::span<const std::int64_t> blocks) {
  std::vector<double> logits;
  for (const std::int64_t block : blocks) {
    for (std::int64_t i = block * kPage; i < std::min(kTokens, (block + 1) * kPage); ++i) {
      logits.push_back(dot(head.query(g, kTokens - 1), head.key(i)) * head.scale);
    }
  }
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double x : logits) sum += std::exp(x - max);
  return max + std::log(sum);
}

/// Scores by `digest` of the blocks of KV head h at the last token, for query head g.
std::vector<double> scores_of(const Layer& layer, const std::string& digest, std::size_t h,
                              std::int32_t g) {
  const HeadVectors& head = layer.view.heads[h];
  std::vector<double> out(kBlocks, -std::numeric_limits<double>::infinity());
  for (std::int64_t b = 0; b < kBlocks; ++b) {
    double& score = out[static_cast<std::size_t>(b)];
    const std::int64_t end = std::min(kTokens, (b + 1) * kPage);
    if (digest == "mean") {
      double sum = 0;
      for (std::int64_t i = b * kPage; i < end; ++i)
        sum += dot(head.query(g, kTokens - 1), head.key(i));
      score = sum / static_cast<double>(end - b * kPage);
      continue;
    }
    for (std::int64_t i = b * kPage; i < end; ++i) {
      for (std::int32_t part = 0; part < 2; ++part) {  // both index heads, or both query heads
        const auto index_head = 2 * h + static_cast<std::size_t>(part);
        const auto at = (static_cast<std::size_t>(kTokens - 1) * kIndexHeads + index_head);
        const double x = digest == "index"
                             ? dot(std::span{layer.index_q}.subspan(at * kIndexDim, kIndexDim),
                                   std::span{layer.index_k}.subspan(
                                       static_cast<std::size_t>(i) * kIndexDim, kIndexDim))
                             : dot(head.query(part, kTokens - 1), head.key(i));
        score = std::max(score, x);
      }
    }
  }
  return out;
}

}  // namespace

TEST_CASE("blocks: reading all blocks equals the full cache, for every digest") {
  const Layer layer;
  const Run full = run(layer, "full", {});
  for (const char* digest : {"index", "mean", "keys"}) {
    const Run all = run(layer, "msa", with(kBlocks, digest));
    for (std::size_t i = 0; i < full.out.size(); ++i) CHECK(all.out[i] == rel(full.out[i], 1e-5));
    CHECK(all.read.back() == static_cast<double>(kTokens));
  }
}

TEST_CASE("blocks: the last step reads its block and the best others, by hand") {
  const Layer layer;
  for (const std::string digest : {"index", "mean", "keys"}) {
    CAPTURE(digest);
    for (const std::int64_t topk : {1, 2, 4}) {
      const Run some = run(layer, "msa", with(topk, digest));
      const std::size_t first = some.log_sums.size() - kHeads * kGroup;
      for (std::size_t h = 0; h < kHeads; ++h) {
        for (std::int32_t g = 0; g < kGroup; ++g) {
          const auto order = ranked(scores_of(layer, digest, h, g));
          const double expected = log_sum(layer.view.heads[h], g,
                                          std::span{order}.first(static_cast<std::size_t>(topk)));
          const auto at = first + h * kGroup + static_cast<std::size_t>(g);
          CHECK(some.log_sums[at] == rel(expected, 1e-5));
        }
      }
      // No step reads more than topk blocks; under digest=mean this applies per query head.
      const double heads = digest == "mean" ? kGroup : 1;
      for (const double read : some.read) CHECK(read <= heads * static_cast<double>(topk * kPage));
    }
  }
}

TEST_CASE("blocks: ties go to the older, and first blocks precede the last") {
  Layer layer;
  std::fill(layer.index_k.begin(), layer.index_k.end(), 0.F);
  const Run tied = run(layer, "msa", with(3));
  const std::vector<std::int64_t> older{0, 1, kBlocks - 1};
  CHECK(tied.log_sums.back() == rel(log_sum(layer.view.heads.back(), kGroup - 1, older), 1e-5));
  const Run forced = run(layer, "msa", with(1, "index", 1));
  const std::vector<std::int64_t> oldest{0};
  CHECK(forced.log_sums.back() == rel(log_sum(layer.view.heads.back(), kGroup - 1, oldest), 1e-5));
}

TEST_CASE("blocks: heads share the index heads evenly, and other numbers are refused") {
  // One index head for both KV heads: the same blocks.
  const Layer shared{1};
  const Run one = run(shared, "msa", with(2));
  CHECK(one.read[one.read.size() - 1] == one.read[one.read.size() - 2]);
  const Layer three{3};
  CHECK_THROWS_AS((void)run(three, "msa", with(2)), InputError);
}

TEST_CASE("blocks: dense layers read everything") {
  const Layer layer;
  Params params = with(2);
  params["dense"] = std::int64_t{3};
  CHECK(run(layer, "msa", params, 2).read.back() == run(layer, "full", {}).read.back());
  CHECK(run(layer, "msa", params, 3).read.back() < 2 * kPage + 1);
}

TEST_CASE("blocks: bytes, traffic and share of a prompt by the law, and what is refused") {
  const LayerShape shape{.n_heads = 4, .n_kv_heads = 2, .head_dim = kWidth};
  const auto msa = method_of("msa", {}, 4);
  const auto bytes = msa->layer_bytes(3, shape, Dtype::kFp16, 100, 5000);
  REQUIRE(bytes.has_value());
  CHECK(bytes->side == Bytes{256 * 5000});
  CHECK(msa->layer_bytes(2, shape, Dtype::kFp16, 100, 5000)->side == Bytes{0});
  const StepTraffic step = msa->decode_traffic(3, shape, Dtype::kFp16, 5000, false);
  CHECK(step.side_read == rel(256.0 * 5000, 1e-12));
  CHECK(step.attention_read == rel(2048.0 * 2 * kWidth * 2 * 2, 1e-12));
  CHECK(step.extra_flops == rel(2.0 * 4 * 128 * 5000, 1e-12));
  CHECK(msa->decode_traffic(0, shape, Dtype::kFp16, 5000, false).side_read == 0);
  const auto fp8 = method_of("msa", {{"index_format", std::string{"fp8"}}}, 4);
  CHECK(fp8->layer_bytes(3, shape, Dtype::kFp16, 100, 5000)->side == Bytes{128 * 5000});

  const auto moba = method_of("moba");
  CHECK(moba->layer_bytes(0, shape, Dtype::kFp16, 100, 100'000)->side ==
        Bytes{25 * 2 * kWidth * 2});
  const StepTraffic means = moba->decode_traffic(0, shape, Dtype::kFp16, 1'000'000, false);
  CHECK(means.attention_read == rel(2.0 * 12 * 4096 * 2 * kWidth * 2 * 2, 1e-12));
  CHECK(means.side_read == rel(245.0 * kWidth * 2 * 2, 1e-12));

  // Pairs of a prompt, query by query.
  const auto small = method_of("msa", with(2));
  for (const std::int64_t prompt : {5, 16, 17, 24, 83}) {
    double pairs = 0;
    for (std::int64_t t = 0; t < prompt; ++t) {
      pairs += static_cast<double>(std::min(t + 1, kPage + t % kPage + 1));
    }
    const auto n = static_cast<double>(prompt);
    CHECK(prompt_attention_share(*small, prompt) == rel(pairs / (n * (n + 1) / 2), 1e-12));
  }
  // Three of four layers are dense.
  const double sparse =
      prompt_attention_share(*method_of("msa", {{"dense", std::int64_t{0}}}, 4), 65536);
  CHECK(prompt_attention_share(*msa, 65536) == rel(0.75 + 0.25 * sparse, 1e-12));

  CHECK(msa->needs().inputs.per_head == std::vector<std::string>{"index.q", "index.k"});
  CHECK(moba->needs().inputs.per_head.empty());
  CHECK_THROWS_AS((void)method_of("snapkv+read=blocks"), InputError);
  CHECK_THROWS_AS((void)method_of("msa", {{"digest", std::string{"best"}}}), InputError);
  CHECK_THROWS_AS((void)method_of("msa", {{"topk", std::int64_t{0}}}), InputError);
}
