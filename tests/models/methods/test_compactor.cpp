// Compactor and its parts, Q-Filters and CapKV: kept sets compared with references, hand-solved
// cases, costs and refusals.

#include <cmath>
#include <memory>
#include <string>

#include "models/math/low_rank/leverage.hpp"
#include "models/methods/params.hpp"
#include "models/methods/select/keys/compactor.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_learned.hpp"
#include "tests/support/reference/reference_presses.hpp"
#include "tests/support/session_run.hpp"

namespace kvsim {
namespace {

using test::Ids;
using test::rel;

/// The heads of a layer under one method, up to the end of the prompt.
struct LayerRun {
  LayerRun(const std::string& name, const Params& params, std::int64_t entries,
           std::vector<HeadVectors> vectors, double theta, bool interleaved, std::int32_t layer = 0)
      : heads{std::move(vectors)}, rope{heads.front().head_dim, theta, interleaved} {
    const HeadVectors& one = heads.front();
    MethodContext site;
    site.n_layers = 8;
    site.shape = {.n_heads = static_cast<std::int32_t>(heads.size()) * one.group,
                  .n_kv_heads = static_cast<std::int32_t>(heads.size()),
                  .head_dim = one.head_dim};
    method = make_method({name, params, Budget{0, entries}}, one.prompt, site);
    view.heads = heads;
    view.rope = &rope;
    view.layer = layer;
    view.n_layers = 8;
    const bool whole = as_composed(*method).decision_scope() == DecisionScope::kLayer;
    const std::size_t sessions_of = whole ? 1 : heads.size();
    for (std::size_t s = 0; s < sessions_of; ++s) {
      const std::vector<HeadVectors> own = whole ? heads : std::vector<HeadVectors>{heads[s]};
      scores.push_back(std::make_unique<PromptScores>(own, static_cast<std::int32_t>(s), view));
      const SessionPlace place{.layer = layer,
                               .n_layers = 8,
                               .first_head = static_cast<std::int32_t>(s),
                               .group = one.group,
                               .head_dim = one.head_dim,
                               .tokens = static_cast<std::int32_t>(one.tokens),
                               .scale = one.scale,
                               .seed = 7,
                               .rope = &rope};
      sessions.push_back(std::make_unique<CacheSession>(as_composed(*method), place, own));
      sessions.back()->learn(*scores.back());
      sessions.back()->prefill(*scores.back(), {.entries = entries});
    }
  }
  [[nodiscard]] Ids kept(std::size_t h) const {
    Ids ids;
    const bool whole = sessions.size() == 1;
    for (const auto& members : sessions[whole ? 0 : h]->kept(whole ? h : 0)) {
      ids.push_back(members.front());
    }
    return ids;
  }
  std::vector<HeadVectors> heads;
  Rope rope;
  std::shared_ptr<const Method> method;
  LayerVectors view;
  std::vector<std::unique_ptr<PromptScores>> scores;
  std::vector<std::unique_ptr<CacheSession>> sessions;
};

TEST_CASE("later presses of kvpress keep a reference's entries, made up and recorded") {
  int compared = 0;
  int n_cases = 0;
  const auto compare = [&](const std::vector<HeadVectors>& heads, bool interleaved,
                           std::int32_t layer) {
    const std::int64_t prompt = heads.front().prompt;
    const std::int64_t entries = std::max<std::int64_t>(prompt / 3, 1);
    test::PressPlace place;
    place.interleaved = interleaved;
    place.layer = static_cast<std::uint64_t>(layer);
    const Ids ids = test::first_ids(prompt);
    const auto check = [&](const std::string& name, const Params& params,
                           const std::function<test::Scores(std::size_t)>& reference) {
      const LayerRun run{name, params, entries, heads, 10000, interleaved, layer};
      for (std::size_t h = 0; h < heads.size(); ++h) {
        INFO(name, " head ", h, " prompt ", prompt, " layer ", layer);
        ++n_cases;
        bool clear = true;
        const Ids want = test::reference_top(reference(h), entries, clear);
        if (!clear) continue;
        ++compared;
        CHECK(run.kept(h) == want);
      }
    };
    for (const bool zeros : {false, true}) {
      const std::string padding = zeros ? "zeros" : "masked";
      check("non-causal", {{"chunk", std::int64_t{24}}, {"padding", padding}},
            [&](std::size_t h) { return test::reference_non_causal(heads[h], ids, 24, zeros); });
      if (prompt <= 13) continue;
      for (const double blending : {-1.0, 0.0, 2.5}) {
        const double weight = blending < 0
                                  ? 1.0 - static_cast<double>(entries) / static_cast<double>(prompt)
                                  : blending;
        const auto all = test::reference_compactor(heads, place, weight, 6, 24, zeros);
        check("compactor",
              {{"chunk", std::int64_t{24}},
               {"padding", padding},
               {"sketch", std::int64_t{6}},
               {"blending", blending}},
              [&](std::size_t h) { return all[h]; });
      }
    }
    check("leverage", {{"sketch", std::int64_t{6}}}, [&](std::size_t h) {
      place.kv_head = h;
      return test::reference_leverage(heads[h], ids, place, 6);
    });
    check("qfilter", {},
          [&](std::size_t h) { return test::reference_qfilter(heads[h], ids, prompt); });
    check("capkv", {}, [&](std::size_t h) {
      return test::reference_capkv(heads[h], ids, prompt, place, 4, 512, 5);
    });
    check("capkv",
          {{"tau", 0.5}, {"n_sink", std::int64_t{0}}, {"n_future_positions", std::int64_t{3}}},
          [&](std::size_t h) {
            return test::reference_capkv(heads[h], ids, prompt, place, 0, 3, 0.5);
          });
  };
  struct Shape {
    std::int32_t heads, group, d;
    std::int64_t prompt;
  };
  for (const Shape& shape : {Shape{2, 3, 8, 70}, Shape{3, 1, 16, 145}, Shape{1, 2, 8, 31}}) {
    for (const bool interleaved : {true, false}) {
      std::vector<test::OwnedHead> owned;
      std::vector<HeadVectors> heads;
      for (std::int32_t h = 0; h < shape.heads; ++h) {
        owned.push_back(test::random_head(shape.group, shape.d, shape.prompt, shape.prompt,
                                          static_cast<std::uint64_t>(shape.prompt + h)));
      }
      for (const auto& each : owned) heads.push_back(each.view);
      compare(heads, interleaved, 3);
    }
  }
  const test::WholeTrace real{
      Trace::open(KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors")};
  for (const std::int32_t layer : {0, 5}) {
    std::vector<HeadVectors> heads{real.head(layer, 0), real.head(layer, 1)};
    for (HeadVectors& head : heads) head.prompt = 200;
    compare(heads, true, layer);
  }
  CHECK(compared > n_cases * 9 / 10);
  CHECK(n_cases > 150);
}

TEST_CASE("leverage by hand, each below 1 and their sum at most the width") {
  // Rows (1, 0), (1, 0), (0, 2) and a ridge of 1: the matrix is diag(3, 5).
  const std::vector<double> rows{1, 0, 1, 0, 0, 2};
  const auto plain = ridge_leverage(rows, 2, {}, 1);
  CHECK(plain[0] == rel(1.0 / 3));
  CHECK(plain[1] == rel(1.0 / 3));
  CHECK(plain[2] == rel(4.0 / 5));
  // Weights 1, 2, 0.5: diag(4, 3).
  const auto weighted = ridge_leverage(rows, 2, std::vector<double>{1, 2, 0.5}, 1);
  CHECK(weighted[0] == rel(1.0 / 4));
  CHECK(weighted[2] == rel(4.0 / 3));
  // Four equal rows so large that the ridge is lost to rounding and no Cholesky factor exists.
  std::vector<double> large;
  for (int i = 0; i < 4; ++i) large.insert(large.end(), {1e9, 1e9, 0});
  for (const double x : ridge_leverage(large, 3, {}, 1)) CHECK(x == rel(1.0 / 4));
  const auto owned = test::random_head(1, 16, 300, 300, 2);
  const Rope rope{16, 10000, true};
  const Ids ids = test::first_ids(300);
  const auto scores = leverage_scores({.head = owned.view,
                                       .positions = ids,
                                       .keys = owned.view.keys,
                                       .values = owned.view.values,
                                       .tokens = 300},
                                      {.rope = &rope}, 12);
  double sum = 0;
  for (const double x : scores) {
    CHECK((x >= 0 && x < 1));
    sum += x;
  }
  CHECK(sum < 12);
  CHECK(sum > 11);
}

TEST_CASE("non-causal attention by hand: both directions, chunks, norms and neighbours") {
  // Chunks of two, one channel. Queries ln 2, 0 | 0; keys 1, 0 | 5; values 3, 6, 9. First chunk:
  // the query of ln 2 has weights 2/3 and 1/3 on its keys, the query of 0 has 1/2 on both. The
  // third token has a chunk to itself. Column sums 7/6, 5/6, 1, times norms 3.5, 5, 9; a third of
  // each with neighbours.
  const auto l2 = static_cast<float>(std::log(2.0));
  const std::vector<float> q{l2, 0, 0}, keys{1, 0, 5}, values{3, -6, 9};
  const HeadVectors head{.q = q,
                         .keys = keys,
                         .values = values,
                         .group = 1,
                         .head_dim = 1,
                         .tokens = 3,
                         .prompt = 3,
                         .scale = 0.125};  // which has no effect
  const Ids ids{0, 1, 2};
  const ScoredTokens tokens{
      .head = head, .positions = ids, .keys = keys, .values = values, .tokens = 3};
  const auto masked = non_causal_scores(tokens, 2, false);
  CHECK(masked[0] == rel(8.5 / 3, 1e-6));
  CHECK(masked[1] == rel(17.5 / 3, 1e-6));
  CHECK(masked[2] == rel(14.0 / 3, 1e-6));
  // With zeros: the third key shares its chunk with a key of 0 and a query of 0: 1/2 + 1/2.
  const auto zeros = non_causal_scores(tokens, 2, true);
  CHECK(zeros[2] == rel(14.0 / 3, 1e-6));
  const std::vector<float> other{l2, 0, l2};  // 2^5 : 1 and 1 : 1
  HeadVectors turned = head;
  turned.q = other;
  const ScoredTokens again{
      .head = turned, .positions = ids, .keys = keys, .values = values, .tokens = 3};
  CHECK(non_causal_scores(again, 2, true)[2] == rel((5 + 9 * (32.0 / 33 + 0.5)) / 3, 1e-6));
}

TEST_CASE("qfilter by hand: keys along the queries stay for either sign of the vector") {
  // Queries (2, 0), (3, 0.1), (-1, 0): the direction is nearly (1, 0), and two of three agree.
  auto owned = test::random_head(1, 2, 3, 3);
  for (const float sign : {1.0F, -1.0F}) {
    owned.q = {2 * sign, 0, 3 * sign, 0.1F, -1 * sign, 0};
    owned.keys = {1, 0, -2, 0, 0, 5};
    owned.view.q = owned.q;
    owned.view.keys = owned.keys;
    const LayerRun run{"qfilter", {}, 1, {owned.view}, 10000, true};
    CHECK(run.kept(0) == (sign > 0 ? Ids{0} : Ids{1}));
  }
  // Two against two: the sum of products determines the direction.
  const auto u = leading_direction(std::vector<float>{3, 0, 1, 0, -1, 0, -1, 0}, 2);
  CHECK(u[0] == rel(1.0));
}

TEST_CASE("capkv by hand: values of matching keys rank first") {
  // One channel pair at position 0 only (theta is so large that nothing rotates): the mean query is
  // (1, 0). Keys (1, 0), (0, 1), tau ln 4: weights 1 and 1/4. Values (1, 0), (0, 2), A = diag(2,
  // 2): scores 1/2 and 1/2; a longer second value has the higher score, a shorter one the lower.
  auto owned = test::random_head(1, 2, 2, 2);
  owned.q = {1, 0, 1, 0};
  owned.keys = {1, 0, 0, 1};
  const Params params{{"n_sink", std::int64_t{0}},
                      {"n_future_positions", std::int64_t{1}},
                      {"tau", std::log(4.0)},
                      {"epsilon", 0.0}};
  // Positions 0 and 1 differ by a rotation of 1 radian: queries and keys are rotated accordingly.
  const Rope rope{2, 10000, true};
  rope.rotate(std::span{owned.q}.subspan(2, 2), 1);
  // The mean query is rotated to position 2; keys are compared with it without further rotation.
  std::vector<float> one{1, 0}, two{0, 1};
  rope.rotate(one, 2);
  rope.rotate(two, 2);
  owned.keys = {one[0], one[1], two[0], two[1]};
  for (const float size : {1.9F, 2.1F}) {
    owned.values = {1, 0, 0, size};
    owned.view.q = owned.q;
    owned.view.keys = owned.keys;
    owned.view.values = owned.values;
    const LayerRun run{"capkv", params, 1, {owned.view}, 10000, true};
    CHECK(run.kept(0) == (size > 2 ? Ids{1} : Ids{0}));
  }
}

TEST_CASE("compactor keeps first and last tokens, and without blending ranks by attention") {
  const auto owned = test::random_head(2, 8, 120, 120, 4);
  const LayerRun run{"compactor", {}, 20, {owned.view}, 10000, true};
  const Ids kept = run.kept(0);
  for (std::int32_t id = 0; id < 8; ++id) CHECK(std::ranges::count(kept, id) == 1);
  for (std::int32_t id = 116; id < 120; ++id) CHECK(std::ranges::count(kept, id) == 1);
  CHECK(param_number(run.method->params(), "blending") ==
        param_number(run.method->params(), "ratio"));
  // Below 12 tokens, all are protected, and the oldest tokens stay.
  auto small = test::random_head(2, 8, 10, 10, 4);
  CHECK(LayerRun{"compactor", {}, 3, {small.view}, 10000, true}.kept(0) == Ids{0, 1, 2});
  CHECK(LayerRun{"compactor", {}, 10, {small.view}, 10000, true}.kept(0).size() == 10);
}

TEST_CASE("a replay of compactor over whole layers follows its law on any number of threads") {
  const Trace trace =
      Trace::open(KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors");
  std::vector<MethodSpec> specs;
  for (const char* name : {"compactor", "leverage", "non-causal", "qfilter", "capkv", "random"}) {
    specs.push_back({name, {}, Budget{0.3, 0}});
  }
  ReplayOptions options;
  options.threads = 1;
  const ReplayResult one = replay(trace, specs, options);
  options.threads = 2;
  const ReplayResult two = replay(trace, specs, options);
  for (std::size_t m = 0; m < specs.size(); ++m) {
    INFO(specs[m].name);
    CHECK(one.methods[m].rel_error_mean == two.methods[m].rel_error_mean);
    CHECK(one.methods[m].bytes_held_final == *one.methods[m].closed_form_bytes_final);
    CHECK(one.methods[m].side_bytes_final == 0);
  }
  // Attention scores have a smaller error than random scores.
  CHECK(one.methods[0].rel_error_mean < one.methods.back().rel_error_mean);
}

TEST_CASE("costs of compactor's parts by hand") {
  const HeadShape shape{
      .group = 4, .head_dim = 128, .recorded = Dtype::kFp16, .stored = Dtype::kFp16};
  const ScoreCost leverage = leverage_cost(1000, 48, 4096, shape);
  CHECK(leverage.flops == 2.0 * 1000 * 4096 * 128 + 2.0 * 1000 * 48 * (128 + 96));
  CHECK(leverage.read == 1000 * 256);
  CHECK(leverage.transient == Bytes{1000 * (256 + 8 * 48)});
  const ScoreCost attention = non_causal_cost(1000, 256, 4096, shape);
  CHECK(attention.flops == 2.0 * 4 * 1000 * 4096 * 128 + 4.0 * 1000 * 256 * (2 * 128 + 4));
  CHECK(attention.transient == Bytes{4 * 1000 * 256 * 8 + 4 * 1000 * 256});
  const auto method = make_method({"compactor", {}, Budget{0.5, 0}}, 1000,
                                  {.recorded = Dtype::kFp16,
                                   .shape = {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128},
                                   .windows = {},
                                   .n_layers = 2});
  const PrefillExtra extra = method->prefill_extra(
      0, {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128}, Dtype::kFp16, 1000);
  CHECK(extra.flops == 8 * (leverage.flops + attention.flops + 8000));
  CHECK(extra.transient == attention.transient * 8);
  CHECK(method->needs().prompt_scores == PromptScoreClass::kNone);
}

TEST_CASE("invalid settings of these scorers are refused") {
  const auto why = [](const std::string& name, const Params& params,
                      std::optional<Budget> budget = {}) -> std::string {
    try {
      (void)make_method({name, params, budget}, 400,
                        {.recorded = Dtype::kFp16,
                         .shape = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 16},
                         .windows = {},
                         .n_layers = 2});
    } catch (const InputError& error) {
      return error.what();
    }
    return "made";
  };
  const auto has = [](const std::string& text, const char* part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  has(why("compactor", {{"granularity", std::string{"query_head"}}}), "kv_head");
  has(why("compactor+budget=ada", {}, Budget{0.5, 0}), "budget=uniform");
  has(why("compactor", {{"chunk", std::int64_t{0}}}), ">= 1");
  has(why("leverage", {{"sketch", std::int64_t{0}}}), "[1, 65536]");
  has(why("non-causal", {{"padding", std::string{"reflect"}}}), "masked, zeros");
  has(why("qfilter", {{"ratio", 1.5}}), "[0, 1)");
  has(why("capkv", {{"tau", -1.0}}), ">= 0");
  CHECK(why("leverage+budget=ada", {}, Budget{0.5, 0}) == "made");
}

}  // namespace
}  // namespace kvsim
