// Selectors compared step by step with references on parts of a recorded trace. Other files of this
// folder compare these selectors only on made-up heads, or only at the end of a trace. The last
// case lists the reference of each selector of the catalogue.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <numbers>
#include <set>
#include <string>
#include <vector>

#include "models/math/counter_random.hpp"
#include "models/methods/params.hpp"
#include "models/methods/resolve/choices.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_content.hpp"
#include "tests/support/reference/reference_learned.hpp"
#include "tests/support/reference/reference_methods.hpp"
#include "tests/support/session_run.hpp"

namespace kvsim {
namespace {

using test::Ids;

std::string sample_path() {
  return KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors";
}

const test::WholeTrace& sample() {
  static const test::WholeTrace whole{Trace::open(sample_path())};
  return whole;
}

/// Tokens first … first + tokens - 1 of a recorded head as a separate trace.
test::OwnedHead stretch(std::int32_t layer, std::int32_t kv_head, std::int64_t first,
                        std::int64_t tokens, std::int64_t prompt) {
  const HeadVectors whole = sample().head(layer, kv_head);
  test::OwnedHead part;
  const auto take = [&](std::span<const float> rows, std::vector<float>& into) {
    const auto d = static_cast<std::size_t>(whole.head_dim);
    const auto at =
        rows.subspan(static_cast<std::size_t>(first) * d, static_cast<std::size_t>(tokens) * d);
    into.insert(into.end(), at.begin(), at.end());
  };
  const auto row = static_cast<std::size_t>(whole.tokens * whole.head_dim);
  for (std::int32_t g = 0; g < whole.group; ++g) {
    take(whole.q.subspan(static_cast<std::size_t>(g) * row, row), part.q);
  }
  take(whole.keys, part.keys);
  take(whole.values, part.values);
  part.view = whole;
  part.view.q = part.q;
  part.view.keys = part.keys;
  part.view.values = part.values;
  part.view.tokens = tokens;
  part.view.prompt = prompt;
  return part;
}

struct Where {
  std::int32_t layer, kv_head;
  std::int64_t first, tokens, prompt;
};
/// Shallow and deep layers, prompts longer and shorter than the steps, a prompt of one token, and
/// no steps.
const std::vector<Where> kStretches{{0, 0, 0, 160, 120},
                                    {2, 1, 100, 150, 31},
                                    {5, 0, 250, 257, 200},
                                    {3, 1, 17, 60, 1},
                                    {4, 0, 64, 90, 90}};

std::shared_ptr<const Method> resolved(const std::string& name, const HeadVectors& head,
                                       const Params& params, std::optional<Budget> budget) {
  return make_method({name, params, budget}, head.prompt,
                     {.recorded = Dtype::kFp16,
                      .shape = {.n_heads = head.group, .n_kv_heads = 1, .head_dim = head.head_dim},
                      .windows = {},
                      .n_layers = 1});
}

/// Calls `check(newest, session)` after the prompt and after every step.
template <class Check>
void at_every_step(test::SessionRun& run, Check check) {
  check(run.head.prompt - 1, run.session);
  for (std::int64_t t = run.head.prompt; t < run.head.tokens; ++t) {
    run.step(t);
    check(t, run.session);
  }
}

std::set<std::int32_t> held(const CacheSession& session) {
  const auto ids = session.entries().ids();
  return {ids.begin(), ids.end()};
}

TEST_CASE("streaming-llm holds its sinks and its window after every step of a real trace") {
  for (const Where& w : kStretches) {
    for (const std::int64_t sinks : {0, 1, 4}) {
      for (const std::int64_t window : {1, 31}) {
        const auto part = stretch(w.layer, w.kv_head, w.first, w.tokens, w.prompt);
        test::SessionRun run{resolved("streaming-llm", part.view,
                                      {{"n_sink", sinks}, {"window", window}}, std::nullopt),
                             part.view};
        at_every_step(run, [&](std::int64_t newest, const CacheSession& session) {
          std::set<std::int32_t> want;
          for (std::int32_t i = 0; i <= newest; ++i) {
            if (i < sinks || i > newest - window) want.insert(i);
          }
          REQUIRE(held(session) == want);
        });
      }
    }
  }
}

TEST_CASE("h2o and zeromerge equal their references after every step of a real trace") {
  int compared = 0, merged = 0;
  for (const Where& w : kStretches) {
    const auto part = stretch(w.layer, w.kv_head, w.first, w.tokens, w.prompt);
    const std::int64_t budget = 40;
    const std::int64_t tail = 4;  // one tenth
    struct Case {
      std::string name;
      test::ReferenceSettings reference;
    };
    const test::ReferenceSettings zero{
        .budget = budget, .decay = 0.98, .tail_prompt = tail, .tail_decode = tail, .slots = 1};
    test::ReferenceSettings online = zero;
    online.online = true;
    for (const Case& each :
         {Case{"h2o", {.budget = budget, .tail_prompt = budget / 2, .tail_decode = budget / 2}},
          Case{"zeromerge", zero}, Case{"zeromerge-paper", online}}) {
      INFO(each.name, " layer ", w.layer, " head ", w.kv_head, " from ", w.first);
      test::ReferenceAccumulated reference{part.view, each.reference};
      bool clear = reference.clear_prompt;
      test::SessionRun run{resolved(each.name, part.view, {}, Budget{0, budget}), part.view};
      at_every_step(run, [&](std::int64_t newest, const CacheSession& session) {
        if (newest >= w.prompt) clear = reference.step(static_cast<std::int32_t>(newest)) && clear;
        if (!clear) return;
        const auto kept = session.kept();
        REQUIRE(kept == reference.kept());
        ++compared;
        for (const auto& entry : kept) merged += entry.size() > 1 ? 1 : 0;
      });
    }
  }
  CHECK(compared >= 600);
  CHECK(merged >= 200);
}

TEST_CASE("random and oracle-future equal their references on a real trace") {
  int compared = 0;
  for (const Where& w : {kStretches[0], kStretches[1], kStretches[3]}) {
    const auto part = stretch(w.layer, w.kv_head, w.first, w.tokens, w.prompt);
    INFO("layer ", w.layer, " from ", w.first);
    bool clear = true;
    test::SessionRun oracle{resolved("oracle-future", part.view, {}, Budget{0, 20}), part.view};
    test::reference_oracle(part.view, 20, clear, [&](std::int64_t t, const Ids& want) {
      if (!clear) return;
      oracle.step(t);
      REQUIRE(held(oracle.session) == std::set<std::int32_t>(want.begin(), want.end()));
      ++compared;
    });
    // Random scores rank the prompt's tokens; later tokens stay.
    test::SessionRun drawn{resolved("random", part.view, {}, Budget{0, 20}), part.view};
    const SessionPlace place = drawn.session.place();
    std::vector<std::pair<double, std::int32_t>> ranked;
    for (std::int32_t i = 0; i < w.prompt; ++i) {
      ranked.emplace_back(
          -counter_uniform(counter_key({place.seed, 0, 0}), static_cast<std::uint64_t>(i)), i);
    }
    std::sort(ranked.begin(), ranked.end());
    std::set<std::int32_t> want;
    for (const auto& [score, i] : ranked) {
      if (std::ssize(want) < 20) want.insert(i);
    }
    at_every_step(drawn, [&](std::int64_t newest, const CacheSession& session) {
      if (newest >= w.prompt) want.insert(static_cast<std::int32_t>(newest));
      REQUIRE(held(session) == want);
    });
  }
  CHECK(compared >= 150);
}

/// A session with a number per token, after prefill.
struct Judged {
  Judged(const std::string& name, const Params& params, const HeadVectors& head,
         std::map<std::string, std::span<const float>> numbers)
      : method{resolved(name, head, params, std::nullopt)},
        session{as_composed(*method),
                {.layer = 0,
                 .group = head.group,
                 .head_dim = head.head_dim,
                 .tokens = static_cast<std::int32_t>(head.tokens),
                 .scale = head.scale},
                {head}} {
    layer.heads = {head};
    layer.per_head = std::move(numbers);
    PromptScores scores{{head}, 0, layer};
    session.learn(scores);
    session.prefill(scores, {.entries = *as_composed(*method).parts().budget->entries(0)});
  }
  LayerVectors layer;
  std::shared_ptr<const Method> method;
  CacheSession session;
};

TEST_CASE("kvzap and dms judge each token of a real trace once, a window later") {
  for (const Where& w : kStretches) {
    const auto part = stretch(w.layer, w.kv_head, w.first, w.tokens, w.prompt);
    // Scores similar to those of a surrogate: keys of small norm attract attention.
    std::vector<float> score, evict;
    std::vector<double> norms;
    for (std::int64_t t = 0; t < w.tokens; ++t) {
      const auto key = test::to_vec(part.view.key(static_cast<std::int32_t>(t)));
      norms.push_back(std::sqrt(test::inner(key, key)));
    }
    std::vector<double> sorted = norms;
    std::sort(sorted.begin(), sorted.end());
    const double middle = sorted[sorted.size() / 2];
    for (const double norm : norms) {
      score.push_back(static_cast<float>(-norm));
      evict.push_back(norm > middle ? 1.0F : 0.0F);
    }
    for (const std::int64_t window : {0, 16}) {
      INFO("layer ", w.layer, " from ", w.first, " window ", window);
      Judged zap{
          "kvzap",
          {{"threshold", -middle}, {"window", window}, {"kvzap_source", std::string{"trace"}}},
          part.view,
          {{"score.kvzap", score}}};
      Judged dms{"dms", {{"window", window}}, part.view, {{"decision.evict", evict}}};
      for (std::int64_t t = w.prompt; t <= w.tokens; ++t) {
        if (t > w.prompt) {
          zap.session.step();
          dms.session.step();
        }
        std::set<std::int32_t> by_score, by_bit;
        for (std::int32_t i = 0; i < t; ++i) {
          const auto at = static_cast<std::size_t>(i);
          const bool young = i >= t - window;
          if (young || static_cast<double>(score[at]) >= -middle) by_score.insert(i);
          if (young || evict[at] < 0.5F) by_bit.insert(i);
        }
        REQUIRE(held(zap.session) == by_score);
        REQUIRE(held(dms.session) == by_bit);
      }
    }
  }
}

TEST_CASE("dmc accumulates a real trace by its own channels") {
  // The released rule: alpha is the rounded sigma of a key's first channel, omega is sigma of a
  // query's.
  const auto sigma = [](double x) { return 1 / (1 + std::exp(-x)); };
  std::size_t longest = 0;
  for (const Where& w : kStretches) {
    INFO("layer ", w.layer, " from ", w.first);
    const auto part = stretch(w.layer, w.kv_head, w.first, w.tokens, w.prompt);
    std::vector<float> alpha, omega;
    for (std::int64_t t = 0; t < w.tokens; ++t) {
      const auto id = static_cast<std::int32_t>(t);
      alpha.push_back(sigma(static_cast<double>(part.view.key(id)[0])) >= 0.5 ? 1.0F : 0.0F);
      omega.push_back(static_cast<float>(sigma(static_cast<double>(part.view.query(0, t)[0]))));
    }
    Judged run{"dmc", {}, part.view, {{"decision.alpha", alpha}, {"decision.omega", omega}}};
    test::ReferenceDmc reference;
    for (std::int64_t t = 0; t < w.tokens; ++t) {
      const auto at = static_cast<std::size_t>(t);
      reference.feed(static_cast<std::int32_t>(t), static_cast<double>(alpha[at]),
                     static_cast<double>(omega[at]));
      if (t >= w.prompt) run.session.step();
      if (t + 1 < w.prompt) continue;
      std::vector<std::vector<std::int32_t>> want;
      for (const auto& entry : reference.entries) want.push_back(entry.members);
      REQUIRE(run.session.kept() == want);
    }
    for (const auto& entry : reference.entries) longest = std::max(longest, entry.members.size());
  }
  CHECK(longest >= 3);
}

TEST_CASE("r-kv and decoding equal their references after every step of a real trace") {
  int stretches = 0;
  for (const Where& w : kStretches) {
    if (w.prompt == w.tokens) continue;  // no compression after the last step
    const auto part = stretch(w.layer, w.kv_head, w.first, w.tokens, w.prompt);
    const auto compare = [&](const std::shared_ptr<const Method>& method,
                             const test::ReferenceScorer& scorer, std::int64_t interval,
                             std::int64_t target, bool prompt_too) {
      bool clear = true;
      std::map<std::int64_t, std::set<std::int32_t>> want;
      std::int64_t clear_until = w.tokens;
      test::reference_periodic(part.view, scorer, interval, target, prompt_too, clear,
                               [&](std::int64_t t, const test::Ids& ids) {
                                 want[t] = {ids.begin(), ids.end()};
                                 if (!clear) clear_until = std::min(clear_until, t);
                               });
      test::SessionRun run{method, part.view};
      at_every_step(run, [&](std::int64_t newest, const CacheSession& session) {
        if (newest < w.prompt || newest >= clear_until) return;
        REQUIRE(held(session) == want.at(newest));
      });
      stretches += clear_until > w.prompt ? 1 : 0;
    };
    compare(resolved("r-kv", part.view, {{"divide_length", std::int64_t{13}}}, Budget{0, 40}),
            test::reference_r_kv(8, 7, 0.07), 13, 40, true);
    compare(resolved("decoding", part.view, {{"interval", std::int64_t{11}}, {"target", 29.0}},
                     std::nullopt),
            test::reference_knorm, 11, 29, false);
  }
  CHECK(stretches >= 6);  // out of 8
}

TEST_CASE("chunkpress and blockpress equal their references on a real trace") {
  int compared = 0;
  for (const std::string scorer : {"keydiff", "knorm"}) {
    const auto reference = scorer == "knorm" ? test::reference_knorm : test::reference_keydiff;
    for (const Where& w : kStretches) {
      const auto part = stretch(w.layer, w.kv_head, w.first, w.tokens, w.prompt);
      for (const std::int64_t size : {1, 31, 64, 1024}) {
        INFO(scorer, " layer ", w.layer, " from ", w.first, " by ", size);
        const auto prompt = static_cast<std::int32_t>(w.prompt);
        const double ratio = w.prompt > 1 ? 0.7 : 0.0;
        const auto count_of = [&](std::int64_t n) {
          return static_cast<std::int64_t>(static_cast<double>(n) * (1.0 - ratio));
        };
        // Each run separately.
        bool clear = true;
        std::set<std::int32_t> in_chunks;
        for (std::int32_t first = 0; first < prompt; first += static_cast<std::int32_t>(size)) {
          Ids ids;
          for (std::int32_t i = first; i < std::min<std::int64_t>(first + size, prompt); ++i) {
            ids.push_back(i);
          }
          const auto keep = std::max<std::int64_t>(count_of(std::ssize(ids)), 1);
          for (const auto id :
               test::reference_top(reference(part.view, ids, prompt), keep, clear)) {
            in_chunks.insert(id);
          }
        }
        if (clear) {
          test::SessionRun run{
              resolved("chunkpress", part.view,
                       {{"scorer", scorer}, {"ratio", ratio}, {"chunk_tokens", size}},
                       std::nullopt),
              part.view};
          at_every_step(run, [&](std::int64_t newest, const CacheSession& session) {
            if (newest >= prompt) in_chunks.insert(static_cast<std::int32_t>(newest));
            REQUIRE(held(session) == in_chunks);
            REQUIRE(std::ssize(in_chunks) == *run.method->entries_held(0, prompt, newest + 1));
          });
          ++compared;
        }
        // Repeatedly: the kept entries and the next block.
        clear = true;
        const std::int64_t keep = count_of(prompt);
        Ids going = test::first_ids(keep);
        for (std::int64_t next = keep; next < prompt; next += size) {
          for (std::int64_t i = next; i < std::min<std::int64_t>(next + size, prompt); ++i) {
            going.push_back(static_cast<std::int32_t>(i));
          }
          going = test::reference_top(reference(part.view, going, prompt), keep, clear);
        }
        if (!clear) continue;
        test::SessionRun run{
            resolved("blockpress", part.view,
                     {{"scorer", scorer}, {"ratio", ratio}, {"block", size}}, std::nullopt),
            part.view};
        std::set<std::int32_t> want(going.begin(), going.end());
        at_every_step(run, [&](std::int64_t newest, const CacheSession& session) {
          if (newest >= prompt) want.insert(static_cast<std::int32_t>(newest));
          REQUIRE(held(session) == want);
          REQUIRE(std::ssize(want) == *run.method->entries_held(0, prompt, newest + 1));
        });
        ++compared;
      }
      // With a single run or a single block, the result equals that of the unwrapped scorer.
      const Budget budget{0.3, 0};
      if (w.prompt < 10) continue;
      test::SessionRun harness{resolved(scorer, part.view, {}, budget), part.view};
      for (const char* name : {"chunkpress", "blockpress"}) {
        if (std::string{name} == "blockpress" && scorer == "keydiff") continue;  // its means differ
        test::SessionRun run{resolved(name, part.view, {{"scorer", scorer}}, budget), part.view};
        CHECK(held(run.session) == held(harness.session));
      }
    }
  }
  CHECK(compared >= 60);  // out of 80
  // A block that is scored again costs again; a run is read only once.
  const auto part = stretch(0, 0, 0, 300, 300);
  const LayerShape shape{
      .n_heads = part.view.group, .n_kv_heads = 1, .head_dim = part.view.head_dim};
  const auto extra = [&](const char* name, const Params& params) {
    return resolved(name, part.view, params, Budget{0, 100})
        ->prefill_extra(0, shape, Dtype::kFp16, 300);
  };
  const auto whole = extra("knorm", {});
  const auto runs =
      extra("chunkpress", {{"scorer", std::string{"knorm"}}, {"chunk_tokens", std::int64_t{100}}});
  CHECK(runs.flops == whole.flops);
  CHECK(runs.launches == 3 * whole.launches);
  const auto blocks =
      extra("blockpress", {{"scorer", std::string{"knorm"}}, {"block", std::int64_t{50}}});
  CHECK(blocks.flops == test::rel(4 * whole.flops * 150 / 300));  // 4 blocks of 100 + 50
  CHECK(blocks.read > whole.read);
  // A budget smaller than the number of runs is invalid.
  CHECK_THROWS_WITH_AS(
      (void)resolved("chunkpress", part.view, {{"chunk_tokens", std::int64_t{10}}}, Budget{0, 20}),
      doctest::Contains("less than one for each run"), InputError);
}

TEST_CASE(
    "I3: entries that any selector keeps of a real trace equal the recorded ones bit for bit") {
  int methods = 0;
  for (const MethodInfo& info : builtin_methods()) {
    const Where& w = kStretches[2];
    const auto part = stretch(w.layer, w.kv_head, w.first, w.tokens, w.prompt);
    std::shared_ptr<const Method> method;
    try {
      method = resolved(info.name, part.view, {},
                        takes_budget(info.name) ? std::optional{Budget{0, 40}} : std::nullopt);
    } catch (const InputError&) {
      continue;  // requires queries, keys and values of several heads
    }
    const Composition& parts = as_composed(*method).parts();
    const MethodNeeds needs = method->needs();
    const bool more = needs.inputs.hidden || needs.inputs.output_projection || needs.inputs.rope ||
                      needs.inputs.repeat || needs.inputs.token_ids ||
                      !needs.inputs.per_head.empty();
    const bool loses = parts.store->rounds() || (parts.tier && !parts.tier->lossless());
    if (method->merges() || loses || parts.share || parts.read || more ||
        as_composed(*method).decision_scope() != DecisionScope::kHead ||
        parts.budget->scope() != BudgetScope::kHead || !parts.budget->entries(0)) {
      continue;
    }
    INFO(info.name);
    ++methods;
    test::SessionRun run{method, part.view};
    run.to_the_end();
    const EntryTable& entries = run.session.entries();
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) {
      const std::int32_t id = entries.id(slot);
      REQUIRE(std::ranges::equal(entries.key(slot), part.view.key(id)));
      REQUIRE(std::ranges::equal(entries.value(slot), part.view.value(id)));
    }
  }
  CHECK(methods >= 10);
}

TEST_CASE("h2o on a real trace: scores never fall, and only recent tokens are a local window") {
  for (const Where& w : kStretches) {
    const auto part = stretch(w.layer, w.kv_head, w.first, w.tokens, w.prompt);
    test::SessionRun run{resolved("h2o", part.view, {}, Budget{0, 30}), part.view};
    std::map<std::int32_t, double> before;
    at_every_step(run, [&](std::int64_t, const CacheSession& session) {
      std::map<std::int32_t, double> now;
      for (const std::int32_t id : session.entries().ids()) {
        now[id] = session.selector().score(id);
        if (before.contains(id)) REQUIRE(now[id] >= before[id]);
      }
      before = std::move(now);
    });
    test::SessionRun window{resolved("h2o", part.view, {{"recent", 30.0}}, Budget{0, 30}),
                            part.view};
    at_every_step(window, [&](std::int64_t newest, const CacheSession& session) {
      std::set<std::int32_t> want;
      for (std::int64_t i = std::max<std::int64_t>(newest - 29, 0); i <= newest; ++i) {
        want.insert(static_cast<std::int32_t>(i));
      }
      REQUIRE(held(session) == want);
    });
  }
}

TEST_CASE("every selector of the catalogue has a reference on recorded attention") {
  struct ReferenceTest {
    const char* file;  // in this folder
    const char* test;  // prefix of the case's name
  };
  const ReferenceTest window{"test_methods_window.cpp",
                             "every selector equals its reference on a recorded trace"};
  const ReferenceTest scorers{"test_methods_content_layers.cpp",
                              "on a real trace the scorers keep the entries of a reference"};
  const ReferenceTest periodic{"test_methods_content_layers.cpp",
                               "on a real trace periodic compression and the oracle keep"};
  const ReferenceTest repeat{"test_methods_learned.cpp",
                             "KVzip and KVzip+ equal references on recorded vectors"};
  const ReferenceTest presses{"test_compactor.cpp",
                              "later presses of kvpress keep a reference's entries"};
  const char* here = "test_methods_reference.cpp";
  const char* layers = "test_methods_reference_layers.cpp";
  const ReferenceTest judged{here, "kvzap and dms judge each token of a real trace once"};
  const ReferenceTest drawn{here, "random and oracle-future equal their references"};
  const std::map<std::string, ReferenceTest> references{
      {"all", {"../../sim/replay/test_replay.cpp", "totals are the sums of their parts"}},
      {"recent", {here, "streaming-llm holds its sinks and its window after every step"}},
      {"accumulated", {here, "h2o and zeromerge equal their references"}},
      {"window", window},
      {"fusion", window},
      {"last-row", window},
      {"observed", window},
      {"persistence", window},
      {"pivotal", window},
      {"gumbel", window},
      {"logit_average", {"test_keepkv.cpp", "keepkv equals its reference on recorded attention"}},
      {"key_runs", {"test_methods_merging.cpp", "kvmerger: runs, pivots and Gaussian means"}},
      {"knorm", scorers},
      {"keydiff", scorers},
      {"cur", scorers},
      {"compactor", presses},
      {"leverage", presses},
      {"non-causal", presses},
      {"qfilter", presses},
      {"capkv", presses},
      {"triattention", {"test_triattention.cpp", "triattention keeps a reference's entries"}},
      {"expected-attention", scorers},
      {"lagkv", scorers},
      {"last-window", scorers},
      {"random", drawn},
      {"critical", {layers, "criticalkv equals its reference after every step"}},
      {"chunked", {"test_methods_content_layers.cpp", "ChunkKV keeps whole chunks"}},
      {"within-chunks", {here, "chunkpress and blockpress equal their references"}},
      {"block-wise", {here, "chunkpress and blockpress equal their references"}},
      {"periodic", periodic},
      {"prefill-decoding",
       {"axes/test_prompt_positions.cpp", "prefill-decoding cuts the prompt by one scorer"}},
      {"finch", {"axes/test_prompt_positions.cpp", "finch keeps a reference's entries"}},
      {"recurrence", {"axes/test_recurrence.cpp", "lazyeviction keeps the entries of a reference"}},
      {"separators",
       {"axes/test_separators.cpp", "sepllm holds what a token-by-token reference holds"}},
      {"r-kv", periodic},
      {"lazy-layers", {"test_methods_content_layers.cpp", "SimLayerKV: a layer is lazy"}},
      {"streaming-heads", {"test_methods_content_layers.cpp", "DuoAttention: whole heads"}},
      {"oracle-future", drawn},
      {"kvzip", repeat},
      {"kvzip-plus", repeat},
      {"kvzap", judged},
      {"dms", judged},
      {"dmc", {here, "dmc accumulates a real trace by its own channels"}},
      {"pyramidinfer", {layers, "pyramidinfer's layers equal their reference after every step"}}};
  for (const AxisChoice& choice : axis_choices()) {
    if (choice.axis != "select") continue;
    INFO(choice.name);
    const auto found = references.find(std::string{choice.name});
    REQUIRE(found != references.end());
    std::ifstream file{std::string{KVSIM_SOURCE_DIR "/tests/models/methods/"} + found->second.file};
    const std::string text{std::istreambuf_iterator<char>{file}, {}};
    CHECK(text.find(std::string{"TEST_CASE(\""} + found->second.test) != std::string::npos);
  }
}

}  // namespace
}  // namespace kvsim
