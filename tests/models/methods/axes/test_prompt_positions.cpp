// Presses of kvpress that wrap other presses: keys rotated to their rank after the prompt is cut,
// Finch, and one scorer for the prompt with another for decode steps.

#include <cmath>
#include <map>
#include <memory>
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

using test::Ids;
using test::rel;

const std::string kSample = KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors";
const Params kRerotate{{"positions", std::string{"rerotate"}}};
const Params kOriginal{{"positions", std::string{"original"}}};

/// A session over one head with a rotary embedding.
struct RotatedRun {
  RotatedRun(const std::string& name, const Params& params, std::optional<Budget> budget,
             const HeadVectors& vectors, double theta = 10000, bool interleaved = true)
      : rope{vectors.head_dim, theta, interleaved},
        method{make_method(
            {name, params, budget}, vectors.prompt,
            {.recorded = Dtype::kFp16,
             .shape = {.n_heads = vectors.group, .n_kv_heads = 1, .head_dim = vectors.head_dim},
             .n_layers = 1})},
        session{as_composed(*method),
                {.layer = 0,
                 .group = vectors.group,
                 .head_dim = vectors.head_dim,
                 .tokens = static_cast<std::int32_t>(vectors.tokens),
                 .scale = vectors.scale,
                 .rope = &rope},
                {vectors}},
        scores{vectors} {
    session.learn(scores);
    session.prefill(scores, {.entries = *as_composed(*method).parts().budget->entries(0)});
  }
  [[nodiscard]] Ids ids() const {
    Ids all{session.entries().ids().begin(), session.entries().ids().end()};
    std::sort(all.begin(), all.end());
    return all;
  }
  Rope rope;
  std::shared_ptr<const Method> method;
  CacheSession session;
  PromptScores scores;
};

/// Attention of query head g at step t over `ids`; prompt keys are at their rank, the other keys
/// and the query at their own positions.
test::Vec reference_rerotated(const HeadVectors& head, std::int32_t g, std::int64_t t,
                              const Ids& ids, double theta, bool interleaved) {
  const test::Vec q = test::to_vec(head.query(g, t));
  test::Vec weights;
  double sum = 0;
  for (std::size_t rank = 0; rank < ids.size(); ++rank) {
    const std::int32_t id = ids[rank];
    const std::int64_t moved = id < head.prompt ? static_cast<std::int64_t>(rank) - id : 0;
    const auto turn = test::rotation(head.head_dim, theta, interleaved, moved, 1);
    const double logit = test::inner(q, test::times(turn, test::key_of(head, id))) * head.scale;
    weights.push_back(std::exp(logit));
    sum += weights.back();
  }
  test::Vec out(static_cast<std::size_t>(head.head_dim), 0.0);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const test::Vec value = test::value_of(head, ids[i]);
    for (std::size_t j = 0; j < out.size(); ++j) out[j] += weights[i] / sum * value[j];
  }
  return out;
}

TEST_CASE(
    "rerotated prompt keys use their rank as position, later tokens their original position") {
  const auto compare = [&](const HeadVectors& head, const std::string& name, std::int64_t entries,
                           double theta, bool interleaved) {
    RotatedRun run{name, kRerotate, Budget{0, entries}, head, theta, interleaved};
    const RotatedRun plain{name, kOriginal, Budget{0, entries}, head, theta, interleaved};
    CHECK(run.ids() == plain.ids());
    for (std::int64_t t = head.prompt; t < head.tokens; ++t) {
      run.session.step();
      const Ids ids = run.ids();
      for (std::int32_t g = 0; g < head.group; ++g) {
        const test::Vec want = reference_rerotated(head, g, t, ids, theta, interleaved);
        for (std::size_t j = 0; j < want.size(); ++j) {
          REQUIRE(std::abs(run.session.output(0)[static_cast<std::size_t>(g) * want.size() + j] -
                           want[j]) < 2e-5);
        }
      }
    }
  };
  for (const bool interleaved : {true, false}) {
    const auto head = test::random_head(2, 8, 70, 60, 3);
    for (const char* name : {"knorm", "snapkv", "observed-attention", "lagkv", "finch"}) {
      INFO(name);
      compare(head.view, name, name == std::string{"snapkv"} ? 40 : 17, 10000, interleaved);
    }
  }
  const Trace trace = Trace::open(kSample);
  const test::WholeTrace real{trace};
  HeadVectors head = real.head(2, 1);
  compare(head, "knorm", 90, *trace.info().rope_theta,
          *trace.info().rope_style == RopeStyle::kInterleaved);
}

TEST_CASE("rerotation of a prompt that stays whole is the identity") {
  const auto head = test::random_head(2, 8, 50, 40, 5);
  RotatedRun rotated{"knorm", kRerotate, Budget{0, 40}, head.view};
  RotatedRun plain{"knorm", {}, Budget{0, 40}, head.view};
  for (int i = 0; i < 10; ++i) {
    rotated.session.step();
    plain.session.step();
    CHECK(std::ranges::equal(rotated.session.output(0), plain.session.output(0)));
  }
}

TEST_CASE("after rerotation a key's logit depends on its rank, not on its old position") {
  // Two prompts have the same un-rotated keys; the second has dropped tokens in between.
  const Rope rope{8, 10000, true};
  test::Normal normal{4};
  std::vector<float> content, other(8, 0.01F);
  for (int i = 0; i < 4 * 8; ++i) content.push_back(static_cast<float>(normal()));
  for (float& x : content) x *= 0.01F;  // knorm keeps the smallest keys
  const auto output = [&](std::int64_t stride) {
    const std::int64_t prompt = 3 * stride;
    test::OwnedHead head = test::random_head(1, 8, prompt + 1, prompt, 9);
    for (std::int64_t t = 0; t <= prompt; ++t) {
      const bool kept = t % stride == 0;
      const std::int64_t row = kept ? t / stride : 0;
      for (std::int64_t j = 0; j < 8; ++j) {
        const auto at = static_cast<std::size_t>(t * 8 + j);
        const auto of = static_cast<std::size_t>(row * 8 + j);
        head.keys[at] = kept ? content[of] : 9.0F;
        head.values[at] = kept ? static_cast<float>(row * j) : 100.0F;
      }
      rope.rotate(std::span{head.keys}.subspan(static_cast<std::size_t>(t) * 8, 8), t);
    }
    // The last token is at rank 3 in both, with a query rotated to that position.
    for (std::int64_t j = 0; j < 8; ++j) {
      const auto at = static_cast<std::size_t>(prompt * 8 + j);
      head.q[at] = static_cast<float>(j) + 1;
      head.keys[at] = -9;
    }
    rope.rotate(std::span{head.q}.subspan(static_cast<std::size_t>(prompt) * 8, 8), 3);
    head.view.q = head.q;
    head.view.keys = head.keys;
    head.view.values = head.values;
    head.view.scale = 100;
    RotatedRun run{"knorm", kRerotate, Budget{0, 3}, head.view};
    CHECK(run.ids() ==
          Ids{0, static_cast<std::int32_t>(stride), static_cast<std::int32_t>(2 * stride)});
    run.session.step();
    return test::Vec{run.session.output(0).begin(), run.session.output(0).end()};
  };
  const test::Vec near = output(1);
  const test::Vec far = output(7);
  for (std::size_t j = 0; j < near.size(); ++j) CHECK(std::abs(far[j] - near[j]) < 1e-4);
}

TEST_CASE("a rotation is a read, three operations and a write of each kept key") {
  const MethodContext site{.recorded = Dtype::kFp16,
                           .shape = {.n_heads = 8, .n_kv_heads = 2, .head_dim = 64},
                           .n_layers = 4};
  const auto plain = make_method({"knorm", {}, Budget{0, 100}}, 1000, site);
  const auto turned = make_method({"key-rerotation", {}, Budget{0, 100}}, 1000, site);
  const PrefillExtra a = plain->prefill_extra(0, site.shape, Dtype::kFp16, 1000);
  const PrefillExtra b = turned->prefill_extra(0, site.shape, Dtype::kFp16, 1000);
  CHECK(b.flops - a.flops == 2 * 100 * 3 * 64);
  CHECK(b.read - a.read == 2 * 100 * 64 * 2);
  CHECK(b.written - a.written == 2 * 100 * 64 * 2);
  CHECK(b.launches == a.launches + 1);
  CHECK(turned->needs().inputs.rope);
  CHECK(!as_composed(*turned).has_retained_mass());
  // Steps do not rotate.
  CHECK(turned->decode_traffic(0, site.shape, Dtype::kFp16, 120, false).rotated == 0);
  CHECK(turned->decode_traffic(0, site.shape, Dtype::kFp16, 120, false).extra_flops ==
        plain->decode_traffic(0, site.shape, Dtype::kFp16, 120, false).extra_flops);
  CHECK_THROWS_WITH_AS(
      (void)make_method({"key-rerotation+merge=zip", {}, Budget{0, 100}}, 1000, site),
      doctest::Contains("expected merge=drop"), InputError);
}

/// Finch's scores: attention rows of the last `question` tokens, each multiplied by the number of
/// preceding keys.
test::ReferenceScorer reference_finch(std::int64_t question, bool weighted) {
  return [=](const HeadVectors& head, const Ids& ids, std::int64_t tokens) {
    test::Scores all;
    for (const auto id : ids) {
      all[id] = id >= tokens - question ? std::numeric_limits<double>::infinity() : 0.0;
    }
    for (std::int32_t g = 0; g < head.group; ++g) {
      for (std::int64_t t = tokens - question; t < tokens; ++t) {
        const auto p = test::naive_attention(head, g, t, test::first_ids(t + 1));
        for (std::int64_t i = 0; i < tokens - question; ++i) {
          all[static_cast<std::int32_t>(i)] += p[static_cast<std::size_t>(i)] *
                                               (weighted ? static_cast<double>(t) : 1.0) /
                                               static_cast<double>(question * head.group);
        }
      }
    }
    return all;
  };
}

TEST_CASE("finch keeps a reference's entries, made up and recorded") {
  int compared = 0;
  const auto compare = [&](const HeadVectors& head, std::int64_t question, double ratio,
                           std::int64_t chunk, bool weighted) {
    const Params params{{"question", question},
                        {"ratio", ratio},
                        {"chunk_length", chunk},
                        {"normalize_scores", weighted}};
    const RotatedRun run{"finch", params, {}, head};
    const auto scores =
        reference_finch(question, weighted)(head, test::first_ids(head.prompt), head.prompt);
    Ids want;
    bool clear = true;
    const std::int64_t whole = chunk == 0 ? head.prompt : chunk;
    for (std::int64_t first = 0; first < head.prompt; first += whole) {
      test::Scores part;
      for (std::int64_t i = first; i < std::min(first + whole, head.prompt); ++i) {
        part[static_cast<std::int32_t>(i)] = scores.at(static_cast<std::int32_t>(i));
      }
      const auto n = static_cast<std::int64_t>(static_cast<double>(part.size()) * (1 - ratio));
      const Ids best = test::reference_top(part, std::max<std::int64_t>(n, 1), clear);
      want.insert(want.end(), best.begin(), best.end());
    }
    CHECK(std::ssize(want) == *run.method->entries_held(0, head.prompt, head.prompt));
    if (!clear) return;
    ++compared;
    CHECK(run.ids() == want);
  };
  const auto made_up = test::random_head(3, 8, 130, 130, 8);
  test::WholeTrace real{Trace::open(kSample)};
  for (const HeadVectors& head : {made_up.view, real.head(1, 0), real.head(4, 1)}) {
    for (const bool weighted : {true, false}) {
      compare(head, 9, 0.7, 0, weighted);
      compare(head, 1, 0.9, 0, weighted);
      compare(head, 9, 0.7, 40, weighted);
      compare(head, 12, 0.5, 33, weighted);
    }
  }
  CHECK(compared >= 20);  // out of 24
}

TEST_CASE("finch by hand: later rows of the question have larger weights") {
  // Keys 0, 0, 0, 0, 0 (one channel), a question of two tokens. With equal rows, position 3
  // contributes 1/4 with weight 3, position 4 contributes 1/5 with weight 4. Each earlier token has
  // (3/4 + 4/5) / 2. With a key of ln 3 at 1, its share is 1/2 from position 3 and 3/7 from
  // position 4.
  const std::vector<float> q{1, 1, 1, 1, 1};
  const std::vector<float> keys{0, static_cast<float>(std::log(3.0)), 0, 0, 0};
  const std::vector<float> values{1, 2, 3, 4, 5};
  const HeadVectors head{.q = q,
                         .keys = keys,
                         .values = values,
                         .group = 1,
                         .head_dim = 1,
                         .tokens = 5,
                         .prompt = 5,
                         .scale = 1};
  const test::SessionRun run{
      make_method({"finch",
                   {{"question", std::int64_t{2}}, {"positions", std::string{"original"}}},
                   Budget{0, 3}},
                  5, {.shape = {.n_heads = 1, .n_kv_heads = 1, .head_dim = 1}, .n_layers = 1}),
      head};
  CHECK(run.session.selector().score(1) == rel((3 * 0.5 + 4 * 3.0 / 7) / 2, 1e-6));
  CHECK(run.session.selector().score(0) == rel((3 / 6.0 + 4 / 7.0) / 2, 1e-6));
  const auto kept = run.session.entries().ids();
  CHECK(Ids{kept.begin(), kept.end()} == Ids{1, 3, 4});
}

TEST_CASE("finch's settings: the question fits, chunks are longer than it") {
  const MethodContext site{.shape = {.n_heads = 1, .n_kv_heads = 1, .head_dim = 8}, .n_layers = 1};
  const auto why = [&](const Params& params, std::optional<Budget> budget = {}) -> std::string {
    try {
      const auto method = make_method({"finch", params, budget}, 100, site);
      return std::to_string(param_integer(method->params(), "question"));
    } catch (const InputError& error) {
      return error.what();
    }
  };
  CHECK(why({{"ratio", 0.5}}) == "50");  // the default is reduced
  CHECK(why({{"ratio", 0.1}}) == "64");
  CHECK(why({{"ratio", 0.5}, {"question", std::int64_t{51}}}).find("expected at most the 50") !=
        std::string::npos);
  CHECK(why({{"ratio", 0.5}, {"question", std::int64_t{10}}, {"chunk_length", std::int64_t{20}}})
            .find("expected more than question / (1 - ratio) = 20 tokens") != std::string::npos);
  CHECK(why({{"chunk_length", std::int64_t{30}}}, Budget{0, 40}).find("no budget") !=
        std::string::npos);
}

TEST_CASE("prefill-decoding cuts the prompt by one scorer and steps by another") {
  int compared = 0;
  const auto compare = [&](const HeadVectors& head, std::int64_t entries, std::int64_t interval,
                           double target) {
    const Params params{{"prompt_scorer", std::string{"keydiff"}},
                        {"scorer", std::string{"knorm"}},
                        {"interval", interval},
                        {"target", target}};
    test::SessionRun run{
        make_method({"prefill-decoding", params, Budget{0, entries}}, head.prompt,
                    {.shape = {.n_heads = head.group, .n_kv_heads = 1, .head_dim = head.head_dim},
                     .n_layers = 1}),
        head};
    bool clear = true;
    Ids ids = test::reference_top(
        test::reference_keydiff(head, test::first_ids(head.prompt), head.prompt), entries, clear);
    for (std::int64_t t = head.prompt; t < head.tokens && clear; ++t) {
      run.step(t);
      ids.push_back(static_cast<std::int32_t>(t));
      const auto kept = target < 1 ? static_cast<std::int64_t>(target * static_cast<double>(t + 1))
                                   : static_cast<std::int64_t>(target);
      if ((t + 1 - head.prompt) % interval == 0 && std::ssize(ids) > kept) {
        ids = test::reference_top(test::reference_knorm(head, ids, t + 1), kept, clear);
      }
      if (!clear) break;
      Ids held{run.session.entries().ids().begin(), run.session.entries().ids().end()};
      std::sort(held.begin(), held.end());
      REQUIRE(held == ids);
      REQUIRE(std::ssize(held) == *run.method->entries_held(0, head.prompt, t + 1));
      ++compared;
    }
  };
  const auto made_up = test::random_head(2, 8, 160, 90, 6);
  compare(made_up.view, 30, 10, 20);
  compare(made_up.view, 30, 10, 60);
  compare(made_up.view, 90, 7, 0.3);
  const test::WholeTrace real{Trace::open(kSample)};
  compare(real.head(3, 1), 120, 25, 100);
  CHECK(compared > 300);
  // The whole prompt and the same scorer: equal to the method "decoding".
  const HeadVectors& head = made_up.view;
  const MethodContext site{
      .shape = {.n_heads = head.group, .n_kv_heads = 1, .head_dim = head.head_dim}, .n_layers = 1};
  const Params often{{"interval", std::int64_t{16}}, {"target", 50.0}};
  test::SessionRun both{make_method({"prefill-decoding", often, {}}, head.prompt, site), head};
  test::SessionRun steps{make_method({"decoding", often, {}}, head.prompt, site), head};
  both.to_the_end();
  steps.to_the_end();
  CHECK(std::ranges::equal(both.session.entries().ids(), steps.session.entries().ids()));
}

TEST_CASE("the wrappers follow their laws on a real trace") {
  const Trace trace = Trace::open(kSample);
  const auto result = replay(
      trace,
      {{"finch", {{"question", std::int64_t{20}}}, Budget{0.3, 0}},
       {"key-rerotation", {}, Budget{0.3, 0}},
       {"knorm", {}, Budget{0.3, 0}},
       {"prefill-decoding", {{"interval", std::int64_t{20}}, {"target", 60.0}}, Budget{0.3, 0}},
       {"adakv", kRerotate, Budget{0.3, 0}}},
      {});
  for (const ReplayMethod& m : result.methods) {
    INFO(m.name);
    if (m.closed_form_bytes_final) CHECK(m.bytes_held_final == *m.closed_form_bytes_final);
    CHECK(m.rel_error_mean > 0);
  }
  CHECK(result.methods[1].bytes_held_final == result.methods[2].bytes_held_final);
  CHECK(result.methods[1].rel_error_mean != result.methods[2].rel_error_mean);
  CHECK(!result.methods[1].retained_mass_mean);
  CHECK(result.methods[2].retained_mass_mean);
}

}  // namespace
}  // namespace kvsim
