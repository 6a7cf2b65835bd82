// Oracles, delayed judgements, recorded decisions and nested layers: their laws, and each compared
// with a reference, on made-up heads, generated traces and traces of a trained model.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include <unistd.h>

#include "models/math/attention/repeat_scores.hpp"
#include "models/methods/budget/nested.hpp"
#include "models/methods/params.hpp"
#include "models/methods/session/session.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_learned.hpp"
#include "tests/support/scratch.hpp"
#include "traces/safetensors.hpp"
#include "traces/synthetic/generate.hpp"
#include "traces/trace_writer.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Trace generated(std::int32_t heads, std::int32_t kv_heads, std::int64_t prompt,
                std::uint64_t seed = 1) {
  const fs::path path = test::scratch_folder() / fmt::format("learned-{}.safetensors", ::getpid());
  GenerateOptions options;
  options.layers = 2;
  options.heads = heads;
  options.kv_heads = kv_heads;
  options.head_dim = 16;
  options.tokens = 2 * prompt + 1;
  options.prompt_tokens = prompt;
  options.d_model = 48;
  options.seed = seed;
  options.with_hidden = options.with_output_projection = true;
  options.with_repeat = options.with_scores = options.with_decisions = true;
  generate_trace(options, path);
  Trace trace = Trace::open(path);
  fs::remove(path);  // stays mapped
  return trace;
}

fs::path sample_path() {
  return fs::path{KVSIM_SOURCE_DIR} / "traces/samples/books-treasure-512.safetensors";
}
Trace recorded_sample() { return Trace::open(sample_path()); }

ReplayMethod run(const Trace& trace, const std::string& name, Params params = {},
                 std::optional<Budget> budget = {}) {
  ReplayOptions options;
  options.kept_positions = true;
  options.per_step = true;
  return replay(trace, {{.name = name, .params = std::move(params), .budget = budget}}, options)
      .methods.front();
}

std::set<std::int32_t> kept_of(const ReplayMethod& method, std::int32_t layer, std::int32_t head) {
  std::set<std::int32_t> all;
  for (const auto& entry :
       method.kept[static_cast<std::size_t>(layer)][static_cast<std::size_t>(head)]) {
    all.insert(entry.begin(), entry.end());
  }
  return all;
}

using Who = std::tuple<std::int32_t, std::int32_t, std::int32_t>;

/// KVzip's kept sets compared with the reference, over all layers or layer by layer.
void check_repeat(const Trace& trace, bool plus, const std::string& level, double ratio,
                  std::int64_t chunk, std::int64_t sinks) {
  const test::WholeTrace whole{trace};
  const TraceInfo& info = trace.info();
  const ReplayMethod got =
      run(trace, plus ? "kvzip-plus" : "kvzip",
          {{"ratio", ratio}, {"chunk", chunk}, {"n_sink", sinks}, {"level", level}});
  std::map<Who, double> scores;
  std::vector<std::map<Who, double>> by_layer(static_cast<std::size_t>(info.n_layers));
  for (std::int32_t l = 0; l < info.n_layers; ++l) {
    for (std::int32_t h = 0; h < info.n_kv_heads; ++h) {
      for (const auto& [i, x] : test::reference_repeat_scores(whole, l, h, chunk, sinks, plus)) {
        if (!plus) CHECK((x >= 0 && x <= 1));
        if (i < sinks) continue;
        scores[{l, h, i}] = x;
        by_layer[static_cast<std::size_t>(l)][{l, h, i}] = x;
      }
    }
  }
  const auto all = info.n_kv_heads * info.prompt_tokens;
  std::vector<test::ReferenceCut> cuts;
  if (level == "pair") {
    cuts.push_back(test::reference_global_cut(
        scores, static_cast<std::int64_t>(static_cast<double>(all * info.n_layers) * ratio)));
  } else {
    for (const auto& one : by_layer) {
      cuts.push_back(test::reference_global_cut(
          one, static_cast<std::int64_t>(static_cast<double>(all) * ratio)));
    }
  }
  for (std::int32_t l = 0; l < info.n_layers; ++l) {
    const auto& cut = cuts[level == "pair" ? 0 : static_cast<std::size_t>(l)];
    REQUIRE(cut.clear);
    for (std::int32_t h = 0; h < info.n_kv_heads; ++h) {
      const std::set<std::int32_t> kept = kept_of(got, l, h);
      for (std::int32_t i = 0; i < info.tokens; ++i) {
        REQUIRE(kept.contains(i) == !cut.gone.contains({l, h, i}));
      }
    }
    // Decoding drops no entry: after each step a layer holds the kept entries of its prompt and the
    // new entries.
    const auto& series = got.layer_series[static_cast<std::size_t>(l)];
    REQUIRE(std::ssize(series) == info.tokens - info.prompt_tokens);
    std::int64_t left = all;
    for (const auto& who : cut.gone) left -= std::get<0>(who) == l ? 1 : 0;
    for (const ReplayStep& step : series) {
      REQUIRE(step.entries_held == left + info.n_kv_heads * (step.tokens - info.prompt_tokens));
    }
  }
}

/// The shipped trace with its second half used as a repeat of its first, and a made-up W_O:
/// recorded vectors from any source are suitable.
Trace sample_as_repeat() {
  const Safetensors file = Safetensors::open(sample_path());
  auto metadata = file.metadata();
  metadata["prompt_len"] = "255";
  metadata["repeat_start"] = "257";
  metadata["repeat_len"] = "254";
  const TraceInfo info = Trace::open(sample_path()).info();
  const auto columns = static_cast<std::int64_t>(info.n_heads * info.head_dim);
  std::vector<TensorPlan> plan;
  for (const auto& [name, entry] : file.tensors()) plan.push_back({name, entry.type, entry.shape});
  for (std::int32_t l = 0; l < info.n_layers; ++l) {
    plan.push_back({fmt::format("layers.{}.wo", l), TensorType::kF32, {info.d_model, columns}});
  }
  const fs::path path =
      test::scratch_folder() / fmt::format("as-repeat-{}.safetensors", ::getpid());
  SafetensorsWriter writer{path, plan, metadata};
  test::Normal normal{23};
  for (const TensorPlan& tensor : plan) {
    std::int64_t elements = 1;
    for (const std::int64_t n : tensor.shape) elements *= n;
    const TensorEntry* entry = file.find(tensor.name);
    if (tensor.type == TensorType::kI32) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(elements));
      std::memcpy(ids.data(), file.bytes(*entry).data(), file.bytes(*entry).size());
      writer.write(std::span<const std::int32_t>{ids});
      continue;
    }
    std::vector<float> values(static_cast<std::size_t>(elements));
    if (entry != nullptr) {
      file.read_floats(tensor.name, 0, values);
    } else {
      for (float& x : values) x = static_cast<float>(normal());
    }
    writer.write(std::span<const float>{values});
  }
  writer.finish();
  Trace trace = Trace::open(path);
  fs::remove(path);  // stays mapped
  return trace;
}

TEST_CASE("KVzip and KVzip+ equal references on recorded vectors at every step") {
  const Trace trace = sample_as_repeat();
  for (const bool plus : {false, true}) {
    INFO("plus ", plus);
    check_repeat(trace, plus, "pair", 0.7, 2048, 4);
    check_repeat(trace, plus, "layerwise", 0.5, 100, 4);
    check_repeat(trace, plus, "pair", 0.9, 31, 0);
  }
}

TEST_CASE("KVzip and KVzip+ keep the same entries as references") {
  struct Shape {
    std::int32_t heads, kv_heads;
  };
  for (const Shape shape : {Shape{6, 2}, Shape{3, 3}, Shape{4, 1}}) {
    const Trace trace = generated(shape.heads, shape.kv_heads, 41, 7);
    for (const bool plus : {false, true}) {
      for (const char* level : {"pair", "layerwise"}) {
        INFO(shape.heads, "/", shape.kv_heads, plus ? " plus " : " ", level);
        check_repeat(trace, plus, level, 0.6, 2048, 4);
        check_repeat(trace, plus, level, 0.35, 7, 2);
      }
    }
  }
}

TEST_CASE("KVzip and KVzip+ keep the same entries as references on a trained model's repeat") {
  const auto data = test::data_dir();
  if (!data) return;
  const Trace trace = Trace::open(*data / "attention/books-alice-repeat-960.safetensors");
  check_repeat(trace, false, "pair", 0.7, 2048, 4);
  check_repeat(trace, false, "layerwise", 0.5, 100, 4);
  check_repeat(trace, true, "pair", 0.7, 2048, 4);
}

TEST_CASE("V6: KVzip keeps exactly L Hkv s - int(L Hkv s ratio) and ratio 0 is the full cache") {
  const Trace trace = generated(4, 2, 60);
  const std::int64_t all = 2 * 2 * 60;
  for (const double ratio : {0.0, 0.1, 0.5, 0.7, 0.9, 0.95}) {
    INFO(ratio);
    const ReplayMethod got = run(trace, "kvzip", {{"ratio", ratio}});
    const auto gone = static_cast<std::int64_t>(static_cast<double>(all) * ratio);
    CHECK(got.entries_held_final == all - gone + 4 * got.steps);
    if (ratio == 0.0) CHECK(got.rel_error_mean < 1e-5);
  }
  // The released code's truncation: int(5760 * 0.7) is 4031.
  CHECK(static_cast<std::int64_t>(5760 * 0.7) == 4031);
  const ReplayMethod tenth = run(trace, "kvzip", {}, Budget{.fraction = 0.1, .entries = 0});
  CHECK(tenth.entries_held_final == all - static_cast<std::int64_t>(240 * (1.0 - 0.1)) + 4 * 61);
  const ReplayMethod five = run(trace, "kvzip", {}, Budget{.fraction = 0, .entries = 5});
  CHECK(five.entries_held_final == 20 + 4 * 61);
}

TEST_CASE("a head may lose all prompt tokens and decoding continues") {
  const Trace trace = generated(4, 4, 50, 3);
  const ReplayMethod got = run(
      trace, "kvzip", {{"ratio", 0.97}, {"n_sink", std::int64_t{0}}, {"protect_prefix", false}});
  std::int32_t empty = 0;
  for (std::int32_t l = 0; l < 2; ++l) {
    for (std::int32_t h = 0; h < 4; ++h) empty += *kept_of(got, l, h).begin() >= 50 ? 1 : 0;
  }
  CHECK(empty > 0);
  CHECK(std::isfinite(got.rel_error_mean));
  CHECK(got.entries_held_final == 400 - 388 + 8 * 51);
  // This also holds after rounding.
  const ReplayMethod merged = run(trace, "kvzip+store=fp16", {{"ratio", 0.97}});
  CHECK(std::isfinite(merged.rel_error_mean));
}

TEST_CASE("stored scores rank unchanged and sinks stay") {
  const Trace trace = generated(6, 2, 40);
  const ReplayMethod got =
      run(trace, "kvzip", {{"kvzip_source", std::string{"trace"}}, {"ratio", 0.8}});
  std::map<Who, double> scores;
  for (std::int32_t l = 0; l < 2; ++l) {
    const auto stored = trace.read_per_head(l, "score.kvzip");
    for (std::int32_t i = 4; i < 40; ++i) {
      for (std::int32_t h = 0; h < 2; ++h) {
        scores[{l, h, i}] = static_cast<double>(stored[static_cast<std::size_t>(2 * i + h)]);
      }
    }
  }
  const auto cut = test::reference_global_cut(scores, 128);
  REQUIRE(cut.clear);
  for (std::int32_t l = 0; l < 2; ++l) {
    for (std::int32_t h = 0; h < 2; ++h) {
      const auto kept = kept_of(got, l, h);
      for (std::int32_t i = 0; i < 40; ++i) {
        CHECK(kept.contains(i) == !cut.gone.contains({l, h, i}));
      }
    }
  }
}

/// One head with recorded numbers, processed step by step.
struct LayerRun {
  LayerRun(const std::string& name, const HeadVectors& head, const Params& params,
           std::map<std::string, std::span<const float>> per_head)
      : method{make_method(
            {name, params, {}}, head.prompt,
            {.recorded = Dtype::kFp32,
             .shape = {.n_heads = head.group, .n_kv_heads = 1, .head_dim = head.head_dim},
             .windows = {},
             .n_layers = 1,
             .d_model = 0})},
        session{as_composed(*method),
                {.layer = 0,
                 .group = head.group,
                 .head_dim = head.head_dim,
                 .tokens = static_cast<std::int32_t>(head.tokens),
                 .scale = head.scale},
                {head}} {
    layer.heads = {head};
    layer.per_head = std::move(per_head);
    PromptScores scores{{head}, 0, layer};
    session.learn(scores);
    session.prefill(scores, {.entries = *as_composed(*method).parts().budget->entries(0)});
  }
  std::set<std::int32_t> ids() const {
    const auto all = session.entries().ids();
    return {all.begin(), all.end()};
  }
  LayerVectors layer;
  std::shared_ptr<const Method> method;
  CacheSession session;
};

std::vector<float> random_column(std::int64_t n, std::uint64_t seed) {
  test::Normal normal{seed};
  std::vector<float> all;
  for (std::int64_t i = 0; i < n; ++i) all.push_back(static_cast<float>(normal()));
  return all;
}

TEST_CASE("V1 V2 V3 V5: a token is scored once, when it leaves the window") {
  struct Size {
    std::int64_t prompt, tokens, window;
  };
  for (const Size size : {Size{1, 31, 8}, Size{31, 257, 16}, Size{100, 140, 128}, Size{9, 9, 3},
                          Size{20, 50, 0}, Size{16, 40, 16}}) {
    const auto head = test::random_head(2, 8, size.tokens, size.prompt);
    const auto g = random_column(size.tokens, 5);
    std::set<std::int32_t> looser;
    for (const double tau : {-kInfinity, -0.5, 0.3, 1.0, kInfinity}) {
      INFO(size.prompt, " of ", size.tokens, " window ", size.window, " tau ", tau);
      LayerRun one{
          "kvzap",
          head.view,
          {{"threshold", tau}, {"window", size.window}, {"kvzap_source", std::string{"trace"}}},
          {{"score.kvzap", g}}};
      std::set<std::int32_t> before;
      for (std::int64_t t = size.prompt; t <= size.tokens; ++t) {
        if (t > size.prompt) one.session.step();
        std::set<std::int32_t> want;
        for (std::int32_t i = 0; i < t; ++i) {
          if (i >= t - size.window || static_cast<double>(g[static_cast<std::size_t>(i)]) >= tau) {
            want.insert(i);
          }
        }
        REQUIRE(one.ids() == want);
        if (t > size.prompt) {
          for (const std::int32_t i : want) REQUIRE((i == t - 1 || before.contains(i)));
        }
        if (const auto law = one.method->entries_held(0, size.prompt, t)) {
          REQUIRE(*law == std::ssize(want));
        }
        before = want;
      }
      if (tau > -kInfinity) {
        CHECK(std::includes(looser.begin(), looser.end(), before.begin(), before.end()));
      } else {
        CHECK(std::ssize(before) == size.tokens);
      }
      if (tau == kInfinity) {
        CHECK(std::ssize(before) == std::min(size.tokens, size.window));
      }
      looser = before;
    }
  }
}

TEST_CASE("V4: a prompt of T tokens and a shorter prompt with decode steps end in the same state") {
  const auto g = random_column(90, 9);
  std::set<std::set<std::int32_t>> ends;
  for (const std::int64_t prompt : {1, 10, 11, 45, 90}) {
    const auto head = test::random_head(1, 8, 90, prompt);
    LayerRun one{
        "kvzap",
        head.view,
        {{"threshold", 0.2}, {"window", std::int64_t{11}}, {"kvzap_source", std::string{"trace"}}},
        {{"score.kvzap", g}}};
    for (std::int64_t t = prompt; t < 90; ++t) one.session.step();
    ends.insert(one.ids());
  }
  CHECK(ends.size() == 1);
}

TEST_CASE("without decoding no token is dropped after the prompt") {
  const auto head = test::random_head(1, 8, 60, 30);
  const auto g = random_column(60, 2);
  LayerRun one{"kvzap",
               head.view,
               {{"threshold", kInfinity},
                {"window", std::int64_t{5}},
                {"decoding", false},
                {"kvzap_source", std::string{"trace"}}},
               {{"score.kvzap", g}}};
  CHECK(one.session.entries().size() == 5);
  for (int i = 0; i < 30; ++i) one.session.step();
  CHECK(one.session.entries().size() == 35);
}

TEST_CASE("KVzap's threshold is solved for a budget over the whole model") {
  const Trace trace = generated(6, 2, 101);
  for (const double budget : {0.25, 0.5, 0.8, 1.0}) {
    INFO(budget);
    for (const char* source : {"trace", "oracle"}) {
      const ReplayMethod got =
          run(trace, "kvzap", {{"window", std::int64_t{16}}, {"kvzap_source", std::string{source}}},
              Budget{.fraction = budget, .entries = 0});
      REQUIRE(got.budget_reached);
      CHECK(*got.budget_reached <= budget);
      CHECK(*got.budget_reached > budget - 1.01 / (4 * 101));
    }
  }
  CHECK_THROWS_WITH_AS(run(trace, "kvzap", {{"kvzap_source", std::string{"trace"}}},
                           Budget{.fraction = 0.2, .entries = 0}),
                       doctest::Contains("less than its window"), InputError);
}

TEST_CASE("the oracle's log scores cover the whole sequence and ignore unscored tokens") {
  const Trace trace = generated(4, 2, 40, 5);
  const test::WholeTrace whole{trace};
  const double tau = -3.5;
  const ReplayMethod got = run(
      trace, "kvzap",
      {{"kvzap_source", std::string{"oracle"}}, {"threshold", tau}, {"window", std::int64_t{8}}});
  std::int32_t dropped = 0;
  for (std::int32_t l = 0; l < 2; ++l) {
    const auto& wo = whole.wo[static_cast<std::size_t>(l)];
    const auto& hidden = whole.hidden[static_cast<std::size_t>(l)];
    for (std::int32_t h = 0; h < 2; ++h) {
      const HeadVectors head = whole.head(l, h);
      const auto norms = projected_value_norms(head.values, 40, 16, 2, wo, 64, h * 32);
      std::vector<double> best(40, 0.0);
      for (std::int32_t t = 42; t < 81; ++t) {
        std::vector<std::int32_t> seen(static_cast<std::size_t>(t + 1));
        std::iota(seen.begin(), seen.end(), 0);
        const double receiving = row_norms(hidden, 48, t, 1).front();
        for (std::int32_t g = 0; g < 2; ++g) {
          const auto p = test::naive_attention(head, g, t, seen);
          for (std::size_t i = 0; i < 40; ++i) {
            best[i] =
                std::max(best[i], p[i] * norms[static_cast<std::size_t>(g) * 40 + i] / receiving);
          }
        }
      }
      const auto kept = kept_of(got, l, h);
      for (std::int32_t i = 0; i < 81; ++i) {
        const bool low = i < 40 && std::log(best[static_cast<std::size_t>(i)]) < tau;
        CHECK(kept.contains(i) == !low);
        dropped += low ? 1 : 0;
      }
    }
  }
  CHECK(dropped > 0);
}

TEST_CASE("DMS drops tokens by their bits, a window later") {
  const Trace trace = generated(6, 2, 60);
  const ReplayMethod got = run(trace, "dms", {{"window", std::int64_t{20}}});
  for (std::int32_t l = 0; l < 2; ++l) {
    const auto evict = trace.read_per_head(l, "decision.evict");
    for (std::int32_t h = 0; h < 2; ++h) {
      const auto kept = kept_of(got, l, h);
      for (std::int32_t i = 0; i < 121; ++i) {
        const bool stays = i >= 101 || evict[static_cast<std::size_t>(2 * i + h)] < 0.5F;
        CHECK(kept.contains(i) == stays);
      }
    }
  }
}

TEST_CASE("DMC accumulates like a reference, and without accumulation it equals the full cache") {
  for (const std::int64_t tokens : {1, 31, 257}) {
    for (const std::int64_t prompt : {std::int64_t{1}, (tokens + 1) / 2, tokens}) {
      for (const double share : {0.0, 0.4, 1.0}) {
        INFO(prompt, " of ", tokens, ", accumulated ", share);
        const auto head = test::random_head(2, 8, tokens, prompt);
        std::mt19937_64 draw{11};
        std::vector<float> alpha, omega;
        for (std::int64_t i = 0; i < tokens; ++i) {
          alpha.push_back(static_cast<double>(draw() % 1000) < 1000 * share ? 1.0F : 0.0F);
          omega.push_back(static_cast<float>(1 + draw() % 100) / 100.0F);
        }
        LayerRun one{"dmc", head.view, {}, {{"decision.alpha", alpha}, {"decision.omega", omega}}};
        test::ReferenceDmc reference;
        for (std::int64_t t = 0; t < tokens; ++t) {
          const auto at = static_cast<std::size_t>(t);
          reference.feed(static_cast<std::int32_t>(t), static_cast<double>(alpha[at]),
                         static_cast<double>(omega[at]));
          if (t >= prompt) one.session.step();
          if (t + 1 < prompt) continue;
          const EntryTable& entries = one.session.entries();
          REQUIRE(entries.size() == std::ssize(reference.entries));
          // The newest token is added to the cache before it attends.
          if (t >= prompt) REQUIRE(one.session.events().attended == entries.size());
          const auto& last = reference.entries.back();
          const std::int32_t slot = entries.slot_of(last.members.front());
          REQUIRE(entries.members(slot) == last.members);
          const auto key = test::ReferenceDmc::mean(last, head.view.keys, 8, omega);
          const auto value = test::ReferenceDmc::mean(last, head.view.values, 8, omega);
          for (std::size_t j = 0; j < 8; ++j) {
            REQUIRE(std::abs(static_cast<double>(entries.key(slot)[j]) - key[j]) < 1e-5);
            REQUIRE(std::abs(static_cast<double>(entries.value(slot)[j]) - value[j]) < 1e-5);
          }
        }
        if (share == 0.0) CHECK(one.session.entries().size() == tokens);
        if (share == 1.0) CHECK(one.session.entries().size() == 1);
      }
    }
  }
}

TEST_CASE("PyramidInfer's worked example: 4096, 3985, 3313, 1541 at layers 0, 8, 16, 31") {
  const auto lengths =
      nested_lengths({.recent = static_cast<std::int64_t>(0.2 * 4096) + 1}, 4096, 32);
  CHECK(lengths[0] == 4096);
  CHECK(lengths[8] == 3985);
  CHECK(lengths[16] == 3313);
  CHECK(lengths[31] == 1541);
  const double sum = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), 0LL));
  CHECK(sum / 32 / 4096 == test::rel(0.766, 1e-3));
  // Kept of 16 generated tokens: 14 in the first layer, 1 in the last.
  CHECK(static_cast<int>(16 * 0.9 * cosine_share(0, 32, 0.1)) == 14);
  CHECK(static_cast<int>(16 * 0.9 * cosine_share(31, 32, 0.1)) == 1);
}

void check_pyramid(const Trace& trace, const Params& params) {
  const test::WholeTrace whole{trace};
  const TraceInfo& info = trace.info();
  const ReplayMethod got = run(trace, "pyramidinfer", params);
  const auto recent = param_integer(got.params, "recent_tokens");
  const auto min_context = param_integer(got.params, "min_context");
  const auto lengths = nested_lengths({.shape = param_word(got.params, "schedule"),
                                       .delta = param_number(got.params, "delta"),
                                       .recent = recent,
                                       .min_context = min_context},
                                      info.prompt_tokens, info.n_layers);
  std::set<std::int32_t> alive;
  for (std::int32_t i = 0; i < info.prompt_tokens; ++i) alive.insert(i);
  bool clear = true;
  for (std::int32_t l = 0; l < info.n_layers && clear; ++l) {
    INFO("layer ", l);
    REQUIRE(std::ssize(alive) == lengths[static_cast<std::size_t>(l)]);
    for (std::int32_t h = 0; h < info.n_kv_heads; ++h) {
      std::set<std::int32_t> prompt_kept;
      for (const std::int32_t i : kept_of(got, l, h)) {
        if (i < info.prompt_tokens) prompt_kept.insert(i);
      }
      REQUIRE(prompt_kept == alive);
    }
    if (l + 1 == info.n_layers) break;
    std::tie(alive, clear) = test::reference_passed_on(whole, l, alive, recent, 4,
                                                       lengths[static_cast<std::size_t>(l) + 1]);
  }
  CHECK(clear);
  REQUIRE(got.closed_form_bytes_final);
  CHECK(*got.closed_form_bytes_final == got.bytes_held_final);
}

TEST_CASE("PyramidInfer's layers hold the entries that a reference passes to the next layer") {
  check_pyramid(recorded_sample(), {});
  check_pyramid(recorded_sample(), {{"schedule", std::string{"constant"}}, {"delta", 0.8}});
  check_pyramid(
      generated(6, 2, 90),
      {{"schedule", std::string{"linear"}}, {"min_context", std::int64_t{8}}, {"delta", 0.5}});
  check_pyramid(
      generated(3, 3, 31),
      {{"min_context", std::int64_t{0}}, {"delta", 0.3}, {"schedule", std::string{"constant"}}});
}

TEST_CASE(
    "PyramidInfer's size law equals the replay's count at every step, for both growth rules") {
  for (const char* growth : {"layer", "total"}) {
    for (const std::int64_t exceed : {1, 4, 16}) {
      for (const double delta : {0.3, 0.9}) {
        INFO(growth, " exceed ", exceed, " delta ", delta);
        const Trace trace = generated(4, 2, 70);
        const Params params{{"growth", std::string{growth}},
                            {"exceed", exceed},
                            {"delta", delta},
                            {"min_context", std::int64_t{4}},
                            {"schedule", std::string{"constant"}}};
        const ReplayMethod got = run(trace, "pyramidinfer", params);
        const auto method = resolve_for_trace({"pyramidinfer", params, {}}, trace.info());
        for (std::size_t l = 0; l < 2; ++l) {
          for (const ReplayStep& step : got.layer_series[l]) {
            INFO("layer ", l, " step ", step.step);
            REQUIRE(step.entries_held ==
                    2 * *method->entries_held(static_cast<std::int32_t>(l), 70, step.tokens));
            REQUIRE(step.entries_attended ==
                    2 * *method->entries_attended(static_cast<std::int32_t>(l), 70, step.tokens));
          }
        }
      }
    }
  }
}

TEST_CASE("PyramidInfer's budget is met or refused with the smallest possible one") {
  const ReplayMethod got = run(recorded_sample(), "pyramidinfer", {}, Budget{.fraction = 0.8});
  REQUIRE(got.budget_reached);
  CHECK(*got.budget_reached <= 0.8);
  CHECK(*got.budget_reached > 0.78);
  CHECK_THROWS_WITH_AS(run(recorded_sample(), "pyramidinfer", {}, Budget{.fraction = 0.2}),
                       doctest::Contains("cannot be met"), InputError);
}

TEST_CASE("learned methods: invalid settings are refused with the reason") {
  const MethodContext site{.recorded = Dtype::kFp16,
                           .shape = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 16},
                           .windows = {},
                           .n_layers = 2,
                           .d_model = 64};
  const auto refused = [&](const std::string& name, Params params, std::optional<Budget> budget,
                           const char* why) {
    INFO(name);
    CHECK_THROWS_WITH_AS((void)make_method({name, std::move(params), budget}, 100, site),
                         doctest::Contains(why), InputError);
  };
  refused("kvzip", {{"ratio", 1.5}}, {}, "ratio");
  refused("kvzip", {{"chunk", std::int64_t{0}}}, {}, "chunk");
  refused("kvzip", {{"ratio", 0.4}}, Budget{.fraction = 0.5}, "both given");
  refused("kvzip", {{"granularity", std::string{"query_head"}}}, {}, "KV head");
  refused("h2o", {{"level", std::string{"pair"}}}, {}, "level");
  refused("select=accumulated+budget=global", {}, {}, "budget=global");
  refused("kvzap", {{"threshold", -4.0}}, Budget{.fraction = 0.5}, "both given");
  refused("select=kvzap", {}, {}, "budget=threshold");
  refused("select=recent+budget=threshold", {}, {}, "select=kvzap");
  refused("dms", {}, Budget{.fraction = 0.5}, "takes no budget");
  refused("dmc", {}, Budget{.fraction = 0.5}, "takes no budget");
  refused("select=dmc", {}, {}, "merge=accumulate");
  refused("h2o+merge=accumulate", {}, {}, "select=dmc");
  refused("pyramidinfer", {{"delta", 1.1}}, {}, "delta");
  refused("pyramidinfer", {{"delta", 0.5}}, Budget{.fraction = 0.5}, "both given");
  refused("select=pyramidinfer", {}, {}, "budget=nested");
  CHECK_THROWS_WITH_AS((void)run(recorded_sample(), "kvzip"), doctest::Contains("a repeat segment"),
                       InputError);
  CHECK_THROWS_WITH_AS(
      (void)run(generated(2, 1, 12), "kvzip-plus", {{"kvzip_plus_norm", std::string{"residual"}}}),
      doctest::Contains("score.residual_norm"), InputError);
}

TEST_CASE("costs: a repeat is charged, and side data equals the stored data") {
  const MethodContext site{.recorded = Dtype::kFp16,
                           .shape = {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128},
                           .windows = {},
                           .n_layers = 36,
                           .d_model = 4096};
  const auto zip = make_method({"kvzip", {}, {}}, 4096, site);
  const PrefillExtra extra = zip->prefill_extra(0, site.shape, Dtype::kFp16, 4096);
  // Two chunks of 2048, each with 8 preceding tokens, over the chunk and its input.
  CHECK(extra.prefill_repeats == 2 * 2056.0 / 4096);
  CHECK(extra.flops == 2 * 2.0 * 32 * 2056 * (2048 + 2056) * 128);
  const auto bare = make_method(
      {"kvzip", {{"carry_over", std::int64_t{0}}}, Budget{.fraction = 0.3}}, 4096, site);
  CHECK(bare->prefill_extra(0, site.shape, Dtype::kFp16, 4096).prefill_repeats == 1.0);
  CHECK(bare->prefill_extra(0, site.shape, Dtype::kFp16, 4096).flops ==
        2 * 2.0 * 32 * 2048 * 4096 * 128);
  CHECK(zip->prefill_peak() == PrefillPeak::kAllLayers);
  const auto zap = make_method({"kvzap", {{"model", std::string{"linear"}}}, {}}, 4096, site);
  const auto side = [&site](const Method& method) {
    return method.rows_bytes(0, site.shape, Dtype::kFp16, 900, 1000).side.count();
  };
  // For each of 8 heads: 128 fp32 scores, an eighth of 4096 x 8 fp16 weights, length and offset.
  CHECK(side(*zap) == 8 * (128 * 4 + 4096 * 2 + 8));
  // 2 D Hkv FLOPs per token and layer.
  CHECK(zap->decode_traffic(0, site.shape, Dtype::kFp16, 100, false).extra_flops == 2 * 4096 * 8);
  const auto mlp = make_method({"kvzap", {}, {}}, 4096, site);
  CHECK(mlp->decode_traffic(0, site.shape, Dtype::kFp16, 100, false).extra_flops ==
        2.0 * (4096 * 512 + 512 * 8));
  // 256 bits.
  CHECK(side(*make_method({"dms", {}, {}}, 4096, site)) == 8 * 32);
}

}  // namespace
}  // namespace kvsim
