// Entries distributed over ranks (decode context parallelism): the entries that a rank holds, reads
// and exchanges, and iterations that agree with steps.

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "models/cost/iteration/mixed.hpp"
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

constexpr std::int64_t kPrompt = 4096;

struct Site : ShardSite {
  Site(std::string_view model, std::int32_t ranks, std::int32_t context)
      : ShardSite{tensor_shard(find_llm(model), ranks, context), 8, kPrompt} {
    stack.block_tokens *= context;
  }
};

std::string refusal(std::string_view model, std::int32_t ranks, std::int32_t context) {
  try {
    (void)tensor_shard(find_llm(model), ranks, context);
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

TEST_CASE("dealt: each rank holds its share of latents, and of heads that ranks repeat") {
  for (const auto& [model, ranks] : {std::pair{"deepseek-v3", 8}, std::pair{"llama-3.1-8b", 32}}) {
    for (const std::int32_t context : {2, 4}) {
      const Site whole{model, ranks, 1}, dealt{model, ranks, context};
      INFO(model, " over ", context);
      CHECK(full_cache_bytes(whole.llm, 8192, Dtype::kBf16) ==
            full_cache_bytes(dealt.llm, 8192, Dtype::kBf16) * context);
      const Bytes one = layer_cache(whole.input(), 4, 4096).total();
      CHECK(one == layer_cache(dealt.input(), 4, 4096).total() * context);
      // Ranks differ by at most one entry.
      const AttentionWork work = attention_work(dealt.llm.layers[4].attention);
      CHECK(work.held_here(4097) == 4096 / context + 1);
      CHECK(parameters(whole.llm) == parameters(dealt.llm));
    }
  }
}

TEST_CASE("dealt: only data that ranks would duplicate, and no windows") {
  CHECK(refusal("deepseek-v3", 8, 8) == "accepted");
  CHECK(refusal("llama-3.1-8b", 16, 2) == "accepted");
  CHECK(
      refusal("llama-3.1-8b", 8, 2).find("expected a divisor of the 1 GPUs that hold each entry") !=
      std::string::npos);
  CHECK(refusal("llama-3.1-8b", 16, 4).find("of the 2 GPUs") != std::string::npos);
  CHECK(refusal("deepseek-v3", 8, 3).find("got 3") != std::string::npos);
  CHECK(refusal("gpt-oss-20b", 16, 2).find("kind window") != std::string::npos);
}

TEST_CASE("dealt: a decode step reads a share of the cache with the heads of all ranks") {
  constexpr std::int64_t kBatch = 16;
  constexpr std::int32_t kContext = 4;
  // Bytes of one token's queries and outputs on a rank.
  const auto check = [&](const char* model, std::int32_t ranks, std::int32_t layer, double query,
                         double output, double entry) {
    const OpGraph whole = Site{model, ranks, 1}.decode(layer, kBatch);
    const OpGraph dealt = Site{model, ranks, kContext}.decode(layer, kBatch);
    INFO(model);
    CHECK(find(whole, "gather queries") == nullptr);
    CHECK(op(dealt, "attention").flops.count() == rel(op(whole, "attention").flops.count()));
    const double rest = op(whole, "attention").bytes_read - kBatch * (kPrompt + 1) * entry;
    CHECK(op(dealt, "attention").bytes_read ==
          rel(kBatch * (kPrompt + 1) * entry / kContext + kContext * rest));
    // The query rows of this rank's heads, received from each of the three other ranks.
    CHECK(op(dealt, "gather queries").bytes_read == rel(3 * kBatch * query));
    CHECK(op(dealt, "sum partial outputs").bytes_read == rel(3 * kBatch * output));
  };
  // 16 heads of 576 and 512 elements over latents of 576; one head of 128 over a key and a value.
  check("deepseek-v3", 8, 4, 16 * 576 * 2, 16 * 512 * 2, 576 * 2);
  check("llama-3.1-8b", 32, 4, 128 * 2, 128 * 2, 256 * 2);
  const Site site{"deepseek-v3", 8, kContext};
  const OpGraph dealt = site.decode(4, kBatch);
  // Four bytes for every head of all ranks, from three ranks.
  CHECK(op(dealt, "gather softmax sums").bytes_read == rel(3 * kBatch * 64 * 4.0));
  CHECK(find(dealt, "merge attention to new tokens") == nullptr);
}

TEST_CASE("dealt: a rank scores the index keys that it holds, and writes its share of new rows") {
  const OpGraph whole = Site{"deepseek-v3.2", 8, 1}.decode(4, 16);
  const OpGraph dealt = Site{"deepseek-v3.2", 8, 4}.decode(4, 16);
  const auto keys = [](const OpGraph& graph) {
    return std::get<IndexScoresCall>(op(graph, "index scores").kernel->call).keys;
  };
  const auto length = [](const OpGraph& graph) {
    return std::get<IndexChoiceCall>(op(graph, "index choice").kernel->call).length;
  };
  CHECK(keys(dealt) * 4 == rel(keys(whole)));
  CHECK(length(dealt) * 4 == rel(length(whole)));
  CHECK(op(dealt, "index scores").flops.count() * 4 ==
        rel(op(whole, "index scores").flops.count()));
  const Site latents{"deepseek-v3", 8, 4};
  CHECK(op(latents.decode(4, 16), "cache append").bytes_written * 4 ==
        rel(op(Site{"deepseek-v3", 8, 1}.decode(4, 16), "cache append").bytes_written));
}

TEST_CASE("dealt: iterations cost the same as steps") {
  for (const auto& [model, ranks] : {std::pair{"deepseek-v3", 8}, std::pair{"llama-3.1-8b", 32},
                                     std::pair{"deepseek-v3.2", 8}}) {
    const Site site{model, ranks, 4};
    INFO(model);
    const Roofline roofline{site.gpu, site.stack, builtin_calibration()};
    CostInput in = site.input();
    MixedStepCost cost{in, roofline};
    CostInput many = site.input(8);
    const std::vector<DecodeLoad> loads = equal_loads(many, cost, kPrompt, kPrompt + 1);
    const MixedStep decodes{.decodes = 8, .loads = loads, .chunks = {}};
    check_equal(cost.cost(decodes), graphs_cost(mixed_step(in, decodes), roofline));
    const PrefillChunk second{.tokens = 2048, .before = 2048, .last = true};
    const MixedStep chunk{.loads = {}, .chunks = {&second, 1}};
    check_equal(cost.cost(chunk), graphs_cost(mixed_step(in, chunk), roofline));
    const Step step = decode_step(many, kPrompt, kPrompt + 1);
    CHECK(cost.cost(decodes).time.count() == rel(graphs_cost(step, roofline).time.count(), 1e-6));
  }
}

TEST_CASE("dealt: long contexts gain, short ones pay for the exchange") {
  const auto seconds = [](std::int32_t context, std::int64_t prompt) {
    const Site site{"deepseek-v3", 8, context};
    const Roofline roofline{site.gpu, site.stack, builtin_calibration()};
    CostInput in = site.input(32);
    in.prompt = prompt;
    return graphs_cost(decode_step(in, prompt, prompt + 1), roofline).time.count();
  };
  CHECK(seconds(8, 131072) < seconds(1, 131072));
  CHECK(seconds(8, 512) > seconds(1, 512));
}

}  // namespace
}  // namespace kvsim
