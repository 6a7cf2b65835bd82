// Laws of every method on made-up vectors: the invariants I1 to I10 of the method catalogue.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "models/methods/resolve/masked.hpp"
#include "models/methods/session/session.hpp"
#include "models/units/error.hpp"
#include "sim/replay/head_replay.hpp"
#include "tests/support/basic_methods.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_methods.hpp"
#include "tests/support/session_run.hpp"
#include "tests/support/vectors.hpp"

namespace kvsim {
namespace {

using test::rel;

constexpr std::int32_t kDim = 16;

std::shared_ptr<const Method> method_of(const std::string& name, std::int64_t prompt,
                                        std::optional<Budget> budget, Params params = {}) {
  return make_method(
      {.name = name, .params = std::move(params), .budget = budget}, prompt,
      {.recorded = Dtype::kFp32, .shape = {.n_heads = 2, .n_kv_heads = 1, .head_dim = kDim}});
}

using Run = test::SessionRun;

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const MethodInfo& info : test::basic_methods()) names.push_back(info.name);
  names.emplace_back("h2o+merge=residual");
  names.emplace_back("zeromerge+store=fp16");
  return names;
}

struct Size {
  std::int64_t prompt, tokens, budget;
};
const std::vector<Size> kSizes{{1, 1, 8},     {1, 31, 8},   {31, 31, 8}, {31, 64, 8},
                               {7, 40, 12},   {8, 40, 8},   {9, 40, 8},  {257, 300, 31},
                               {40, 257, 64}, {12, 20, 200}};

TEST_CASE("side bytes are the same requested separately and together with rows") {
  const MethodContext site{.recorded = Dtype::kFp16,
                           .shape = {.n_heads = 8, .n_kv_heads = 2, .head_dim = 64},
                           .windows = {},
                           .n_layers = 8};
  int with_side = 0, n_cases = 0;
  for (const MethodInfo& info : builtin_methods()) {
    for (const char* store : {"", "+store=kivi", "+store=fp16"}) {
      const std::string name = info.name + store;
      INFO(name);
      std::shared_ptr<const Method> method;
      try {
        MethodSpec spec{.name = name, .params = {}, .budget = std::nullopt};
        if (takes_budget(name)) spec.budget = Budget{.fraction = 0.25, .entries = 0};
        method = make_method(spec, 2048, site);
      } catch (const InputError&) {  // needs a file, or is incompatible with such a store
        continue;
      }
      for (const std::shared_ptr<const Method>& one : {method, masked(method)}) {
        for (const std::int32_t layer : {0, 5}) {
          for (const std::int64_t n : {1, 97, 640, 2049}) {
            const Bytes side =
                one->rows_bytes(layer, site.shape, Dtype::kFp16, std::min<std::int64_t>(n, 512), n)
                    .side;
            CHECK(one->side_bytes(layer, site.shape, Dtype::kFp16, std::min<std::int64_t>(n, 512),
                                  n) == side);
            with_side += side > Bytes{} ? 1 : 0;
            ++n_cases;
          }
        }
      }
    }
  }
  CHECK(with_side > 100);
  CHECK(with_side < n_cases);
}

TEST_CASE("a parameter that is unused under the settings given is refused with those settings") {
  const auto why = [](const char* name, const Params& params) -> std::string {
    try {
      (void)make_method({name, params, {}}, 512,
                        {.recorded = Dtype::kFp16,
                         .shape = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 64},
                         .windows = {},
                         .n_layers = 8});
    } catch (const InputError& error) {
      return error.what();
    }
    return "made";
  };
  const auto word_of = [](const char* text) { return ParamValue{std::string{text}}; };
  const auto has = [](const std::string& text, std::string_view part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  has(why("minicache", {{"merge", word_of("average")}, {"interpolation", 0.3}}),
      "parameter interpolation is given, but has no effect with share=minicache, merge=average");
  CHECK(why("minicache", {{"merge", word_of("slerp")}, {"interpolation", 0.3}}) == "made");
  has(why("keyformer", {{"delta_tau", word_of("harness")}, {"max_new_tokens", std::int64_t{9}}}),
      "delta_tau=harness");
  has(why("gear", {{"variant", word_of("outlier-kivi")}, {"rounds", std::int64_t{5}}}),
      "variant=outlier-kivi");
  has(why("kvmerger", {{"sigma_rule", word_of("mean_dist")}, {"sigma", 2.0}}),
      "sigma_rule=mean_dist");
  has(why("keepkv", {{"estimator", word_of("rows")}, {"ema", 0.5}}), "estimator=rows");
  // Two parameters for one budget, and an invalid share.
  has(why("h2o", {{"heavy", 0.3}, {"recent", 0.3}}), "one follows from the other");
  CHECK(why("h2o", {{"heavy", 0.5}, {"recent", 0.5}}) == "made");
  has(why("h2o", {{"recent", -0.5}}), "-1 for the rest, got -0.5");
  // Rows are kept, but only up to a limit.
  for (const auto& [name, param] : {std::pair{"morphkv", "window"},
                                    {"scissorhands", "history_steps"},
                                    {"select=pivotal", "lru_window"},
                                    {"keepkv", "score_window"}}) {
    has(why(name, {{param, std::int64_t{1000000000}}}), "65536");
  }
}

TEST_CASE("I1 I4 I9: sizes follow the law, and every token is held or dropped for good") {
  for (const std::string& name : all_names()) {
    for (const Size& size : kSizes) {
      for (const std::int32_t group : {1, 2, 5}) {
        INFO(name, " prompt ", size.prompt, " tokens ", size.tokens, " budget ", size.budget);
        const auto head = test::random_head(group, kDim, size.tokens, size.prompt);
        const auto budget =
            takes_budget(name) ? std::optional{Budget{0, size.budget}} : std::nullopt;
        const auto method = method_of(name, size.prompt, budget);
        Run run{method, head.view};
        std::set<std::int32_t> gone;
        for (std::int64_t t = size.prompt - 1; t < size.tokens; ++t) {
          if (t >= size.prompt) {
            const auto attended = run.step(t).entries();
            CHECK(static_cast<std::int64_t>(attended) ==
                  *method->entries_attended(0, size.prompt, t + 1));
          }
          const EntryTable& entries = run.session.entries();
          REQUIRE(entries.size() == *method->entries_held(0, size.prompt, t + 1));
          std::set<std::int32_t> held;
          std::int64_t count = 0;
          for (std::int32_t slot = 0; slot < entries.size(); ++slot) {
            count += entries.count(slot);
            for (const std::int32_t member : entries.members(slot)) held.insert(member);
          }
          CHECK(static_cast<std::int64_t>(held.size()) == count);  // no token is held twice
          if (method->merges()) {
            CHECK(count == t + 1);
          } else {
            for (std::int32_t id = 0; id <= t; ++id) {
              if (!held.contains(id)) gone.insert(id);
            }
            for (const std::int32_t id : gone) CHECK_FALSE(held.contains(id));  // I3: none returns
          }
        }
      }
    }
  }
}

TEST_CASE("I2: with room for all, the output and the bytes are those of the full cache") {
  for (const std::string& name : all_names()) {
    if (name.find("store=") != std::string::npos) continue;
    const auto head = test::random_head(3, kDim, 80, 50);
    const auto budget = takes_budget(name) ? std::optional{Budget{0, 500}} : std::nullopt;
    const auto method = method_of(name, 50, budget);
    const auto reference =
        causal_attention(head.q, head.keys, head.values, 3, kDim, 80, 50, head.view.scale);
    PromptScores scores{head.view};
    const auto series =
        replay_head(as_composed(*method), 0, head.view, reference, scores, nullptr, false);
    INFO(name);
    CHECK(series[0].costs.back().held == 80);
    CHECK(*std::max_element(series[0].rel_error.begin(), series[0].rel_error.end()) < 3e-6F);
    for (const float mass : series[0].retained_mass)
      CHECK(static_cast<double>(mass) == rel(1.0, 3e-6));
  }
}

TEST_CASE("I3: rows kept by pure eviction equal the recorded ones bit for bit") {
  const auto head = test::random_head(2, kDim, 90, 60);
  for (const std::string name : {"streaming-llm", "h2o", "full"}) {
    const auto method =
        method_of(name, 60, takes_budget(name) ? std::optional{Budget{0, 11}} : std::nullopt);
    Run run{method, head.view};
    for (std::int64_t t = 60; t < 90; ++t) run.step(t);
    const EntryTable& entries = run.session.entries();
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) {
      const auto key = test::row_of(head.keys, entries.id(slot), kDim);
      const auto value = test::row_of(head.values, entries.id(slot), kDim);
      CHECK(std::equal(key.begin(), key.end(), entries.key(slot).begin()));
      CHECK(std::equal(value.begin(), value.end(), entries.value(slot).begin()));
    }
  }
}

TEST_CASE("I5 Z4: a merged row is the mean of its members and thus inside their hull") {
  for (const std::string name : {"zeromerge", "zeromerge-paper"}) {
    const auto head = test::random_head(2, kDim, 150, 70);
    const auto method = method_of(name, 70, Budget{0, 20}, {{"residual_slots", std::int64_t{3}}});
    Run run{method, head.view};
    for (std::int64_t t = 70; t < 150; ++t) run.step(t);
    const EntryTable& entries = run.session.entries();
    CHECK(entries.pinned_size() == 3);
    for (const std::int32_t slot : entries.merged_slots()) {
      const auto members = entries.members(slot);
      for (std::size_t j = 0; j < kDim; ++j) {
        double mean = 0;
        for (const auto id : members) {
          mean += static_cast<double>(test::row_of(head.values, id, kDim)[j]) /
                  static_cast<double>(members.size());
        }
        CHECK(std::abs(static_cast<double>(entries.value(slot)[j]) - mean) < 1e-6);
      }
    }
  }
}

TEST_CASE("I6: sinks and the recent tokens are always kept") {
  const auto head = test::random_head(1, kDim, 200, 50);
  for (const std::string name : {"streaming-llm", "h2o", "zeromerge", "zeromerge-paper"}) {
    const auto method = method_of(name, 50, Budget{0, 20});
    Run run{method, head.view};
    for (std::int64_t t = 50; t < 200; ++t) {
      run.step(t);
      std::set<std::int32_t> held(run.session.entries().ids().begin(),
                                  run.session.entries().ids().end());
      // With a budget of 20, streaming keeps 4 sinks and 16 recent tokens, h2o 10 recent tokens,
      // zeromerge a tail of 2.
      const std::int64_t recent = name == "streaming-llm" ? 16 : name == "h2o" ? 10 : 2;
      for (std::int64_t id = t - recent + 1; id <= t; ++id)
        CHECK(held.contains(static_cast<int>(id)));
      if (name == "streaming-llm") {
        for (int id = 0; id < 4; ++id) CHECK(held.contains(id));
        CHECK(held.size() == 20);
      }
    }
  }
}

TEST_CASE("I7: the computation of scores changes cost and not the kept set") {
  const auto head = test::random_head(2, kDim, 120, 80);
  std::vector<std::vector<std::vector<std::int32_t>>> kept;
  for (const std::string exec : {"eager", "eager_chunked", "fused_two_pass"}) {
    const auto method = method_of("h2o", 80, Budget{0, 16}, {{"score_exec", exec}});
    Run run{method, head.view};
    for (std::int64_t t = 80; t < 120; ++t) run.step(t);
    kept.push_back(run.session.kept());
  }
  CHECK(kept[0] == kept[1]);
  CHECK(kept[0] == kept[2]);
}

TEST_CASE("query-head granularity keeps and stores one set per query head") {
  const auto head = test::random_head(2, kDim, 90, 60);
  const auto method =
      method_of("h2o", 60, Budget{0, 12}, {{"granularity", std::string{"query_head"}}});
  const auto reference =
      causal_attention(head.q, head.keys, head.values, 2, kDim, 90, 60, head.view.scale);
  PromptScores scores{head.view};
  const auto series =
      replay_head(as_composed(*method), 0, head.view, reference, scores, nullptr, true);
  REQUIRE(series.size() == 2);
  for (std::int32_t g = 0; g < 2; ++g) {
    // Each query head separately, as in multi-head attention.
    HeadVectors alone = head.view;
    alone.q = head.view.q.subspan(static_cast<std::size_t>(g) * 90 * kDim, 90 * kDim);
    alone.group = 1;
    Run run{method_of("h2o", 60, Budget{0, 12}), alone};
    for (std::int64_t t = 60; t < 90; ++t) run.step(t);
    CHECK(series[static_cast<std::size_t>(g)].kept == run.session.kept());
  }
  CHECK(method->stored_heads({.n_heads = 8, .n_kv_heads = 2, .head_dim = kDim}) == 8);
}

TEST_CASE("rerotated streaming attention is attention at cache positions") {
  // If every token is kept, rank and position are equal: no key is rotated and the output is the
  // same.
  const auto head = test::random_head(2, kDim, 40, 20);
  const Rope rope{kDim, 10000.0, true};
  const auto reference =
      causal_attention(head.q, head.keys, head.values, 2, kDim, 40, 20, head.view.scale);
  PromptScores scores{head.view};
  const Params rerotate{{"positions", std::string{"rerotate"}}};
  const auto same =
      replay_head(as_composed(*method_of("streaming-llm", 20, Budget{0, 64}, rerotate)), 0,
                  head.view, reference, scores, &rope, false);
  CHECK(*std::max_element(same[0].rel_error.begin(), same[0].rel_error.end()) < 3e-6F);
  // Without sinks, the distances in the window are those of the trace: the output is again the
  // same.
  const Params window{{"positions", std::string{"rerotate"}}, {"n_sink", std::int64_t{0}}};
  const Params plain{{"n_sink", std::int64_t{0}}};
  const auto a = replay_head(as_composed(*method_of("streaming-llm", 20, Budget{0, 9}, window)), 0,
                             head.view, reference, scores, &rope, false);
  const auto b = replay_head(as_composed(*method_of("streaming-llm", 20, Budget{0, 9}, plain)), 0,
                             head.view, reference, scores, nullptr, false);
  for (std::size_t i = 0; i < a[0].rel_error.size(); ++i) {
    CHECK(std::abs(a[0].rel_error[i] - b[0].rel_error[i]) < 1e-5F);
  }
  // With sinks and evictions the sinks move closer, so outputs differ.
  const auto c = replay_head(as_composed(*method_of("streaming-llm", 20, Budget{0, 9}, rerotate)),
                             0, head.view, reference, scores, &rope, false);
  const auto d = replay_head(as_composed(*method_of("streaming-llm", 20, Budget{0, 9})), 0,
                             head.view, reference, scores, nullptr, false);
  CHECK(c[0].rel_error != d[0].rel_error);
}

TEST_CASE("h2o keeps the same entries as a reference at every step") {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    for (const std::int64_t budget : {5, 16, 41}) {
      const auto head = test::random_head(3, kDim, 130, 70, seed);
      Run run{method_of("h2o", 70, Budget{0, budget}), head.view};
      // heavy = floor(B/2), the remaining entries are recent.
      test::ReferenceAccumulated reference{head.view,
                                           {.budget = budget,
                                            .tail_prompt = budget - budget / 2,
                                            .tail_decode = budget - budget / 2}};
      bool clear = reference.clear_prompt;
      for (std::int32_t t = 70; t < 130 && clear; ++t) {
        REQUIRE(run.session.kept() == reference.kept());
        run.step(t);
        clear = reference.step(t);
      }
    }
  }
}

TEST_CASE("bytes of a layer: entries times heads times two rows, plus side data") {
  const LayerShape shape{.n_heads = 8, .n_kv_heads = 2, .head_dim = 128};
  // h2o: 2 heads * 10 entries * (2 * 128 * 2 B + 4 B score) = 10,320 B.
  CHECK(layer_cache_bytes(*method_of("h2o", 50, Budget{0, 10}), 0, shape, Dtype::kFp16, 50, 60) ==
        Bytes{10320});
  // zeromerge: score and count, 8 B per entry.
  CHECK(layer_cache_bytes(*method_of("zeromerge", 50, Budget{0, 10}), 0, shape, Dtype::kFp16, 50,
                          60) == Bytes{10400});
  // In the cache's dtype, both are reduced to 2 B: the published factor 1 + 1/d.
  const auto code = method_of("zeromerge", 50, Budget{0, 10}, {{"count_dtype", std::string{"kv"}}});
  const MethodContext half{.recorded = Dtype::kFp16, .shape = shape};
  const auto in_half =
      make_method({"zeromerge", {{"count_dtype", std::string{"kv"}}}, Budget{0, 10}}, 50, half);
  const double ratio =
      static_cast<double>(layer_cache_bytes(*in_half, 0, shape, Dtype::kFp16, 50, 60)->count()) /
      (2.0 * 10 * 2 * 128 * 2);
  CHECK(ratio == rel(1.0 + 1.0 / 128));
  // The full cache: 2 heads * 60 tokens * 512 B.
  CHECK(layer_cache_bytes(*method_of("full", 50, std::nullopt), 0, shape, Dtype::kFp16, 50, 60) ==
        Bytes{61440});
}

TEST_CASE("traffic of a step: attended entries are read and the new token is written") {
  const LayerShape shape{.n_heads = 4, .n_kv_heads = 2, .head_dim = 64};
  const auto full =
      method_of("full", 10, std::nullopt)->decode_traffic(0, shape, Dtype::kFp16, 100, false);
  CHECK(full.read() == rel(2.0 * 100 * 2 * 64 * 2));  // 2 heads, K and V, 2 B
  CHECK(full.written() == rel(2.0 * 2 * 64 * 2));
  CHECK(full.extra_flops == 0.0);
  const auto h2o =
      method_of("h2o", 10, Budget{0, 8})->decode_traffic(0, shape, Dtype::kFp16, 100, true);
  CHECK(h2o.attention_read == rel(full.attention_read));
  CHECK(h2o.score_row_read == rel(4.0 * 100 * 4));  // a row of 4 B per query head
  CHECK(h2o.side_read == rel(2.0 * 100 * 4));
  CHECK(h2o.move_write == 0.0);  // the append fills the hole
}

}  // namespace
}  // namespace kvsim
