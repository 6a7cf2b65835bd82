// ZeroMerge's laws, Z1 to Z6 of the method catalogue, and its worked example.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "models/methods/session/session.hpp"
#include "sim/replay/head_replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_methods.hpp"
#include "tests/support/session_run.hpp"
#include "tests/support/vectors.hpp"

namespace kvsim {
namespace {

constexpr std::int32_t kDim = 16;

struct Run : test::SessionRun {
  Run(const std::string& name, const HeadVectors& vectors, std::int64_t budget, Params params = {})
      : SessionRun{make_method({name, std::move(params), Budget{0, budget}}, vectors.prompt,
                               {.recorded = Dtype::kFp32, .shape = {}}),
                   vectors} {}
};

TEST_CASE("Z1: an uncompressed token never gets less weight than in the full cache (theorem 3.1)") {
  for (const std::string name : {"zeromerge", "zeromerge-paper"}) {
    for (const double alpha : {0.2, 0.6, 1.0}) {
      const auto head = test::random_head(2, kDim, 140, 80, 5);
      Run run{name, head.view, 18, {{"alpha", alpha}, {"residual_slots", std::int64_t{2}}}};
      for (std::int64_t t = 80; t < 140; ++t) {
        // Attended entries: the held entries and the new token.
        std::vector<std::int32_t> all(static_cast<std::size_t>(t + 1));
        std::iota(all.begin(), all.end(), 0);
        const std::vector<std::int32_t> ids(run.session.entries().ids().begin(),
                                            run.session.entries().ids().end());
        std::vector<bool> merged;
        for (std::int32_t slot = 0; slot < run.session.entries().size(); ++slot) {
          merged.push_back(run.session.entries().is_merged(slot));
        }
        const GroupAttention& attention = run.step(t);
        for (std::int32_t g = 0; g < 2; ++g) {
          const auto full = test::naive_attention(head.view, g, t, all);
          for (std::size_t slot = 0; slot < ids.size(); ++slot) {
            if (merged[slot]) continue;
            CHECK(attention.probabilities(g)[slot] >=
                  full[static_cast<std::size_t>(ids[slot])] * (1 - 1e-6));
          }
        }
      }
    }
  }
}

TEST_CASE("Z2 Z5: counts add up to the tokens at constant size") {
  const auto head = test::random_head(1, kDim, 300, 100);
  Run run{"zeromerge", head.view, 30};
  for (std::int64_t t = 100; t < 300; ++t) {
    run.step(t);
    const EntryTable& entries = run.session.entries();
    CHECK(entries.size() == 30);
    std::int64_t total = 0;
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) total += entries.count(slot);
    CHECK(total == t + 1);
  }
}

TEST_CASE("Z3: without residual slots ZeroMerge is decayed H2O with a window") {
  const auto head = test::random_head(2, kDim, 200, 90, 7);
  Run zero{
      "zeromerge-paper", head.view, 24, {{"residual_slots", std::int64_t{0}}, {"recent", 6.0}}};
  Run h2o{"h2o", head.view, 24, {{"decay", 0.98}, {"recent", 6.0}}};
  zero.to_the_end();
  h2o.to_the_end();
  CHECK(zero.session.kept() == h2o.session.kept());
  // With decay 1, it equals H2O.
  Run plain{"zeromerge-paper",
            head.view,
            24,
            {{"residual_slots", std::int64_t{0}}, {"recent", 12.0}, {"decay", 1.0}}};
  Run original{"h2o", head.view, 24};
  plain.to_the_end();
  original.to_the_end();
  CHECK(plain.session.kept() == original.session.kept());
}

TEST_CASE("Z3: a vanishing alpha leaves merged entries unweighted") {
  const auto head = test::random_head(1, kDim, 120, 60);
  Run faint{"zeromerge", head.view, 12, {{"alpha", 1e-6}}};
  faint.to_the_end();
  CHECK(std::abs(as_composed(*faint.method).parts().merge->bias(1000, 1000)) < 1e-5);
  CHECK(as_composed(*faint.method).parts().merge->bias(1, 1) == 0.0);
}

TEST_CASE("Z6: merging two identical tokens at alpha 1 leaves the output unchanged") {
  // Tokens 3 and 4 are equal and receive little attention; a budget of 6 with one slot merges both
  // into the slot.
  auto head = test::random_head(1, kDim, 8, 7, 3);
  for (std::size_t j = 0; j < kDim; ++j) {
    head.keys[4 * kDim + j] = head.keys[3 * kDim + j] = -3.0F * head.q[3 * kDim + j];
    head.values[4 * kDim + j] = head.values[3 * kDim + j];
  }
  // All queries attend little to them.
  for (std::size_t t = 0; t < 8; ++t) {
    for (std::size_t j = 0; j < kDim; ++j) head.q[t * kDim + j] = head.q[3 * kDim + j];
  }
  Run merged{"zeromerge-paper", head.view, 6, {{"alpha", 1.0}}};
  Run whole{"zeromerge-paper", head.view, 64, {{"alpha", 1.0}}};
  const auto kept = merged.session.kept();
  REQUIRE(std::count(kept.begin(), kept.end(), std::vector<std::int32_t>{3, 4}) == 1);
  const auto a = merged.step(7).output();
  const auto b = whole.step(7).output();
  for (std::size_t j = 0; j < kDim; ++j) CHECK(std::abs(a[j] - b[j]) < 1e-6);
}

TEST_CASE("with one slot the two presets keep the same sets: ring and candidates cancel") {
  for (const std::uint64_t seed : {1U, 2U, 3U, 4U}) {
    const auto head = test::random_head(2, kDim, 160, 80, seed);
    Run code{"zeromerge", head.view, 20};
    Run paper{"zeromerge-paper", head.view, 20};
    for (std::int64_t t = 80; t < 160; ++t) {
      code.step(t);
      paper.step(t);
      CHECK(code.session.kept() == paper.session.kept());
    }
  }
}

TEST_CASE("both presets keep the same entries as a reference at every step") {
  for (const bool online : {false, true}) {
    for (const std::int64_t slots : {1, 3}) {
      for (const std::int64_t prompt : {10, 70}) {  // below and above the budget
        const auto head = test::random_head(2, kDim, 130, prompt, 11);
        const std::int64_t budget = 22;
        Run run{online ? "zeromerge-paper" : "zeromerge",
                head.view,
                budget,
                {{"residual_slots", slots}, {"recent", 5.0}}};
        test::ReferenceAccumulated reference{head.view,
                                             {.budget = budget,
                                              .decay = 0.98,
                                              .tail_prompt = 5,
                                              .tail_decode = 5,  // 5 - 1 for the ring, + 1 late
                                              .slots = slots,
                                              .alpha = 0.6,
                                              .online = online}};
        bool clear = reference.clear_prompt;
        for (auto t = static_cast<std::int32_t>(prompt); t < 130 && clear; ++t) {
          INFO("online ", online, " slots ", slots, " t ", t);
          REQUIRE(run.session.kept() == reference.kept());
          run.step(t);
          clear = reference.step(t);
        }
        CHECK(clear);
      }
    }
  }
}

TEST_CASE("the worked example: 2 residual, 4 context, 3 proximity, from 12 to 17 tokens") {
  const auto head = test::random_head(1, kDim, 17, 12, 2);
  Run run{"zeromerge-paper", head.view, 9, {{"residual_slots", std::int64_t{2}}, {"recent", 3.0}}};
  for (std::int64_t t = 12; t < 17; ++t) {
    run.step(t);
    const EntryTable& entries = run.session.entries();
    CHECK(entries.pinned_size() == 2);
    CHECK(entries.size() == 9);
    std::int64_t merged = 0;
    std::set<std::int32_t> single;
    for (std::int32_t slot = 0; slot < 9; ++slot) {
      if (entries.is_merged(slot))
        merged += entries.count(slot);
      else
        single.insert(entries.id(slot));
    }
    CHECK(merged == t + 1 - 7);  // all but 4 + 3
    for (std::int64_t id = t - 2; id <= t; ++id)
      CHECK(single.contains(static_cast<std::int32_t>(id)));
  }
}

TEST_CASE("counts kept in the cache's dtype stop at the limit of half precision") {
  const auto make = [](Dtype dtype) {
    return make_method({"zeromerge", {{"count_dtype", std::string{"kv"}}}, Budget{0, 8}}, 100,
                       {.recorded = dtype, .shape = {}});
  };
  const auto bias = [](const Method& m, std::int32_t count) {
    return as_composed(m).parts().merge->bias(count, count);
  };
  CHECK(bias(*make(Dtype::kFp16), 5000) == bias(*make(Dtype::kFp16), 2048));
  CHECK(bias(*make(Dtype::kBf16), 5000) == bias(*make(Dtype::kBf16), 256));
  CHECK(bias(*make(Dtype::kFp32), 5000) > bias(*make(Dtype::kFp32), 2048));
}

TEST_CASE("the score of a slot is the larger one or the sum") {
  // One run with a prompt of 60 at a budget of 12: a tail of 2 and one slot, so 49 tokens in the
  // slot.
  const auto head = test::random_head(1, kDim, 60, 60);
  const Run larger{"zeromerge", head.view, 12};
  const Run sum{"zeromerge", head.view, 12, {{"score_update", std::string{"sum"}}}};
  const auto sums = prompt_column_sums(head.q, head.keys, 1, kDim, 60, 60, head.view.scale, 0.98);
  const std::int32_t slot = larger.session.entries().merged_slots().front();
  const auto members = larger.session.entries().members(slot);
  REQUIRE(members.size() == 49);
  double highest = 0;
  double total = 0;
  for (const std::int32_t id : members) {
    highest = std::max(highest, sums[static_cast<std::size_t>(id)]);
    total += sums[static_cast<std::size_t>(id)];
  }
  CHECK(larger.session.selector().score(members.front()) == test::rel(highest));
  CHECK(sum.session.selector().score(members.front()) == test::rel(total));
}

TEST_CASE("a token joins the nearest slot by product or by distance") {
  for (const bool l2 : {false, true}) {
    const auto head = test::random_head(1, kDim, 61, 60, 4);
    Run run{
        "zeromerge",
        head.view,
        20,
        {{"metric", std::string{l2 ? "l2" : "dot_product"}}, {"residual_slots", std::int64_t{4}}}};
    const EntryTable before = run.session.entries();
    run.step(60);
    const EntryTable& after = run.session.entries();
    // The token that left was a single entry before and is now in a slot.
    std::int32_t left = -1;
    std::int32_t joined = -1;
    for (const std::int32_t slot : after.merged_slots()) {
      for (const std::int32_t id : after.members(slot)) {
        for (std::int32_t s = 0; s < before.size(); ++s) {
          if (!before.is_merged(s) && before.id(s) == id) {
            left = id;
            joined = after.id(slot);
          }
        }
      }
    }
    REQUIRE(left >= 0);
    std::int32_t best = -1;
    double highest = 0;
    for (const std::int32_t slot : before.merged_slots()) {
      const auto key = test::to_vec(before.key(slot));
      const auto leaving = test::to_vec(test::row_of(head.keys, left, kDim));
      const double product = test::inner(key, leaving);
      const double similarity =
          l2 ? -(test::inner(key, key) - 2 * product + test::inner(leaving, leaving)) : product;
      if (best < 0 || similarity > highest) {
        highest = similarity;
        best = before.id(slot);
      }
    }
    CHECK(joined == best);
  }
}

}  // namespace
}  // namespace kvsim
