// Prompts whose tokens are split over groups of GPUs (prefill context parallelism): the
// computation, entries and exchanges of a group, and iterations that agree with whole prompts and
// graphs.

#include <cstdint>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#include "models/cost/iteration/mixed.hpp"
#include "models/cost/layer/split_prompt.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/rates/calibration.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "tests/support/graphs.hpp"
#include "tests/support/mixed.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

constexpr std::int64_t kPrompt = 8192;

struct Site : ShardSite {
  Site(std::string_view model, std::int32_t parts, std::int32_t experts = 1, std::int32_t ranks = 1)
      : ShardSite{tensor_shard(find_llm(model), ranks), ranks, kPrompt} {
    stack.prefill_context = parts;
    stack.expert_parallel = experts;
    stack.prefill_chunk = 2 * kPrompt;  // a prompt in one pass
  }
  [[nodiscard]] OpGraph prefill(std::int32_t layer) const {
    const CostInput in = input();
    return prefill_layer(in, layer, {.prompt = kPrompt, .kept = kPrompt, .score_rows = kPrompt});
  }
};

/// Flops of all operators of that name.
double flops(const OpGraph& graph, std::string_view name) {
  double sum = 0;
  for (OpIndex i = 0; i < graph.size(); ++i) {
    if (graph.op(i).name == name) sum += graph.op(i).flops.count();
  }
  return sum;
}

TEST_CASE("split prompts: every group has an early and a late piece, with equal work") {
  // 16 tokens after 8, over two groups: pieces of 4. One group has the first and the last piece,
  // the other has the middle pieces. The first group's pieces follow 8 and 8 + 12 tokens, the other
  // group's pieces follow 8 + 4 and 8 + 8.
  CHECK(expanded_before(8, 16, 8, 2) == (8 + 20));
  CHECK(expanded_before(8, 16, 8, 2) == (12 + 16));
  // Without split prompts: the cached tokens, and tokens that are not computed.
  CHECK(expanded_before(8, 16, 16, 1) == 8);
  CHECK(expanded_before(8, 16, 12, 1) == 12);
  const NewTokens half = split_span({.tokens = 16, .before = 8, .decodes = false}, 2);
  CHECK(half.tokens == 8);
  const auto pairs = [](const NewTokens& s) { return s.tokens * (s.before + s.tokens / 2); };
  CHECK(pairs(half) == rel(4 * 8 + 8.0 + 4 * 20 + 8.0));
  for (const std::int32_t ranks : {2, 4, 8}) {
    const NewTokens whole{.tokens = 4096, .before = 1000, .decodes = false};
    CHECK(ranks * pairs(split_span(whole, ranks)) == rel(pairs(whole)));
  }
}

TEST_CASE("split prompts: groups together compute a prompt once") {
  for (const char* model : {"deepseek-v3", "deepseek-v3.2"}) {
    const OpGraph whole = Site{model, 1}.prefill(4);
    for (const auto& [parts, experts] :
         {std::pair{2, 1}, std::pair{4, 1}, std::pair{4, 4}, std::pair{8, 8}}) {
      INFO(model, " over ", parts, ", experts over ", experts);
      const OpGraph split = Site{model, parts, experts}.prefill(4);
      for (OpIndex i = 0; i < whole.size(); ++i) {
        const std::string_view name = whole.op(i).name;
        if (flops(whole, name) == 0) continue;
        // Latents that are expanded again are a separate operator: "latent expansion of the
        // prefix".
        INFO(name);
        CHECK(parts * flops(split, name) == rel(flops(whole, name)));
      }
      // 576 elements of two bytes, and an index key of 128, of all tokens.
      const double entry = model == std::string_view{"deepseek-v3"} ? 576 : 576 + 128;
      CHECK(op(split, "gather new entries").bytes_read ==
            rel(kPrompt * entry * 2 * (parts - 1) / parts));
      const double hidden = kPrompt * 7168.0 * 2 * (parts - 1) / parts;
      CHECK(op(split, "expert dispatch").bytes_read == rel(hidden));
      CHECK(op(split, "expert combine").bytes_read == rel(hidden));
      CHECK(std::get<CollectiveCall>(op(split, "expert dispatch").kernel->call).kind ==
            CollectiveKind::kAllGather);
      CHECK(std::get<CollectiveCall>(op(split, "expert combine").kernel->call).kind ==
            CollectiveKind::kReduceScatter);
    }
    CHECK(find(whole, "gather new entries") == nullptr);
  }
  // The prefix of a group's late piece is all tokens except that piece, which is half of the
  // group's tokens.
  const OpGraph split = Site{"deepseek-v3", 4}.prefill(4);
  CHECK(op(split, "latent expansion of the prefix").flops.count() ==
        rel(2.0 * (kPrompt - kPrompt / 8) * 512 * 128 * 256));
  CHECK(find(Site{"deepseek-v3.2", 4}.prefill(4), "latent expansion of the prefix") == nullptr);
}

TEST_CASE("split prompts: every group holds all entries, and its part of the experts") {
  const Site whole{"deepseek-v3", 1};
  const CostInput one = whole.input();
  const double all = static_cast<double>(weights_held(one).count());
  for (const auto& [parts, experts] : {std::pair{4, 1}, std::pair{4, 4}}) {
    const Site split{"deepseek-v3", parts, experts};
    const CostInput in = split.input();
    CHECK(layer_cache(in, 4, 4096).total() == layer_cache(one, 4, 4096).total());
    // 58 layers of 256 experts, each three matrices of 7,168 x 2,048.
    const double routed = 58.0 * 256 * 3 * 7168 * 2048 * 2;
    CHECK(static_cast<double>(weights_held(in).count()) ==
          rel(all - routed * (parts - 1) / parts, 1e-4));
  }
}

TEST_CASE("split prompts: a decode step is the same in all groups, except for experts") {
  constexpr std::int64_t kBatch = 16;
  const OpGraph whole = Site{"deepseek-v3", 1}.decode(4, kBatch);
  for (const std::int32_t experts : {1, 4}) {
    INFO("experts over ", experts);
    const Site site{"deepseek-v3", 4, experts};
    const OpGraph split = site.decode(4, kBatch);
    CHECK(op(split, "attention").flops.count() == rel(op(whole, "attention").flops.count()));
    CHECK(op(split, "attention").bytes_read == rel(op(whole, "attention").bytes_read));
    CHECK(op(split, "output projection").bytes_read ==
          rel(op(whole, "output projection").bytes_read));
    // All groups have all tokens: no tokens are sent to experts, and all groups receive the sums.
    CHECK(find(split, "expert dispatch") == nullptr);
    CHECK(std::get<CollectiveCall>(op(split, "expert combine").kernel->call).kind ==
          CollectiveKind::kAllReduce);
    CHECK(op(split, "expert combine").bytes_read == rel(2 * kBatch * 7168.0 * 2 * 3 / 4));
    const CostInput in = site.input(kBatch);
    const ExpertShare share = expert_share(in, site.llm.layers[4].mlp, kBatch, true);
    CHECK(share.tokens == kBatch);
    CHECK(share.rows * share.width * 4 == kBatch * 8 * 2048);
    CHECK(find(split, "gather new entries") == nullptr);
  }
}

TEST_CASE("split prompts: iterations cost the same as graphs and whole prompts") {
  for (const auto& [model, parts, experts, ranks] :
       {std::tuple{"deepseek-v3", 4, 1, 1}, std::tuple{"deepseek-v3", 2, 8, 4},
        std::tuple{"deepseek-v3.2", 4, 4, 1}}) {
    const Site site{model, parts, experts, ranks};
    INFO(model, " over ", parts);
    const Roofline roofline{site.gpu, site.stack, builtin_calibration()};
    const CostInput in = site.input();
    MixedStepCost cost{in, roofline};
    const CostInput many = site.input(8);
    const std::vector<DecodeLoad> loads = equal_loads(many, cost, kPrompt, kPrompt + 1);
    const MixedStep decodes{.decodes = 8, .loads = loads, .chunks = {}};
    check_equal(cost.cost(decodes), graphs_cost(mixed_step(in, decodes), roofline));
    const Step step = decode_step(many, kPrompt, kPrompt + 1);
    CHECK(cost.cost(decodes).time.count() == rel(graphs_cost(step, roofline).time.count(), 1e-6));
    const PrefillChunk second{.tokens = 2048, .before = 2048, .last = true};
    const MixedStep both{.decodes = 8, .loads = loads, .chunks = {&second, 1}};
    check_equal(cost.cost(both), graphs_cost(mixed_step(in, both), roofline));
    // Except for embeddings and hidden states, a prompt in one chunk is a prefill.
    const PrefillChunk whole{.tokens = kPrompt, .before = 0, .last = true};
    const Step prompt = prefill_step(in, kPrompt, {kPrompt});
    CHECK(cost.cost({.loads = {}, .chunks = {&whole, 1}}).time.count() ==
          rel(graphs_cost(prompt, roofline).time.count(), 1e-3));
  }
}

TEST_CASE("split prompts: long prompts gain, more with every group") {
  const auto seconds = [](std::int32_t parts) {
    const Site site{"deepseek-v3.2", parts};
    const Roofline roofline{site.gpu, site.stack, builtin_calibration()};
    return graphs_cost(prefill_step(site.input(), kPrompt, {kPrompt}), roofline).time.count();
  };
  for (const std::int32_t parts : {2, 4, 8}) {
    CHECK(seconds(parts) < seconds(parts / 2));
    CHECK(seconds(parts) > seconds(parts / 2) / 2);  // groups exchange data and repeat some work
  }
}

}  // namespace
}  // namespace kvsim
