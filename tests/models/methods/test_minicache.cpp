// MiniCache: the invariants M1 to M7, a reference, byte laws with and without a store of fewer
// bits, and eviction of pairs.

#include <array>
#include <cmath>
#include <filesystem>
#include <numbers>

#include "models/math/merging/slerp.hpp"
#include "models/methods/session/session.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_stored.hpp"
#include "tests/support/vectors.hpp"

namespace kvsim {
namespace {

using test::rel;
using test::Row;

constexpr LayerShape kShape{.n_heads = 4, .n_kv_heads = 2, .head_dim = 16};

std::shared_ptr<const Method> method_of(const std::string& name, std::int64_t prompt,
                                        Params params = {}, std::optional<Budget> budget = {},
                                        LayerShape shape = kShape) {
  return make_method({.name = name, .params = std::move(params), .budget = budget}, prompt,
                     {.recorded = Dtype::kFp16, .shape = shape, .windows = {}, .n_layers = 4});
}

/// Both layers of a pair, `heads` KV heads each; the deeper layer is similar to the shallower.
struct Pair {
  Pair(std::size_t heads, std::int32_t group, std::int32_t d, std::int64_t tokens,
       std::int64_t prompt, double likeness = 0.7) {
    for (std::size_t h = 0; h < 2 * heads; ++h) {
      owned.push_back(test::random_head(group, d, tokens, prompt, 30 + h));
    }
    for (std::size_t h = 0; h < heads; ++h) {
      for (const bool keys : {true, false}) {
        auto& deep = keys ? owned[heads + h].keys : owned[heads + h].values;
        const auto& shallow = keys ? owned[h].keys : owned[h].values;
        for (std::size_t i = 0; i < deep.size(); ++i) {
          deep[i] = static_cast<float>(likeness * static_cast<double>(shallow[i]) +
                                       (1 - likeness) * static_cast<double>(deep[i]));
        }
      }
    }
    for (test::OwnedHead& each : owned) {
      each.view.q = each.q;
      each.view.keys = each.keys;
      each.view.values = each.values;
      views.push_back(each.view);
    }
  }
  std::vector<test::OwnedHead> owned;
  std::vector<HeadVectors> views;
};

/// A session over a pair of layers 2 and 3 of 4.
struct PairRun {
  PairRun(std::shared_ptr<const Method> resolved, const Pair& pair)
      : method{std::move(resolved)},
        session{as_composed(*method),
                {.layer = 2,
                 .n_layers = 4,
                 .first_head = 0,
                 .group = pair.views.front().group,
                 .head_dim = pair.views.front().head_dim,
                 .tokens = static_cast<std::int32_t>(pair.views.front().tokens),
                 .scale = pair.views.front().scale},
                pair.views},
        scores{pair.views, 0, layer} {
    session.learn(scores);
    session.prefill(scores, {.entries = *as_composed(*method).parts().budget->entries(2)});
  }
  std::int64_t layer_kv(std::size_t layer_of_pair) const {
    std::int64_t sum = 0;
    for (std::size_t h = 0; h < session.size() / 2; ++h) {
      sum += session.bytes(layer_of_pair * session.size() / 2 + h).kv.count();
    }
    return sum;
  }
  std::shared_ptr<const Method> method;
  CacheSession session;
  LayerVectors layer;
  PromptScores scores;
};

/// Row `id` of one layer, heads concatenated, as held.
Row held_row(const CacheSession& session, std::size_t deep, std::int32_t id, bool keys) {
  Row row;
  const std::size_t heads = session.size() / 2;
  for (std::size_t h = deep * heads; h < (deep + 1) * heads; ++h) {
    const EntryTable& entries = session.entries(h);
    const auto one = keys ? entries.key(entries.slot_of(id)) : entries.value(entries.slot_of(id));
    row.insert(row.end(), one.begin(), one.end());
  }
  return row;
}
test::Rows recorded_rows(const Pair& pair, std::size_t deep, bool keys, std::int64_t n) {
  test::Rows rows(static_cast<std::size_t>(n));
  const std::size_t heads = pair.views.size() / 2;
  for (std::size_t h = deep * heads; h < (deep + 1) * heads; ++h) {
    for (std::int64_t t = 0; t < n; ++t) {
      const auto one = keys ? pair.views[h].key(t) : pair.views[h].value(t);
      Row& row = rows[static_cast<std::size_t>(t)];
      row.insert(row.end(), one.begin(), one.end());
    }
  }
  return rows;
}
double row_distance(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t j = 0; j < a.size(); ++j) sum += (a[j] - b[j]) * (a[j] - b[j]);
  return std::sqrt(sum);
}

TEST_CASE("M1 M2: the direction has norm 1 and lies between both, degenerate rows") {
  test::Normal normal{3};
  for (const std::size_t h : {2U, 31U, 256U}) {
    for (const double t : {0.0, 0.3, 0.6, 1.0}) {
      Row a;
      Row b;
      Row e(h);
      for (std::size_t j = 0; j < h; ++j) {
        a.push_back(normal());
        b.push_back(3 * normal());
      }
      const Slerp found = slerp(a, b, t, e);
      CHECK(test::norm_of(e) == rel(1.0, 1e-14));
      CHECK(found.angle == rel(test::angle_between(a, b), 1e-12));
      CHECK(std::abs(test::angle_between(e, b) - (1 - t) * found.angle) < 1e-7);
      CHECK(std::abs(test::angle_between(e, a) - t * found.angle) < 1e-7);
      CHECK(found.norm_b == rel(test::norm_of(b)));
    }
  }
  Row e(2);
  const Row x{3, 4};
  const Row zero{0, 0};
  CHECK(slerp(x, zero, 0.6, e).angle == 0.0);
  CHECK(row_distance(e, {0.6, 0.8}) < 1e-15);
  slerp(zero, x, 0.6, e);
  CHECK(row_distance(e, {0.6, 0.8}) < 1e-15);
  slerp(zero, zero, 0.6, e);
  CHECK(e == zero);
  slerp(x, x, 0.6, e);
  CHECK(row_distance(e, {0.6, 0.8}) < 1e-15);
  const Slerp opposite = slerp(x, Row{-6, -8}, 0.6, e);
  CHECK(opposite.antipodal);
  CHECK(row_distance(e, {-0.6, -0.8}) < 1e-15);
  // A right angle, by hand: halfway is the diagonal.
  slerp(Row{2, 0}, Row{0, 5}, 0.5, e);
  CHECK(row_distance(e, {std::sqrt(0.5), std::sqrt(0.5)}) < 1e-15);
}

TEST_CASE("rows of both layers equal a reference in prompt and decode") {
  for (const auto& [heads, group, d] : {std::array{2, 2, 16}, std::array{1, 3, 31}}) {
    for (const auto& [prompt, tokens] : {std::pair{1, 20}, {31, 60}, {40, 40}}) {
      const Pair pair{static_cast<std::size_t>(heads), group, d, tokens, prompt};
      for (const std::string rule : {"range_far", "topk_far", "paper_literal", "none"}) {
        for (const std::string merge : {"slerp", "max_norm", "average"}) {
          INFO(rule, " ", merge, " prompt ", prompt);
          Params settings{{"retention_rule", rule}, {"merge", merge}};
          if (rule != "none") settings["gamma"] = 0.2;
          PairRun run{method_of("minicache", prompt, settings, {},
                                {.n_heads = heads * group, .n_kv_heads = heads, .head_dim = d}),
                      pair};
          for (int t = prompt; t < tokens; ++t) run.session.step();
          double retained = 0;
          for (const bool keys : {true, false}) {
            const auto want = test::reference_minicache(
                recorded_rows(pair, 0, keys, tokens), recorded_rows(pair, 1, keys, tokens),
                static_cast<std::size_t>(prompt), rule, merge, 0.6, 0.2);
            for (std::int32_t id = 0; id < tokens; ++id) {
              const auto at = static_cast<std::size_t>(id);
              retained += want.retained[at] ? 1 : 0;
              REQUIRE(row_distance(held_row(run.session, 0, id, keys), want.shallow[at]) < 2e-5);
              REQUIRE(row_distance(held_row(run.session, 1, id, keys), want.deep[at]) < 2e-5);
            }
          }
          Counts counts = run.session.counts();
          CHECK(counts["minicache_retained_keys"] + counts["minicache_retained_values"] ==
                retained);
          // M7: the law with the measured count; h = heads * d, fp16.
          const double h = heads * d;
          const double norms = merge == "slerp" ? 4 : merge == "max_norm" ? 2 : 0;
          const double want = 2 * h * 2 * tokens + norms * 2 * tokens + retained * (2 * h * 2 + 4);
          CHECK(static_cast<double>(run.layer_kv(0) + run.layer_kv(1)) == want);
        }
      }
    }
  }
}

TEST_CASE("M3 M5 M6: retained rows are exact and t at its ends keeps one layer") {
  const Pair pair{2, 2, 16, 50, 40};
  const auto worst = [&](Params params, std::size_t deep, std::int32_t tokens) {
    PairRun run{method_of("minicache", 40, std::move(params)), pair};
    for (int t = 40; t < tokens; ++t) run.session.step();
    double max = 0;
    for (const bool keys : {true, false}) {
      const auto rows = recorded_rows(pair, deep, keys, tokens);
      for (std::int32_t id = 0; id < tokens; ++id) {
        max = std::max(max, row_distance(held_row(run.session, deep, id, keys),
                                         rows[static_cast<std::size_t>(id)]));
      }
    }
    return max;
  };
  const Params ends{{"retention_rule", std::string{"none"}}};
  Params deep = ends;
  deep["t"] = 1.0;
  Params shallow = ends;
  shallow["t"] = 0.0;
  CHECK(worst(deep, 1, 50) < 1e-6);
  CHECK(worst(deep, 0, 50) > 0.1);
  CHECK(worst(shallow, 0, 50) < 1e-6);
  const Params all{{"retention_rule", std::string{"topk_far"}}, {"gamma", 1.0}};
  CHECK(worst(all, 0, 40) == 0.0);
  CHECK(worst(all, 1, 40) == 0.0);
  CHECK(worst(all, 1, 50) > 0.1);  // generated tokens are not retained
  // This is also larger than the full cache: 1.5 times plus norms.
  PairRun run{method_of("minicache", 40, all), pair};
  CHECK(run.layer_kv(0) > 40 * 2 * 2 * 16 * 2);
}

TEST_CASE("M4: identical layers are restored exactly and attention is the full cache's") {
  Pair pair{2, 2, 16, 60, 40};
  for (std::size_t h = 0; h < 2; ++h) {
    pair.owned[2 + h].keys = pair.owned[h].keys;
    pair.owned[2 + h].values = pair.owned[h].values;
    pair.views[2 + h].keys = pair.owned[2 + h].keys;
    pair.views[2 + h].values = pair.owned[2 + h].values;
  }
  PairRun run{method_of("minicache", 40), pair};
  for (int t = 40; t < 60; ++t) run.session.step();
  for (const bool keys : {true, false}) {
    const auto rows = recorded_rows(pair, 1, keys, 60);
    for (std::int32_t id = 0; id < 60; ++id) {
      CHECK(row_distance(held_row(run.session, 1, id, keys), rows[static_cast<std::size_t>(id)]) <
            2e-6);
    }
  }
}

TEST_CASE("opposite rows are kept whole with retention on, else the deeper direction is used") {
  Pair pair{1, 1, 8, 12, 10};
  for (std::size_t j = 0; j < 8; ++j) {
    pair.owned[1].keys[3 * 8 + j] = -2 * pair.owned[0].keys[3 * 8 + j];
  }
  pair.views[1].keys = pair.owned[1].keys;
  const LayerShape shape{.n_heads = 1, .n_kv_heads = 1, .head_dim = 8};
  PairRun kept{
      method_of("minicache", 10, {{"retention_rule", std::string{"paper_literal"}}}, {}, shape),
      pair};
  CHECK(kept.session.counts()["minicache_antipodal"] == 1);
  CHECK(row_distance(held_row(kept.session, 0, 3, true), recorded_rows(pair, 0, true, 10)[3]) ==
        0.0);
  PairRun lost{method_of("minicache", 10, {{"gamma", 0.0}}, {}, shape), pair};
  CHECK(row_distance(held_row(lost.session, 1, 3, true), recorded_rows(pair, 1, true, 10)[3]) <
        1e-6);
  CHECK(row_distance(held_row(lost.session, 0, 3, true), recorded_rows(pair, 0, true, 10)[3]) ==
        rel(2 * test::norm_of(recorded_rows(pair, 0, true, 10)[3]), 1e-6));
}

TEST_CASE("M7: the byte law equals the counted bytes step by step for every store") {
  for (const std::string name :
       {"minicache", "minicache+kivi-4", "minicache+kivi-2", "minicache+int8", "minicache+rtn",
        "minicache+fp8-e4m3", "minicache+store=fp32", "minicache+store=fp16"}) {
    for (const std::string unit : {"token", "head"}) {
      for (const std::string rule : {"topk_far", "none"}) {
        for (const auto& [prompt, tokens] : {std::pair{1, 40}, {31, 170}, {140, 150}, {7, 7}}) {
          INFO(name, " ", unit, " ", rule, " prompt ", prompt);
          const std::size_t heads = unit == "token" ? 2 : 1;
          const Pair pair{heads, 2, 16, tokens, prompt};
          const LayerShape shape{.n_heads = static_cast<std::int32_t>(heads * 2),
                                 .n_kv_heads = static_cast<std::int32_t>(heads),
                                 .head_dim = 16};
          PairRun run{
              method_of(name, prompt, {{"unit", unit}, {"retention_rule", rule}}, {}, shape), pair};
          for (int t = prompt;; ++t) {
            for (const std::size_t layer : {0U, 1U}) {
              const auto law = run.method->layer_bytes(static_cast<std::int32_t>(2 + layer), shape,
                                                       Dtype::kFp16, prompt, t);
              REQUIRE(law.has_value());
              REQUIRE(law->kv.count() == run.layer_kv(layer));
            }
            if (t == tokens) break;
            run.session.step();
          }
        }
      }
    }
  }
}

TEST_CASE("the published size: br(s+n)(3.1h + 2), 1.29 times, and Table D's ratios") {
  constexpr std::int32_t kHidden = 4096;
  const LayerShape shape{.n_heads = 32, .n_kv_heads = 32, .head_dim = 128};
  const auto bytes = [&](double gamma, const std::string& name, std::int64_t prompt) {
    const auto method = make_method(
        {.name = name,
         .params = {{"retention_rule", std::string{"topk_far"}}, {"gamma", gamma}},
         .budget = {}},
        prompt, {.recorded = Dtype::kFp16, .shape = shape, .windows = {}, .n_layers = 32});
    double sum = 0;
    for (std::int32_t layer = 0; layer < 32; ++layer) {
      sum += static_cast<double>(
          method->layer_bytes(layer, shape, Dtype::kFp16, prompt, prompt)->kv.count());
    }
    return sum;
  };
  constexpr std::int64_t kPrompt = 2000;
  // 100 tokens of keys and of values are kept. Their indices, 2 * 100 * 4 B per pair, are not
  // counted in the paper.
  const double indices = 8 * 2 * 100 * 4.0;
  CHECK(bytes(0.05, "minicache", kPrompt) ==
        rel(32.0 * kPrompt * (3.1 * kHidden + 2) + indices, 1e-12));
  const double full = 4.0 * 32 * kPrompt * kHidden;
  CHECK(full / bytes(0.05, "minicache", kPrompt) == rel(1.2901, 1e-3));
  // Table D relative to its gamma = 0 row: 3 / (3 + 2 gamma).
  for (const double gamma : {0.01, 0.02, 0.05, 0.1, 1.0}) {
    CHECK(bytes(0, "minicache", kPrompt) / bytes(gamma, "minicache", kPrompt) ==
          rel(3.0 / (3.0 + 2.0 * gamma), 1e-3));
  }
  // As printed, 3.893 for a 4.11-bit store, times 4 / (3 + 2 gamma), without norms.
  for (const auto& [gamma, printed] : {std::pair{0.0, 5.191},
                                       {0.01, 5.156},
                                       {0.02, 5.122},
                                       {0.05, 5.023},
                                       {0.1, 4.866},
                                       {1.0, 3.115}}) {
    CHECK(3.893 * full / bytes(gamma, "minicache", kPrompt) == rel(printed, 1e-3));
  }
  // With 4 bits: 5 per element in the long run, so 3.2 times the 3.1 / 4; the norms remain fp16.
  CHECK(full / kPrompt * 128000 / bytes(0.05, "minicache+kivi-4", 128000) ==
        rel(4.0 * 3.2 / 3.1, 5e-3));
}

TEST_CASE("a store of fewer bits rounds directions while norms stay the layers' own") {
  const Pair pair{2, 2, 16, 200, 150};
  PairRun run{method_of("minicache+kivi-4", 150), pair};
  for (int t = 150; t < 200; ++t) run.session.step();
  PairRun plain{method_of("minicache", 150), pair};
  for (int t = 150; t < 200; ++t) plain.session.step();
  int changed = 0;
  for (std::int32_t id = 0; id < 200; ++id) {
    for (const std::size_t deep : {0U, 1U}) {
      const Row rounded = held_row(run.session, deep, id, true);
      const Row whole = held_row(plain.session, deep, id, true);
      changed += row_distance(rounded, whole) > 1e-6 ? 1 : 0;
      CHECK(row_distance(rounded, whole) < 0.25 * test::norm_of(whole));
      // Retained rows are also rounded, which changes their norms slightly.
      CHECK(test::norm_of(rounded) == rel(test::norm_of(whole), 0.1));
    }
  }
  CHECK(changed >= 2 * 128);  // R keys flushed, in both layers
}

TEST_CASE("pairs evict jointly: one set of tokens, bytes counted again") {
  for (const std::string name :
       {"h2o+minicache", "h2o+minicache+int8", "h2o+minicache+kivi-4", "streaming-llm+minicache"}) {
    for (const std::string unit : {"token", "head"}) {
      INFO(name, " ", unit);
      const std::size_t heads = unit == "token" ? 2 : 1;
      const Pair pair{heads, 2, 16, 120, 80};
      const LayerShape shape{.n_heads = static_cast<std::int32_t>(heads * 2),
                             .n_kv_heads = static_cast<std::int32_t>(heads),
                             .head_dim = 16};
      PairRun run{
          method_of(name, 80, {{"unit", unit}}, Budget{.fraction = 0, .entries = 30}, shape), pair};
      for (int t = 80; t < 120; ++t) {
        run.session.step();
        for (std::size_t h = 1; h < run.session.size(); ++h) {
          CHECK(run.session.kept(h) == run.session.kept(0));
        }
      }
      CHECK(run.session.entries().size() == 30);
      CHECK(run.layer_kv(0) == run.layer_kv(1));
      if (name == "streaming-llm+minicache") {
        // The prompt except four sinks was evicted: at most the sinks are retained.
        const std::int64_t h = 16 * static_cast<std::int64_t>(heads);
        const std::int64_t bare = 30 * h * 2 + 30 * 2 * 2;
        CHECK(run.layer_kv(0) >= bare);
        CHECK(run.layer_kv(0) <= bare + 2 * 4 * (h * 2 + 2));
      }
    }
  }
}

TEST_CASE("layers below S, an odd last layer, and invalid settings") {
  const auto pairs = [](std::int32_t layers, Params params = {}) {
    const auto method =
        make_method({.name = "minicache", .params = std::move(params), .budget = {}}, 10,
                    {.recorded = Dtype::kFp16, .shape = kShape, .windows = {}, .n_layers = layers});
    std::vector<std::int32_t> first;
    for (std::int32_t layer = 0; layer < layers; ++layer) {
      if (as_composed(*method).starts_pair(layer, layers)) first.push_back(layer);
    }
    return first;
  };
  CHECK(pairs(6) == std::vector{2, 4});
  CHECK(pairs(5) == std::vector{2});
  CHECK(pairs(8) == std::vector{4, 6});
  CHECK(pairs(1).empty());
  CHECK(pairs(4, {{"S", std::int64_t{0}}}) == std::vector{0, 2});
  CHECK_THROWS_AS(pairs(6, {{"S", std::int64_t{3}}}), InputError);
  CHECK_THROWS_AS(pairs(6, {{"S", std::int64_t{8}}}), InputError);
  CHECK_THROWS_AS(pairs(6, {{"t", 1.5}}), InputError);
  CHECK_THROWS_AS(pairs(6, {{"gamma", -0.1}}), InputError);
  CHECK_THROWS_AS(pairs(0), InputError);
  for (const char* name : {"zeromerge+minicache", "minicache+think", "minicache+gear",
                           "minicache+smoothquant-kv", "minicache+store=masked"}) {
    INFO(name);
    CHECK_THROWS_AS(method_of(name, 10), InputError);
  }
  CHECK_THROWS_AS(method_of("minicache+fp8-e4m3", 10, {{"scale", std::string{"tensor"}}}),
                  InputError);
  CHECK_THROWS_AS(method_of("h2o+minicache", 10, {{"granularity", std::string{"query_head"}}}),
                  InputError);
}

TEST_CASE("on a real trace: size law, restored layers and unchanged ones") {
  const auto trace = Trace::open(std::filesystem::path{KVSIM_SOURCE_DIR} /
                                 "traces/samples/books-treasure-512.safetensors");
  std::vector<MethodSpec> specs;
  for (const char* name : {"minicache", "minicache+kivi-4", "minicache+int8"}) {
    for (const char* unit : {"token", "head"}) {
      specs.push_back(
          {.name = name,
           .params = {{"retention_rule", std::string{"topk_far"}}, {"unit", std::string{unit}}},
           .budget = {}});
    }
  }
  specs.push_back({.name = "h2o+minicache", .params = {}, .budget = Budget{0.2, 0}});
  ReplayOptions options;
  options.threads = 2;
  const ReplayResult result = replay(trace, specs, options);
  for (const ReplayMethod& each : result.methods) {
    INFO(each.name);
    CHECK(each.rel_error_mean > 0.1);
    if (each.budget) {
      CHECK(*each.budget_reached < 0.2);
      CHECK(*each.budget_reached > 0.15);
      continue;
    }
    REQUIRE(each.closed_form_bytes_final.has_value());
    CHECK(*each.closed_form_bytes_final == each.bytes_held_final);
    if (each.name == "minicache") {
      CHECK(each.layers[1].rel_error_mean < 1e-5);
      CHECK(each.layers[2].rel_error_mean > 0.1);
    }
  }
}

}  // namespace
}  // namespace kvsim
