// LazyEviction and SnapStream: held entries compared with references, laws, costs and refusals.

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "models/methods/params.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_content.hpp"
#include "tests/support/reference/reference_learned.hpp"
#include "tests/support/session_run.hpp"

namespace kvsim {
namespace {

using test::held_by;
using test::Ids;
using test::rel;
const std::string kSample = KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors";

std::shared_ptr<const Method> resolved(const std::string& name, const Params& params,
                                       const HeadVectors& head, std::optional<Budget> budget) {
  return make_method({name, params, budget}, head.prompt,
                     {.recorded = Dtype::kFp16,
                      .shape = {.n_heads = head.group, .n_kv_heads = 1, .head_dim = head.head_dim},
                      .n_layers = 1});
}

TEST_CASE("lazyeviction keeps the entries of a reference, made up and recorded") {
  int compared = 0;
  const auto compare = [&](const HeadVectors& head, std::int64_t budget, std::int64_t window,
                           double alpha) {
    test::SessionRun run{
        resolved("lazyeviction",
                 {{"window", window}, {"alpha", alpha}, {"limit", static_cast<double>(budget)}},
                 head, {}),
        head};
    Ids ids = test::first_ids(head.prompt);
    std::map<std::int32_t, std::pair<std::int64_t, std::int64_t>> known;  // last, longest gap
    for (const auto id : ids) known[id] = {id, 0};
    bool clear = true;
    for (std::int64_t t = head.prompt; t < head.tokens; ++t) {
      run.step(t);
      ids.push_back(static_cast<std::int32_t>(t));
      known[static_cast<std::int32_t>(t)] = {t, 0};
      std::vector<double> mean(ids.size(), 0.0);
      for (std::int32_t g = 0; g < head.group; ++g) {
        const auto p = test::naive_attention(head, g, t, ids);
        for (std::size_t i = 0; i < p.size(); ++i) mean[i] += p[i] / head.group;
      }
      for (std::size_t i = 0; i < ids.size(); ++i) {
        clear = clear && std::abs(mean[i] - alpha) > 1e-9;
        auto& [last, gap] = known[ids[i]];
        if (mean[i] <= alpha) continue;
        gap = std::max(gap, t - last);
        last = t;
      }
      if ((t + 1 - head.prompt) % window == 0 && std::ssize(ids) > budget) {
        std::vector<std::pair<double, std::int32_t>> scored;
        for (const auto id : ids) {
          const auto& [last, gap] = known[id];
          const auto since = static_cast<double>(t - last);
          const auto m = static_cast<double>(gap);
          double score = since == 0 ? 1 : 0;
          if (gap > 0) score = 2 / (1 + std::exp(since / m)) + 2 / (1 + std::exp(m - 1));
          if (id > t - window) score = 100;
          scored.emplace_back(-score, id);
        }
        std::sort(scored.begin(), scored.end());
        ids.clear();
        for (std::int64_t i = 0; i < budget; ++i) {
          ids.push_back(scored[static_cast<std::size_t>(i)].second);
        }
        std::sort(ids.begin(), ids.end());
      }
      if (!clear) return;
      REQUIRE(held_by(run.session) == ids);
      REQUIRE(std::ssize(ids) == *run.method->entries_held(0, head.prompt, t + 1));
      ++compared;
    }
  };
  const auto made_up = test::random_head(3, 8, 200, 80, 21);
  compare(made_up.view, 40, 13, .01);
  compare(made_up.view, 90, 20, .03);
  compare(made_up.view, 30, 29, .001);
  const test::WholeTrace real{Trace::open(kSample)};
  compare(real.head(2, 0), 150, 30, 1e-3);
  compare(real.head(5, 1), 200, 50, 1e-2);
  CHECK(compared > 400);
}

TEST_CASE("lazyeviction by hand: recurrence, and nothing active") {
  // 2 s(-1) and 2 s(-2): the values of the first term at the gap and at twice the gap.
  const double at_gap = 2 / (1 + std::exp(1.0));
  CHECK(at_gap == rel(.5378828, 1e-6));
  CHECK(2 / (1 + std::exp(2.0)) == rel(.2384058, 1e-6));
  // One channel: a query of 8 at even steps matches the key of 1 at position 0, other weights are
  // below e^-8. Gaps: 0, then 2.
  std::vector<float> q(12, 0.F), keys(12, 0.F), values(12, 1.F);
  keys[0] = 1;
  for (std::size_t t = 4; t < 12; t += 2) q[t] = 8;
  for (std::size_t t = 5; t < 12; t += 2) q[t] = -8;
  HeadVectors head{.q = q,
                   .keys = keys,
                   .values = values,
                   .group = 1,
                   .head_dim = 1,
                   .tokens = 12,
                   .prompt = 4,
                   .scale = 1};
  test::SessionRun run{
      resolved("lazyeviction", {{"window", std::int64_t{100}}, {"alpha", .5}, {"limit", 200.0}},
               head, {}),
      head};
  for (std::int64_t t = 4; t < 9; ++t) run.step(t);
  // At position 8, entry 0 was active at 4, 6, 8: the first gap is 4, counted from its position.
  CHECK(run.session.selector().score(0) == rel(1 + 2 / (1 + std::exp(3.0)), 1e-12));
  run.step(9);
  CHECK(run.session.selector().score(0) ==
        rel(2 / (1 + std::exp(1.0 / 4)) + 2 / (1 + std::exp(3.0)), 1e-12));
  CHECK(run.session.selector().score(1) == 0);
  // alpha of 1: all scores are tied, so that the first B - W and the last W stay.
  const auto random = test::random_head(2, 8, 60, 30, 2);
  test::SessionRun none{
      resolved("lazyeviction", {{"window", std::int64_t{10}}, {"alpha", 1.0}, {"limit", 16.0}},
               random.view, {}),
      random.view};
  for (std::int64_t t = 30; t < 40; ++t) none.step(t);
  Ids want = test::first_ids(6);
  for (std::int32_t t = 30; t < 40; ++t) want.push_back(t);
  CHECK(held_by(none.session) == want);
}

TEST_CASE("lazyeviction: sizes, traffic, refusals, a replay by its law") {
  const MethodContext site{.recorded = Dtype::kFp16,
                           .shape = {.n_heads = 8, .n_kv_heads = 2, .head_dim = 64},
                           .n_layers = 4};
  const auto method =
      make_method({"lazyeviction", {{"window", std::int64_t{100}}}, {}}, 1000, site);
  CHECK(*method->entries_held(0, 1000, 1000) == 1000);
  CHECK(*method->entries_held(0, 1000, 1099) == 1099);
  CHECK(*method->entries_held(0, 1000, 1100) == 500);
  CHECK(*method->entries_held(0, 1000, 1199) == 599);
  CHECK(*method->entries_held(0, 1000, 1200) == 500);
  CHECK(method->layer_bytes(0, site.shape, Dtype::kFp16, 1000, 1100)->side == Bytes{2 * 500 * 8});
  const StepTraffic step = method->decode_traffic(0, site.shape, Dtype::kFp16, 600, false);
  CHECK(step.side_read == 2 * 600 * 8);
  CHECK(step.score_row_read == 2 * 4 * 600 * 4);
  CHECK(method->needs().decode_rows);
  const auto why = [&](const Params& params, std::optional<Budget> budget = {}) -> std::string {
    try {
      return std::to_string(param_integer(
          make_method({"lazyeviction", params, budget}, 1000, site)->params(), "window"));
    } catch (const InputError& error) {
      return error.what();
    }
  };
  CHECK(why({}) == "175");
  CHECK(why({{"limit", 100.0}}) == "99");
  CHECK(why({{"limit", 100.0}, {"window", std::int64_t{100}}}).find("B > W") != std::string::npos);
  CHECK(why({}, Budget{0, 400}).find("takes no budget") != std::string::npos);
  const auto result = replay(Trace::open(kSample),
                             {{"lazyeviction", {{"window", std::int64_t{20}}, {"limit", .3}}, {}},
                              {"snapstream", {}, Budget{0.2, 0}},
                              {"snapkv", {}, Budget{0.2, 0}}},
                             {});
  for (const ReplayMethod& m : result.methods) {
    CHECK(m.bytes_held_final == *m.closed_form_bytes_final);
  }
  CHECK(result.methods[1].bytes_held_final < result.methods[2].bytes_held_final);
}

TEST_CASE("snapstream is snapkv whose generated tokens are a ring") {
  const auto head = test::random_head(2, 8, 120, 80, 4);
  test::SessionRun ring{
      resolved("snapstream", {{"window", std::int64_t{8}}, {"ring", std::int64_t{7}}}, head.view,
               Budget{0, 30}),
      head.view};
  test::SessionRun snap{resolved("snapkv", {{"window", std::int64_t{8}}}, head.view, Budget{0, 30}),
                        head.view};
  const Ids prompt = held_by(snap.session);
  CHECK(held_by(ring.session) == prompt);
  for (std::int64_t t = 80; t < 120; ++t) {
    const auto& attention = ring.step(t);
    Ids seen = prompt;
    for (std::int64_t i = std::max<std::int64_t>(80, t - 7); i <= t; ++i) {
      seen.push_back(static_cast<std::int32_t>(i));
    }
    CHECK(std::ssize(seen) == *ring.method->entries_attended(0, 80, t + 1));
    const auto p = test::naive_attention(head.view, 0, t, seen);
    double max = 0;
    for (const double x : attention.probabilities(0)) max = std::max(max, x);
    CHECK(max == rel(*std::max_element(p.begin(), p.end()), 1e-9));
    Ids want = prompt;
    for (std::int64_t i = std::max<std::int64_t>(80, t - 6); i <= t; ++i) {
      want.push_back(static_cast<std::int32_t>(i));
    }
    REQUIRE(held_by(ring.session) == want);
    REQUIRE(std::ssize(want) == *ring.method->entries_held(0, 80, t + 1));
  }
  const auto method = resolved("snapstream", {}, head.view, Budget{0, 30});
  CHECK(param_integer(method->params(), "ring") == 30);
  CHECK_THROWS_WITH_AS((void)resolved("snapstream+merge=zip", {}, head.view, Budget{0, 40}),
                       doctest::Contains("merge=drop"), InputError);
}

}  // namespace
}  // namespace kvsim
