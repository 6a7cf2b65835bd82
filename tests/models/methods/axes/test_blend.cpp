// prefill=blend: the computed tokens, and the cache that consists of their rows and the reused
// rows.

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "models/methods/composed.hpp"
#include "models/methods/prefill/blend.hpp"
#include "models/methods/prefill_axis.hpp"
#include "models/methods/session/session.hpp"
#include "models/methods/view/prompt_scores.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/vectors.hpp"

using namespace kvsim;
using test::rel;

namespace {

constexpr std::int32_t kLayers = 4;

std::shared_ptr<const Method> blend(Params params = {}, const std::string& more = "",
                                    std::vector<std::int32_t> ordinals = {}) {
  return make_method({"cacheblend" + more, std::move(params), {}}, 40,
                     {.recorded = Dtype::kFp16,
                      .shape = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 8},
                      .n_layers = kLayers,
                      .ordinals = std::move(ordinals)});
}

/// A head whose rows were computed separately in a chunk; the rows of the first ten tokens are
/// equal.
struct BlendedHead {
  test::OwnedHead own = test::random_head(2, 8, 60, 40, 11);
  test::OwnedHead apart = test::random_head(2, 8, 60, 40, 12);
  HeadVectors view;

  BlendedHead() {
    constexpr std::size_t kEqual = 10 * 8;
    std::copy_n(own.keys.begin(), kEqual, apart.keys.begin());
    std::copy_n(own.values.begin(), kEqual, apart.values.begin());
    view = own.view;
    view.reused_keys = apart.keys;
    view.reused_values = apart.values;
  }
};

CacheSession session_of(const ComposedMethod& method, const BlendedHead& head, std::int32_t layer,
                        const std::vector<std::int32_t>& computed) {
  CacheSession session{method,
                       {.layer = layer,
                        .n_layers = kLayers,
                        .first_head = 0,
                        .first_query_head = 0,
                        .group = 2,
                        .head_dim = 8,
                        .tokens = 60,
                        .scale = head.view.scale,
                        .seed = 0,
                        .rope = nullptr},
                       {head.view}};
  PromptScores scores{head.view};
  session.learn(scores);
  session.compute_only(computed);
  session.prefill(scores, {});
  return session;
}

}  // namespace

TEST_CASE("blend: the part of a prompt that each layer computes") {
  const auto method = blend();
  const PromptPart first = method->prompt_part(0), check = method->prompt_part(1);
  CHECK(first.computed == 1);
  CHECK(first.reused);
  CHECK_FALSE(first.is_whole());  // its rows are also loaded over the link
  CHECK_FALSE(first.chooses);
  CHECK(check.chooses);
  CHECK(check.computed == 0.15);
  CHECK(method->prompt_part(3) == PromptPart{.computed = 0.15, .attended = 1, .reused = true});
  // int(T r), and at least the last token.
  CHECK(check.computed_of(100) == 15);
  CHECK(check.computed_of(39) == 5);
  CHECK(check.computed_of(3) == 1);
  CHECK(check.attended_of(39) == 39);
  // Layers with different parts have different kinds.
  CHECK(method->layer_kind(0) != method->layer_kind(1));
  CHECK(method->layer_kind(1) != method->layer_kind(2));
  CHECK(method->layer_kind(2) == method->layer_kind(3));
  const auto all = blend({{"recompute_ratio", 1.0}});
  CHECK_FALSE(all->prompt_part(1).chooses);
  CHECK(all->prompt_part(3).computed == 1);
  const auto late = blend({{"check_layer", std::int64_t{3}}});
  CHECK(late->prompt_part(2).computed == 1);
  CHECK(late->prompt_part(3).chooses);
  // Other methods compute everything.
  CHECK(make_method({"full", {}, {}}, 40)->prompt_part(0).is_whole());
}

TEST_CASE("blend: the tokens whose keys differ most, the earlier of equal ones") {
  const auto chosen = [](double share, const std::vector<double>& differences) {
    return as_composed(*blend({{"recompute_ratio", share}}))
        .parts()
        .prefill->computed_tokens(differences);
  };
  using Tokens = std::vector<std::int32_t>;
  const std::vector<double> differences{1, 5, 5, 0, 2};
  CHECK(chosen(0.4, differences) == Tokens{1, 2});
  CHECK(chosen(0.2, differences) == Tokens{1});
  CHECK(chosen(0.6, differences) == Tokens{1, 2, 4});
  CHECK(chosen(0, differences).empty());
  CHECK(chosen(1, differences) == Tokens{0, 1, 2, 3, 4});
  for (double share = 0, before = 0; share <= 1; share += 0.1) {
    const auto n = static_cast<double>(chosen(share, differences).size());
    CHECK(n >= before);
    before = n;
  }
}

TEST_CASE("blend: differences of keys by hand") {
  // Two heads, three tokens of two channels; the third token is not part of the prompt.
  const std::vector<float> keys{1, 2, 3, 4, 9, 9, 0, 0, 1, 1, 9, 9};
  const std::vector<float> reused{1, 0, 3, 4, 0, 0, 3, 0, 2, 3, 0, 0};
  CHECK(key_differences(keys, reused, 3, 2, 2) == std::vector<double>{4 + 9, 0 + 5});
  CHECK_THROWS_AS((void)key_differences(keys, {}, 3, 2, 2), ContractError);
}

TEST_CASE("blend: rows of computed tokens are the prompt's own, the others' are reused") {
  const BlendedHead head;
  const auto shared = blend();
  const ComposedMethod& method = as_composed(*shared);
  const std::vector<std::int32_t> computed{3, 17, 39};
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    CAPTURE(layer);
    const CacheSession session = session_of(method, head, layer, computed);
    const EntryTable& entries = session.entries();
    REQUIRE(entries.size() == 40);
    for (std::int32_t id = 0; id < 40; ++id) {
      const bool own = layer == 0 || std::count(computed.begin(), computed.end(), id) > 0;
      const test::OwnedHead& from = own ? head.own : head.apart;
      const std::int32_t slot = entries.slot_of(id);
      for (std::size_t c = 0; c < 8; ++c) {
        const std::size_t at = static_cast<std::size_t>(id) * 8 + c;
        CHECK(entries.key(slot)[c] == from.keys[at]);
        CHECK(entries.value(slot)[c] == from.values[at]);
      }
    }
    const PrefillOutcome& out = session.prefill_outcome();
    CHECK(out.causal_pairs == 2 * 40 * 41 / 2);  // for two query heads
    if (layer == 0) {
      CHECK(out.rows == 2 * 40);
      CHECK(out.pairs == out.causal_pairs);
      CHECK(out.error < 1e-9);
    } else {
      CHECK(out.rows == 2 * 3);
      CHECK(out.pairs == 2 * (4 + 18 + 40));
      // The query at position 3 attends to equal rows; the queries at 17 and 39 do not.
      CHECK(out.error > 0.1);
    }
    CHECK(out.mass == static_cast<double>(out.rows));
    CHECK(out.flops == rel(4 * out.pairs * 8, 1e-12));
  }
  // Only the query at 3: the rows of the first ten tokens are equal.
  CHECK(session_of(method, head, 2, {3}).prefill_outcome().error < 1e-9);
}

TEST_CASE("blend: all tokens computed is the full cache, none is plain reuse") {
  const BlendedHead head;
  std::vector<std::int32_t> all(40);
  for (std::int32_t i = 0; i < 40; ++i) all[static_cast<std::size_t>(i)] = i;
  const auto whole = make_method({"full", {}, {}}, 40, {.n_layers = kLayers});
  const auto every = blend({{"recompute_ratio", 1.0}}), none = blend({{"recompute_ratio", 0.0}});
  CacheSession full = session_of(as_composed(*whole), head, 2, {});
  CacheSession computed = session_of(as_composed(*every), head, 2, all);
  CacheSession reused = session_of(as_composed(*none), head, 2, {});
  for (std::int32_t step = 0; step < 20; ++step) {
    full.step();
    computed.step();
    reused.step();
    double apart = 0;
    for (std::size_t i = 0; i < full.output(0).size(); ++i) {
      CHECK(computed.output(0)[i] == full.output(0)[i]);
      apart += std::abs(reused.output(0)[i] - full.output(0)[i]);
    }
    CHECK(apart > 1e-3);
  }
  // Reused keys differ from the recorded keys, so a retained share of attention is undefined.
  CHECK(as_composed(*whole).has_retained_mass());
  CHECK_FALSE(as_composed(*none).has_retained_mass());
  // The bytes equal those of the full cache.
  CHECK(computed.bytes(0).kv == full.bytes(0).kv);
}

TEST_CASE("blend is refused if there are no whole chunks to reuse") {
  const auto refused = [](const Params& params, const std::string& more, const char* why,
                          const std::vector<std::int32_t>& ordinals = {}) {
    CAPTURE(more);
    CHECK_THROWS_WITH_AS((void)blend(params, more, ordinals), doctest::Contains(why), InputError);
  };
  refused({}, "+select=recent+budget=uniform", "select=all");
  refused({}, "+share=minicache", "share=none");
  refused({}, "+tier=cachegen", "tier=none");
  refused({}, "+read=quest", "read=all");
  refused({{"check_layer", std::int64_t{4}}}, "", "check_layer: expected 0 to 3");
  refused({{"recompute_ratio", 1.5}}, "", "recompute_ratio");
  refused({}, "", "layers without keys and values", {0, -1, 1, -1});
  // Stores affect only the cache.
  CHECK(blend({}, "+store=fp8-e4m3")->prompt_part(2).computed == 0.15);
}

TEST_CASE("pyramidinfer: a layer computes the tokens kept by the previous layer") {
  const auto method = make_method({"pyramidinfer", {}, {}}, 4096,
                                  {.recorded = Dtype::kFp16,
                                   .shape = {.n_heads = 32, .n_kv_heads = 32, .head_dim = 128},
                                   .n_layers = 32});
  double sum = 0;
  for (std::int32_t layer = 0; layer < 32; ++layer) {
    const PromptPart part = method->prompt_part(layer);
    CHECK(part.computed == part.attended);
    CHECK(part.computed_of(4096) == method->entries_held(layer, 4096, 4096));
    sum += part.computed / 32;
  }
  // algorithms of the paper's code: 4096, 3985, 3313, 1541 tokens in layers 0, 8, 16, 31.
  CHECK(method->prompt_part(0).is_whole());
  CHECK(method->prompt_part(8).computed_of(4096) == 3985);
  CHECK(method->prompt_part(16).computed_of(4096) == 3313);
  CHECK(method->prompt_part(31).computed_of(4096) == 1541);
  CHECK(sum == rel(0.766, 1e-3));
}
