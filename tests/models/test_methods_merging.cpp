// The merging methods: KeepKV (K1 to K7 of the method catalogue), D2O, CaM, MergingPress, KVMerger,
// each against a plain re-telling and its own laws.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <tuple>

#include "models/math/cosine_search.hpp"
#include "models/math/low_rank_kernel.hpp"
#include "models/math/zip_merge.hpp"
#include "models/methods/merge/nearest.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/plain_merging.hpp"
#include "tests/support/session_run.hpp"
#include "traces/trace.hpp"

namespace kvsim {
namespace {

using test::rel;
using test::Vec;

constexpr std::int32_t kDim = 16;

std::filesystem::path sample() {
  return std::filesystem::path{KVSIM_SOURCE_DIR} / "traces/samples/books-treasure-512.safetensors";
}

struct Run : test::SessionRun {
  Run(const std::string& name, const HeadVectors& vectors, std::optional<std::int64_t> budget,
      Params params = {}, Dtype recorded = Dtype::kFp32)
      : SessionRun{make_method({name, std::move(params),
                                budget ? std::optional{Budget{0, *budget}} : std::nullopt},
                               vectors.prompt,
                               {.recorded = recorded,
                                .shape = {.n_heads = vectors.group,
                                          .n_kv_heads = 1,
                                          .head_dim = vectors.head_dim}}),
                   vectors} {}
};

/// Keys with company: every third is close to an earlier one, so that merges happen.
test::OwnedHead clustered_head(std::int32_t group, std::int32_t d, std::int64_t tokens,
                               std::int64_t prompt, std::uint64_t seed, double noise = 0.2) {
  test::OwnedHead head = test::random_head(group, d, tokens, prompt, seed);
  test::Normal normal{seed + 99};
  const auto width = static_cast<std::size_t>(d);
  for (std::size_t t = 5; t < static_cast<std::size_t>(tokens); ++t) {
    if (t % 3 == 0) continue;
    const std::size_t like = (t * 7) % 5;
    for (std::size_t j = 0; j < width; ++j) {
      head.keys[t * width + j] =
          static_cast<float>(static_cast<double>(head.keys[like * width + j]) + noise * normal());
    }
  }
  return head;
}

void check_same_cache(const EntryTable& entries, const test::PlainCache& cache, double tolerance) {
  REQUIRE(entries.size() == std::ssize(cache));
  double worst = 0;
  for (const auto& [id, entry] : cache) {
    const std::int32_t slot = entries.slot_of(id);
    REQUIRE(slot >= 0);
    for (std::size_t j = 0; j < entry.key.size(); ++j) {
      worst = std::max(worst, std::abs(entry.key[j] - static_cast<double>(entries.key(slot)[j])));
      worst =
          std::max(worst, std::abs(entry.value[j] - static_cast<double>(entries.value(slot)[j])));
    }
  }
  CHECK(worst < tolerance);
}

/// The recorded heads of the sample trace, one of every layer.
std::vector<test::OwnedHead> real_heads() {
  const Trace trace = Trace::open(sample());
  const TraceInfo& info = trace.info();
  std::vector<test::OwnedHead> heads;
  for (std::int32_t layer = 0; layer < info.n_layers; ++layer) {
    const TraceLayer rows = trace.read_layer(layer);
    const std::int32_t group = info.n_heads / info.n_kv_heads;
    const auto row = info.tokens * info.head_dim;
    const std::int64_t h = layer % info.n_kv_heads;
    test::OwnedHead& head = heads.emplace_back();
    const auto part = [&](const std::vector<float>& all, std::int64_t first, std::int64_t n) {
      return std::vector<float>(all.begin() + first * row, all.begin() + (first + n) * row);
    };
    head.q = part(rows.q, h * group, group);
    head.keys = part(rows.k, h, 1);
    head.values = part(rows.v, h, 1);
    head.view = {.q = head.q,
                 .keys = head.keys,
                 .values = head.values,
                 .group = group,
                 .head_dim = info.head_dim,
                 .tokens = info.tokens,
                 .prompt = info.prompt_tokens,
                 .scale = info.softmax_scale};
  }
  return heads;
}

// --- KeepKV -------------------------------------------------------------------------------------

/// A random cache with votes, and the attention of a query over it.
struct ZipCase {
  std::size_t d = 0;
  double scale = 0;
  std::vector<std::vector<float>> keys, values;
  std::vector<double> votes, estimates;  // estimates of s
  Vec q;

  ZipCase(test::Normal& normal, std::size_t dim, std::size_t n, double noise)
      : d{dim}, scale{1.0 / std::sqrt(static_cast<double>(dim))} {
    const auto row = [&] {
      std::vector<float> x(d);
      for (float& each : x) each = static_cast<float>(normal());
      return x;
    };
    for (std::size_t i = 0; i < n; ++i) {
      keys.push_back(row());
      values.push_back(row());
      votes.push_back(1.0 + std::floor(3 * std::abs(normal())));
    }
    for (std::size_t j = 0; j < d; ++j) q.push_back(normal());
    for (std::size_t i = 0; i < n; ++i) {
      estimates.push_back(exact(test::to_vec(keys[i])) * (1.0 + noise * std::tanh(normal())));
    }
  }
  double exact(const Vec& key) const { return std::exp(scale * test::inner(q, key)); }
  std::vector<ZipMember> members(std::size_t count) const {
    std::vector<ZipMember> all;
    for (std::size_t i = 0; i < count; ++i) {
      all.push_back({keys[i], values[i], votes[i], std::log(estimates[i]), 1, 1});
    }
    return all;
  }
  /// Output over entries first … n-1 and, if given, a merged one.
  Vec output(std::size_t first, const ZipMerged* merged) const {
    Vec out(d, 0.0);
    double sum = 0;
    const auto add = [&](const Vec& key, const Vec& value, double p) {
      const double w = p * exact(key);
      sum += w;
      for (std::size_t j = 0; j < d; ++j) out[j] += w * value[j];
    };
    for (std::size_t i = first; i < keys.size(); ++i) {
      add(test::to_vec(keys[i]), test::to_vec(values[i]), votes[i]);
    }
    if (merged != nullptr) add(merged->key, merged->value, merged->votes);
    for (double& x : out) x /= sum;
    return out;
  }
};

double distance(const Vec& a, const Vec& b) {
  double sum = 0;
  for (std::size_t j = 0; j < a.size(); ++j) sum += (a[j] - b[j]) * (a[j] - b[j]);
  return std::sqrt(sum);
}

TEST_CASE("K1: with exact scores a merge does not move the output") {
  test::Normal normal{3};
  std::int32_t fallbacks = 0;
  std::int32_t stretched = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const std::size_t members = 2 + static_cast<std::size_t>(trial) % 3;
    const ZipCase each{normal, 1 + static_cast<std::size_t>(trial) % 33, members + 3, 0.0};
    const auto all = each.members(members);
    const Vec before = each.output(0, nullptr);
    for (const ZipKey key :
         {ZipKey::kZip, ZipKey::kGuarded, ZipKey::kRealVotes, ZipKey::kAdditive}) {
      const ZipMerged merged = zip_merge(all, {.key = key}, each.q, each.scale);
      CHECK(distance(each.output(members, &merged), before) < 1e-10);
      if (key == ZipKey::kGuarded) (merged.fell_back ? fallbacks : stretched) += 1;
    }
    const ZipMerged convex = zip_merge(all, {.key = ZipKey::kConvex}, each.q, each.scale);
    CHECK(distance(each.output(members, &convex), before) > 1e-12);  // it overcounts
  }
  CHECK(fallbacks > 100);  // both branches of the guard were there
  CHECK(stretched > 100);
}

TEST_CASE("K2: merging an entry with its double changes nothing for any later query") {
  test::Normal normal{4};
  for (int trial = 0; trial < 50; ++trial) {
    ZipCase each{normal, 16, 4, 0.0};
    each.keys[1] = each.keys[0];
    each.values[1] = each.values[0];
    each.estimates[1] = each.estimates[0];
    for (const ZipKey key :
         {ZipKey::kZip, ZipKey::kGuarded, ZipKey::kRealVotes, ZipKey::kAdditive, ZipKey::kConvex}) {
      const ZipMerged merged = zip_merge(each.members(2), {.key = key}, each.q, each.scale);
      for (int later = 0; later < 3; ++later) {
        ZipCase other = each;
        for (double& x : other.q) x = normal();
        CHECK(distance(other.output(2, &merged), other.output(0, nullptr)) < 1e-9);
      }
    }
  }
}

TEST_CASE("K3 K4: numerators in order; without votes a merged entry sags") {
  test::Normal normal{5};
  for (int trial = 0; trial < 500; ++trial) {
    ZipCase each{normal, 16, 5, 0.0};
    for (double& votes : each.votes) votes = 1;
    const auto all = each.members(3);
    double exact = 0;
    Vec plain(each.d, 0.0);
    for (std::size_t i = 0; i < 3; ++i) {
      exact += each.estimates[i];
      for (std::size_t j = 0; j < each.d; ++j) plain[j] += static_cast<double>(each.keys[i][j]) / 3;
    }
    const ZipMerged zip = zip_merge(all, {.key = ZipKey::kZip}, each.q, each.scale);
    const ZipMerged convex = zip_merge(all, {.key = ZipKey::kConvex}, each.q, each.scale);
    CHECK(3 * each.exact(plain) <= exact * (1 + 1e-12));  // ZeroMerge, alpha = 1
    CHECK(zip.votes * each.exact(zip.key) == rel(exact, 1e-9));
    CHECK(convex.votes * each.exact(convex.key) >= exact * (1 - 1e-12));
    const double others = each.estimates[3] + each.estimates[4];
    const double alone = each.exact(convex.key);
    CHECK(alone / (alone + others) < exact / (exact + others));
  }
}

TEST_CASE("K5: the output moves by less than 2 eps (1 + eps) gamma / (1 - eps)^2") {
  test::Normal normal{6};
  std::int32_t judged = 0;
  double closest = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const double noise = 0.02 + 0.5 * (trial % 10) / 10.0;
    const ZipCase each{normal, 8, 6, noise};
    const auto all = each.members(2);
    const ZipMerged merged = zip_merge(all, {.key = ZipKey::kZip}, each.q, each.scale);
    double eps = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      eps = std::max(eps, std::abs(1 - each.estimates[i] / each.exact(test::to_vec(each.keys[i]))));
    }
    const double exact_r = each.exact(merged.key);
    eps = std::max(eps, std::abs(1 - std::exp(merged.log_score) / exact_r));
    if (!(eps < 1)) continue;
    double gamma = 0;
    for (std::size_t i = 0; i < each.keys.size(); ++i) {
      for (std::size_t j = 0; j < 2; ++j) {
        gamma =
            std::max(gamma, distance(test::to_vec(each.values[i]), test::to_vec(each.values[j])));
      }
    }
    const double bound = 2 * eps * (1 + eps) * gamma / ((1 - eps) * (1 - eps));
    const double moved = distance(each.output(2, &merged), each.output(0, nullptr));
    CHECK(moved < bound);
    closest = std::max(closest, moved / bound);
    ++judged;
  }
  CHECK(judged > 5000);
  CHECK(closest > 0.05);  // the bound is not idle
}

TEST_CASE("K7: two merges in turn and one of three are both exact and differ in their keys") {
  test::Normal normal{8};
  std::int32_t differ = 0;
  for (int trial = 0; trial < 100; ++trial) {
    const ZipCase each{normal, 16, 6, 0.0};
    const auto three = each.members(3);
    const ZipRule rule{.key = ZipKey::kZip};
    const ZipMerged at_once = zip_merge(three, rule, each.q, each.scale);
    const ZipMerged two = zip_merge(std::span{three}.first(2), rule, each.q, each.scale);
    const std::vector<float> key(two.key.begin(), two.key.end());
    const std::vector<float> value(two.value.begin(), two.value.end());
    const std::vector<ZipMember> rest{
        {key, value, two.votes, std::log(each.exact(test::to_vec(key))), 1, 1}, three[2]};
    const ZipMerged in_turn = zip_merge(rest, rule, each.q, each.scale);
    const Vec before = each.output(0, nullptr);
    CHECK(distance(each.output(3, &at_once), before) < 1e-9);
    CHECK(distance(each.output(3, &in_turn), before) < 1e-5);  // its operand was rounded to fp32
    if (distance(at_once.key, in_turn.key) > 1e-3) ++differ;
  }
  CHECK(differ > 50);
}

TEST_CASE("guard: each factor within [0.5, 2], and their product too if asked for") {
  // One member of l = 1 and one of l = -0.2, equal weights by votes: the factor is small.
  const std::vector<float> row{1.0F, 0.0F};
  const auto member = [&](double log_score, double votes, double low, double high) {
    return ZipMember{row, row, votes, log_score, low, high};
  };
  // Alike scores 1: factor exactly 1; a range that is at 2 already stays within it.
  const std::vector<ZipMember> alike{member(1, 1, 1, 2), member(1, 1, 0.5, 1)};
  const ZipMerged same = zip_merge(alike, {.key = ZipKey::kGuarded, .bound_product = true}, {}, 1);
  CHECK_FALSE(same.fell_back);
  CHECK(same.scale_low == rel(0.5, 1e-12));
  CHECK(same.scale_high == rel(2.0, 1e-12));
  // l = -1 and -3 of equal votes: mean under w is -1 - 2 e^-2/(1+e^-2), ln of the mean is
  // ln((e^-1 + e^-3)/2): the factor 1.27 is fine alone, not on top of 1.8.
  const std::vector<ZipMember> apart{member(-1, 1, 1, 1.8), member(-3, 1, 1, 1)};
  const double mean = (-std::exp(-1.0) - 3 * std::exp(-3.0)) / (std::exp(-1.0) + std::exp(-3.0));
  const double factor = std::log((std::exp(-1.0) + std::exp(-3.0)) / 2) / mean;
  const ZipMerged alone = zip_merge(apart, {.key = ZipKey::kGuarded}, {}, 1);
  CHECK_FALSE(alone.fell_back);
  CHECK(alone.key[0] == rel(factor, 1e-12));
  CHECK(alone.scale_high == rel(1.8 * factor, 1e-12));
  CHECK(zip_merge(apart, {.key = ZipKey::kGuarded, .bound_product = true}, {}, 1).fell_back);
  // Scores so alike that l is about 0: the ratio means nothing.
  const std::vector<ZipMember> null{member(0.0005, 1, 1, 1), member(0.0005, 2, 1, 1)};
  const ZipMerged fallen = zip_merge(null, {.key = ZipKey::kGuarded}, {}, 1);
  CHECK(fallen.fell_back);
  CHECK(fallen.votes == rel(3.0, 1e-12));
}

void compare_keepkv(const HeadVectors& head, std::int64_t budget, const std::string& rule,
                    bool cumulative, double threshold, std::int64_t least_steps,
                    std::int32_t* merged = nullptr) {
  INFO("rule ", rule, " group ", head.group, " budget ", budget);
  Params params{{"key_rule", rule}, {"threshold", threshold}};
  if (cumulative) params["guard"] = std::string{"cumulative"};
  Run run{"keepkv", head, budget, params};
  const std::int64_t recent = budget - static_cast<std::int64_t>(0.8 * static_cast<double>(budget));
  test::PlainKeepKv plain{head,
                          {.budget = budget,
                           .recent = recent,
                           .sinks = 4,
                           .window = static_cast<std::int32_t>(std::max<std::int64_t>(recent, 8)),
                           .alpha = 0.9,
                           .threshold = threshold,
                           .rule = rule,
                           .cumulative = cumulative}};
  std::int64_t compared = 0;
  for (auto t = static_cast<std::int32_t>(head.prompt); t < head.tokens && plain.clear; ++t) {
    REQUIRE(run.session.kept() == test::plain_kept(plain.cache));
    check_same_cache(run.session.entries(), plain.cache, 1e-3);
    run.step(t);
    const auto outs = plain.step(t);
    for (std::size_t g = 0; g < outs.size(); ++g) {
      const auto out = run.session.output(0).subspan(g * outs[g].size(), outs[g].size());
      CHECK(distance({out.begin(), out.end()}, outs[g]) < 1e-4);
    }
    ++compared;
  }
  CHECK(compared >= least_steps);
  if (plain.clear && head.tokens > head.prompt) {
    CHECK(run.session.counts().at("zip_merged") == plain.merged);
    CHECK(run.session.counts().at("zip_fallbacks") == plain.fallbacks);
    CHECK(run.session.counts().at("zip_dropped") == plain.dropped);
  }
  if (merged != nullptr) *merged += plain.merged;
}

TEST_CASE("keepkv is what a plain re-telling is, step by step") {
  std::int32_t merged = 0;
  for (const std::string rule : {"zip_guarded", "real_votes", "convex", "additive_q"}) {
    for (const std::int32_t group : {1, 3}) {
      const auto head =
          clustered_head(group, kDim, 150, 80, 21 + static_cast<std::uint64_t>(group));
      compare_keepkv(head.view, 30, rule, false, 0.8, 40, &merged);
    }
  }
  const auto head = clustered_head(1, kDim, 150, 80, 29);
  compare_keepkv(head.view, 30, "zip_guarded", true, 0.7, 40, &merged);
  CHECK(merged > 200);
  for (const auto& [prompt, tokens] : {std::pair{31, 31}, {31, 60}, {257, 300}, {9, 40}}) {
    const auto odd = clustered_head(2, 31, tokens, prompt, 41);
    compare_keepkv(odd.view, 20, "real_votes", false, 0.8, std::min(tokens - prompt, 15));
  }
}

TEST_CASE("keepkv is what a plain re-telling is on recorded attention") {
  std::int32_t merged = 0;
  for (const auto& head : real_heads()) {
    compare_keepkv(head.view, 77, "real_votes", false, 0.6, 20, &merged);
    compare_keepkv(head.view, 77, "zip_guarded", false, 0.8, 20, &merged);
  }
  CHECK(merged > 100);
}

TEST_CASE("K6 I4: votes add up to the tokens that were not dropped") {
  const auto head = clustered_head(1, kDim, 200, 90, 12);
  for (const std::string order : {"merge_after", "merge_first"}) {
    for (const std::string estimator : {"ema", "rows"}) {
      Run run{"keepkv",
              head.view,
              25,
              {{"key_rule", std::string{"convex"}},
               {"prefill_order", order},
               {"estimator", estimator}}};
      for (std::int64_t t = 90; t < 200; ++t) {
        run.step(t);
        const EntryTable& entries = run.session.entries();
        CHECK(entries.size() == 25);
        double votes = 0;
        for (std::int32_t slot = 0; slot < entries.size(); ++slot) votes += entries.weight(slot);
        CHECK(votes == static_cast<double>(t + 1) - run.session.counts().at("zip_dropped"));
      }
      CHECK(run.session.counts().at("zip_merged") > 20);
    }
  }
}

TEST_CASE(
    "keepkv through the session: no output moves at a merge while scores are the step's own") {
  // alpha = 0 makes s' the step's own s: attending again with the same query must give the same.
  const auto head = clustered_head(1, kDim, 120, 60, 17);
  for (const std::string rule : {"zip_guarded", "zip", "real_votes", "additive_q"}) {
    Run run{"keepkv", head.view, 24, {{"ema", 0.0}, {"key_rule", rule}, {"threshold", 0.5}}};
    std::int32_t merges = 0;
    for (std::int64_t t = 60; t < 120; ++t) {
      run.step(t);
      if (run.session.events().merged == 0) continue;
      ++merges;
      const EntryTable& entries = run.session.entries();
      std::vector<double> bias;
      for (std::int32_t slot = 0; slot < entries.size(); ++slot) {
        bias.push_back(std::log(entries.weight(slot)));
      }
      GroupAttention again{1, kDim, head.view.scale};
      again.run(test::queries_at(head.view, t), entries.keys(), entries.values(), bias);
      const auto before = run.session.output(0);
      const auto after = again.output();
      CHECK(distance({before.begin(), before.end()}, {after.begin(), after.end()}) < 2e-6);
    }
    CHECK(merges > 10);
  }
}

TEST_CASE("estimator rows: the mean of the last R exponentials an entry had, and fp16's tiny") {
  const auto head = test::random_head(2, kDim, 70, 30, 3);
  Run run{"keepkv",
          head.view,
          200,
          {{"estimator", std::string{"rows"}}, {"score_window", std::int64_t{6}}}};
  run.to_the_end();
  for (const std::int32_t id : {0, 40, 66, 69}) {
    double sum = 0;
    std::int32_t n = 0;
    for (std::int32_t t = std::max(id, 64); t < 70; ++t, ++n) {
      for (std::int32_t g = 0; g < 2; ++g) {
        sum += std::exp(head.view.scale * test::inner(test::to_vec(head.view.query(g, t)),
                                                      test::to_vec(head.view.key(id)))) /
               2;
      }
    }
    // Scores are comparable, not absolute: against that of the newest token.
    double newest = 0;
    for (std::int32_t g = 0; g < 2; ++g) {
      newest += std::exp(head.view.scale * test::inner(test::to_vec(head.view.query(g, 69)),
                                                       test::to_vec(head.view.key(69)))) /
                2;
    }
    constexpr double kTiny = 6.103515625e-05;
    CHECK(run.session.selector().score(id) / run.session.selector().score(69) ==
          rel((sum / n + kTiny) / (newest + kTiny), 1e-9));
  }
}

TEST_CASE("refresh: the whole cache stands in host memory and is loaded every period") {
  const auto head = clustered_head(1, kDim, 130, 60, 19);
  Run run{"keepkv", head.view, 20, {{"refresh_period", std::int64_t{10}}}};
  const HeadShape shape{
      .group = 1, .head_dim = kDim, .recorded = Dtype::kFp32, .stored = Dtype::kFp32};
  const double token = 2.0 * kDim * 4;
  for (std::int64_t t = 60; t < 130; ++t) {
    run.step(t);
    const bool refreshed = (t - 59) % 10 == 0;
    const auto traffic = as_composed(*run.method).head_traffic(run.session.events(), shape);
    CHECK(traffic.link_read == (refreshed ? static_cast<double>(t + 1) * token : 0.0));
    CHECK(traffic.link_write == token);
    CHECK(run.session.bytes(0).host.count() == (t + 1) * 2 * kDim * 4);
    CHECK(run.session.entries().size() == 20);
    if (!refreshed) continue;
    // As if all tokens so far had been the prompt.
    HeadVectors longer = head.view;
    longer.prompt = t + 1;
    Run fresh{"keepkv", longer, 20};
    CHECK(run.session.kept() == fresh.session.kept());
  }
}

TEST_CASE("merge_first keeps more tokens than merge_after") {
  const auto head = clustered_head(1, kDim, 120, 120, 23);
  const auto stands_for = [&](const std::string& order) {
    Run run{"keepkv", head.view, 20, {{"prefill_order", order}}};
    CHECK(run.session.entries().size() == 20);
    std::int64_t tokens = 0;
    for (const auto& members : run.session.kept()) tokens += std::ssize(members);
    // Sinks and the last tokens are there under their own names.
    for (const std::int32_t id : {0, 1, 2, 3, 116, 117, 118, 119}) {
      CHECK(run.session.entries().slot_of(id) >= 0);
    }
    return tokens;
  };
  CHECK(stands_for("merge_first") > stands_for("merge_after"));
}

// --- D2O ----------------------------------------------------------------------------------------

void compare_d2o(const HeadVectors& head, std::int64_t budget, bool late, bool code,
                 std::int64_t least_steps, std::int32_t* merged) {
  Run run{"h2o+merge=cosine_ema",
          head,
          budget,
          {{"sinks", std::int64_t{4}},
           {"first_compression", std::string{late ? "first_step" : "prefill"}},
           {"weights", std::string{code ? "code" : "paper"}}}};
  test::PlainD2o plain{head, budget, 4, late, code};
  std::int64_t compared = 0;
  for (auto t = static_cast<std::int32_t>(head.prompt); t < head.tokens && plain.clear; ++t) {
    REQUIRE(run.session.kept() == test::plain_kept(plain.cache));
    check_same_cache(run.session.entries(), plain.cache, 1e-4);
    run.step(t);
    plain.step(t);
    if (plain.threshold) CHECK(std::abs(*plain.threshold) <= 1.0);
    ++compared;
  }
  CHECK(compared >= least_steps);
  *merged += plain.merged;
}

TEST_CASE("d2o's merge is what a plain re-telling is, on made-up and recorded heads") {
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

TEST_CASE("d2o: shares of layers add up, whole layers stay whole, even attention gets more") {
  std::vector<std::vector<HeadVerdict>> layers;
  for (int l = 0; l < 8; ++l) {
    std::vector<HeadVerdict> heads(2);
    for (std::size_t h = 0; h < 2; ++h) {
      heads[h].score.assign(100, 1.0);
      heads[h].score[3] = 1.0 + (l + 1.0) * (h == 0 ? 1.0 : 0.2);
    }
    if (l == 5) heads[1] = heads[0];  // heads alike: nothing to normalise, variance counts as none
    layers.push_back(heads);
  }
  const auto settled = [](const Params& params, double budget) {
    return make_method({"d2o", params, Budget{budget, 0}}, 100,
                       {.recorded = Dtype::kFp16,
                        .shape = {.n_heads = 2, .n_kv_heads = 2, .head_dim = 16},
                        .windows = {},
                        .n_layers = 8});
  };
  const auto method = settled({}, 0.2);
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
  // f is 1/2 in a layer of unlike heads, 0 in that of like ones: shares e^-0.5 : 1.
  const double even = std::exp(-0.5);
  CHECK(std::abs(static_cast<double>(given[5][0].entries) - 100 / (1 + 4 * even)) <= 1);
  CHECK(std::abs(static_cast<double>(given[2][0].entries) - 100 * even / (1 + 4 * even)) <= 1);
  // Whole layers counted in: 0.5 of 8 layers less 3 whole ones leaves 1 for 5.
  const auto all = settled({{"budget_of", std::string{"all"}}}, 0.5);
  sum = 0;
  const auto fewer = as_composed(*all).parts().budget->allot_model(layers);
  for (std::size_t l = 2; l < 7; ++l) sum += fewer[l][0].entries;
  CHECK(sum == 100);
  CHECK_THROWS_AS(settled({{"budget_of", std::string{"all"}}}, 0.3), InputError);
}

TEST_CASE("d2o in a whole trace: three layers whole, the prompt whole until the first step") {
  const Trace trace = Trace::open(sample());
  ReplayOptions options;
  options.per_step = true;
  const auto result = replay(trace, {{"d2o", {}, Budget{0.2, 0}}}, options);
  const ReplayMethod& d2o = result.methods.front();
  CHECK(*d2o.budget_reached == 1.0);
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
}

// --- CaM, MergingPress, KVMerger
// ------------------------------------------------------------------

TEST_CASE("cam is what a plain re-telling is, on made-up and recorded heads") {
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
        test::PlainCam plain{head.view, 21, cumulative, expectation};
        for (auto t = static_cast<std::int32_t>(head.view.prompt);
             t < head.view.tokens && plain.clear; ++t) {
          run.step(t);
          plain.step(t);
        }
        CHECK(plain.clear);
        CHECK(run.session.kept() == test::plain_kept(plain.cache));
        check_same_cache(run.session.entries(), plain.cache, 1e-3);
        CHECK(run.session.counts().at("cam_merged") == plain.merged);
        merged += plain.merged;
        // Keys are those recorded.
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

TEST_CASE("value blend: weights as printed, keys untouched, the rest as plain eviction has it") {
  const auto head = clustered_head(2, kDim, 100, 60, 61);
  Run blend{"merging-press", head.view, 20};
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
        const double cosine = test::plain_cosine(key, test::to_vec(head.view.key(c)));
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
  // A threshold nothing reaches, or a share of nothing: plain eviction to the end.
  for (const Params& params : {Params{{"threshold", 1.0}}, Params{{"merge_fraction", 0.0}}}) {
    Run off{"merging-press", head.view, 20, params};
    Run same{"h2o", head.view, 20};
    off.to_the_end();
    same.to_the_end();
    CHECK(off.session.kept() == same.session.kept());
    CHECK(distance({off.session.output(0).begin(), off.session.output(0).end()},
                   {same.session.output(0).begin(), same.session.output(0).end()}) == 0);
  }
}

/// KVMerger told plainly: sets of positions, each with its pivot first.
std::vector<std::vector<std::int32_t>> plain_sets(const HeadVectors& head, double epsilon,
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
        test::plain_cosine(test::to_vec(head.key(i)), test::to_vec(head.key(i + 1))) > epsilon;
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

TEST_CASE("kvmerger: runs, pivots and Gaussian means as told plainly") {
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
      const auto sets = plain_sets(head.view, epsilon, static_cast<std::int64_t>(0.17 * s),
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

TEST_CASE("kvmerger: epsilon 1 is the full cache, a budget is met as nearly as runs allow") {
  const auto head = clustered_head(1, kDim, 260, 257, 81, 0.5);
  Run whole{"kvmerger", head.view, std::nullopt, {{"epsilon", 1.0}}};
  CHECK(whole.session.entries().size() == 257);
  for (const std::int64_t budget : {40, 90, 128, 200}) {
    Run run{"kvmerger", head.view, budget};
    CHECK(run.session.entries().size() == budget);  // no two cosines are equal here
  }
  Run roomy{"kvmerger", head.view, 300};
  CHECK(roomy.session.entries().size() == 257);
}

// --- LESS
// -----------------------------------------------------------------------------------------

LowRankTask small_task(test::Normal& normal, std::size_t n, std::size_t m, std::size_t d) {
  LowRankTask task;
  const auto fill = [&](std::vector<double>& to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to.push_back(normal());
  };
  fill(task.queries, n * d);
  fill(task.keys, m * d);
  fill(task.values, m * d);
  fill(task.kept_out, n * d);
  fill(task.target, n * d);
  for (std::size_t i = 0; i < n * m; ++i) task.visible.push_back(i % 5 == 0 ? 0.0 : 1.0);
  for (std::size_t i = 0; i < n; ++i) {
    task.kept_sum.push_back(1.0 + std::abs(normal()));
    task.shift.push_back(0.3 * normal());
  }
  return task;
}

TEST_CASE("less: the gradient is that of finite differences, and a fit lowers the loss") {
  test::Normal normal{13};
  for (const auto& [d, hidden, rank] : {std::tuple{5, 7, 3}, {1, 1, 1}, {8, 16, 2}}) {
    LowRankKernel kernel{{.head_dim = d, .hidden = hidden, .rank = rank}, 99};
    const LowRankTask task = small_task(normal, 6, 11, static_cast<std::size_t>(d));
    // Away from the start, where the state is next to nothing.
    for (double& x : kernel.parameters()) x += 0.4 * normal();
    std::vector<double> gradient(kernel.shape().parameters());
    const double loss = low_rank_loss(kernel, task, gradient);
    CHECK(loss == low_rank_loss(kernel, task, {}));
    double largest = 0;
    for (const double g : gradient) largest = std::max(largest, std::abs(g));
    REQUIRE(largest > 1e-4);
    constexpr double kStep = 1e-6;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      double& x = kernel.parameters()[i];
      const double at = x;
      x = at + kStep;
      const double above = low_rank_loss(kernel, task, {});
      x = at - kStep;
      const double below = low_rank_loss(kernel, task, {});
      x = at;
      CHECK(std::abs((above - below) / (2 * kStep) - gradient[i]) < 1e-5 * std::max(1.0, largest));
    }
    const auto [before, after] = fit_low_rank(kernel, task, 50, 0.01);
    CHECK(before == loss);
    CHECK(after < before);
    CHECK(low_rank_loss(kernel, task, {}) == after);
  }
}

TEST_CASE("less: the output is that of kept entries and a state, told plainly") {
  const auto head = clustered_head(2, kDim, 120, 80, 33);
  const Params params{{"fit_steps", std::int64_t{0}}, {"hidden", std::int64_t{9}}};
  Run run{"less", head.view, 20, params};
  // Its maps as they start: the seed's, of layer and head 0.
  const LowRankKernel kernel{{.head_dim = kDim, .hidden = 9, .rank = 8}, counter_bits(0, 0, 0, 0)};
  double largest = 0;
  for (std::int64_t t = 80; t < 120; ++t) {
    std::set<std::int32_t> held(run.session.entries().ids().begin(),
                                run.session.entries().ids().end());
    held.insert(static_cast<std::int32_t>(t));
    run.step(t);
    for (std::int32_t g = 0; g < 2; ++g) {
      const Vec q = test::to_vec(head.view.query(g, t));
      const std::vector<double> phi = kernel.phi(q);
      Vec out(kDim, 0.0);
      double sum = 0;
      double state = 0;
      for (std::int32_t id = 0; id <= t; ++id) {
        const Vec k = test::to_vec(head.view.key(id));
        double w = 0;
        if (held.contains(id)) {
          w = std::exp(head.view.scale * test::inner(q, k));
        } else {
          w = test::inner(phi, kernel.psi(k));
          state += w;
        }
        sum += w;
        for (std::size_t j = 0; j < kDim; ++j) {
          out[j] += w * static_cast<double>(head.view.value(id)[j]);
        }
      }
      for (double& x : out) x /= sum;
      largest = std::max(largest, state / sum);
      const auto got = run.session.output(0).subspan(static_cast<std::size_t>(g) * kDim, kDim);
      CHECK(distance({got.begin(), got.end()}, out) < 1e-9);
      CHECK(run.session.log_sum(0, g) == rel(std::log(sum), 1e-9));
    }
  }
  CHECK(largest > 1e-5);  // the state was there to be seen
  CHECK(run.session.counts().at("less_taken_in") == 100);
}

TEST_CASE("less: weights from a file are those used, and a wrong file is named") {
  const auto head = clustered_head(1, kDim, 90, 60, 35);
  LowRankKernel kernel{{.head_dim = kDim, .hidden = 5, .rank = 2}, 1234};
  for (double& x : kernel.parameters()) x = static_cast<double>(static_cast<float>(3 * x));
  const auto path = std::filesystem::temp_directory_path() /
                    fmt::format("kvsim-low-rank-{}.bin", static_cast<const void*>(&kernel));
  const auto write = [&](const std::string& line, std::size_t heads) {
    std::ofstream file{path, std::ios::binary};
    file << line << '\n';
    for (std::size_t h = 0; h < heads; ++h) {
      for (const double x : kernel.parameters()) {
        const auto each = static_cast<float>(x);
        file.write(reinterpret_cast<const char*>(&each), sizeof each);
      }
    }
  };
  const auto settle = [&] {
    return make_method({"less", {{"weights", path.string()}}, Budget{0, 20}}, 60,
                       {.recorded = Dtype::kFp32,
                        .shape = {.n_heads = 1, .n_kv_heads = 1, .head_dim = kDim},
                        .windows = {},
                        .n_layers = 1});
  };
  write("kvsim-low-rank 1 1 1 16 5 2", 1);
  test::SessionRun run{settle(), head.view};
  std::vector<std::int32_t> gone;
  for (std::int32_t id = 0; id < 60; ++id) {
    if (run.session.entries().slot_of(id) < 0) gone.push_back(id);
  }
  run.step(60);
  const Vec q = test::to_vec(head.view.query(0, 60));
  double sum = 0;
  for (std::int32_t id = 0; id <= 60; ++id) {
    const Vec k = test::to_vec(head.view.key(id));
    const bool left = std::find(gone.begin(), gone.end(), id) != gone.end();
    sum += left ? test::inner(kernel.phi(q), kernel.psi(k))
                : std::exp(head.view.scale * test::inner(q, k));
  }
  CHECK(gone.size() == 40);
  CHECK(run.session.log_sum(0, 0) == rel(std::log(sum), 1e-9));
  const auto says = [&](std::string_view why) {
    try {
      static_cast<void>(settle());
    } catch (const InputError& error) {
      INFO(error.what());
      CHECK(std::string{error.what()}.find(why) != std::string::npos);
      return;
    }
    FAIL("accepted");
  };
  write("kvsim-low-rank 1 1 1 16 5 2", 2);
  says("bytes of numbers");
  write("kvsim-low-rank 1 1 1 16 5 2", 0);
  says("bytes of numbers");
  write("kvsim-low-rank 1 1 2 16 5 2", 2);
  says("weights are of 1 layers, 2 heads");
  write("other 1 1 1 16 5 2", 1);
  says("expected a first line");
  write("kvsim-low-rank 1 1 1 16 -5 2", 1);
  says("expected a first line");
  std::filesystem::remove(path);
  says("cannot be read");
}

TEST_CASE("less: constant state, no use of it while all fits, a fit that helps on recorded heads") {
  const auto head = test::random_head(1, kDim, 90, 40, 3);
  Run roomy{"less", head.view, 200};
  Run full{"full", head.view, std::nullopt};
  roomy.to_the_end();
  full.to_the_end();
  CHECK(distance({roomy.session.output(0).begin(), roomy.session.output(0).end()},
                 {full.session.output(0).begin(), full.session.output(0).end()}) == 0);
  const Trace trace = Trace::open(sample());
  const auto result =
      replay(trace, {{"less", {}, Budget{0.1, 0}}, {"h2o", {}, Budget{0.1, 0}}}, {});
  const ReplayMethod& less = result.methods[0];
  const ReplayMethod& h2o = result.methods[1];
  CHECK(less.rel_error_mean < 0.9 * h2o.rel_error_mean);
  CHECK(less.side_bytes_final - h2o.side_bytes_final == 12 * 8 * 33 * 4);
  CHECK(*less.closed_form_bytes_final == less.bytes_held_final);
  CHECK(less.counts.at("less_fit_loss_after") < less.counts.at("less_fit_loss_before"));
}

// --- all of them
// ----------------------------------------------------------------------------------

TEST_CASE("laws of sizes hold in a whole trace, and a budget of everything changes nothing") {
  const Trace trace = Trace::open(sample());
  for (const std::string name :
       {"keepkv", "cam", "merging-press", "h2o+merge=zip", "h2o+merge=cosine_ema",
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
    // Side bytes an entry: KeepKV votes, average, age; H2O's score; D2O's threshold a head.
    const std::int64_t side = result.methods[0].side_bytes_final;
    if (name == "keepkv") CHECK(side == 12 * 76 * 12);
    if (name == "cam") CHECK(side == 0);
    if (name == "h2o+merge=zip") CHECK(side == 12 * 76 * 16);
    if (name == "h2o+merge=cosine_ema") CHECK(side == 12 * (76 * 4 + 4));
  }
}

TEST_CASE("short prompts, no decode step, more budget than tokens") {
  for (const std::string name : {"keepkv", "cam", "merging-press", "h2o+merge=zip",
                                 "h2o+merge=cosine_ema", "less", "kvmerger"}) {
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

TEST_CASE("what cannot be is refused with the reason") {
  const auto says = [&](const std::string& name, const Params& params, std::string_view why,
                        std::optional<Budget> budget = Budget{0.1, 0}) {
    INFO(complaint(name, budget, params));
    CHECK(complaint(name, budget, params).find(why) != std::string::npos);
  };
  says("keepkv", {{"ema", 1.0}}, "a number in [0, 1)");
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
  says("kvmerger", {{"recent_share", 0.2}}, "cannot be kept for sure");
  says("cam", {{"n_sink", std::int64_t{4}}}, "both say");
  says("cam", {{"merge_window", std::int64_t{0}}}, "an integer >= 1");
  says("less", {{"rank", std::int64_t{0}}}, "an integer in [1, 1024]");
  says("full+merge=zip", {}, "nothing to merge", std::nullopt);
}

TEST_CASE("cosine search: one pass and blocks agree, ties go to the older, null rows are unlike") {
  test::Normal normal{7};
  for (const std::int32_t d : {1, 5, 31, 64}) {
    std::vector<float> rows;
    for (int i = 0; i < 257 * d; ++i) rows.push_back(static_cast<float>(normal()));
    const auto width = static_cast<std::size_t>(d);
    std::fill(rows.begin(), rows.begin() + d, 0.0F);
    std::copy_n(rows.begin() + 3 * d, d, rows.begin() + 200 * d);  // a double
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
