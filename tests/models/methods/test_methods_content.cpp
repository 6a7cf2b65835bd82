// Selection by content, head by head: kept sets equal those of references, sizes match their laws,
// and invalid settings are refused.

#include <cmath>
#include <numeric>
#include <set>

#include "models/math/attention/expected_attention.hpp"
#include "models/math/attention/key_redundancy.hpp"
#include "models/math/counter_random.hpp"
#include "models/methods/params.hpp"
#include "models/methods/resolve/presets.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_content.hpp"
#include "tests/support/session_run.hpp"

namespace kvsim {
namespace {

using test::Ids;
using test::ReferenceScorer;
using test::rel;

/// A session of one head with a rope, stepped like SessionRun.
struct Run {
  Run(const std::string& name, Params params, std::optional<Budget> budget, const HeadVectors& one,
      const Rope* rope = nullptr)
      : head{one},
        method{
            make_method({name, std::move(params), budget}, one.prompt,
                        {.recorded = Dtype::kFp16,
                         .shape = {.n_heads = one.group, .n_kv_heads = 1, .head_dim = one.head_dim},
                         .windows = {},
                         .n_layers = 1})},
        session{as_composed(*method),
                {.layer = 0,
                 .group = one.group,
                 .head_dim = one.head_dim,
                 .tokens = static_cast<std::int32_t>(one.tokens),
                 .scale = one.scale,
                 .seed = 7,
                 .rope = rope},
                {one}},
        scores{one} {
    session.learn(scores);
    session.prefill(scores, {.entries = *as_composed(*method).parts().budget->entries(0)});
  }
  [[nodiscard]] Ids kept() const {
    Ids ids;
    for (const auto& members : session.kept()) ids.push_back(members.front());
    return ids;
  }
  /// Rows equal the recorded ones bit for bit, entries follow the law, none returns (I1, I3, I9).
  void step_by_laws(std::int64_t t) {
    const Ids before = kept();
    session.step();
    CHECK(session.events().attended ==
          static_cast<double>(*method->entries_attended(0, head.prompt, t + 1)));
    const Ids after = kept();
    REQUIRE(std::ssize(after) == *method->entries_held(0, head.prompt, t + 1));
    for (const auto id : after) {
      REQUIRE((id == t || std::binary_search(before.begin(), before.end(), id)));
      const auto slot = session.entries().slot_of(id);
      REQUIRE(std::ranges::equal(session.entries().key(slot), head.key(id)));
      REQUIRE(std::ranges::equal(session.entries().value(slot), head.value(id)));
    }
  }

  HeadVectors head;
  std::shared_ptr<const Method> method;
  CacheSession session;
  PromptScores scores;
};

struct Shape {
  std::int32_t group, d;
  std::int64_t prompt, steps;
};
const std::vector<Shape> kShapes{{1, 8, 1, 3}, {2, 8, 31, 0}, {4, 16, 257, 9}, {1, 32, 300, 20}};

struct Case {
  std::string name;
  Params params;
  ReferenceScorer reference;
};
std::vector<Case> scorers(bool interleaved) {
  test::ReferenceExpected far;
  far.interleaved = interleaved;
  test::ReferenceExpected bare = far;
  bare.covariance = bare.vnorm = false;
  bare.future = 1;
  bare.sinks = 0;
  const ReferenceScorer drawn = [](const HeadVectors&, const Ids& ids, std::int64_t) {
    test::Scores all;
    for (const auto id : ids)
      all[id] = counter_uniform(counter_key({7, 0, 0}), static_cast<std::uint64_t>(id));
    return all;
  };
  return {
      {"knorm", {}, test::reference_knorm},
      {"keydiff", {}, test::reference_keydiff},
      {"cur", {}, test::reference_cur(4, 16, 'p')},
      {"cur",
       {{"leverage", std::string{"key"}},
        {"local_window", std::int64_t{7}},
        {"n_sink", std::int64_t{0}}},
       test::reference_cur(0, 7, 'k')},
      {"cur", {{"leverage", std::string{"avg"}}}, test::reference_cur(4, 16, 'a')},
      {"lagkv", {{"lag", std::int64_t{16}}}, test::reference_lagkv(4, 16, false)},
      {"lagkv",
       {{"lag", std::int64_t{9}}, {"cross_scoring", true}},
       test::reference_lagkv(4, 9, true)},
      {"expected-attention", {}, test::reference_expected(far)},
      {"expected-attention",
       {{"use_covariance", false},
        {"use_vnorm", false},
        {"n_future_positions", std::int64_t{1}},
        {"n_sink", std::int64_t{0}}},
       test::reference_expected(bare)},
      {"random", {}, drawn},
      {"select=last-window", {{"window", std::int64_t{5}}}, test::reference_last_window(5, 7)},
  };
}

TEST_CASE("the harness keeps the same entries as a reference, then appends") {
  int compared = 0;
  for (const Shape& shape : kShapes) {
    for (const bool interleaved : {true, false}) {
      const auto owned = test::random_head(shape.group, shape.d, shape.prompt + shape.steps,
                                           shape.prompt, 5 + (interleaved ? 1 : 0));
      const HeadVectors& head = owned.view;
      const Rope rope{shape.d, 10000, interleaved};
      for (const Case& each : scorers(interleaved)) {
        INFO(each.name, " prompt ", shape.prompt, " group ", shape.group);
        const std::int64_t budget = std::max<std::int64_t>(shape.prompt / 3, 1);
        Run run{each.name, each.params, Budget{0, budget}, head, &rope};
        bool clear = true;
        // A window is reduced to the budget.
        const auto scores = budget < 5 && each.name == "select=last-window"
                                ? test::reference_last_window(budget, 7)(
                                      head, test::first_ids(head.prompt), head.prompt)
                                : each.reference(head, test::first_ids(head.prompt), head.prompt);
        Ids want = test::reference_top(scores, budget, clear);
        if (!clear) continue;
        ++compared;
        CHECK(run.kept() == want);
        for (std::int64_t t = head.prompt; t < head.tokens; ++t) {
          run.step_by_laws(t);
          want.push_back(static_cast<std::int32_t>(t));
          CHECK(run.kept() == want);
        }
        CHECK(*run.method->entries_held(0, head.prompt, head.tokens) == budget + shape.steps);
      }
    }
  }
  CHECK(compared >= 56);  // out of 64: near ties are rare
}

TEST_CASE("a ratio truncates in doubles and removing nothing is the full cache (I2)") {
  const auto owned = test::random_head(2, 8, 500, 480);
  for (const std::string name : {"knorm", "keydiff", "lagkv", "random", "decoding", "r-kv"}) {
    INFO(name);
    const bool budgeted = name == "r-kv";
    Run run{name, {}, budgeted ? std::optional{Budget{0, 1000}} : std::nullopt, owned.view};
    Run full{"full", {}, std::nullopt, owned.view};
    for (std::int64_t t = 480; t < 500; ++t) {
      run.step_by_laws(t);
      full.session.step();
      for (std::size_t j = 0; j < 16; ++j) {
        CHECK(run.session.output(0)[j] == rel(full.session.output(0)[j], 1e-9));
      }
    }
    CHECK(run.session.bytes(0).kv == full.session.bytes(0).kv);
  }
  // int(480 * (1 - 0.9)) = 47: 1 - 0.9 is a little below 0.1.
  const auto method = make_method({"knorm", {{"ratio", 0.9}}, std::nullopt}, 480);
  CHECK(*method->entries_held(0, 480, 480) == 47);
  CHECK(*method->entries_held(0, 480, 500) == 67);
  CHECK(param_integer(method->params(), "budget") == 47);
}

TEST_CASE("knorm and keydiff by hand") {
  // Keys of norm 5, 1, 3 and 2; two are kept: the norms 1 and 2.
  auto owned = test::random_head(1, 2, 4, 4);
  owned.keys = {3, 4, 1, 0, 0, 3, 2, 0};
  owned.view.keys = owned.keys;
  CHECK(Run{"knorm", {}, Budget{0, 2}, owned.view}.kept() == Ids{1, 3});
  // Directions (.6, .8), (1, 0), (0, 1), (1, 0): mean (.65, .45), of norm .79. Cosines .94, .82,
  // .57, .82: the third differs most, then the second and the fourth equally; the older is kept.
  CHECK(Run{"keydiff", {}, Budget{0, 2}, owned.view}.kept() == Ids{1, 2});
}

TEST_CASE("cur by hand: norms of keys and values as shares of their window") {
  // Windows of two. |k|^2: 1 3, 2 2, 9; shares 1/4 3/4, 1/2 1/2, 1. |v|^2: 1 1, 3 1, 0; shares 1/2
  // 1/2, 3/4 1/4, 0. Products 1/8 3/8, 3/8 1/8, 0: a window with zero values scores 0.
  auto owned = test::random_head(1, 2, 5, 5);
  const float r3 = std::sqrt(3.F), r2 = std::sqrt(2.F);
  owned.keys = {1, 0, r3, 0, 0, r2, r2, 0, 3, 0};
  owned.values = {0, 1, 1, 0, r3, 0, 0, 1, 0, 0};
  owned.view.keys = owned.keys;
  owned.view.values = owned.values;
  const auto kept = [&](const char* leverage, std::int64_t sinks, std::int64_t n) {
    return Run{
        "cur",
        {{"local_window", std::int64_t{2}}, {"n_sink", sinks}, {"leverage", std::string{leverage}}},
        Budget{0, n},
        owned.view}
        .kept();
  };
  CHECK(kept("product", 0, 2) == Ids{1, 2});
  CHECK(kept("product", 1, 2) == Ids{0, 1});
  CHECK(kept("key", 0, 2) == Ids{1, 4});
  CHECK(kept("value", 0, 1) == Ids{2});
}

TEST_CASE("lagkv protects sinks and the last lag and uses recency below two lags") {
  const auto owned = test::random_head(1, 8, 100, 100);
  const auto kept = Run{"lagkv", {{"lag", std::int64_t{16}}}, Budget{0, 40}, owned.view}.kept();
  for (std::int32_t id = 0; id < 4; ++id) CHECK(std::ranges::count(kept, id) == 1);
  for (std::int32_t id = 84; id < 100; ++id) CHECK(std::ranges::count(kept, id) == 1);
  const auto recent = Run{"lagkv", {{"lag", std::int64_t{49}}}, Budget{0, 10}, owned.view}.kept();
  CHECK(recent == Ids{0, 1, 2, 3, 94, 95, 96, 97, 98, 99});
}

TEST_CASE("expected logits are those of a normal variable and sinks stay") {
  // Two queries of +-1 on the first channel before RoPE: mean 0, variance 1. A key of 3 has
  // E[exp(q k)] = exp(9 / 2), so the logit is 4.5; scale 0.5 makes it 9 / 8.
  const Rope rope{2, 10000, true};
  std::vector<float> q{1, 0, -1, 0};
  rope.rotate(std::span{q}.subspan(2, 2), 1);  // the second is at position 1
  const QueryMoments moments = query_moments(q, 0, 2, rope);
  CHECK(std::abs(moments.mean[0]) < 1e-7);
  CHECK(moments.covariance[0] == rel(1.0, 1e-6));
  const std::vector<float> key{3, 0};
  CHECK(expected_logits(moments, key, 2, 1.0, true)[0] == rel(4.5, 1e-6));
  CHECK(expected_logits(moments, key, 2, 0.5, true)[0] == rel(1.125, 1e-6));
  CHECK(std::abs(expected_logits(moments, key, 2, 1.0, false)[0]) < 1e-6);
  // One future position is a rotation, which preserves the covariance's trace; 512 positions reduce
  // it.
  QueryMoments one = moments;
  turn_to_future(one, rope, 3, 1);
  CHECK(one.covariance[0] + one.covariance[3] == rel(1.0, 1e-6));
  CHECK(one.covariance[0] == rel(std::cos(3.0) * std::cos(3.0), 1e-5));
  QueryMoments many = moments;
  turn_to_future(many, rope, 3, 512);
  CHECK(many.covariance[0] + many.covariance[3] < 0.01);

  const auto owned = test::random_head(2, 8, 60, 60);
  const Rope eight{8, 10000, false};
  const auto kept = Run{"expected-attention", {}, Budget{0, 6}, owned.view, &eight}.kept();
  for (std::int32_t id = 0; id < 4; ++id) CHECK(std::ranges::count(kept, id) == 1);
}

TEST_CASE("random scores do not depend on the order of calls and are spread evenly") {
  double sum = 0;
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 4000; ++i) {
    sum += counter_uniform(counter_key({1, 2, 3}), i);
    seen.insert(counter_key({1, 2, 3, i}));
    seen.insert(counter_key({1, 3, 2, i}));
  }
  CHECK(sum / 4000 == doctest::Approx(0.5).epsilon(0.03));
  CHECK(seen.size() == 8000);
  const auto owned = test::random_head(1, 8, 50, 50);
  CHECK(Run{"random", {}, Budget{0, 9}, owned.view}.kept() ==
        Run{"random", {}, Budget{0, 9}, owned.view}.kept());
}

TEST_CASE("redundancy by hand: of two equal keys the later one is kept") {
  // Keys a, a, b with a orthogonal to b. The only similar key of row 0 is 1, which is spared; that
  // of row 1 is 0, also spared. So every sum is 0 and the softmax is uniform.
  const std::vector<float> two{1, 0, 1, 0, 0, 1};
  for (const double x : key_redundancy(two, 2, {})) CHECK(x == rel(1.0 / 3));
  // Three a: row 0 spares 2, keeps c_01; row 1 spares 2, keeps c_10; row 2 spares 1, keeps c_20.
  // Sums over rows / 3: 2/3, 1/3, 0.
  const std::vector<float> three{1, 0, 2, 0, 3, 0};
  const auto r = key_redundancy(three, 2, {});
  CHECK(r[0] / r[2] == rel(std::exp(2.0 / 3)));
  CHECK(r[1] / r[2] == rel(std::exp(1.0 / 3)));
  // First spared instead: row 0 spares 1, rows 1 and 2 spare 0: sums 0, 1/3, 2/3.
  const auto f = key_redundancy(three, 2, {.retain = RetainDirection::kFirst});
  CHECK(f[2] / f[0] == rel(std::exp(2.0 / 3)));
  CHECK(f[1] / f[0] == rel(std::exp(1.0 / 3)));
  // Two thirds of three entries: both similar keys of each row are spared, and none is redundant.
  const auto both =
      key_redundancy(three, 2, {.retain = RetainDirection::kLastPercent, .retain_ratio = 0.67});
  for (const double x : both) CHECK(x == rel(1.0 / 3));
  // No cosine exceeds 1: no key is spared.
  const auto none = key_redundancy(three, 2, {.threshold = 1.0});
  for (const double x : none) CHECK(x == rel(1.0 / 3));
}

TEST_CASE("pooling: maximum over existing neighbours and mean with zeros for missing ones") {
  const std::vector<double> x{1, 5, 2, 0, 4};
  CHECK(pool(x, 3, true) == std::vector<double>{5, 5, 5, 4, 4});
  const auto mean = pool(x, 3, false);
  CHECK(mean[0] == rel(2.0));
  CHECK(mean[4] == rel(4.0 / 3));
}

TEST_CASE("periodic compression keeps the same entries as a reference and its size is a sawtooth") {
  int compared = 0;
  for (const Shape& shape :
       std::vector<Shape>{{1, 8, 1, 90}, {2, 8, 31, 70}, {4, 16, 57, 80}, {2, 8, 120, 0}}) {
    const auto owned =
        test::random_head(shape.group, shape.d, shape.prompt + shape.steps, shape.prompt, 9);
    const HeadVectors& head = owned.view;
    const Rope rope{shape.d, 10000, true};
    const std::int64_t target = 24;
    const auto compare = [&](const std::string& name, const Params& params,
                             std::optional<Budget> budget, const ReferenceScorer& reference,
                             std::int64_t interval, bool prompt_too) {
      INFO(name, " prompt ", shape.prompt);
      Run run{name, params, budget, head, &rope};
      bool clear = true;
      test::reference_periodic(head, reference, interval, target, prompt_too, clear,
                               [&](std::int64_t t, const Ids& want) {
                                 if (!clear) return;
                                 run.step_by_laws(t);
                                 CHECK(run.kept() == want);
                                 ++compared;
                               });
    };
    const std::int64_t interval = 16;
    compare("decoding", {{"interval", interval}, {"target", 24.0}}, {}, test::reference_knorm, 16,
            false);
    compare("decoding",
            {{"interval", interval}, {"target", 24.0}, {"scorer", std::string{"keydiff"}}}, {},
            test::reference_keydiff, 16, false);
    compare("decoding",
            {{"interval", interval},
             {"target", 24.0},
             {"scorer", std::string{"last-window"}},
             {"window", std::int64_t{4}}},
            {}, test::reference_last_window(4, 7), 16, false);
    compare("r-kv", {{"divide_length", interval}}, Budget{0, target},
            test::reference_r_kv(8, 7, 0.07), 16, true);
    compare("r-kv", {{"divide_length", std::int64_t{7}}, {"mix_lambda", 0.9}}, Budget{0, target},
            test::reference_r_kv(8, 7, 0.9), 7, true);
  }
  CHECK(compared >= 1000);  // out of 1200 steps
}

TEST_CASE("sizes of periodic compression by hand") {
  // Prompt 100, target 64, every 32 steps: 131 entries at step 31, 64 at 32, 95 at 63, 64 at 64.
  const auto method = make_method(
      {"decoding", {{"interval", std::int64_t{32}}, {"target", 64.0}}, std::nullopt}, 100);
  for (const auto& [n, want] : std::map<std::int64_t, std::int64_t>{
           {0, 100}, {31, 131}, {32, 64}, {63, 95}, {64, 64}, {65, 65}}) {
    CHECK(*method->entries_held(0, 100, 100 + n) == want);
  }
  CHECK(*method->entries_attended(0, 100, 132) == 132);
  // At first the cache is smaller than the target: 10 + 32 < 64, 10 + 64 > 64.
  CHECK(*method->entries_held(0, 10, 42) == 42);
  CHECK(*method->entries_held(0, 10, 74) == 64);
  // A share of the tokens so far: int(0.5 * 132) = 66, int(0.5 * 164) = 82.
  const auto half = make_method(
      {"decoding", {{"interval", std::int64_t{32}}, {"target", 0.5}}, std::nullopt}, 100);
  CHECK(*half->entries_held(0, 100, 132) == 66);
  CHECK(*half->entries_held(0, 100, 163) == 97);
  CHECK(*half->entries_held(0, 100, 164) == 82);
  // After the prompt, R-KV stays in [B, B + 128).
  const auto r_kv = make_method({"r-kv", {}, Budget{0, 50}}, 300);
  for (std::int64_t t = 300; t < 900; ++t) {
    const std::int64_t held = *r_kv->entries_held(0, 300, t);
    CHECK((held >= 50 && held < 178));
    CHECK(held == 50 + (t - 300) % 128);
  }
  // 8 queries of 4 heads of 16 numbers in fp16.
  CHECK(as_composed(*r_kv).parts().select->side_bytes(
            99, {.group = 4, .head_dim = 16, .recorded = Dtype::kFp16, .stored = Dtype::kFp16}) ==
        Bytes{8 * 4 * 16 * 2});
}

TEST_CASE("a periodic step moves its survivors and other steps move nothing") {
  const auto method = make_method({"r-kv", {}, Budget{0, 50}}, 300);
  const ComposedMethod& composed = as_composed(*method);
  const HeadShape shape{
      .group = 2, .head_dim = 16, .recorded = Dtype::kFp16, .stored = Dtype::kFp16};
  const StepTraffic quiet = composed.head_traffic(0, {.attended = 100}, shape);
  CHECK(quiet.move_read == 0);
  CHECK(quiet.extra_flops == 0);
  CHECK(quiet.side_write == 2 * 16 * 2);  // one query per head joins the window
  const StepTraffic due = composed.head_traffic(0, {.attended = 178, .left = 128}, shape);
  CHECK(due.move_read == 50 * 2 * 16 * 2);
  CHECK(due.move_write == due.move_read);
  // 2 E^2 d for cosines, 2 w G E d for logits.
  CHECK(due.extra_flops == 2.0 * 178 * 178 * 16 + 2.0 * 8 * 2 * 178 * 16);
}

TEST_CASE("the oracle keeps the same entries as a reference at every step") {
  int compared = 0;
  for (const Shape& shape :
       std::vector<Shape>{{1, 8, 1, 12}, {2, 8, 31, 40}, {4, 8, 57, 1}, {1, 8, 20, 0}}) {
    const auto owned =
        test::random_head(shape.group, shape.d, shape.prompt + shape.steps, shape.prompt, 3);
    for (const std::int64_t budget : {1, 10}) {
      Run run{"oracle-future", {}, Budget{0, budget}, owned.view};
      bool clear = true;
      test::reference_oracle(owned.view, budget, clear, [&](std::int64_t t, const Ids& want) {
        if (!clear) return;
        run.step_by_laws(t);
        CHECK(run.kept() == want);
        ++compared;
      });
    }
  }
  CHECK(compared >= 100);  // out of 106 steps
}

std::string refusal(const std::string& name, Params params, std::optional<Budget> budget = {},
                    std::int64_t prompt = 400) {
  try {
    static_cast<void>(make_method({name, std::move(params), budget}, prompt));
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("content methods: invalid settings are refused with the reason") {
  const std::vector<std::pair<std::string, std::string>> refused{
      {refusal("knorm", {{"ratio", 0.5}}, Budget{0.2, 0}), "both given"},
      {refusal("knorm", {{"ratio", 1.5}}), "[0, 1)"},
      {refusal("knorm", {{"ratio", 0.999}}), "leaves no entry"},
      {refusal("select=last-window", {{"kernel", std::int64_t{4}}}), "odd"},
      {refusal("criticalkv", {{"scorer", std::string{"knorm"}}}), "negative"},
      {refusal("criticalkv", {{"granularity", std::string{"query_head"}}}), "kv_head"},
      {refusal("chunkkv", {}, Budget{0, 12}), "less than a whole chunk"},
      {refusal("decoding", {}, Budget{0.2, 0}), "no budget"},
      {refusal("decoding+budget=ada", {}), "budget=none"},
      {refusal("decoding", {{"interval", std::int64_t{0}}}), ">= 1"},
      {refusal("r-kv", {}, Budget{0, 8}), "window of 8"},
      {refusal("r-kv", {{"retain_direction", std::string{"middle"}}}), "last, first"},
      {refusal("simlayerkv", {}, Budget{0.2, 0}), "no budget"},
      {refusal("select=lazy-layers", {}), "budget=lazy"},
      {refusal("h2o+budget=lazy", {}), "lazy-layers"},
      {refusal("duo-attention", {}, Budget{0.2, 0}), "at least 384 entries"},
      {refusal("duo-attention", {{"streaming_fraction", 0.5}}, Budget{0.99, 0}), "both given"},
      {refusal("h2o+budget=duo", {}), "streaming-heads"},
      {refusal("duo-attention", {{"heads", std::string{"/nowhere"}}}), "/nowhere"},
      {refusal("knorm+budget=ada", {{"ada_normalize", true}}), "not all positive"},
      {refusal("full+budget=ada", {}), "no meaning"},
  };
  for (const auto& [message, reason] : refused) {
    INFO(message);
    CHECK(message.find(reason) != std::string::npos);
  }
}

TEST_CASE("presets of this family state their axes, laws and sources") {
  for (const PresetRow& row : content_presets()) {
    INFO(row.name);
    const MethodInfo info = describe_method(row.name);
    CHECK_FALSE(info.size_law.empty());
    CHECK_FALSE(info.cost_class.empty());
    for (const ParamInfo& param : info.params) {
      CHECK_FALSE(param.range.empty());
      CHECK_FALSE(param.source.empty());
    }
  }
}

}  // namespace
}  // namespace kvsim
