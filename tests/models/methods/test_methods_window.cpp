// Methods that select by attention rows: SnapKV, MorphKV, PyramidKV, TOVA, observed attention,
// Scissorhands, Keyformer, and the budgets per layer. Each is compared step by step with a
// reference, on made-up heads and on a recorded trace.

#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <set>

#include "models/math/counter_random.hpp"
#include "models/methods/params.hpp"
#include "models/methods/session/session.hpp"
#include "models/units/error.hpp"
#include "sim/replay/layer_block.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_window.hpp"
#include "tests/support/session_run.hpp"
#include "tests/support/vectors.hpp"
#include "traces/trace.hpp"

namespace kvsim {
namespace {

using test::Positions;
using test::rel;

constexpr std::int32_t kDim = 16;

MethodContext site_with(std::int32_t group, std::int32_t n_layers = 4) {
  return {.recorded = Dtype::kFp16,
          .shape = {.n_heads = group, .n_kv_heads = 1, .head_dim = kDim},
          .windows = {},
          .n_layers = n_layers};
}

std::shared_ptr<const Method> method_of(const std::string& name, std::int64_t prompt,
                                        std::optional<Budget> budget, Params params = {},
                                        std::int32_t group = 2) {
  return make_method({.name = name, .params = std::move(params), .budget = budget}, prompt,
                     site_with(group));
}

std::string complaint(const std::string& name, std::optional<Budget> budget, Params params = {},
                      std::int64_t prompt = 100) {
  try {
    (void)method_of(name, prompt, budget, std::move(params));
  } catch (const InputError& error) {
    return error.what();
  }
  return "none";
}

std::int64_t integer(std::int64_t x) { return x; }
std::string word(const char* text) { return text; }

Positions held_by(const CacheSession& session) {
  const auto ids = session.entries().ids();
  return {ids.begin(), ids.end()};
}

/// Steps both in parallel. Returns the number of steps compared before a near tie.
template <class Reference>
int compare(CacheSession& session, Reference& reference, std::int64_t prompt, std::int64_t tokens) {
  int compared = 0;
  for (std::int64_t t = prompt - 1; t < tokens; ++t) {
    if (t >= prompt) {
      session.step();
      reference.step(static_cast<std::int32_t>(t));
    }
    if (!reference.clear) return compared;
    REQUIRE(held_by(session) == reference.kept);
    ++compared;
  }
  return compared;
}

struct Case {
  std::string name;
  Params params;
  std::optional<std::int64_t> budget;
  /// The reference for the heads of a unit. Returns the number of steps compared.
  std::function<int(CacheSession&, const std::vector<HeadVectors>&, const SessionPlace&)> run;
};

template <class Reference>
int against(CacheSession& session, Reference reference, const HeadVectors& head) {
  return compare(session, reference, head.prompt, head.tokens);
}

std::vector<Case> cases(std::int64_t budget) {
  using Heads = std::vector<HeadVectors>;
  std::vector<Case> all;
  for (const auto& [window, kernel, max] :
       {std::tuple{32, 7, true}, std::tuple{8, 5, false}, std::tuple{1, 1, true}}) {
    all.push_back(
        {"snapkv",
         {{"window", integer(window)},
          {"kernel", integer(kernel)},
          {"pool", word(max ? "max" : "avg")}},
         budget,
         [=](CacheSession& s, const Heads& h, const SessionPlace&) {
           return against(s, test::ReferenceSnap{h[0], budget, window, kernel, max}, h[0]);
         }});
  }
  for (const bool logits : {false, true}) {
    for (const bool before : {false, true}) {
      for (const bool max : {false, true}) {
        for (const std::int64_t period : {1, 5}) {
          const test::ReferenceMorphSettings set{.total = budget,
                                                 .window = 9,
                                                 .max = max,
                                                 .period = period,
                                                 .evict_after = period == 1 ? 1.0 : 1.25,
                                                 .before = before,
                                                 .logits = logits};
          all.push_back({"morphkv",
                         {{"window", integer(set.window)},
                          {"fusion", word(max ? "max" : "sum")},
                          {"evict_period", period},
                          {"evict_after", set.evict_after},
                          {"evict_timing", word(before ? "before_attend" : "after_attend")},
                          {"score_space", word(logits ? "logit_sum" : "prob")}},
                         budget,
                         [=](CacheSession& s, const Heads& h, const SessionPlace&) {
                           return against(s, test::ReferenceMorph{h[0], set}, h[0]);
                         }});
        }
      }
    }
  }
  for (const bool logits : {false, true}) {
    for (const bool before : {false, true}) {
      const test::ReferenceMorphSettings set{
          .total = budget, .window = 9, .max = before, .before = before, .logits = logits};
      all.push_back({"morphkv",
                     {{"window", integer(set.window)},
                      {"profile", word("query_head")},
                      {"fusion", word(set.max ? "max" : "sum")},
                      {"evict_timing", word(before ? "before_attend" : "after_attend")},
                      {"score_space", word(logits ? "logit_sum" : "prob")}},
                     budget,
                     [=](CacheSession& s, const Heads& h, const SessionPlace&) {
                       return against(s, test::ReferenceDrift{h[0], set}, h[0]);
                     }});
    }
  }
  for (const bool layer : {true, false}) {
    all.push_back({"tova",
                   {{"decide_by", word(layer ? "layer" : "stored_head")}, {"protect_last", !layer}},
                   budget,
                   [=](CacheSession& s, const Heads& h, const SessionPlace&) {
                     return against(s, test::ReferenceTova{h, budget, !layer}, h[0]);
                   }});
  }
  all.push_back(
      {"observed-attention", {}, budget, [=](CacheSession& s, const Heads& h, const SessionPlace&) {
         return against(s, test::ReferenceObserved{h[0], budget}, h[0]);
       }});
  for (const bool cumulative : {false, true}) {
    Params settings{{"history", word(cumulative ? "cumulative" : "window")},
                    {"recent", integer(5)}};
    if (!cumulative) settings["history_steps"] = integer(70);
    all.push_back(
        {"scissorhands", settings, budget,
         [=](CacheSession& s, const Heads& h, const SessionPlace&) {
           return against(s, test::ReferenceScissors{h[0], budget, 5, 70, cumulative}, h[0]);
         }});
  }
  all.push_back({"scissorhands",
                 {{"variant", word("percentile")},
                  {"lru_window", integer(12)},
                  {"position_window", integer(4)},
                  {"start_step", integer(20)}},
                 std::nullopt,
                 [](CacheSession& s, const Heads& h, const SessionPlace&) {
                   return against(s, test::ReferencePivotal{h[0], 0.9, 12, 4, 20}, h[0]);
                 }});
  for (const bool layer : {false, true}) {
    all.push_back({"keyformer",
                   {{"recent", 7.0},
                    {"accumulate", word(layer ? "per_layer" : "per_head")},
                    {"delta_tau", word(layer ? "harness" : "per_step")}},
                   budget,
                   [=](CacheSession& s, const Heads& h, const SessionPlace& place) {
                     return against(
                         s,
                         test::ReferenceKeyformer{h,
                                                  {.budget = budget,
                                                   .recent = 7,
                                                   .harness = layer,
                                                   .seed = place.seed,
                                                   .layer = place.layer,
                                                   .first_query_head = place.first_query_head}},
                         h[0]);
                   }});
  }
  return all;
}

TEST_CASE("every selector equals its reference on made-up heads") {
  struct Size {
    std::int64_t prompt, tokens, budget;
    std::int32_t group;
  };
  for (const Size& size : {Size{60, 100, 24, 1}, Size{61, 97, 23, 4}, Size{31, 60, 40, 2},
                           Size{90, 90, 12, 3}, Size{1, 50, 20, 2}}) {
    const auto head = test::random_head(size.group, kDim, size.tokens, size.prompt, 5);
    for (const Case& each : cases(size.budget)) {
      INFO(each.name, " ", size.prompt, " of ", size.tokens, " budget ", size.budget);
      for (const auto& [name, value] : each.params) INFO(name, "=", to_text(value));
      const auto method =
          method_of(each.name, size.prompt,
                    each.budget ? std::optional{Budget{0, *each.budget}} : std::nullopt,
                    each.params, size.group);
      test::SessionRun run{method, head.view};
      const int compared = each.run(run.session, {head.view}, run.session.place());
      CHECK(compared >= 1);
      CHECK(compared >= (size.tokens - size.prompt) / 2);
    }
  }
}

TEST_CASE("every selector equals its reference on a recorded trace") {
  const Trace trace =
      Trace::open(KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors");
  for (const std::int32_t layer : {0, 4}) {
    LayerBlock block{trace, layer, 1, {}, nullptr};
    for (const Case& each : cases(70)) {
      for (const std::string granularity : {"kv_head", "query_head"}) {
        Params params = each.params;
        params["granularity"] = granularity;
        const auto method = resolve_for_trace(
            {.name = each.name,
             .params = params,
             .budget = each.budget ? std::optional{Budget{0, *each.budget}} : std::nullopt},
            trace.info());
        // Only one unit: the references are slow.
        const DecisionUnit unit = block.units(as_composed(*method)).back();
        const SessionPlace place = block.place(unit, /*seed=*/3);
        const auto heads = block.vectors(unit);
        CacheSession session{as_composed(*method), place, heads};
        session.learn(block.scores(unit));
        session.prefill(block.scores(unit),
                        {.entries = *as_composed(*method).parts().budget->entries(layer)});
        INFO(each.name, " layer ", layer, " ", granularity);
        for (const auto& [name, value] : each.params) INFO(name, "=", to_text(value));
        const int compared = each.run(session, heads, place);
        CHECK(compared >= 65);  // out of 129: the prompt and 128 steps
      }
    }
  }
}

struct Preset {
  std::string name;
  Params params;
};
/// The presets and the options that change the number of entries.
std::vector<Preset> lawful() {
  std::vector<Preset> all{
      {"snapkv", {}},
      {"snapkv", {{"window", integer(3)}, {"pool", word("avg")}}},
      {"pyramidkv", {}},
      {"pyramidkv", {{"window_outside", false}}},
      {"tova", {{"decide_by", word("stored_head")}}},
      {"observed-attention", {}},
      {"scissorhands", {{"recent", integer(2)}}},
      {"scissorhands", {{"recent", integer(0)}, {"drop", 1.0}, {"history", word("cumulative")}}},
      {"scissorhands", {{"recent", integer(3)}, {"drop", 0.1}}},
      {"keyformer", {}},
      {"morphkv+budget=cosine", {{"window", integer(3)}}},
      {"morphkv+budget=first_full", {{"window", integer(3)}, {"full_layers", integer(1)}}},
      {"h2o+budget=cosine", {{"recent", 2.0}}},
      {"h2o+budget=pyramid", {}},
      {"snapkv+store=fp16", {}},
      {"pyramidkv+store=fp16", {}}};
  for (const char* timing : {"after_attend", "before_attend"}) {
    for (const std::int64_t period : {1, 3}) {
      for (const double after : {1.0, 1.5}) {
        for (const char* profile : {"kv_head_aligned", "query_head"}) {
          all.push_back({"morphkv",
                         {{"window", integer(4)},
                          {"evict_timing", word(timing)},
                          {"evict_period", period},
                          {"evict_after", after},
                          {"profile", word(profile)}}});
        }
      }
    }
  }
  return all;
}

TEST_CASE("sizes follow the law and tokens that left never return") {
  struct Size {
    std::int64_t prompt, tokens, budget;
  };
  const std::vector<Size> sizes{{1, 1, 12},    {1, 31, 12},   {31, 31, 12}, {31, 64, 12},
                                {11, 40, 12},  {12, 40, 12},  {13, 40, 12}, {257, 290, 31},
                                {40, 257, 64}, {12, 20, 200}, {64, 100, 64}};
  for (const Preset& each : lawful()) {
    for (const Size& size : sizes) {
      for (const std::int32_t group : {1, 2, 5}) {
        INFO(each.name, " prompt ", size.prompt, " tokens ", size.tokens, " budget ", size.budget);
        for (const auto& [name, value] : each.params) INFO(name, "=", to_text(value));
        const auto head = test::random_head(group, kDim, size.tokens, size.prompt);
        const auto method =
            method_of(each.name, size.prompt, Budget{0, size.budget}, each.params, group);
        test::SessionRun run{method, head.view};
        const LayerShape shape{.n_heads = group, .n_kv_heads = 1, .head_dim = kDim};
        Positions before;
        for (std::int64_t t = size.prompt - 1; t < size.tokens; ++t) {
          if (t >= size.prompt) {
            const auto attended = static_cast<std::int64_t>(run.step(t).entries());
            CHECK(attended == *method->entries_attended(0, size.prompt, t + 1));
          }
          REQUIRE(run.session.entries().size() == *method->entries_held(0, size.prompt, t + 1));
          const auto law = method->layer_bytes(0, shape, Dtype::kFp16, size.prompt, t + 1);
          CHECK(run.session.bytes(0).kv == law->kv);
          CHECK(run.session.bytes(0).side == law->side);
          Positions now = held_by(run.session);
          if (t >= size.prompt) {
            before.insert(static_cast<std::int32_t>(t));
            CHECK(std::includes(before.begin(), before.end(), now.begin(), now.end()));
          }
          before = std::move(now);
        }
      }
    }
  }
}

TEST_CASE("on a trace of several layers and heads the closed form is the replay's count") {
  const Trace trace =
      Trace::open(KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors");
  std::vector<MethodSpec> specs;
  for (Preset& each : lawful()) {
    for (const std::string granularity : {"kv_head", "query_head"}) {
      Params params = each.params;
      params["granularity"] = granularity;
      specs.push_back({each.name, params, Budget{0.55, 0}});
    }
  }
  specs.push_back({"tova", {}, Budget{0.2, 0}});
  specs.push_back({"keyformer", {{"accumulate", word("per_layer")}}, Budget{0.2, 0}});
  const ReplayResult result = replay(trace, specs, {});
  for (std::size_t m = 0; m < specs.size(); ++m) {
    const ReplayMethod& got = result.methods[m];
    INFO(got.name);
    for (const auto& [name, value] : got.params) INFO(name, "=", to_text(value));
    REQUIRE(got.closed_form_bytes_final.has_value());
    CHECK(*got.closed_form_bytes_final == got.bytes_held_final);
    CHECK(got.rel_error_mean > 0);
    CHECK(got.rel_error_mean < 0.7);
    // A share of the bytes is exact up to rounding, unless the prompt is not cut.
    if (to_text(got.params.count("evict_timing") ? got.params.at("evict_timing")
                                                 : ParamValue{word("")}) != "before_attend") {
      CHECK(*got.budget_reached <= *got.budget + 1e-12);
      CHECK(*got.budget_reached > *got.budget - 0.02);
    }
  }
}

TEST_CASE("every head count: MHA, GQA and MQA decide jointly for the layer") {
  // One row of attention, two heads with different rankings: the layer keeps the best on average.
  const auto one = test::random_head(2, kDim, 60, 40, 1);
  const auto two = test::random_head(2, kDim, 60, 40, 2);
  const auto method = method_of("tova", 40, Budget{0, 9});
  const SessionPlace place{.group = 2, .head_dim = kDim, .tokens = 60, .scale = one.view.scale};
  CacheSession session{as_composed(*method), place, {one.view, two.view}};
  const LayerVectors layer;
  PromptScores scores{{one.view, two.view}, 0, layer};
  session.learn(scores);
  session.prefill(scores, {.entries = 9});
  test::ReferenceTova reference{{one.view, two.view}, 9, false};
  CHECK(compare(session, reference, 40, 60) == 21);
  CHECK(session.entries(1).size() == 9);
  const auto keyformer =
      method_of("keyformer", 40, Budget{0, 9}, {{"accumulate", word("per_layer")}});
  CacheSession shared{as_composed(*keyformer), place, {one.view, two.view}};
  shared.learn(scores);
  shared.prefill(scores, {.entries = 9});
  test::ReferenceKeyformer per_layer{{one.view, two.view}, {.budget = 9, .recent = 2}};
  CHECK(compare(shared, per_layer, 40, 60) == 21);
}

Positions final_set(const std::string& name, const HeadVectors& head, std::int64_t budget,
                    Params params = {}) {
  const auto method =
      method_of(name, head.prompt, Budget{0, budget}, std::move(params), head.group);
  test::SessionRun run{method, head};
  run.to_the_end();
  return held_by(run.session);
}

TEST_CASE("SnapKV: the window stays, decode adds one entry per step, no pooling is a plain top-k") {
  const auto head = test::random_head(2, kDim, 100, 80);
  for (const std::int64_t cap : {40, 33, 32, 31, 1}) {
    const Positions kept = final_set("snapkv", head.view, cap);
    CHECK(std::ssize(kept) == cap + 20);
    for (std::int32_t t = 80 - static_cast<std::int32_t>(std::min<std::int64_t>(cap, 32)); t < 100;
         ++t) {
      CHECK(kept.contains(t));
    }
    const auto method = method_of("snapkv", 80, Budget{0, cap});
    test::SessionRun run{method, head.view};
    CHECK(run.session.counts().contains("degenerate") == (cap <= 32));
  }
  // Without pooling: the entries with the largest sums over the window's rows.
  test::Row votes;
  for (std::int32_t t = 48; t < 80; ++t) {
    for (const auto& [i, p] : test::reference_row({head.view}, t, test::up_to(t))) {
      if (i < 48) votes[i] += p;
    }
  }
  std::vector<std::pair<double, std::int32_t>> ranked;
  for (const auto& [i, p] : votes) ranked.emplace_back(-p, i);
  std::sort(ranked.begin(), ranked.end());
  const Positions kept = final_set("snapkv", head.view, 40, {{"kernel", integer(1)}});
  for (std::size_t r = 0; r < 8; ++r) CHECK(kept.contains(ranked[r].second));
}

TEST_CASE("SnapKV by hand: pooling includes neighbours and ties go to the older") {
  // Weights e^k of 1, 1, 6, 1, 1, 1, 3, 1 under a query of 1; w = 1 (the last), k = 3, cap 4.
  // Maxima over neighbours 0 … 6: 1, 6, 6, 6, 1, 3, 3: the three sixes and the last token are kept.
  const std::vector<double> weights{1, 1, 6, 1, 1, 1, 3, 1};
  std::vector<float> keys;
  for (const double weight : weights) keys.push_back(static_cast<float>(std::log(weight)));
  const std::vector<float> ones(8, 1.0F);
  const HeadVectors head{.q = ones,
                         .keys = keys,
                         .values = ones,
                         .group = 1,
                         .head_dim = 1,
                         .tokens = 8,
                         .prompt = 8,
                         .scale = 1.0};
  const Params small{{"window", integer(1)}, {"kernel", integer(3)}};
  CHECK(final_set("snapkv", head, 4, small) == Positions{1, 2, 3, 7});
  CHECK(final_set("snapkv", head, 3, small) == Positions{1, 2, 7});
  // Means with zeros beyond the ends, times 3: 2, 8, 8, 8, 3, 5, 4.
  Params mean = small;
  mean["pool"] = word("avg");
  CHECK(final_set("snapkv", head, 5, mean) == Positions{1, 2, 3, 5, 7});
}

TEST_CASE("MorphKV by hand: the kept set follows the last query") {
  // Weights of the keys 4, 1, 2, 3 | 1, 5 under a query of 1: R = 1, C = 2. Prompt: 3 is kept, and
  // of 4, 1, 2 the tokens 0 and 2. Token 4: of 0 (4), 2 (2), 3 (3), tokens 0 and 3 are kept. Token
  // 5: of 0 (4), 3 (3), 4 (1), tokens 0 and 3 are kept.
  std::vector<float> keys;
  for (const double weight : {4.0, 1.0, 2.0, 3.0, 1.0, 5.0}) {
    keys.push_back(static_cast<float>(std::log(weight)));
  }
  const std::vector<float> ones(6, 1.0F);
  const HeadVectors head{.q = ones,
                         .keys = keys,
                         .values = ones,
                         .group = 1,
                         .head_dim = 1,
                         .tokens = 6,
                         .prompt = 4,
                         .scale = 1.0};
  const auto method = method_of("morphkv", 4, Budget{0, 3}, {{"window", integer(1)}}, 1);
  test::SessionRun run{method, head};
  CHECK(held_by(run.session) == Positions{0, 2, 3});
  run.step(4);
  CHECK(held_by(run.session) == Positions{0, 3, 4});
  run.step(5);
  CHECK(held_by(run.session) == Positions{0, 3, 5});
}

TEST_CASE("MorphKV P1 to P7") {
  const auto head = test::random_head(3, kDim, 140, 70, 9);
  const Params narrow{{"window", integer(6)}};
  {  // P1, P2, P7: constant, the last R present, a profile column for each attended entry
    const auto method = method_of("morphkv", 70, Budget{0, 20}, narrow, 3);
    test::SessionRun run{method, head.view};
    for (std::int64_t t = 70; t < 140; ++t) {
      CHECK(run.step(t).entries() == 21);
      const Positions now = held_by(run.session);
      CHECK(now.size() == 20);
      for (auto i = static_cast<std::int32_t>(t) - 5; i <= t; ++i) CHECK(now.contains(i));
      CHECK(run.session.bytes(0).side == Bytes{6 * 21 * 2});
      // P6: no size grows with n.
      CHECK(run.session.bytes(0).kv == Bytes{20 * 2 * kDim * 2});
    }
  }
  CHECK(final_set("morphkv", head.view, 140, narrow).size() == 140);  // P3
  // P4: with one query of memory, equal to TOVA by stored head with the newest protected.
  const Positions tova = final_set("tova", head.view, 20,
                                   {{"decide_by", word("stored_head")}, {"protect_last", true}});
  CHECK(final_set("morphkv", head.view, 20, {{"window", integer(1)}}) == tova);
  // P5: for a single row, sum and maximum are equal.
  CHECK(final_set("morphkv", head.view, 20, {{"window", integer(1)}, {"fusion", word("max")}}) ==
        tova);
  CHECK(final_set("morphkv", head.view, 20, {{"window", integer(6)}}) !=
        final_set("morphkv", head.view, 20, {{"window", integer(6)}, {"fusion", word("max")}}));
}

TEST_CASE("MorphKV: a profile per query head drifts only under GQA") {
  for (const char* space : {"prob", "logit_sum"}) {
    for (const char* timing : {"after_attend", "before_attend"}) {
      const Params aligned{
          {"window", integer(6)}, {"score_space", word(space)}, {"evict_timing", word(timing)}};
      Params drifting = aligned;
      drifting["profile"] = word("query_head");
      const auto alone = test::random_head(1, kDim, 140, 70, 9);
      CHECK(final_set("morphkv", alone.view, 20, aligned) ==
            final_set("morphkv", alone.view, 20, drifting));
      const auto grouped = test::random_head(4, kDim, 140, 70, 9);
      CHECK(final_set("morphkv", grouped.view, 20, aligned) !=
            final_set("morphkv", grouped.view, 20, drifting));
    }
  }
}

TEST_CASE("MorphKV's profile in addition to K and V of Llama-3.1-8B, bytes per token and layer") {
  // 8 KV heads of 4 queries, 4096 B for K and V. Released code: 32 heads * R * 4 B; aligned: 8 R 2
  // B.
  const MethodContext site{.recorded = Dtype::kFp16,
                           .shape = {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128},
                           .windows = {},
                           .n_layers = 32};
  const auto per_token = [&site](std::int64_t window, const char* profile, const char* timing) {
    const auto method = make_method(
        {"morphkv",
         {{"window", window}, {"profile", word(profile)}, {"evict_timing", word(timing)}},
         Budget{0, 1000}},
        4000, site);
    const std::int64_t columns = 1001;  // attended: held entries plus the newest, or including it
    const auto bytes = method->layer_bytes(0, site.shape, Dtype::kFp16, 4000, 4100);
    REQUIRE(bytes->side.count() % columns == 0);
    return bytes->side.count() / columns;
  };
  CHECK(per_token(32, "query_head", "before_attend") == 4096);
  CHECK(per_token(200, "query_head", "before_attend") == 25600);
  CHECK(per_token(32, "kv_head_aligned", "after_attend") == 512);
  CHECK(per_token(200, "kv_head_aligned", "after_attend") == 3200);
}

TEST_CASE("MorphKV's cost: gather and profile, amortised over the period, and offload") {
  const LayerShape shape{.n_heads = 4, .n_kv_heads = 2, .head_dim = 8};
  const auto traffic = [&shape](Params params) {
    params["window"] = integer(5);
    return method_of("morphkv", 500, Budget{0, 100}, std::move(params))
        ->decode_traffic(0, shape, Dtype::kFp16, 101, true);
  };
  // Per KV head: a row of K and V is 32 B, one of the profile 5 * 2 B; 100 entries are gathered.
  CHECK(traffic({}).move_read == rel(2 * 100 * (32.0 + 10.0)));
  CHECK(traffic({}).move_write == rel(2 * 100 * (32.0 + 10.0)));
  CHECK(traffic({}).side_read == rel(2 * 101 * 5 * 2.0));
  CHECK(traffic({}).side_write == rel(2 * 101 * 2.0));
  CHECK(traffic({}).score_row_read == rel(4 * 101 * 4.0));
  CHECK(traffic({}).link_read == 0);
  CHECK(traffic({{"evict_period", integer(4)}}).move_read == rel(2 * 100 * 42.0 / 4));
  const auto offloaded = traffic({{"offload", true}});
  CHECK(offloaded.link_read == rel(offloaded.attention_read));
  CHECK(offloaded.link_write == rel(offloaded.attention_read));
}

TEST_CASE("Scissorhands: sizes vary from B - m to B and the recent stay") {
  const auto head = test::random_head(2, kDim, 200, 50, 4);
  const auto method =
      method_of("scissorhands", 50, Budget{0, 30}, {{"recent", integer(8)}, {"drop", 0.4}});
  test::SessionRun run{method, head.view};
  std::set<std::int64_t> seen;
  for (std::int64_t t = 50; t < 200; ++t) {
    run.step(t);
    const Positions now = held_by(run.session);
    seen.insert(std::ssize(now));
    for (auto i = static_cast<std::int32_t>(t) - 8; i <= t; ++i) CHECK(now.contains(i));
  }
  CHECK(*seen.begin() == 19);  // B - m + 1
  CHECK(*seen.rbegin() == 30);
  CHECK(seen.size() == 12);
  // Side data: one bit per row of history, or a 16-bit count.
  const LayerShape one_head{.n_heads = 2, .n_kv_heads = 1, .head_dim = 4};
  CHECK(method->rows_bytes(0, one_head, Dtype::kFp16, 10, 10).side == Bytes{10 * 400 / 8});
  CHECK(method_of("scissorhands", 50, Budget{0, 30}, {{"history", word("cumulative")}})
            ->rows_bytes(0, one_head, Dtype::kFp16, 10, 10)
            .side == Bytes{20});
}

TEST_CASE("Keyformer without noise at temperature 1 is H2O and at an infinite one uniform") {
  const auto head = test::random_head(3, kDim, 150, 80, 6);
  const Params plain{{"noise", word("none")}, {"tau_end", 1.0}, {"recent", integer(15)}};
  CHECK(final_set("keyformer", head.view, 30, plain) ==
        final_set("h2o", head.view, 30, {{"recent", 15.0}}));
  const auto method =
      method_of("keyformer", 80, Budget{0, 30}, {{"tau_init", 1e9}, {"tau_end", 1e9}}, 3);
  test::SessionRun run{method, head.view};
  // A token at i of 80 was in 80 - i rows of 3 heads: sum over t >= i of 3 / (t + 1).
  double expected = 0;
  for (int t = 79; t >= 0; --t) {
    expected += 3.0 / (t + 1);
    CHECK(run.session.selector().score(t) == rel(expected, 1e-6));
  }
}

TEST_CASE("Keyformer: only the seed decides") {
  const Trace trace =
      Trace::open(KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors");
  const auto kept = [&trace](std::uint64_t seed, std::int32_t threads, const std::string& heads) {
    ReplayOptions options;
    options.seed = seed;
    options.threads = threads;
    options.kept_positions = true;
    return replay(trace, {{"keyformer", {{"granularity", heads}}, Budget{0.2, 0}}}, options)
        .methods.front()
        .kept;
  };
  CHECK(kept(1, 1, "kv_head") == kept(1, 2, "kv_head"));
  CHECK(kept(1, 1, "kv_head") != kept(2, 1, "kv_head"));
}

TEST_CASE("Gumbel draws have the mean and variance of the distribution") {
  const std::uint64_t key = counter_key({7, 1, 2, 3});
  double sum = 0;
  double squares = 0;
  constexpr int kDraws = 200000;
  for (int i = 0; i < kDraws; ++i) {
    const double z = counter_gumbel(key, static_cast<std::uint64_t>(i));
    REQUIRE(std::isfinite(z));
    sum += z;
    squares += z * z;
  }
  const double mean = sum / kDraws;
  CHECK(std::abs(mean - 0.57721566) < 0.015);  // five standard errors
  CHECK(std::abs(squares / kDraws - mean * mean - 1.64493407) < 0.06);
  CHECK(counter_key({1, 2}) != counter_key({2, 1}));
}

std::vector<std::int64_t> layers_of(const std::string& name, std::int64_t prompt, Budget budget,
                                    Params params, std::int32_t n_layers) {
  const auto method = make_method({name, std::move(params), budget}, prompt,
                                  {.recorded = Dtype::kFp16,
                                   .shape = {.n_heads = 2, .n_kv_heads = 1, .head_dim = kDim},
                                   .windows = {},
                                   .n_layers = n_layers});
  std::vector<std::int64_t> all;
  for (std::int32_t l = 0; l < n_layers; ++l) {
    all.push_back(*as_composed(*method).parts().budget->entries(l));
  }
  return all;
}

TEST_CASE("budget=pyramid by hand, and its sums") {
  const Params eight{{"window", integer(8)}};
  // cap 108, w 8: m = 100, minimum 5, maximum 195, step floor(190 / 3) = 63.
  CHECK(layers_of("pyramidkv", 1000, {0, 108}, eight, 4) ==
        std::vector<std::int64_t>{203, 140, 77, 14});
  // s = 202: a maximum >= 194 becomes 194, minimum 6, step 62.
  CHECK(layers_of("pyramidkv", 202, {0, 108}, eight, 4) ==
        std::vector<std::int64_t>{202, 140, 78, 16});
  // s < 2 m: uniform; s <= cap: no entry is dropped.
  CHECK(layers_of("pyramidkv", 199, {0, 108}, eight, 4) ==
        std::vector<std::int64_t>{108, 108, 108, 108});
  // kvpress: m = 100 of s = 1000, maximum 195, minimum 5 < w: uniform round(m).
  Params inside = eight;
  inside["window_outside"] = false;
  CHECK(layers_of("pyramidkv", 1000, {0, 100}, inside, 4) ==
        std::vector<std::int64_t>{100, 100, 100, 100});
  // m = 300: maximum 585, minimum 15, steps of 190; a ratio of 0.3 of 1001 is 300.3.
  CHECK(layers_of("pyramidkv", 1000, {0, 300}, inside, 4) ==
        std::vector<std::int64_t>{585, 395, 205, 15});
  CHECK(layers_of("pyramidkv", 1001, {0.3, 0}, inside, 4) ==
        std::vector<std::int64_t>{586, 395, 205, 15});
  for (const std::int32_t n_layers : {1, 2, 5, 32}) {
    for (const std::int64_t cap : {9, 50, 128, 300}) {
      for (const std::int64_t prompt : {64, 301, 555, 2000}) {
        INFO(n_layers, " layers, cap ", cap, ", prompt ", prompt);
        const auto all = layers_of("pyramidkv", prompt, {0, cap}, eight, n_layers);
        CHECK(std::is_sorted(all.rbegin(), all.rend()));
        const std::int64_t sum = std::accumulate(all.begin(), all.end(), std::int64_t{0});
        // Because the step is rounded down, deeper layers have more entries, by at most this
        // number.
        CHECK(sum >= n_layers * cap);
        CHECK(sum <= n_layers * cap + std::int64_t{n_layers} * (n_layers - 1) / 2);
        // A share of the bytes is never exceeded.
        const double share = static_cast<double>(cap) / static_cast<double>(prompt);
        if (share >= 1) continue;
        const auto within = layers_of("pyramidkv", prompt, {share, 0}, eight, n_layers);
        const auto whole = static_cast<std::int64_t>(share * static_cast<double>(prompt));
        const std::int64_t shared = std::accumulate(within.begin(), within.end(), std::int64_t{0});
        CHECK(shared <= n_layers * whole);
        CHECK(shared > n_layers * (whole - n_layers));
      }
    }
  }
}

TEST_CASE("budget=cosine adds up to the mean, falls with depth, and is at most the prompt") {
  for (const std::int32_t n_layers : {1, 2, 5, 32}) {
    for (const double delta : {0.1, 0.8, 1.0}) {
      for (const std::int64_t mean : {40, 101, 190, 200, 500}) {
        INFO(n_layers, " layers, delta ", delta, ", mean ", mean);
        const auto all = layers_of("morphkv+budget=cosine", 200, {0, mean},
                                   {{"cosine_delta", delta}, {"window", integer(1)}}, n_layers);
        CHECK(std::accumulate(all.begin(), all.end(), std::int64_t{0}) == n_layers * mean);
        CHECK(std::is_sorted(all.rbegin(), all.rend()));
        if (mean <= 200) CHECK(all.front() <= 200);
      }
    }
  }
  // L = 2, delta 0.2: shares 1 and 0.6; 100 and 60 of 2 * 80 = 160 entries.
  CHECK(layers_of("morphkv+budget=cosine", 500, {0, 80}, {{"cosine_delta", 0.2}}, 2) ==
        std::vector<std::int64_t>{100, 60});
}

TEST_CASE("budget=first_full: a fraction counts the whole layers and a number does not") {
  constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  CHECK(layers_of("morphkv+budget=first_full", 1000, {0, 100}, {{"full_layers", integer(1)}}, 4) ==
        std::vector<std::int64_t>{kAll, 100, 100, 100});
  // Half of 4 * 1000 entries minus one whole layer is 1000 for three layers.
  CHECK(layers_of("morphkv+budget=first_full", 1000, {0.5, 0}, {{"full_layers", integer(1)}}, 4) ==
        std::vector<std::int64_t>{kAll, 333, 333, 333});
  // A whole layer has no observation window.
  const auto method = method_of("morphkv+budget=first_full", 500, Budget{0, 100});
  const LayerShape shape{.n_heads = 2, .n_kv_heads = 1, .head_dim = kDim};
  CHECK(method->layer_bytes(2, shape, Dtype::kFp16, 500, 600)->side == Bytes{0});
  CHECK(method->layer_bytes(3, shape, Dtype::kFp16, 500, 600)->side == Bytes{32 * 101 * 2});
  CHECK(complaint("morphkv+budget=first_full", Budget{0.5, 0}).find("if 3 layers keep all") !=
        std::string::npos);
  CHECK(complaint("morphkv+budget=first_full", Budget{0, 90}, {{"full_layers", integer(4)}})
            .find("fewer than the 4 layers") != std::string::npos);
}

TEST_CASE("invalid settings are refused with value and reason") {
  CHECK(complaint("snapkv", Budget{0, 50}, {{"kernel", integer(4)}}).find("odd integer") !=
        std::string::npos);
  CHECK(complaint("snapkv", Budget{0, 50}, {{"cap", integer(50)}}).find("both given") !=
        std::string::npos);
  CHECK(complaint("morphkv", Budget{0, 50}, {{"total", integer(50)}}).find("both given") !=
        std::string::npos);
  CHECK(complaint("snapkv+merge=residual", Budget{0, 50}).find("need scores") != std::string::npos);
  CHECK(complaint("keyformer", Budget{0, 50}, {{"tau_init", 3.0}}).find("tau_end") !=
        std::string::npos);
  CHECK(complaint("keyformer", Budget{0, 50}, {{"recent", 51.0}}).find("no room") !=
        std::string::npos);
  CHECK(complaint("scissorhands", Budget{0, 10}).find("less than the 11") != std::string::npos);
  const Params percentile{{"variant", word("percentile")}};
  CHECK(complaint("scissorhands", Budget{0, 10}, percentile).find("takes no budget") !=
        std::string::npos);
  CHECK(complaint("scissorhands+budget=cosine", std::nullopt, percentile)
            .find("expected no budget, got budget=cosine") != std::string::npos);
  CHECK(complaint("scissorhands", std::nullopt, {{"lru_window", integer(9)}})
            .find("lru_window belongs to variant=percentile") != std::string::npos);
  CHECK(complaint("scissorhands", std::nullopt, {{"variant", word("percentile")}, {"drop", 0.4}})
            .find("drop belongs to variant=paper") != std::string::npos);
  CHECK(complaint("select=pivotal+budget=cosine", std::nullopt).find("budget=none") !=
        std::string::npos);
  CHECK(complaint("h2o+budget=cosine", Budget{0, 50}, {{"recent", 49.0}, {"cosine_delta", 0.0}})
            .find("protects") != std::string::npos);
  CHECK(complaint("morphkv", Budget{0, 50}, {{"evict_after", 0.5}}).find("a number >= 1") !=
        std::string::npos);
  CHECK(complaint("morphkv", Budget{0, 50}, {{"fusion", word("mean")}}).find("one of sum, max") !=
        std::string::npos);
  CHECK(complaint("snapkv+budget=cosine", Budget{0, 50}) == "none");
  CHECK(complaint("pyramidkv+store=fp16", Budget{0, 50}) == "none");
  // A law over layers requires their number.
  CHECK_THROWS_AS((void)make_method({"pyramidkv", {}, Budget{0, 50}}, 100), InputError);
}

TEST_CASE("default sizes match the papers") {
  CHECK(param_integer(method_of("snapkv", 5000, {})->params(), "budget") == 1024);
  CHECK(param_integer(method_of("pyramidkv", 5000, {})->params(), "budget") == 512);
  CHECK(param_integer(method_of("pyramidkv", 5000, {})->params(), "window") == 8);
  CHECK(param_integer(method_of("morphkv", 5000, {})->params(), "budget") == 2000);
  CHECK(param_integer(method_of("keyformer", 1000, {})->params(), "budget") == 600);
  CHECK(param_integer(method_of("keyformer", 1000, {})->params(), "recent") == 180);
}

}  // namespace
}  // namespace kvsim
