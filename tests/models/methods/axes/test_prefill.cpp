// The prefill axis: the computed pairs, by hand and by laws over every choice.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "models/methods/composed.hpp"
#include "models/methods/prefill/patterns.hpp"
#include "models/methods/prefill_axis.hpp"
#include "models/methods/resolve/prompt_share.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/vectors.hpp"

using namespace kvsim;
using test::rel;

namespace {

std::shared_ptr<const Method> method_of(const std::string& name, Params params = {},
                                        std::int64_t prompt = 600, std::int32_t head_dim = 16) {
  return make_method({"full+prefill=" + name, std::move(params), {}}, prompt,
                     {.recorded = Dtype::kFp16,
                      .shape = {.n_heads = 4, .n_kv_heads = 2, .head_dim = head_dim},
                      .n_layers = 4});
}

std::shared_ptr<const PrefillRule> rule_of(const std::string& name, Params params = {},
                                           std::int64_t prompt = 600) {
  return as_composed(*method_of(name, std::move(params), prompt)).parts().prefill;
}

PrefillHead head_of(const test::OwnedHead& owned) {
  return {.q = owned.q,
          .keys = owned.keys,
          .prompt = owned.view.tokens,
          .head_dim = owned.view.head_dim,
          .scale = owned.view.scale};
}

/// [prompt][prompt], 1 if the pair is computed.
std::vector<std::vector<std::uint8_t>> pairs_of(const PrefillRule& rule, const PrefillHead& head) {
  const auto pattern = rule.start(head);
  std::vector<std::vector<std::uint8_t>> all;
  for (std::int64_t t = 0; t < head.prompt; ++t) {
    std::vector<std::uint8_t>& row = all.emplace_back(static_cast<std::size_t>(t) + 1, 7);
    pattern->row(t, row);
  }
  return all;
}

double share_of(const std::vector<std::vector<std::uint8_t>>& pairs) {
  double sum = 0, all = 0;
  for (const auto& row : pairs) {
    for (const std::uint8_t x : row) sum += x;
    all += static_cast<double>(row.size());
  }
  return sum / all;
}

struct Setting {
  std::string name;
  Params params;
};

}  // namespace

TEST_CASE("full choices compute every pair without error") {
  const test::OwnedHead owned = test::random_head(1, 16, 300, 300, 3);
  const PrefillHead head = head_of(owned);
  const std::int64_t all = 300;
  for (const Setting& s : std::vector<Setting>{
           {"xattention",
            {{"threshold", 1.0}, {"tile", std::int64_t{32}}, {"stride", std::int64_t{8}}}},
           {"minference", {{"slash", all}}},
           {"minference", {{"vertical", all}}},
           {"minference", {{"pattern", std::string{"stream"}}, {"slash", all}}},
           {"minference", {{"pattern", std::string{"block"}}}},
           {"flexprefill", {{"gamma", 1.0}, {"tile", std::int64_t{32}}}},
           {"flexprefill", {}},  // short prompts are dense
           {"skip-softmax", {{"skip_factor", 0.0}}}}) {
    CAPTURE(s.name);
    const auto rule = rule_of(s.name, s.params, 300);
    CHECK(share_of(pairs_of(*rule, head)) == 1);
    const PrefillOutcome out = run_prefill(*rule, head, owned.values);
    CHECK(out.pairs == out.causal_pairs);
    CHECK(out.error < 1e-9);
    CHECK(out.mass == rel(300, 1e-9));
    CHECK(out.rows == 300);
    CHECK(out.causal_pairs == 300 * 301 / 2);
    CHECK(out.full_flops == 4.0 * 16 * out.causal_pairs);
  }
}

TEST_CASE(
    "tiles: the diagonal is computed, attention is causal, larger budgets never compute less") {
  const test::OwnedHead owned = test::random_head(1, 16, 600, 600, 5);
  const PrefillHead head = head_of(owned);
  const auto check_diagonal = [&](const PrefillRule& rule) {
    const auto pairs = pairs_of(rule, head);
    for (const auto& row : pairs) {
      CHECK(row.back() == 1);
      for (const std::uint8_t x : row) CHECK(x <= 1);
    }
    return share_of(pairs);
  };
  const Params tiles{{"tile", std::int64_t{32}}};
  double last = 0, error = std::numeric_limits<double>::infinity();
  for (const double threshold : {0.3, 0.6, 0.9, 0.99, 1.0}) {
    Params params = tiles;
    params["threshold"] = threshold;
    params["stride"] = std::int64_t{8};
    const auto rule = rule_of("xattention", params);
    const double share = check_diagonal(*rule);
    CHECK(share >= last);
    last = share;
    const PrefillOutcome out = run_prefill(*rule, head, owned.values);
    CHECK(out.pairs / out.causal_pairs == rel(share, 1e-12));
    CHECK(out.error <= error);
    error = out.error;
  }
  last = 0;
  for (const double gamma : {0.3, 0.6, 0.9, 0.99}) {
    Params params = tiles;
    params["gamma"] = gamma;
    params["min_tokens"] = std::int64_t{64};
    for (const double tau : {0.0, 1.0}) {
      params["tau"] = tau;
      const double share = check_diagonal(*rule_of("flexprefill", params));
      if (tau > 0) continue;
      CHECK(share >= last);
      last = share;
    }
  }
  last = 0;
  for (const std::int64_t columns : {0, 50, 200, 600}) {
    const double share =
        check_diagonal(*rule_of("minference", {{"vertical", columns}, {"slash", std::int64_t{0}}}));
    CHECK(share >= last);
    last = share;
  }
  last = 2;
  for (const double factor : {0.0, 0.001, 1.0, 60.0, 600.0}) {
    Params params = tiles;
    params["skip_factor"] = factor;
    const double share = share_of(pairs_of(*rule_of("skip-softmax", params), head));
    CHECK(share <= last);
    last = share;
  }
}

TEST_CASE("skip-softmax: the worked example, one query per tile row") {
  // Keys of one channel: the last query is 1, so its logits equal the keys. Tiles of one key.
  const std::vector<float> keys{2, 5, 1, 4.9F, -3};
  const std::vector<float> q{1, 1, 1, 1, 1};
  const PrefillHead head{.q = q, .keys = keys, .prompt = 5, .head_dim = 1, .scale = 1};
  // lambda = factor / 5 = 0.1.
  const auto rule = rule_of("skip-softmax", {{"tile", std::int64_t{1}}, {"skip_factor", 0.5}}, 5);
  const auto pairs = pairs_of(*rule, head);
  CHECK(pairs[4] == std::vector<std::uint8_t>{1, 1, 0, 1, 0});
  CHECK(pairs[0] == std::vector<std::uint8_t>{1});
  // With a factor larger than the prompt, only the tiles with a new maximum remain.
  const auto all_leave =
      rule_of("skip-softmax", {{"tile", std::int64_t{1}}, {"skip_factor", 9.0}}, 5);
  CHECK(pairs_of(*all_leave, head)[4] == std::vector<std::uint8_t>{1, 1, 0, 0, 0});
  // QK^T is computed everywhere, PV for three of five keys of the last row.
  CHECK(rule->flops_share(0.6) == rel(0.8, 1e-12));
}

TEST_CASE("xattention by hand: two blocks of two, strides of two") {
  // One channel. Coarse rows: queries (q1, q0), (q3, q2); keys (k0, k1), (k2, k3).
  const std::vector<float> q{1, 2, 3, 4, 1, 1}, keys{1, 0, 0, 1, 2, 2};
  const PrefillHead head{.q = q, .keys = keys, .prompt = 6, .head_dim = 1, .scale = 1};
  const auto pattern = [&](double threshold) {
    return pairs_of(
        *rule_of("xattention",
                 {{"tile", std::int64_t{2}}, {"stride", std::int64_t{2}}, {"threshold", threshold}},
                 6),
        head);
  };
  // Row of blocks 2: logits (1 1).(1 0)/2 = .5, (1 1).(0 1)/2 = .5, (1 1).(2 2)/2 = 2. The first
  // and the diagonal block have 1 - e^.5 / (2 e^.5 + e^2) = .8455 of the sum.
  CHECK(pattern(0.84)[4] == std::vector<std::uint8_t>{1, 1, 0, 0, 1});
  CHECK(pattern(0.85)[4] == std::vector<std::uint8_t>{1, 1, 1, 1, 1});
  CHECK(pattern(0.5)[3] == std::vector<std::uint8_t>{1, 1, 1, 1});
  CHECK_THROWS_AS((void)rule_of("xattention", {{"stride", std::int64_t{7}}}), InputError);
}

TEST_CASE("minference by hand: columns and diagonals of the last rows") {
  const test::OwnedHead owned = test::random_head(1, 8, 400, 400, 9);
  const PrefillHead head = head_of(owned);
  // The 30 columns are the first 30 and the 50 diagonals the nearest: both are forced.
  const auto pairs = pairs_of(
      *rule_of("minference", {{"vertical", std::int64_t{1}}, {"slash", std::int64_t{1}}}, 400),
      head);
  std::int64_t near = 0;
  for (std::int64_t i = 0; i <= 399; ++i) {
    if (i < 30) CHECK(pairs[399][static_cast<std::size_t>(i)] == 1);
    if (i >= 30) near += pairs[399][static_cast<std::size_t>(i)];
    if (i >= 30 && i < 300) CHECK(pairs[399][static_cast<std::size_t>(i)] == 0);
  }
  CHECK(near == 50);
  // Sums by key and by distance: each of the last rows sums to 1.
  const LastRows sums = last_rows(head, 64);
  double by_key = 0, by_distance = 0;
  for (const double x : sums.by_key) by_key += x;
  for (const double x : sums.by_distance) by_distance += x;
  CHECK(by_key == rel(64, 1e-9));
  CHECK(by_distance == rel(64, 1e-9));
}

TEST_CASE("costs: the share of a prompt's FLOPs, and the choice in addition") {
  CHECK(prompt_attention_share(*method_of("xattention"), 600) == 1);
  CHECK(prompt_attention_share(*method_of("xattention", {{"pairs", 0.25}}), 600) == 0.25);
  CHECK(prompt_attention_share(*method_of("skip-softmax", {{"pairs", 0.5}}), 600) == 0.75);
  CHECK(prompt_attention_share(*make_method({"full", {}, {}}, 600), 600) == 1);
  const LayerShape shape{.n_heads = 4, .n_kv_heads = 2, .head_dim = 16};
  const auto extra = [&](const std::string& name) {
    return method_of(name)->prefill_extra(0, shape, Dtype::kFp16, 600);
  };
  // 1 / 16 of QK^T, and six operations per coarse pair.
  const double pairs = 600.0 * 601 / 2;
  CHECK(extra("xattention").flops == rel(4 * pairs * (2 * 16 / 16.0 + 6 / 256.0), 1e-12));
  CHECK(extra("skip-softmax").flops == 0);
  CHECK(extra("minference").flops > 0);
  CHECK(extra("flexprefill").flops > extra("minference").flops);
  // The cache equals the full cache.
  for (const char* name : {"xattention", "minference", "flexprefill", "skip-softmax"}) {
    CHECK(method_of(name)->plain_rows());
    CHECK(method_of(name)->entries_held(0, 600, 700) == 700);
  }
}
