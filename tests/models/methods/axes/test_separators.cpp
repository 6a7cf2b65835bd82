// SepLLM: held entries compared with a reference, laws, sizes, trace requirements, refusals.

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

#include "models/methods/params.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_content.hpp"
#include "tests/support/scratch.hpp"
#include "tests/support/session_run.hpp"
#include "traces/trace_writer.hpp"

namespace kvsim {
namespace {

using test::held_by;
using test::Ids;

Params sizes(std::int64_t sinks, std::int64_t separators, std::int64_t local, std::int64_t cache) {
  return {{"n_sink", sinks}, {"separators", separators}, {"local", local}, {"cache", cache}};
}
std::shared_ptr<const Method> resolved(const Params& params, const HeadVectors& head,
                                       const std::string& name = "sepllm") {
  return make_method({name, params, {}}, head.prompt,
                     {.recorded = Dtype::kFp16,
                      .shape = {.n_heads = head.group, .n_kv_heads = 1, .head_dim = head.head_dim},
                      .n_layers = 1});
}
std::vector<std::int32_t> random_tokens(std::int64_t n, double share, std::uint64_t seed) {
  std::mt19937_64 random{seed};
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < n; ++i) {
    const bool separates = static_cast<double>(random() % 1000) < 1000 * share;
    out.push_back(static_cast<std::int32_t>(separates ? random() % 3 : 10 + random() % 50));
  }
  return out;
}

TEST_CASE("sepllm holds what a token-by-token reference holds, and keeps its parts") {
  const std::vector<std::int32_t> separators{0, 1, 2};
  int trims = 0;
  for (const double share : {0.0, 0.1, 0.5, 1.0}) {
    for (const std::int64_t prompt : {5, 40, 90}) {
      const auto head = test::random_head(2, 8, 150, prompt, 3);
      const auto tokens = random_tokens(150, share, 7);
      LayerVectors layer;
      layer.token_ids = tokens;
      layer.separator_ids = separators;
      test::SessionRun run{resolved(sizes(2, 5, 12, 24), head.view), head.view, &layer};
      // Two lists: kept separators, and all later tokens.
      Ids kept, since;
      const auto feed = [&](std::int32_t id) {
        if (id >= 2) since.push_back(id);
        if (std::min(id + 1, 2) + std::ssize(kept) + std::ssize(since) <= 24) return;
        ++trims;
        while (std::ssize(since) > 12) {
          if (tokens[static_cast<std::size_t>(since.front())] < 3) kept.push_back(since.front());
          since.erase(since.begin());
        }
        while (kept.size() > 5) kept.erase(kept.begin());
      };
      const auto check = [&](std::int64_t n) {
        Ids want = test::first_ids(std::min<std::int64_t>(n, 2));
        want.insert(want.end(), kept.begin(), kept.end());
        want.insert(want.end(), since.begin(), since.end());
        REQUIRE(held_by(run.session) == want);
        CHECK(want.size() <= 24);
        CHECK(kept.size() <= 5);
        // The newest 12 tokens are held.
        for (auto id = static_cast<std::int32_t>(std::max<std::int64_t>(0, n - 12)); id < n; ++id) {
          CHECK(std::binary_search(want.begin(), want.end(), id));
        }
      };
      for (std::int32_t id = 0; id < prompt; ++id) feed(id);
      check(prompt);
      for (std::int64_t t = prompt; t < 150; ++t) {
        run.step(t);
        feed(static_cast<std::int32_t>(t));
        check(t + 1);
      }
    }
  }
  CHECK(trims > 100);
}

TEST_CASE("sepllm without separators is a window that is trimmed in batches") {
  const auto head = test::random_head(1, 8, 120, 30, 5);
  const std::vector<std::int32_t> tokens(120, 9), none{3};
  LayerVectors layer;
  layer.token_ids = tokens;
  layer.separator_ids = none;
  test::SessionRun run{resolved(sizes(4, 6, 16, 32), head.view), head.view, &layer};
  for (std::int64_t t = 30; t < 120; ++t) {
    run.step(t);
    const Ids held = held_by(run.session);
    // 33 entries are trimmed to 4 + 16, every 13 tokens after the 33rd.
    const std::int64_t n = t + 1;
    CHECK(std::ssize(held) == (n <= 32 ? n : 20 + (n - 33) % 13));
    Ids want = test::first_ids(4);
    for (auto id = static_cast<std::int32_t>(n - std::ssize(held) + 4); id < n; ++id) {
      want.push_back(id);
    }
    CHECK(held == want);
  }
  // A cache that never reaches its limit equals the full cache.
  test::SessionRun whole{resolved(sizes(4, 6, 16, 200), head.view), head.view, &layer};
  whole.to_the_end();
  CHECK(held_by(whole.session) == test::first_ids(120));
}

TEST_CASE("sepllm: sizes known before the first trim, refusals") {
  const auto head = test::random_head(1, 8, 40, 30, 5);
  const auto method = resolved({}, head.view);
  CHECK(*method->entries_held(0, 30, 324) == 324);
  CHECK(!method->entries_held(0, 30, 325));
  CHECK(method->needs().inputs.token_ids);
  CHECK(method->needs().inputs.separator_ids);
  CHECK(!resolved({{"separator_ids", std::string{"13,11"}}}, head.view)
             ->needs()
             .inputs.separator_ids);
  const auto why = [&](const MethodSpec& spec) -> std::string {
    try {
      (void)make_method(spec, 1000, {.shape = {.n_heads = 1, .n_kv_heads = 1, .head_dim = 8}});
      return "";
    } catch (const InputError& error) {
      return error.what();
    }
  };
  CHECK(why({"sepllm", sizes(4, 32, 224, 259), {}}).find("at least 260") != std::string::npos);
  CHECK(why({"sepllm", sizes(4, 32, 224, 260), {}}).empty());
  CHECK(why({"sepllm", {}, Budget{0.2, 0}}).find("set cache") != std::string::npos);
  CHECK(why({"sepllm+merge=residual", {}, {}}).find("merge=drop") != std::string::npos);
  for (const char* ids : {"1,", "x", "1,,2", "-1", "99999999999", ",1"}) {
    CHECK(why({"sepllm", {{"separator_ids", std::string{ids}}}, {}}).find("list of token ids") !=
          std::string::npos);
  }
}

TEST_CASE(
    "sepllm replays traces with separators, and other traces are refused with the missing data") {
  const auto write = [&](const std::string& name, bool with_ids, const char* separators) {
    const std::int64_t tokens = 60;
    std::vector<TensorPlan> plan;
    for (const char* part : {"q", "k", "v"}) {
      plan.push_back({std::string{"layers.0."} + part, TensorType::kF32, {tokens, 1, 8}});
    }
    if (with_ids) plan.push_back({"tokens", TensorType::kI32, {tokens}});
    std::map<std::string, std::string> meta{{"format", "kv-attention-trace"},
                                            {"version", "1"},
                                            {"num_layers", "1"},
                                            {"num_q_heads", "1"},
                                            {"num_kv_heads", "1"},
                                            {"head_dim", "8"},
                                            {"num_tokens", "60"},
                                            {"prompt_len", "20"}};
    if (separators != nullptr) meta["separator_ids"] = separators;
    const auto path = test::scratch_folder() / (name + ".safetensors");
    SafetensorsWriter writer{path, plan, meta};
    const auto head = test::random_head(1, 8, tokens, 20, 9);
    writer.write(head.q);
    writer.write(head.keys);
    writer.write(head.values);
    if (with_ids) writer.write(std::span<const std::int32_t>{random_tokens(tokens, 0.3, 2)});
    writer.finish();
    return path;
  };
  ReplayOptions options;
  options.kept_positions = true;
  const MethodSpec small{"sepllm", sizes(2, 4, 8, 16), {}};
  const auto good = replay(Trace::open(write("good", true, "[0, 1, 2]")), {small}, options);
  const ReplayMethod& m = good.methods.front();
  CHECK(m.entries_held_final <= 16);
  CHECK(m.entries_held_final >= 10);
  // The parameter equals the metadata, and takes precedence.
  MethodSpec by_parameter = small;
  by_parameter.params["separator_ids"] = std::string{"0,1,2"};
  const auto plain = write("plain", true, nullptr);
  const auto same = replay(Trace::open(plain), {by_parameter}, options);
  CHECK(same.methods.front().kept == m.kept);
  CHECK(same.methods.front().rel_error_mean == m.rel_error_mean);
  by_parameter.params["separator_ids"] = std::string{"99"};
  CHECK(replay(Trace::open(write("other", true, "[0, 1, 2]")), {by_parameter}, options)
            .methods.front()
            .kept != m.kept);
  CHECK_THROWS_WITH_AS((void)replay(Trace::open(plain), {small}, options),
                       doctest::Contains("separator_ids in its metadata"), InputError);
  CHECK_THROWS_WITH_AS((void)replay(Trace::open(write("no", false, "[0]")), {small}, options),
                       doctest::Contains("token ids"), InputError);
  for (const char* wrong : {"[0, -1]", "{}", "[1.5]", "13,11", "[\"a\"]"}) {
    CHECK_THROWS_WITH_AS((void)Trace::open(write("wrong", true, wrong)),
                         doctest::Contains("separator_ids"), InputError);
  }
}

}  // namespace
}  // namespace kvsim
