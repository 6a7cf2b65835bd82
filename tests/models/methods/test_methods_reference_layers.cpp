// Methods whose decisions compare several heads, compared with references after every step of
// recorded traces: PyramidInfer's nested layers, D2O's gate by rank, CriticalKV with W_O, and the
// oracles of a repeat.

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/methods/session/session.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/merging_run.hpp"
#include "tests/support/reference/reference_content.hpp"
#include "tests/support/reference/reference_layers.hpp"

namespace kvsim {
namespace {

using test::Ids;
using test::WholeTrace;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

const WholeTrace& sample() {
  static const WholeTrace whole{Trace::open(test::sample())};
  return whole;
}

/// The same vectors with a prompt of a different length.
WholeTrace with_prompt(WholeTrace whole, std::int64_t prompt) {
  whole.info.prompt_tokens = prompt;
  return whole;
}

std::vector<HeadVectors> heads_of(const WholeTrace& whole, std::int32_t layer) {
  std::vector<HeadVectors> all;
  for (std::int32_t h = 0; h < whole.info.n_kv_heads; ++h) all.push_back(whole.head(layer, h));
  return all;
}

LayerVectors layer_of(const WholeTrace& whole, std::int32_t layer) {
  LayerVectors view;
  view.layer = layer;
  view.n_layers = whole.info.n_layers;
  view.heads = heads_of(whole, layer);
  return view;
}

/// A method's session over some heads of a layer (all, or one) that can be stepped and inspected.
struct LayerRun {
  LayerRun(const WholeTrace& whole, std::shared_ptr<const Method> resolved, std::int32_t layer,
           std::int32_t first_head, std::int32_t n_heads, std::span<const float> w_o = {})
      : method{std::move(resolved)},
        view{layer_of(whole, layer)},
        heads(view.heads.begin() + first_head, view.heads.begin() + first_head + n_heads),
        scores{heads, first_head, view},
        session{as_composed(*method),
                {.layer = layer,
                 .n_layers = whole.info.n_layers,
                 .first_head = first_head,
                 .group = heads.front().group,
                 .head_dim = heads.front().head_dim,
                 .tokens = static_cast<std::int32_t>(heads.front().tokens),
                 .scale = heads.front().scale},
                heads} {
    if (!w_o.empty()) {
      const auto columns = static_cast<std::size_t>(whole.info.n_heads * whole.info.head_dim);
      view.output_projection = w_o;
      view.d_model = static_cast<std::int32_t>(w_o.size() / columns);
    }
  }
  void prefill(std::optional<std::span<const std::int32_t>> alive = {}) {
    session.learn(scores, alive);
    session.prefill(scores, {.entries = *as_composed(*method).parts().budget->entries(view.layer)});
  }
  std::set<std::int32_t> held(std::size_t h = 0) const {
    const auto ids = session.entries(h).ids();
    return {ids.begin(), ids.end()};
  }
  std::shared_ptr<const Method> method;
  LayerVectors view;
  std::vector<HeadVectors> heads;
  PromptScores scores;
  CacheSession session;
};

/// Processes the trace with PyramidInfer and its reference until a choice is a near tie. Returns
/// the number of sets compared in steps after the first thinning.
int compare_pyramid(const WholeTrace& whole, const Params& params,
                    const test::ReferencePyramidSettings& settings) {
  const TraceInfo& info = whole.info;
  const auto method = resolve_for_trace({"pyramidinfer", params, {}}, info);
  const Composition& parts = as_composed(*method).parts();
  test::ReferencePyramid reference{whole, settings};
  std::vector<std::unique_ptr<LayerRun>> runs;
  std::vector<std::int32_t> alive;
  for (std::int32_t l = 0; l < info.n_layers; ++l) {
    LayerRun& run =
        *runs.emplace_back(std::make_unique<LayerRun>(whole, method, l, 0, info.n_kv_heads));
    const std::vector<std::int32_t> passed = alive;
    if (l == 0) {
      run.prefill();
    } else {
      run.prefill(std::span<const std::int32_t>{passed});
    }
    if (l + 1 < info.n_layers)
      alive = run.session.planned({.entries = *parts.budget->entries(l + 1)});
  }
  int compared = 0;
  const auto check = [&](std::int64_t newest) {
    for (std::size_t l = 0; l < runs.size(); ++l) {
      INFO("layer ", l, " after token ", newest);
      for (std::size_t h = 0; h < runs[l]->heads.size(); ++h) {
        REQUIRE(runs[l]->held(h) == reference.held[l]);
      }
      REQUIRE(std::ssize(reference.held[l]) ==
              *method->entries_held(static_cast<std::int32_t>(l), info.prompt_tokens, newest + 1));
    }
    compared += reference.thinned > 0 ? 1 : 0;
  };
  if (reference.clear) check(info.prompt_tokens - 1);
  for (auto t = static_cast<std::int32_t>(info.prompt_tokens); t < info.tokens; ++t) {
    reference.step(t);
    if (!reference.clear) break;
    for (auto& run : runs) run->session.step();
    check(t);
  }
  return compared;
}

TEST_CASE("pyramidinfer's layers equal their reference after every step") {
  CHECK(compare_pyramid(sample(), {}, {}) >= 30);
  const Params total{{"growth", std::string{"total"}}};
  CHECK(compare_pyramid(sample(), total, {.total = true}) >= 80);
  CHECK(compare_pyramid(with_prompt(sample(), 100), total, {.total = true}) >= 80);
  // A short prompt that is thinned more than twenty times; other shares, cuts at every other layer.
  const Params steep{{"delta", 0.5},
                     {"recent", 0.1},
                     {"min_context", std::int64_t{5}},
                     {"interval", std::int64_t{2}}};
  test::ReferencePyramidSettings settings{
      .recent = 0.1, .delta = 0.5, .min_context = 5, .interval = 2};
  CHECK(compare_pyramid(with_prompt(sample(), 100), steep, settings) >= 300);
  CHECK(compare_pyramid(with_prompt(sample(), 1), {}, {}) >= 300);  // sinks follow the prompt
}

TEST_CASE("pyramidinfer equals its reference on the other recorded traces at every step") {
  const auto data = test::data_dir();
  if (!data) return;
  for (const char* name : {"stories260k-tim-512", "stories260k-garden-512"}) {
    INFO(name);
    const WholeTrace whole{Trace::open(*data / "attention" / (std::string{name} + ".safetensors"))};
    CHECK(compare_pyramid(whole, {}, {}) >= 100);
  }
}

/// Steps until a choice is a near tie; returns the number of steps.
int compare_ranks(const WholeTrace& whole, std::int32_t layer, std::int64_t budget, bool late,
                  bool code, std::int32_t& merged, std::int32_t& against) {
  const std::vector<HeadVectors> heads = heads_of(whole, layer);
  const auto method =
      make_method({"h2o+merge=cosine_ema",
                   {{"gate", std::string{"rank_mean"}},
                    {"sinks", std::int64_t{4}},
                    {"first_compression", std::string{late ? "first_step" : "prefill"}},
                    {"weights", std::string{code ? "code" : "paper"}}},
                   Budget{0, budget}},
                  heads.front().prompt, {.recorded = Dtype::kFp32});
  LayerRun run{whole, method, layer, 0, whole.info.n_kv_heads};
  run.prefill();
  test::ReferenceD2oRanks reference{heads, budget, 4, late, code};
  int compared = 0;
  for (auto t = static_cast<std::int32_t>(heads.front().prompt);; ++t) {
    if (!reference.clear()) break;
    for (std::size_t h = 0; h < heads.size(); ++h) {
      INFO("layer ", layer, " head ", h, " before token ", t);
      REQUIRE(run.session.kept(h) == test::reference_kept(reference.heads[h].cache));
      test::check_same_cache(run.session.entries(h), reference.heads[h].cache, 1e-4);
    }
    ++compared;
    if (t == heads.front().tokens) break;
    reference.step(t);
    run.session.step();
  }
  for (const test::ReferenceD2o& head : reference.heads) merged += head.merged;
  against += reference.against;
  return compared;
}

TEST_CASE("d2o's gate by rank equals its reference after every step of a real trace") {
  std::int32_t merged = 0;
  std::int32_t against = 0;
  int compared = 0;
  for (const std::int32_t layer : {0, 2, 5}) {
    for (const bool code : {false, true}) {
      compared += compare_ranks(with_prompt(sample(), 384), layer, 76, true, code, merged, against);
      compared +=
          compare_ranks(with_prompt(sample(), 400), layer, 31, false, code, merged, against);
    }
  }
  MESSAGE(compared, " steps, ", merged, " merged, ", against, " against their own similarity");
  CHECK(compared >= 600);
  CHECK(merged >= 1000);
  CHECK(against >= 100);  // a separate gate per head would fail
}

/// |W_O^(j) v| summed over rows, mean over the group's query heads j: the effect of a value.
double reference_effect(std::span<const float> w_o, const TraceInfo& info, const HeadVectors& head,
                        std::int32_t h, std::int32_t id) {
  const auto columns = static_cast<std::size_t>(info.n_heads * info.head_dim);
  double norms = 0;
  for (std::int32_t j = h * head.group; j < (h + 1) * head.group; ++j) {
    for (std::size_t r = 0; r < w_o.size() / columns; ++r) {
      double y = 0;
      for (std::int32_t c = 0; c < info.head_dim; ++c) {
        y += static_cast<double>(
                 w_o[r * columns + static_cast<std::size_t>(j * info.head_dim + c)]) *
             static_cast<double>(head.value(id)[static_cast<std::size_t>(c)]);
      }
      norms += std::abs(y);
    }
  }
  return norms / head.group;
}

TEST_CASE("criticalkv equals its reference after every step of a real trace") {
  // The recorded heads of a layer with a made-up W_O, which the sample does not include.
  constexpr std::size_t kModel = 20;
  test::Normal normal{5};
  std::vector<float> w_o(kModel * static_cast<std::size_t>(sample().info.n_heads) *
                         static_cast<std::size_t>(sample().info.head_dim));
  for (float& x : w_o) x = static_cast<float>(normal());
  struct Case {
    Params params;
    test::ReferenceScorer scorer;
    double first;
    std::int64_t prompt, budget;
  };
  const std::string lagkv{"lagkv"};
  const std::vector<Case> cases{
      {{}, test::reference_last_window(32, 7), 0.5, 384, 76},
      {{{"window", std::int64_t{8}}}, test::reference_last_window(8, 7), 0.5, 130, 41},
      {{{"first_stage", 0.25}, {"window", std::int64_t{1}}, {"kernel", std::int64_t{1}}},
       test::reference_last_window(1, 1),
       0.25,
       257,
       31},
      {{{"first_stage", 0.0}, {"scorer", lagkv}, {"lag", std::int64_t{16}}},
       test::reference_lagkv(4, 16, false),
       0.0,
       131,
       30},
      {{}, test::reference_last_window(32, 7), 0.5, 31, 76}};  // fits
  int compared = 0;
  int by_value = 0;
  for (const Case& each : cases) {
    const WholeTrace whole = with_prompt(sample(), each.prompt);
    for (std::int32_t l = 0; l < whole.info.n_layers; ++l) {
      for (std::int32_t h = 0; h < whole.info.n_kv_heads; ++h) {
        INFO("prompt ", each.prompt, " layer ", l, " head ", h);
        const HeadVectors head = whole.head(l, h);
        const auto method = make_method({"criticalkv", each.params, Budget{0, each.budget}},
                                        each.prompt, {.recorded = Dtype::kFp16});
        LayerRun run{whole, method, l, h, 1, w_o};
        run.prefill();
        bool clear = true;
        const Ids prompt = test::first_ids(each.prompt);
        const auto base = each.scorer(head, prompt, each.prompt);
        const auto first = static_cast<std::int64_t>(each.first * static_cast<double>(each.budget));
        test::Scores second;
        for (const auto& [id, x] : base) {
          second[id] = (x + 1e-4) * reference_effect(w_o, whole.info, head, h, id);
        }
        for (const auto id : test::reference_top(base, first, clear)) second[id] = kInfinity;
        const Ids kept = test::reference_top(second, each.budget, clear);
        std::set<std::int32_t> want(kept.begin(), kept.end());
        if (!clear) continue;
        if (kept != test::reference_top(base, each.budget, clear)) ++by_value;
        REQUIRE(run.held() == want);
        // Decoding only appends.
        for (auto t = static_cast<std::int32_t>(each.prompt); t < head.tokens; ++t) {
          run.session.step();
          want.insert(t);
          REQUIRE(run.held() == want);
        }
        ++compared;
      }
    }
  }
  MESSAGE(compared, " heads, ", by_value, " of them unlike the scorer's own choice");
  CHECK(compared >= 45);  // out of 60
  CHECK(by_value >= 30);  // the values matter
}

}  // namespace
}  // namespace kvsim
