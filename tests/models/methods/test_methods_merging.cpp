// D2O, CaM, MergingPress and KVMerger compared with references; common laws of all merging methods.

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "models/math/merging/cosine_search.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/merging_run.hpp"

namespace kvsim {
namespace {

using test::check_same_cache;
using test::clustered_head;
using test::distance;
using test::real_heads;
using test::rel;
using test::sample;
using test::Vec;
using Run = test::MethodRun;

constexpr std::int32_t kDim = 16;

void compare_d2o(const HeadVectors& head, std::int64_t budget, bool late, bool code,
                 std::int64_t min_steps, std::int32_t* merged) {
  Run run{"h2o+merge=cosine_ema",
          head,
          budget,
          {{"sinks", std::int64_t{4}},
           {"first_compression", std::string{late ? "first_step" : "prefill"}},
           {"weights", std::string{code ? "code" : "paper"}}}};
  test::ReferenceD2o reference{head, budget, 4, late, code};
  std::int64_t compared = 0;
  for (auto t = static_cast<std::int32_t>(head.prompt); t < head.tokens && reference.clear; ++t) {
    REQUIRE(run.session.kept() == test::reference_kept(reference.cache));
    check_same_cache(run.session.entries(), reference.cache, 1e-4);
    run.step(t);
    reference.step(t);
    if (reference.threshold) CHECK(std::abs(*reference.threshold) <= 1.0);
    // As in zip, tokens are counted as dropped: together with the tokens of the entries they are
    // all tokens.
    std::int64_t tokens = 0;
    for (const auto& members : run.session.kept()) tokens += std::ssize(members);
    CHECK(static_cast<double>(tokens) == t + 1 - run.session.counts().at("d2o_dropped"));
    ++compared;
  }
  CHECK(compared >= min_steps);
  *merged += reference.merged;
}

TEST_CASE("d2o's merge equals a reference on made-up and recorded heads") {
  std::int32_t merged = 0;
  for (const bool late : {false, true}) {
    for (const std::int32_t group : {1, 2}) {
      const auto head =
          clustered_head(group, kDim, 140, 70, 31 + static_cast<std::uint64_t>(group));
      compare_d2o(head.view, 24, late, false, 40, &merged);
      compare_d2o(head.view, 24, late, true, 40, &merged);
    }
  }
  const auto odd = clustered_head(1, 31, 300, 257, 37);
  compare_d2o(odd.view, 31, true, false, 20, &merged);
  const auto heads = real_heads();
  for (std::size_t i = 0; i < 3; ++i) compare_d2o(heads[i].view, 76, true, false, 20, &merged);
  CHECK(merged > 200);
}

/// D2O's gate over two heads: one session for both and one per head.
struct RankRun {
  RankRun(const std::vector<HeadVectors>& heads, const char* gate)
      : method{make_method({"h2o+merge=cosine_ema", {{"gate", std::string{gate}}}, Budget{0, 24}},
                           heads[0].prompt, {.recorded = Dtype::kFp32})},
        session{as_composed(*method),
                {.layer = 0,
                 .group = heads[0].group,
                 .head_dim = heads[0].head_dim,
                 .tokens = static_cast<std::int32_t>(heads[0].tokens),
                 .scale = heads[0].scale},
                heads},
        scores{heads, 0, layer} {
    layer.heads = heads;
    session.learn(scores);
    session.prefill(scores, {.entries = 24});
  }
  LayerVectors layer;
  std::shared_ptr<const Method> method;
  CacheSession session;
  PromptScores scores;
};

TEST_CASE(
    "d2o's rank gate: a single head, equal heads, and different heads that merge at equal ranks") {
  const auto a = clustered_head(2, kDim, 140, 70, 51);
  const auto b = clustered_head(2, kDim, 140, 70, 52);
  const auto both = [](const HeadVectors& x, const HeadVectors& y) { return std::vector{x, y}; };
  RankRun own{{a.view}, "per_head"};
  RankRun alone{{a.view}, "rank_mean"};
  RankRun twins{both(a.view, a.view), "rank_mean"};
  RankRun unlike{both(a.view, b.view), "rank_mean"};
  CHECK(as_composed(*unlike.method).decision_scope() == DecisionScope::kLayer);
  std::int32_t merged = 0;
  std::int32_t apart = 0;
  for (std::int64_t t = 70; t < 140; ++t) {
    for (RankRun* each : {&own, &alone, &twins, &unlike}) each->session.step();
    REQUIRE(alone.session.kept() == own.session.kept());
    for (const std::size_t h : {std::size_t{0}, std::size_t{1}})
      REQUIRE(twins.session.kept(h) == own.session.kept());
    // If the gate of a rank opens, it opens in both heads.
    REQUIRE(unlike.session.events(0).merged == unlike.session.events(1).merged);
    REQUIRE(unlike.session.entries(0).size() == unlike.session.entries(1).size());
    merged += static_cast<std::int32_t>(unlike.session.events(0).merged);
    apart += unlike.session.kept(0) != unlike.session.kept(1) ? 1 : 0;
  }
  CHECK(merged > 10);  // but not all of them
  CHECK(merged < 70);
  CHECK(apart > 0);  // each head keeps different entries
}

TEST_CASE("d2o: shares of layers add up, whole layers stay whole, even attention gets more") {
  std::vector<std::vector<HeadVerdict>> layers;
  for (int l = 0; l < 8; ++l) {
    std::vector<HeadVerdict> heads(2);
    for (std::size_t h = 0; h < 2; ++h) {
      heads[h].score.assign(100, 1.0);
      heads[h].score[3] = 1.0 + (l + 1.0) * (h == 0 ? 1.0 : 0.2);
    }
    if (l == 5) heads[1] = heads[0];  // equal heads: nothing to normalise, variance taken as 0
    layers.push_back(heads);
  }
  const auto resolved = [](const Params& params, double budget) {
    return make_method({"d2o", params, Budget{budget, 0}}, 100,
                       {.recorded = Dtype::kFp16,
                        .shape = {.n_heads = 2, .n_kv_heads = 2, .head_dim = 16},
                        .windows = {},
                        .n_layers = 8});
  };
  const auto method = resolved({}, 0.2);
  const auto given = as_composed(*method).parts().budget->allot_model(layers);
  std::int64_t sum = 0;
  for (std::size_t l = 0; l < 8; ++l) {
    if (l <= 1 || l == 7) {
      CHECK(given[l][0].entries > 1'000'000);
    } else {
      CHECK(given[l][0].entries == given[l][1].entries);
      sum += given[l][0].entries;
    }
  }
  CHECK(sum == 5 * 20);
  // f is 1/2 in a layer of unlike heads, 0 in one of equal heads: shares e^-0.5 : 1.
  const double even = std::exp(-0.5);
  CHECK(std::abs(static_cast<double>(given[5][0].entries) - 100 / (1 + 4 * even)) <= 1);
  CHECK(std::abs(static_cast<double>(given[2][0].entries) - 100 * even / (1 + 4 * even)) <= 1);
  // With whole layers counted: 0.5 of 8 layers minus 3 whole layers is 1 for the other 5.
  const auto all = resolved({{"budget_of", std::string{"all"}}}, 0.5);
  sum = 0;
  const auto fewer = as_composed(*all).parts().budget->allot_model(layers);
  for (std::size_t l = 2; l < 7; ++l) sum += fewer[l][0].entries;
  CHECK(sum == 100);
  CHECK_THROWS_AS(resolved({{"budget_of", std::string{"all"}}}, 0.3), InputError);
}

TEST_CASE(
    "d2o in a whole trace: three uncompressed layers, and a full prompt until the first step") {
  const Trace trace = Trace::open(sample());
  ReplayOptions options;
  options.per_step = true;
  const auto result = replay(trace, {{"d2o", {}, Budget{0.2, 0}}}, options);
  const ReplayMethod& d2o = result.methods.front();
  CHECK(*d2o.budget_reached == 1.0);
  REQUIRE(d2o.notes.size() == 1);
  CHECK(d2o.notes[0].starts_with("the prompt stays whole until the first decode step"));
  CHECK_FALSE(d2o.closed_form_bytes_final.has_value());
  const std::int64_t tokens = trace.info().tokens;
  std::int64_t compressed = 0;
  for (const ReplayCell& layer : d2o.layers) {
    if (layer.layer <= 1 || layer.layer == 5) {
      CHECK(layer.entries_final == 2 * tokens);
      CHECK(layer.rel_error_mean < 1e-6);
    } else {
      CHECK(layer.rel_error_mean > 1e-3);
      compressed += layer.entries_final;
    }
  }
  CHECK(compressed == 3 * 2 * 76);
  CHECK(d2o.series[0].entries_attended == 12 * (trace.info().prompt_tokens + 1));
  // The three compressed layers meet the budget only at the end of that step.
  CHECK(d2o.series[0].entries_held == compressed + 3 * 2 * (trace.info().prompt_tokens + 1));
}

// --- CaM, MergingPress, KVMerger ---

TEST_CASE("cam equals a reference on made-up and recorded heads") {
  std::int32_t merged = 0;
  auto heads = real_heads();
  heads.resize(3);
  for (const std::int32_t group : {1, 3}) {
    heads.push_back(test::random_head(group, kDim, 150, 80, 51));
    heads.push_back(test::random_head(group, 31, 90, 31, 52));
  }
  for (const auto& head : heads) {
    for (const bool cumulative : {false, true}) {
      for (const bool expectation : {false, true}) {
        Run run{"cam",
                head.view,
                21,
                {{"attention", std::string{cumulative ? "cumulative" : "current"}},
                 {"expectation", expectation}}};
        test::ReferenceCam reference{head.view, 21, cumulative, expectation};
        for (auto t = static_cast<std::int32_t>(head.view.prompt);
             t < head.view.tokens && reference.clear; ++t) {
          run.step(t);
          reference.step(t);
        }
        CHECK(reference.clear);
        CHECK(run.session.kept() == test::reference_kept(reference.cache));
        check_same_cache(run.session.entries(), reference.cache, 1e-3);
        CHECK(run.session.counts().at("cam_merged") == reference.merged);
        merged += reference.merged;
        // Keys equal the recorded keys.
        const EntryTable& entries = run.session.entries();
        for (std::int32_t slot = 0; slot < entries.size(); ++slot) {
          const auto key = head.view.key(entries.id(slot));
          CHECK(std::equal(key.begin(), key.end(), entries.key(slot).begin()));
        }
      }
    }
  }
  CHECK(merged > 100);
}

TEST_CASE("value blend: weights as printed, keys untouched, the rest as in plain eviction") {
  const auto head = clustered_head(2, kDim, 100, 60, 61);
  Run blend{"merging", head.view, 20};
  Run plain{"h2o", head.view, 20};
  CHECK(blend.session.kept() == plain.session.kept());
  const EntryTable& kept = plain.session.entries();
  std::int32_t changed = 0;
  for (std::int32_t slot = 0; slot < kept.size(); ++slot) {
    const std::int32_t id = kept.id(slot);
    Vec sum = test::to_vec(head.view.value(id));
    double total = 1;
    const double own = std::sqrt(test::inner(sum, sum));
    for (std::int32_t e = 0; e < 60; ++e) {
      if (kept.slot_of(e) >= 0) continue;
      const Vec key = test::to_vec(head.view.key(e));
      std::int32_t best = -1;
      double highest = -2;
      for (std::int32_t c = 0; c < 60; ++c) {
        if (kept.slot_of(c) < 0) continue;
        const double cosine = test::reference_cosine(key, test::to_vec(head.view.key(c)));
        if (cosine > highest) {
          highest = cosine;
          best = c;
        }
      }
      if (best != id) continue;
      const Vec value = test::to_vec(head.view.value(e));
      const double length = std::sqrt(test::inner(value, value));
      const double w = std::max(highest, 0.0) * length / (length + own + 1e-6);
      for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += w * value[j];
      total += w;
      ++changed;
    }
    const std::int32_t at = blend.session.entries().slot_of(id);
    for (std::size_t j = 0; j < sum.size(); ++j) {
      CHECK(static_cast<double>(blend.session.entries().value(at)[j]) ==
            doctest::Approx(sum[j] / total).epsilon(1e-5));
    }
    const auto key = head.view.key(id);
    CHECK(std::equal(key.begin(), key.end(), blend.session.entries().key(at).begin()));
  }
  CHECK(changed > 20);
  // A threshold that no cosine reaches, or a share of zero: equal to eviction without merging.
  for (const Params& params : {Params{{"threshold", 1.0}}, Params{{"merge_fraction", 0.0}}}) {
    Run off{"merging", head.view, 20, params};
    Run same{"h2o", head.view, 20};
    off.to_the_end();
    same.to_the_end();
    CHECK(off.session.kept() == same.session.kept());
    CHECK(distance({off.session.output(0).begin(), off.session.output(0).end()},
                   {same.session.output(0).begin(), same.session.output(0).end()}) == 0);
  }
}

/// Reference of KVMerger: sets of positions, each starting with its pivot.
std::vector<std::vector<std::int32_t>> reference_sets(const HeadVectors& head, double epsilon,
                                                      std::int64_t recent, std::int64_t top,
                                                      Vec* attention) {
  const auto s = static_cast<std::int32_t>(head.prompt);
  Vec sums(static_cast<std::size_t>(s), 0.0);
  std::vector<std::int32_t> past;
  for (std::int32_t t = 0; t < s; ++t) {
    past.push_back(t);
    for (std::int32_t g = 0; g < head.group; ++g) {
      const auto p = test::naive_attention(head, g, t, past);
      for (std::size_t i = 0; i < p.size(); ++i) sums[i] += p[i];
    }
  }
  std::vector<std::int32_t> order;
  for (std::int32_t i = 0; i < s - recent; ++i) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) {
    return sums[static_cast<std::size_t>(a)] > sums[static_cast<std::size_t>(b)];
  });
  std::set<std::int32_t> whole;
  for (std::int32_t i = 0; i < s; ++i) {
    if (i >= s - recent) whole.insert(i);
  }
  for (std::int64_t i = 0; i < top; ++i) whole.insert(order[static_cast<std::size_t>(i)]);
  std::vector<std::vector<std::int32_t>> sets;
  for (std::int32_t i = s - 1; i >= 0; --i) {
    const bool joins =
        !sets.empty() && !whole.contains(i) && !whole.contains(i + 1) &&
        test::reference_cosine(test::to_vec(head.key(i)), test::to_vec(head.key(i + 1))) > epsilon;
    if (!joins) sets.emplace_back();
    sets.back().push_back(i);
  }
  for (auto& set : sets) {
    std::sort(set.begin(), set.end(), [&](auto a, auto b) {
      return sums[static_cast<std::size_t>(a)] > sums[static_cast<std::size_t>(b)];
    });
  }
  *attention = sums;
  return sets;
}

TEST_CASE("kvmerger: runs, pivots and Gaussian means equal a reference") {
  auto heads = real_heads();
  heads.resize(4);
  for (const std::int32_t group : {1, 2}) {
    heads.push_back(clustered_head(group, kDim, 90, 80, 71, 0.5));
  }
  std::size_t long_runs = 0;
  for (const auto& head : heads) {
    const double s = static_cast<double>(head.view.prompt);
    for (const double epsilon : {0.3, 0.75}) {
      Run run{"kvmerger", head.view, std::nullopt, {{"epsilon", epsilon}}};
      Vec attention;
      const auto sets = reference_sets(head.view, epsilon, static_cast<std::int64_t>(0.17 * s),
                                       static_cast<std::int64_t>(0.12 * s), &attention);
      const EntryTable& entries = run.session.entries();
      REQUIRE(entries.size() == std::ssize(sets));
      for (const auto& set : sets) {
        const std::int32_t slot = entries.slot_of(set.front());
        REQUIRE(slot >= 0);
        std::vector<std::int32_t> members = set;
        std::sort(members.begin(), members.end());
        CHECK(entries.members(slot) == members);
        CHECK(members.back() - members.front() + 1 == std::ssize(members));
        if (set.size() > 2) ++long_runs;
        Vec key(static_cast<std::size_t>(head.view.head_dim), 0.0);
        Vec value = key;
        double total = 0;
        const Vec pivot = test::to_vec(head.view.key(set.front()));
        for (const std::int32_t id : set) {
          const Vec k = test::to_vec(head.view.key(id));
          const Vec v = test::to_vec(head.view.value(id));
          const double far = distance(k, pivot);
          const double g = std::exp(-far * far / 50);
          total += g;
          for (std::size_t j = 0; j < key.size(); ++j) {
            key[j] += g * k[j];
            value[j] += g * v[j];
          }
        }
        for (std::size_t j = 0; j < key.size(); ++j) {
          CHECK(std::abs(key[j] / total - static_cast<double>(entries.key(slot)[j])) < 1e-5);
          CHECK(std::abs(value[j] / total - static_cast<double>(entries.value(slot)[j])) < 1e-5);
        }
      }
      run.to_the_end();
      CHECK(run.session.entries().size() == std::ssize(sets) + head.view.tokens - head.view.prompt);
    }
  }
  CHECK(long_runs > 5);
}

TEST_CASE("kvmerger: epsilon 1 is the full cache, a budget is met if cosines are distinct") {
  const auto head = clustered_head(1, kDim, 260, 257, 81, 0.5);
  Run whole{"kvmerger", head.view, std::nullopt, {{"epsilon", 1.0}}};
  CHECK(whole.session.entries().size() == 257);
  for (const std::int64_t budget : {40, 90, 128, 200}) {
    Run run{"kvmerger", head.view, budget};
    CHECK(run.session.entries().size() == budget);  // no two cosines are equal in this head
  }
  Run roomy{"kvmerger", head.view, 300};
  CHECK(roomy.session.entries().size() == 257);
}

// --- all merging methods ---

TEST_CASE("size laws hold in a whole trace and a budget of all tokens changes nothing") {
  const Trace trace = Trace::open(sample());
  for (const std::string name :
       {"keepkv", "cam", "merging", "h2o+merge=zip", "h2o+merge=cosine_ema",
        "streaming-llm+merge=zip", "keepkv+store=fp16", "cam+store=bf16"}) {
    INFO(name);
    ReplayOptions options;
    options.per_step = true;
    const auto result =
        replay(trace, {{name, {}, Budget{0.2, 0}}, {name, {}, Budget{0, 1000}}}, options);
    for (const ReplayMethod& each : result.methods) {
      REQUIRE(each.closed_form_bytes_final.has_value());
      CHECK(*each.closed_form_bytes_final == each.bytes_held_final);
    }
    CHECK(result.methods[0].entries_held_final == 12 * 76);
    CHECK(result.methods[0].budget_reached == rel(76.0 / 384, 1e-12));
    CHECK(result.methods[0].rel_error_mean < 0.6);
    CHECK(result.methods[1].rel_error_mean < (name == "cam+store=bf16" ? 0.02 : 1e-3));
    // Side bytes per entry: KeepKV votes, average and age; H2O's score; D2O's threshold per head.
    const std::int64_t side = result.methods[0].side_bytes_final;
    if (name == "keepkv") CHECK(side == 12 * 76 * 12);
    if (name == "cam") CHECK(side == 0);
    if (name == "h2o+merge=zip") CHECK(side == 12 * 76 * 16);
    if (name == "h2o+merge=cosine_ema") CHECK(side == 12 * (76 * 4 + 4));
  }
}

TEST_CASE("short prompts, no decode step, more budget than tokens") {
  for (const std::string name :
       {"keepkv", "cam", "merging", "h2o+merge=zip", "h2o+merge=cosine_ema", "less", "kvmerger"}) {
    for (const auto& [prompt, tokens] : {std::pair{1, 1}, {1, 31}, {31, 31}, {7, 40}, {257, 257}}) {
      INFO(name, " ", prompt, " of ", tokens);
      const auto head = test::random_head(3, 5, tokens, prompt, 91);
      Run run{name, head.view, 12};
      run.to_the_end();
      std::set<std::int32_t> seen;
      for (const auto& members : run.session.kept()) {
        for (const std::int32_t id : members) CHECK(seen.insert(id).second);
      }
      CHECK(*seen.rbegin() == tokens - 1);
      if (name != "kvmerger") CHECK(run.session.entries().size() == std::min(tokens, 12));
      for (const double x : run.session.output(0)) {
        if (tokens > prompt) CHECK(std::isfinite(x));
      }
    }
  }
}

std::string complaint(const std::string& name, std::optional<Budget> budget, Params params) {
  try {
    static_cast<void>(make_method({name, std::move(params), budget}, 100,
                                  {.recorded = Dtype::kFp16,
                                   .shape = {.n_heads = 2, .n_kv_heads = 1, .head_dim = 16},
                                   .windows = {},
                                   .n_layers = 8}));
  } catch (const InputError& error) {
    return error.what();
  }
  return "none";
}

TEST_CASE("keepkv: layers share the budget by a falling cosine, each with a separate law") {
  const auto method = make_method({"keepkv", {}, Budget{0, 100}}, 1000,
                                  {.recorded = Dtype::kFp16,
                                   .shape = {.n_heads = 2, .n_kv_heads = 1, .head_dim = 16},
                                   .windows = {},
                                   .n_layers = 8});
  double shares = 0;
  const auto share = [](int l) { return 0.2 * (std::cos(std::numbers::pi * l / 8) + 1) / 2 + 0.8; };
  for (int l = 0; l < 8; ++l) shares += share(l);
  std::int64_t sum = 0;
  for (std::int32_t l = 0; l < 8; ++l) {
    const std::int64_t held = *method->entries_held(l, 1000, 1000);
    CHECK(std::abs(static_cast<double>(held) - 800 * share(l) / shares) < 1);
    CHECK(method->entries_held(l, 1000, 1500) == held);
    CHECK(method->entries_attended(l, 1000, 1500) == held + 1);
    if (l > 0) CHECK(held <= *method->entries_held(l - 1, 1000, 1000));
    sum += held;
  }
  CHECK(sum == 800);
  const Trace trace = Trace::open(sample());
  const MethodSpec spec{"keepkv", {}, Budget{0.2, 0}};
  const auto resolved = resolve_for_trace(spec, trace.info());
  const ReplayResult result = replay(trace, {spec}, {});
  for (const ReplayCell& layer : result.methods.front().layers) {
    CHECK(layer.entries_final == 2 * *resolved->entries_held(layer.layer, 384, 512));
  }
}

TEST_CASE("merging methods: invalid settings are refused with the reason") {
  const auto says = [&](const std::string& name, const Params& params, std::string_view why,
                        std::optional<Budget> budget = Budget{0.1, 0}) {
    INFO(complaint(name, budget, params));
    CHECK(complaint(name, budget, params).find(why) != std::string::npos);
  };
  says("keepkv", {{"ema", 1.0}}, "a number in [0, 1)");
  says("d2o+budget=ada", {{"gate", std::string{"rank_mean"}}}, "two choices on the axis budget");
  says("d2o", {{"gate", std::string{"rank"}}}, "one of per_head, rank_mean");
  for (const char* select : {"critical", "kvzip", "kvzip-plus"}) {
    says(fmt::format("select={}+merge=zip", select), {{"refresh_period", std::int64_t{8}}},
         "needs more data of the layer");
  }
  says("keepkv", {{"key_rule", std::string{"mean"}}}, "zip_guarded");
  says("keepkv", {{"heavy_share", 0.1}}, "at least 4 sinks and 1 recent");
  says("keepkv", {{"heavy_share", 1.0}}, "at least 4 sinks and 1 recent");
  says("keepkv", {{"guard", std::string{"cumulative"}}, {"key_rule", std::string{"zip"}}},
       "zip_guarded");
  says("keepkv", {{"refresh_period", std::int64_t{-1}}}, "an integer >= 0");
  says("h2o+merge=gaussian", {}, "expected select=key_runs");
  says("select=recent+budget=variance", {}, "expected select=accumulated");
  says("d2o", {{"budget_of", std::string{"all"}}}, "layers stay whole");
  says("kvmerger", {{"epsilon", 0.5}}, "one follows from the other");
  says("kvmerger", {{"recent_share", 0.2}}, "cannot be guaranteed");
  says("cam", {{"n_sink", std::int64_t{4}}}, "both set");
  says("cam", {{"merge_window", std::int64_t{0}}}, "an integer >= 1");
  says("less", {{"rank", std::int64_t{0}}}, "an integer in [1, 1024]");
  says("full+merge=zip", {}, "nothing to merge", std::nullopt);
}

TEST_CASE(
    "cosine search: one pass and blocks agree, ties go to the older, null rows match nothing") {
  test::Normal normal{7};
  for (const std::int32_t d : {1, 5, 31, 64}) {
    std::vector<float> rows;
    for (int i = 0; i < 257 * d; ++i) rows.push_back(static_cast<float>(normal()));
    const auto width = static_cast<std::size_t>(d);
    std::fill(rows.begin(), rows.begin() + d, 0.0F);
    std::copy_n(rows.begin() + 3 * d, d, rows.begin() + 200 * d);  // a duplicate
    const auto best = best_cosines(rows, rows, d, /*same=*/true);
    std::vector<double> cosine(257);
    for (std::size_t i = 0; i < 257; ++i) {
      const auto row = std::span<const float>{rows}.subspan(i * width, width);
      cosines(row, rows, cosine);
      double highest = -2;
      for (std::size_t j = 0; j < 257; ++j) {
        if (j != i) highest = std::max(highest, cosine[j]);
      }
      CHECK(best[i].cosine == doctest::Approx(highest).epsilon(1e-12));
    }
    CHECK(best[0].cosine == 0);
    CHECK(best[0].index == 1);
    if (d > 1) CHECK(best[3].index == 200);
  }
}

}  // namespace
}  // namespace kvsim
