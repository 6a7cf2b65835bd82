// Blocks of steps compared with single steps: sessions of every method of the catalogue keep the
// same entries, with attention computed in tiles or step by step in fp64.

#include <cmath>
#include <vector>

#include "models/math/tiles/tile_kernels.hpp"
#include "models/units/error.hpp"
#include "sim/replay/layer_block.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scratch.hpp"
#include "tests/support/vectors.hpp"
#include "traces/synthetic/generate.hpp"

namespace kvsim {
namespace {

std::filesystem::path long_enough(std::int32_t heads, std::int32_t kv_heads, bool repeated_keys) {
  const auto path = test::scratch_folder() / "blocks.safetensors";
  GenerateOptions options;
  options.layers = 2;
  options.heads = heads;
  options.kv_heads = kv_heads;
  options.head_dim = 16;
  options.prompt_tokens = 300;
  options.tokens = 460;  // more than two blocks
  options.with_hidden = true;
  options.with_output_projection = true;
  options.with_scores = true;
  options.with_decisions = true;
  options.seed = 3;
  // bf16 rounds many numbers to the same value, so more scores are equal.
  options.dtype = repeated_keys ? Dtype::kBf16 : Dtype::kFp16;
  generate_trace(options, path);
  return path;
}

/// A prefilled session of one decision unit.
struct Prefilled {
  Prefilled(const LayerBlock& block, const ComposedMethod& method, const DecisionUnit& unit,
            std::int64_t entries)
      : scores{block.vectors(unit), unit.heads.front().kv_head, block.layer(unit.layer)},
        session{method, block.place(unit, 5), block.vectors(unit)} {
    session.learn(scores);
    session.prefill(scores, {.entries = entries});
  }
  PromptScores scores;
  CacheSession session;
};

void compare(const LayerBlock& block, const ComposedMethod& method, const DecisionUnit& unit,
             const TraceInfo& info, std::size_t& blocks) {
  const auto given = method.parts().budget->scope() == BudgetScope::kHead
                         ? method.parts().budget->entries(unit.layer)
                         : std::nullopt;
  const std::int64_t entries = given.value_or(info.prompt_tokens / 4);
  Prefilled tiled{block, method, unit, entries};
  Prefilled single{block, method, unit, entries};
  double distance = 0;
  std::size_t rows = 0;
  for (std::int64_t at = info.prompt_tokens; at < info.tokens;) {
    const std::int64_t steps = tiled.session.start_block(info.tokens - at);
    ++blocks;
    struct Step {
      std::vector<std::vector<double>> out;
      std::vector<double> log_sum;
    };
    std::vector<Step> want;
    for (std::int64_t i = 0; i < steps; ++i) {
      tiled.session.step();
      single.session.step();
      Step& step = want.emplace_back();
      for (std::size_t h = 0; h < tiled.session.size(); ++h) {
        REQUIRE(tiled.session.kept(h) == single.session.kept(h));
        REQUIRE(tiled.session.bytes(h).kv == single.session.bytes(h).kv);
        const auto out = single.session.output(h);
        step.out.emplace_back(out.begin(), out.end());
        for (std::int32_t g = 0; g < tiled.session.place().group; ++g) {
          step.log_sum.push_back(single.session.log_sum(h, g));
        }
      }
    }
    for (std::int64_t i = 0; i < steps; ++i) {
      const Step& step = want[static_cast<std::size_t>(i)];
      std::size_t row = 0;
      for (std::size_t h = 0; h < tiled.session.size(); ++h) {
        const auto got = tiled.session.block_output(h, i);
        double difference = 0, size = 0;
        for (std::size_t c = 0; c < got.size(); ++c) {
          difference += (got[c] - step.out[h][c]) * (got[c] - step.out[h][c]);
          size += step.out[h][c] * step.out[h][c];
        }
        // Plain blocks have fp32 scores: the error in their last digit is up to 1e-6 of a large
        // logit.
        REQUIRE(std::sqrt(difference) <= 1e-5 * std::sqrt(size));
        distance += size > 0 ? std::sqrt(difference / size) : 0;
        ++rows;
        for (std::int32_t g = 0; g < tiled.session.place().group; ++g) {
          REQUIRE(tiled.session.block_log_sum(h, i, g) ==
                  doctest::Approx(step.log_sum[row++]).epsilon(1e-6));
        }
      }
    }
    at += steps;
  }
  CHECK(distance <= 1e-6 * static_cast<double>(rows));
  CHECK(tiled.session.counts() == single.session.counts());
}

TEST_CASE("blocks of steps keep the entries of single steps and have their outputs") {
  struct Shape {
    std::int32_t heads, kv_heads;
    bool bf16;
  };
  for (const Shape shape : {Shape{2, 2, true}, Shape{6, 2, false}, Shape{20, 1, false}}) {
    const Trace trace = Trace::open(long_enough(shape.heads, shape.kv_heads, shape.bf16));
    const TraceInfo& info = trace.info();
    TraceInputs inputs{.hidden = true,
                       .output_projection = true,
                       .rope = true,
                       .repeat = false,
                       .per_head = {},
                       .predicted = {}};
    for (const std::string& name : info.scores) inputs.per_head.push_back("score." + name);
    for (const std::string& name : info.decisions) inputs.per_head.push_back("decision." + name);
    const Rope rope{info.head_dim, *info.rope_theta, *info.rope_style == RopeStyle::kInterleaved};
    const LayerBlock block{trace, 0, info.n_layers, inputs, &rope};
    std::size_t methods = 0, blocks = 0;
    for (const MethodInfo& each : builtin_methods()) {
      MethodSpec spec{each.name, {}, std::nullopt};
      if (takes_budget(each.name)) spec.budget = Budget{0.25, 0};
      std::shared_ptr<const Method> method;
      try {
        method = resolve_for_trace(spec, info);
      } catch (const InputError&) {
        continue;  // requires inputs that generated traces do not have
      }
      INFO(each.name, " heads ", shape.heads, "/", shape.kv_heads);
      ++methods;
      const auto units = block.units(as_composed(*method));
      for (std::size_t u = 0; u < units.size(); u += std::max<std::size_t>(units.size() / 2, 1)) {
        compare(block, as_composed(*method), units[u], info, blocks);
      }
    }
    CHECK(methods > 30);
    CHECK(blocks > 2 * methods);
  }
}

TEST_CASE("a memory limit processes KV heads one after another and changes no digit") {
  const Trace trace = Trace::open(long_enough(6, 2, false));
  const TraceInfo& info = trace.info();
  const std::int64_t head = info.tokens * info.head_dim * (3 + 2) * 4;  // vectors of a KV head
  const std::vector<MethodSpec> apart{{"full", {}, {}},
                                      {"snapkv", {}, Budget{0.3, 0}},
                                      {"h2o", {}, Budget{0.3, 0}},
                                      {"kivi-4", {}, {}}};
  ReplayOptions options;
  options.kept_positions = true;
  const ReplayResult whole = replay(trace, apart, options);
  options.memory = head;
  const ReplayResult turns = replay(trace, apart, options);
  for (std::size_t i = 0; i < apart.size(); ++i) {
    INFO(apart[i].name);
    CHECK(turns.methods[i].kept == whole.methods[i].kept);
    CHECK(turns.methods[i].rel_error_mean == whole.methods[i].rel_error_mean);
    CHECK(turns.methods[i].rel_error_p99 == whole.methods[i].rel_error_p99);
    CHECK(turns.methods[i].retained_mass_mean == whole.methods[i].retained_mass_mean);
    CHECK(turns.methods[i].best_mass_mean == whole.methods[i].best_mass_mean);
  }
  options.memory = head - 1;
  CHECK_THROWS_AS((void)replay(trace, apart, options), InputError);
  // One decision for all heads of a layer requires all of them.
  options.memory = 2 * head - 1;
  CHECK_THROWS_AS((void)replay(trace, {{"tova", {}, Budget{0.3, 0}}}, options), InputError);
  options.memory = 2 * head;
  CHECK(replay(trace, {{"tova", {}, Budget{0.3, 0}}}, options).methods.size() == 1);
}

TEST_CASE("the reference is GroupAttention's in fp64 at every row") {
  for (const std::int32_t group : {1, 3, 40}) {
    const test::OwnedHead head = test::random_head(group, 20, 700, 333, 9);
    const HeadVectors& view = head.view;
    const CausalAttention got = causal_attention(view.q, view.keys, view.values, group, 20,
                                                 view.tokens, view.prompt, view.scale);
    GroupAttention attention{group, 20, view.scale};
    for (std::int64_t t = view.prompt; t < view.tokens; ++t) {
      const auto rows = static_cast<std::size_t>(t + 1) * 20;
      attention.run(test::queries_at(view, t), view.keys.first(rows), view.values.first(rows), {});
      for (std::int32_t g = 0; g < group; ++g) {
        const auto row = static_cast<std::size_t>((t - view.prompt) * group + g);
        REQUIRE(got.log_sum[row] == doctest::Approx(attention.log_sum(g)).epsilon(1e-6));
        double difference = 0, size = 0;
        for (std::size_t c = 0; c < 20; ++c) {
          const double want = attention.output()[static_cast<std::size_t>(g) * 20 + c];
          const double gap = static_cast<double>(got.out[row * 20 + c]) - want;
          difference += gap * gap;
          size += want * want;
        }
        REQUIRE(std::sqrt(difference) <= 2e-6 * std::sqrt(size));
      }
    }
  }
}

TEST_CASE("kernels of the widest instruction set equal the baseline's to the bit") {
  const TileKernels& wide = tile_kernels();
  const TileKernels& base = tile_kernels_baseline();
  test::Normal normal{4};
  constexpr std::size_t kEntries = 83, kDim = 24;
  std::vector<float> keys(kEntries * kDim), one_query(kDim);
  for (float& x : keys) x = static_cast<float>(normal());
  for (float& x : one_query) x = static_cast<float>(normal());
  struct Result {
    std::vector<float> weights, mixed;
    double sum = 0;
  };
  const auto run = [&](const TileKernels& kernels) {
    const std::size_t w = kernels.width;
    std::vector<float> queries(kDim * w), scores(kEntries * w), highest(w, -1e29F), out(kDim * w);
    std::vector<double> sum(w), factor(w);
    for (std::size_t c = 0; c < kDim; ++c) queries[c * w + 1] = one_query[c];
    kernels.score(keys.data(), kEntries, kDim, queries.data(), scores.data());
    (void)kernels.soften(scores.data(), kEntries, 0.2F, nullptr, highest.data(), sum.data(),
                         factor.data());
    kernels.mix(keys.data(), nullptr, kEntries, kDim, scores.data(), out.data());
    Result result;
    for (std::size_t i = 0; i < kEntries; ++i) result.weights.push_back(scores[i * w + 1]);
    for (std::size_t c = 0; c < kDim; ++c) result.mixed.push_back(out[c * w + 1]);
    result.sum = sum[1];
    return result;
  };
  const Result a = run(wide), b = run(base);
  CHECK(a.weights == b.weights);
  CHECK(a.mixed == b.mixed);
  CHECK(a.sum == b.sum);
  std::vector<double> logits(40), p(40), q(40);
  for (double& x : logits) x = 5 * normal();
  for (const std::size_t n : {1U, 3U, 8U, 37U}) {
    CHECK(wide.softmax(logits.data(), n, p.data()) == base.softmax(logits.data(), n, q.data()));
    CHECK(p == q);
  }
}

}  // namespace
}  // namespace kvsim
