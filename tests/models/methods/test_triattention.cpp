// TriAttention: scores by hand and compared with a reference, rounds, sizes, costs and refusals.

#include <cmath>
#include <set>
#include <string>

#include "models/math/attention/frequency_scores.hpp"
#include "models/methods/params.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_content.hpp"
#include "tests/support/reference/reference_learned.hpp"
#include "tests/support/session_run.hpp"

namespace kvsim {
namespace {

using test::Ids;
using test::rel;

std::shared_ptr<const Method> resolved(const Params& params, std::int64_t prompt,
                                       const std::string& name = "triattention",
                                       std::optional<Budget> budget = {}) {
  return make_method({name, params, budget}, prompt,
                     {.recorded = Dtype::kFp16,
                      .shape = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 8},
                      .windows = {},
                      .n_layers = 1});
}

/// A session of one head with a rope.
struct Run {
  Run(const Params& params, const HeadVectors& one, const Rope& rope)
      : method{resolved(params, one.prompt)},
        session{as_composed(*method),
                {.layer = 0,
                 .group = one.group,
                 .head_dim = one.head_dim,
                 .tokens = static_cast<std::int32_t>(one.tokens),
                 .scale = one.scale,
                 .rope = &rope},
                {one}},
        scores{one} {
    session.learn(scores);
    session.prefill(scores, {.entries = *as_composed(*method).parts().budget->entries(0)});
  }
  [[nodiscard]] Ids kept() const {
    Ids ids;
    for (const auto& members : session.kept()) ids.push_back(members.front());
    return ids;
  }
  std::shared_ptr<const Method> method;
  CacheSession session;
  PromptScores scores;
};

TEST_CASE("triattention by hand: two frequencies, and one") {
  // Angles 1 and 0.1 per position (theta = 100 at d = 4), mean queries 1 + 0.5i and -0.5 + 0.25i,
  // mean magnitudes 1.5 and 1; keys at position 10, scored at 100 tokens.
  const Rope rope{4, 100, false};
  const FrequencyStats stats{{1, -0.5}, {0.5, 0.25}, {1.5, 1}};
  std::vector<float> keys{0.6F, -0.2F, 0.3F, 0.9F, -0.4F, 0.7F, 1.0F, 0.1F};
  for (const std::size_t k : {std::size_t{0}, std::size_t{1}}) {
    rope.rotate(std::span{keys}.subspan(4 * k, 4), 10);
  }
  const auto mean = frequency_scores(stats, keys, 100, false, rope);
  CHECK(mean[0] == rel(0.533962, 1e-5));
  CHECK(mean[1] == rel(0.7883002, 1e-5));
  const auto max = frequency_scores(stats, keys, 100, true, rope);
  CHECK(max[0] == rel(1.699086, 1e-5));
  CHECK(max[1] == rel(2.312667, 1e-5));

  // One frequency: |m| |k| times the mean of cos(tokens - p + o), and (a - |m|) |k|.
  const Rope one{2, 10000, true};
  std::vector<float> key{2, 0};
  one.rotate(key, 3);
  double sum = 0;
  for (std::int64_t o = 1; o <= 65536; o *= 2) sum += std::cos(static_cast<double>(20 - 3 + o));
  CHECK(frequency_scores({{3}, {0}, {5}}, key, 20, false, one)[0] ==
        rel(3 * 2 * sum / 17 + (5 - 3) * 2, 1e-6));

  // Queries of 3 + 4i and 3 - 4i before RoPE: mean 3, mean magnitude 5.
  std::vector<float> q{3, 4, 3, -4};
  one.rotate(std::span{q}.subspan(2, 2), 1);
  const FrequencyStats of = frequency_stats(q, one);
  CHECK(of.real[0] == rel(3, 1e-6));
  CHECK(std::abs(of.imaginary[0]) < 1e-6);
  CHECK(of.magnitude[0] == rel(5, 1e-6));
}

struct Shape {
  std::int32_t group, d;
  std::int64_t prompt, steps;
};

TEST_CASE("triattention keeps a reference's entries, made up and recorded") {
  int compared = 0;
  const auto compare = [&](const HeadVectors& head, double theta, bool interleaved) {
    const Rope rope{head.head_dim, theta, interleaved};
    for (const std::string of_prompt : {"on_top", "counted", "cut"}) {
      for (const bool slack : {false, true}) {
        for (const bool plain : {false, true}) {
          const std::int64_t window = of_prompt == "cut" ? 5 : 0;
          const std::int64_t limit = of_prompt == "counted" ? head.prompt + 12 : 20;
          const std::int64_t capacity = of_prompt == "on_top" ? head.prompt + limit : limit;
          Run run{{{"limit", limit},
                   {"interval", std::int64_t{8}},
                   {"trigger", std::string{slack ? "slack" : "multiple"}},
                   {"prompt_tokens", of_prompt},
                   {"window", window},
                   {"normalize", !plain},
                   {"heads", std::string{plain ? "mean" : "max"}},
                   {"offsets", std::string{plain ? "max" : "mean"}}},
                  head,
                  rope};
          const test::ReferenceTri set{.theta = theta,
                                       .interleaved = interleaved,
                                       .normalize = !plain,
                                       .group_mean = plain,
                                       .farthest = plain};
          Ids ids = test::first_ids(head.prompt);
          bool clear = true;
          for (std::int64_t t = head.prompt; t < head.tokens && clear; ++t) {
            ids.push_back(static_cast<std::int32_t>(t));
            const std::int64_t n = std::ssize(ids);
            if (slack ? n >= capacity + 8 : n >= capacity && (t + 1) % 8 == 0) {
              const std::int64_t fixed = of_prompt == "cut" ? 0 : head.prompt;
              Ids whole, free;
              for (const auto id : ids) (id < fixed ? whole : free).push_back(id);
              test::Scores all = test::reference_triattention(set, head, free, t + 1);
              for (auto& [id, x] : all) {
                if (id > t - window) x = std::numeric_limits<double>::infinity();
              }
              Ids top = test::reference_top(all, capacity - std::ssize(whole), clear);
              ids = whole;
              ids.insert(ids.end(), top.begin(), top.end());
            }
            if (!clear) break;
            run.session.step();
            ++compared;
            REQUIRE(run.kept() == ids);
            REQUIRE(run.session.events().attended ==
                    static_cast<double>(*run.method->entries_attended(0, head.prompt, t + 1)));
            REQUIRE(std::ssize(ids) == *run.method->entries_held(0, head.prompt, t + 1));
          }
        }
      }
    }
  };
  for (const Shape& shape :
       std::vector<Shape>{{1, 8, 1, 70}, {2, 8, 31, 60}, {4, 16, 40, 50}, {2, 6, 64, 3}}) {
    const auto owned =
        test::random_head(shape.group, shape.d, shape.prompt + shape.steps, shape.prompt, 11);
    compare(owned.view, 10000, shape.group % 2 == 0);
  }
  const test::WholeTrace real{
      Trace::open(KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors")};
  for (const std::int32_t layer : {0, 5}) {
    HeadVectors head = real.head(layer, 1);
    compare(head, 10000, true);
  }
  CHECK(compared > 3000);
}

TEST_CASE("sizes of triattention by hand, and a limit that is never reached keeps the full cache") {
  const auto on_top = resolved({{"limit", std::int64_t{64}}, {"interval", std::int64_t{32}}}, 100);
  // 100 + 64 = 164 entries: the next multiple of 32 is 192, with 28 too many.
  for (const auto& [tokens, want] : std::map<std::int64_t, std::int64_t>{
           {100, 100}, {164, 164}, {191, 191}, {192, 164}, {223, 195}, {224, 164}}) {
    CHECK(*on_top->entries_held(0, 100, tokens) == want);
  }
  CHECK(*on_top->entries_attended(0, 100, 192) == 192);
  const auto slack = resolved({{"limit", std::int64_t{64}},
                               {"interval", std::int64_t{32}},
                               {"trigger", std::string{"slack"}}},
                              100);
  for (const auto& [tokens, want] :
       std::map<std::int64_t, std::int64_t>{{195, 195}, {196, 164}, {227, 195}, {228, 164}}) {
    CHECK(*slack->entries_held(0, 100, tokens) == want);
  }
  // A prompt above the limit is cut in the first round.
  const auto cut = resolved({{"limit", std::int64_t{64}},
                             {"interval", std::int64_t{32}},
                             {"prompt_tokens", std::string{"cut"}}},
                            96);
  CHECK(*cut->entries_held(0, 96, 96) == 96);
  CHECK(*cut->entries_held(0, 96, 127) == 127);
  CHECK(*cut->entries_held(0, 96, 128) == 64);
  for (std::int64_t t = 101; t < 600; ++t) {
    CHECK(*on_top->entries_held(0, 100, t) <= 100 + 64 + 32);
    CHECK(*resolved({}, 100)->entries_held(0, 100, t) == t);  // a limit of 2048 in addition
  }
}

TEST_CASE("a round of triattention reads the candidates' keys and moves the survivors") {
  const auto method = resolved({}, 300);
  const ComposedMethod& composed = as_composed(*method);
  const HeadShape shape{
      .group = 2, .head_dim = 8, .recorded = Dtype::kFp16, .stored = Dtype::kFp16};
  const StepTraffic quiet = composed.head_traffic(0, {.attended = 100, .prompt = 40}, shape);
  CHECK(quiet.move_read == 0);
  CHECK(quiet.extra_flops == 0);
  CHECK(quiet.side_read == 0);
  const StepTraffic due =
      composed.head_traffic(0, {.attended = 100, .left = 20, .prompt = 40}, shape);
  CHECK(due.move_read == 80 * 2 * 8 * 2);
  // 60 keys of 8 numbers in fp16; three means of 4 pairs for 2 query heads in fp32.
  CHECK(due.side_read == 60 * 8 * 2 + 3 * 4 * 2 * 4);
  CHECK(composed.parts().select->side_bytes(5, shape) == Bytes{96});
  CHECK(due.extra_flops == 60 * (3 * 8 + 2 * 14 * 4));
}

TEST_CASE("triattention refuses settings that leave no tokens to choose from") {
  const auto why = [](const Params& params, const std::string& name = "triattention",
                      std::optional<Budget> budget = {}) -> std::string {
    try {
      (void)resolved(params, 100, name, budget);
    } catch (const InputError& error) {
      return error.what();
    }
    return "made";
  };
  const auto has = [](const std::string& text, const char* part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  has(why({}, "triattention", Budget{0.2, 0}), "takes no budget");
  has(why({}, "triattention+budget=uniform"), "budget=none");
  has(why({{"limit", std::int64_t{100}}, {"prompt_tokens", std::string{"counted"}}}),
      "100 of them for the prompt");
  has(why({{"limit", std::int64_t{8}}, {"window", std::int64_t{8}}}), "window of 8");
  has(why({{"limit", std::int64_t{0}}}), ">= 1");
  has(why({{"trigger", std::string{"never"}}}), "multiple, slack");
  CHECK(why({{"kv_budget", std::int64_t{32}}}) == "made");
}

}  // namespace
}  // namespace kvsim
