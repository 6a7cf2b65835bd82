// The invariants of the method catalogue on recorded vectors: the shipped trace of a trained model,
// and generated traces with one, several and all query heads per KV head. test_methods and
// test_zeromerge check them on made-up vectors of odd sizes.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include <unistd.h>

#include "models/methods/params.hpp"
#include "tests/support/basic_methods.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scratch.hpp"
#include "tests/support/session_run.hpp"
#include "traces/synthetic/generate.hpp"
#include "traces/trace.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

/// A trace, and the vectors of its layers per KV head.
struct Recorded {
  explicit Recorded(const fs::path& path) : trace{Trace::open(path)} {
    for (std::int32_t l = 0; l < trace.info().n_layers; ++l) layers.push_back(trace.read_layer(l));
  }
  [[nodiscard]] HeadVectors head(std::size_t layer, std::int32_t h) const {
    const TraceInfo& info = trace.info();
    const std::int32_t group = info.n_heads / info.n_kv_heads;
    const auto row = static_cast<std::size_t>(info.tokens * info.head_dim);
    return {.q = std::span{layers[layer].q}.subspan(static_cast<std::size_t>(h * group) * row,
                                                    static_cast<std::size_t>(group) * row),
            .keys = std::span{layers[layer].k}.subspan(static_cast<std::size_t>(h) * row, row),
            .values = std::span{layers[layer].v}.subspan(static_cast<std::size_t>(h) * row, row),
            .group = group,
            .head_dim = info.head_dim,
            .tokens = info.tokens,
            .prompt = info.prompt_tokens,
            .scale = info.softmax_scale};
  }
  Trace trace;
  std::vector<TraceLayer> layers;
};

Recorded generated(std::int32_t heads, std::int32_t kv_heads, std::uint64_t seed) {
  const fs::path path = test::scratch_folder() / fmt::format("laws-{}.safetensors", ::getpid());
  GenerateOptions options;
  options.layers = 2;
  options.heads = heads;
  options.kv_heads = kv_heads;
  options.head_dim = 32;
  options.tokens = 320;
  options.prompt_tokens = 200;
  options.seed = seed;
  generate_trace(options, path);
  Recorded recorded{path};
  fs::remove(path);
  return recorded;
}

/// Calls `law` with each head of each trace.
template <class Law>
void on_every_head(Law law) {
  std::vector<std::pair<std::string, Recorded>> traces;
  traces.emplace_back(
      "books-treasure-512",
      Recorded{fs::path{KVSIM_SOURCE_DIR} / "traces/samples/books-treasure-512.safetensors"});
  traces.emplace_back("generated, grouped", generated(6, 2, 1));
  traces.emplace_back("generated, multi-head", generated(3, 3, 2));
  traces.emplace_back("generated, multi-query", generated(4, 1, 3));
  for (const auto& [name, recorded] : traces) {
    for (std::size_t l = 0; l < recorded.layers.size(); ++l) {
      for (std::int32_t h = 0; h < recorded.trace.info().n_kv_heads; ++h) {
        INFO(name, " layer ", l, " head ", h);
        law(recorded.head(l, h));
      }
    }
  }
}

std::shared_ptr<const Method> method_of(const std::string& name, const HeadVectors& head,
                                        std::int64_t budget, Params params = {}) {
  const auto given = takes_budget(name) ? std::optional{Budget{0, budget}} : std::nullopt;
  return make_method({name, std::move(params), given}, head.prompt, {.recorded = Dtype::kFp16});
}

TEST_CASE("I1 I3 I4 I6 I9 on recorded heads") {
  on_every_head([](const HeadVectors& head) {
    const std::int64_t budget = head.prompt / 5;
    for (const MethodInfo& info : test::basic_methods()) {
      INFO(info.name);
      const auto method = method_of(info.name, head, budget);
      test::SessionRun run{method, head};
      // The protected entries, derived from the resolved parameters and not from the code under
      // test.
      std::int64_t recent = 1;
      if (info.name == "streaming-llm") recent = param_integer(method->params(), "window");
      if (info.name == "h2o") recent = param_integer(method->params(), "recent");
      if (info.name.starts_with("zeromerge"))
        recent = param_integer(method->params(), "recent") - 1;
      std::set<std::int32_t> before;
      for (std::int64_t t = head.prompt; t < head.tokens; ++t) {
        run.step(t);
        const EntryTable& entries = run.session.entries();
        REQUIRE(entries.size() == *method->entries_held(0, head.prompt, t + 1));
        std::set<std::int32_t> held;
        std::int64_t count = 0;
        for (std::int32_t slot = 0; slot < entries.size(); ++slot) {
          count += entries.count(slot);
          held.insert(entries.id(slot));
          if (entries.is_merged(slot)) continue;
          const auto key = test::row_of(head.keys, entries.id(slot), head.head_dim);
          REQUIRE(std::equal(key.begin(), key.end(), entries.key(slot).begin()));
        }
        if (method->merges()) REQUIRE(count == t + 1);
        for (std::int64_t id = t - recent + 1; id <= t; ++id)
          REQUIRE(held.contains(static_cast<int>(id)));
        if (!method->merges() && !before.empty()) {
          for (const std::int32_t id : held) REQUIRE((id == t || before.contains(id)));
        }
        before = std::move(held);
      }
    }
  });
}

TEST_CASE("I2: with room for all, a recorded head's output is the full cache's") {
  on_every_head([](const HeadVectors& head) {
    const auto reference = causal_attention(head.q, head.keys, head.values, head.group,
                                            head.head_dim, head.tokens, head.prompt, head.scale);
    for (const MethodInfo& info : test::basic_methods()) {
      INFO(info.name);
      PromptScores scores{head};
      const auto method = method_of(info.name, head, head.tokens + 10);
      const auto series =
          replay_head(as_composed(*method), 0, head, reference, scores, nullptr, false);
      CHECK(*std::max_element(series[0].rel_error.begin(), series[0].rel_error.end()) < 2e-5F);
    }
  });
}

TEST_CASE("I5 Z2 Z4 Z5: a slot is the mean of its members and inside their hull") {
  on_every_head([](const HeadVectors& head) {
    for (const char* name : {"zeromerge", "zeromerge-paper"}) {
      INFO(name);
      const std::int64_t budget = head.prompt / 5;
      test::SessionRun run{method_of(name, head, budget, {{"residual_slots", std::int64_t{2}}}),
                           head};
      run.to_the_end();
      const EntryTable& entries = run.session.entries();
      CHECK(entries.size() == budget);
      for (const std::int32_t slot : entries.merged_slots()) {
        const auto members = entries.members(slot);
        for (std::size_t j = 0; j < static_cast<std::size_t>(head.head_dim); ++j) {
          double mean = 0;
          double low = 1e30;
          double high = -1e30;
          for (const std::int32_t id : members) {
            const auto x = static_cast<double>(test::row_of(head.values, id, head.head_dim)[j]);
            mean += x / static_cast<double>(members.size());
            low = std::min(low, x);
            high = std::max(high, x);
          }
          const auto got = static_cast<double>(entries.value(slot)[j]);
          CHECK(std::abs(got - mean) <= 1e-6 * (1.0 + std::abs(mean)));
          CHECK(got >= low - 1e-6);
          CHECK(got <= high + 1e-6);
        }
      }
    }
  });
}

TEST_CASE("I7: the computation of scores does not change the kept set of a recorded head") {
  on_every_head([](const HeadVectors& head) {
    std::set<std::vector<std::vector<std::int32_t>>> kept;
    for (const std::string exec : {"eager", "eager_chunked", "fused_two_pass"}) {
      test::SessionRun run{method_of("zeromerge", head, head.prompt / 5, {{"score_exec", exec}}),
                           head};
      run.to_the_end();
      kept.insert(run.session.kept());
    }
    CHECK(kept.size() == 1);
  });
}

TEST_CASE("Z1: on recorded heads an uncompressed token never gets less weight than in full") {
  on_every_head([](const HeadVectors& head) {
    for (const double alpha : {0.6, 1.0}) {
      test::SessionRun run{method_of("zeromerge", head, head.prompt / 5, {{"alpha", alpha}}), head};
      for (std::int64_t t = head.prompt; t < head.tokens; ++t) {
        const EntryTable held = run.session.entries();
        const GroupAttention& attention = run.step(t);
        if (t % 16 != 0) continue;  // computing the full rows is expensive
        std::vector<std::int32_t> all(static_cast<std::size_t>(t + 1));
        std::iota(all.begin(), all.end(), 0);
        for (std::int32_t g = 0; g < head.group; ++g) {
          const auto full = test::naive_attention(head, g, t, all);
          for (std::int32_t slot = 0; slot < held.size(); ++slot) {
            if (held.is_merged(slot)) continue;
            const double share = attention.probabilities(g)[static_cast<std::size_t>(slot)];
            CHECK(share >= full[static_cast<std::size_t>(held.id(slot))] * (1 - 1e-6));
          }
        }
      }
    }
  });
}

TEST_CASE("Z3: a vanishing alpha attends to slots as if each were one token") {
  on_every_head([](const HeadVectors& head) {
    test::SessionRun faint{method_of("zeromerge", head, head.prompt / 5, {{"alpha", 1e-6}}), head};
    const EntryTable held = faint.session.entries();
    const GroupAttention& attention = faint.step(head.prompt);
    // The same entries and the new token, attended without any bias.
    GroupAttention plain{head.group, head.head_dim, head.scale};
    std::vector<float> keys(held.keys().begin(), held.keys().end());
    std::vector<float> values(held.values().begin(), held.values().end());
    const auto key = test::row_of(head.keys, head.prompt, head.head_dim);
    const auto value = test::row_of(head.values, head.prompt, head.head_dim);
    keys.insert(keys.end(), key.begin(), key.end());
    values.insert(values.end(), value.begin(), value.end());
    plain.run(test::queries_at(head, head.prompt), keys, values, {});
    for (std::size_t j = 0; j < plain.output().size(); ++j) {
      CHECK(std::abs(plain.output()[j] - attention.output()[j]) <=
            1e-4 * (1 + std::abs(plain.output()[j])));
    }
  });
}

}  // namespace
}  // namespace kvsim
