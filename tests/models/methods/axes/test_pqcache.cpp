// PQCache: entries that a step fetches compared with a reference, sizes, traffic and limits.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>

#include "models/math/kmeans.hpp"
#include "models/math/low_int.hpp"
#include "models/methods/params.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_learned.hpp"
#include "tests/support/reference/reference_reading.hpp"
#include "tests/support/session_run.hpp"

namespace kvsim {
namespace {

const std::string kSample = KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors";

std::shared_ptr<const Method> resolved(const Params& params, const HeadVectors& head,
                                       std::optional<Budget> budget) {
  return make_method({"pqcache", params, budget}, head.prompt,
                     {.recorded = Dtype::kFp16,
                      .shape = {.n_heads = head.group, .n_kv_heads = 1, .head_dim = head.head_dim},
                      .n_layers = 1});
}

struct ReferencePq {
  std::int64_t sinks = 4, recent = 0, chosen = 0;
  std::int32_t parts = 2, bits = 3;
};

/// Positions read at step t, as lists. Centres are those of the prompt's keys, in fp16.
test::ReferenceRead reference_pq(const ReferencePq& set, const HeadVectors& head, std::int64_t t) {
  const std::int32_t size = head.head_dim / set.parts;
  const std::int64_t last = t - set.recent;  // candidates end before it
  std::vector<double> logits(static_cast<std::size_t>(head.group * (last - set.sinks)), 0.0);
  for (std::int32_t p = 0; p < set.parts; ++p) {
    std::vector<float> rows;
    for (std::int64_t i = set.sinks; i < head.prompt; ++i) {
      const auto key =
          head.key(i).subspan(static_cast<std::size_t>(p * size), static_cast<std::size_t>(size));
      rows.insert(rows.end(), key.begin(), key.end());
    }
    KmeansRows found = kmeans_rows(rows, size, 1 << set.bits, 25);
    for (float& x : found.centres) x = as_stored(x, Dtype::kFp16);
    for (std::int64_t i = set.sinks; i < last; ++i) {
      const auto key =
          head.key(i).subspan(static_cast<std::size_t>(p * size), static_cast<std::size_t>(size));
      std::int32_t code = 0;
      if (i < head.prompt) {
        code = found.nearest[static_cast<std::size_t>(i - set.sinks)];
      } else {
        double min = 1e300;
        for (std::int32_t c = 0; c < 1 << set.bits; ++c) {
          double distance = 0;
          for (std::size_t j = 0; j < key.size(); ++j) {
            distance +=
                std::pow(static_cast<double>(key[j]) -
                             static_cast<double>(
                                 found.centres[static_cast<std::size_t>(c) * key.size() + j]),
                         2);
          }
          if (distance < min) {
            min = distance;
            code = c;
          }
        }
      }
      for (std::int32_t g = 0; g < head.group; ++g) {
        const auto q = head.query(g, t).subspan(static_cast<std::size_t>(p * size),
                                                static_cast<std::size_t>(size));
        double sum = 0;
        for (std::size_t j = 0; j < q.size(); ++j) {
          sum += static_cast<double>(q[j]) *
                 static_cast<double>(found.centres[static_cast<std::size_t>(code) * q.size() + j]);
        }
        logits[static_cast<std::size_t>(g * (last - set.sinks) + i - set.sinks)] +=
            sum * head.scale;
      }
    }
  }
  std::vector<std::pair<double, std::int32_t>> weights;
  for (std::int64_t i = set.sinks; i < last; ++i) {
    weights.emplace_back(0.0, static_cast<std::int32_t>(i));
  }
  for (std::int32_t g = 0; g < head.group; ++g) {
    const double* row = logits.data() + g * (last - set.sinks);
    double total = 0;
    for (std::int64_t i = 0; i < last - set.sinks; ++i) total += std::exp(row[i]);
    for (std::int64_t i = 0; i < last - set.sinks; ++i) {
      weights[static_cast<std::size_t>(i)].first += std::exp(row[i]) / total;
    }
  }
  // Equal codes have equal weights; among them the older tokens are chosen.
  const auto [best, gap] = test::best(weights, static_cast<std::size_t>(set.chosen));
  test::ReferenceRead read;
  read.positions = best;
  std::sort(weights.begin(), weights.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  // The largest weight that differs from the last chosen weight.
  const double cut = weights[static_cast<std::size_t>(set.chosen - 1)].first;
  read.gap = gap > 0 ? gap / cut : 1;
  for (std::int32_t i = 0; i < set.sinks; ++i) read.positions.insert(i);
  for (std::int64_t i = last; i <= t; ++i) read.positions.insert(static_cast<std::int32_t>(i));
  return read;
}

TEST_CASE("pqcache fetches the same tokens as a reference, on made-up and recorded heads") {
  int compared = 0;
  const auto compare = [&](const HeadVectors& head, std::int64_t budget, ReferencePq set) {
    set.recent = (budget - set.sinks) / 2;
    set.chosen = budget - set.sinks - set.recent;
    test::SessionRun run{resolved({{"n_sink", set.sinks},
                                   {"subvectors", std::int64_t{set.parts}},
                                   {"centre_bits", std::int64_t{set.bits}}},
                                  head, Budget{0, budget}),
                         head};
    for (std::int64_t t = head.prompt; t < head.tokens; ++t) {
      run.session.step();
      const auto read = reference_pq(set, head, t);
      REQUIRE(run.session.events().read == static_cast<double>(budget + 1));
      CHECK(run.session.fetched(0) == Bytes{set.chosen * 2 * head.head_dim * 2});
      if (read.gap < 1e-9) continue;
      ++compared;
      for (std::int32_t g = 0; g < head.group; ++g) {
        const auto [out, log_sum] = test::reference_output(head, g, t, read.positions);
        REQUIRE(run.session.log_sum(0, g) == doctest::Approx(log_sum).epsilon(1e-9));
        for (std::size_t j = 0; j < out.size(); ++j) {
          REQUIRE(std::abs(run.session.output(0)[static_cast<std::size_t>(g) * out.size() + j] -
                           out[j]) < 1e-9);
        }
      }
    }
  };
  const auto made_up = test::random_head(3, 16, 150, 100, 13);
  compare(made_up.view, 30, {.sinks = 4, .parts = 2, .bits = 3});
  compare(made_up.view, 20, {.sinks = 0, .parts = 1, .bits = 4});
  compare(made_up.view, 21, {.sinks = 5, .parts = 4, .bits = 2});
  const test::WholeTrace real{Trace::open(kSample)};
  compare(real.head(3, 0), 60, {.sinks = 32, .parts = 2, .bits = 6});
  CHECK(compared > 200);
}

TEST_CASE("with a centre for each token pqcache fetches the best tokens") {
  // 64 keys without sinks, one more than the centres so that they are indexed: one key is repeated.
  auto owned = test::random_head(2, 8, 70, 65, 3);
  for (std::size_t j = 0; j < 8; ++j) owned.keys[64 * 8 + j] = owned.keys[63 * 8 + j];
  for (float& x : owned.keys) x = as_stored(x, Dtype::kFp16);
  owned.view.keys = owned.keys;
  const HeadVectors& head = owned.view;
  test::SessionRun run{resolved({{"n_sink", std::int64_t{0}},
                                 {"subvectors", std::int64_t{1}},
                                 {"centre_bits", std::int64_t{6}},
                                 {"recent_share", 0.0},
                                 {"iterations", std::int64_t{1000}}},
                                head, Budget{0, 10}),
                       head};
  run.session.step();
  std::vector<std::pair<double, std::int32_t>> weights;
  for (std::int32_t i = 0; i < 65; ++i) weights.emplace_back(0.0, i);
  std::vector<std::int32_t> all(65);
  std::iota(all.begin(), all.end(), 0);
  for (std::int32_t g = 0; g < 2; ++g) {
    const auto p = test::naive_attention(head, g, 65, all);
    for (std::size_t i = 0; i < 65; ++i) weights[i].first += p[i];
  }
  auto positions = test::best(weights, 10).first;
  positions.insert(65);
  const auto [out, log_sum] = test::reference_output(head, 0, 65, positions);
  CHECK(run.session.log_sum(0, 0) == doctest::Approx(log_sum).epsilon(1e-6));
  const Counts counts = run.session.counts();
  CHECK(counts.at("pqcache_tokens_chosen") == 10);
  CHECK(counts.at("pqcache_tokens_found") == 10);
}

TEST_CASE("pqcache that reads everything is exact, sizes and traffic by hand") {
  const auto owned = test::random_head(2, 8, 120, 100, 3);
  test::SessionRun all{resolved({}, owned.view, Budget{0, 100}), owned.view};
  all.session.step();
  CHECK(all.session.events().read == 101);
  CHECK(all.session.counts().at("pqcache_heads_whole") == 1);
  // 90 tokens after 32 sinks are fewer than 64 centres.
  test::SessionRun few{resolved({}, owned.view, Budget{0, 40}), owned.view};
  few.session.step();
  CHECK(few.session.events().read == (100 - 32 <= 64 ? 101 : 41));

  const MethodContext site{.recorded = Dtype::kFp16,
                           .shape = {.n_heads = 8, .n_kv_heads = 2, .head_dim = 128},
                           .n_layers = 4};
  const auto method = make_method({"pqcache", {}, Budget{0.1, 0}}, 10000, site);
  CHECK(param_integer(method->params(), "token_budget") == 1000);
  // 32 sinks, 484 recent, 484 fetched; codes of 9,968 tokens, centres 2 * 64 * 64 in fp16.
  const auto bytes = method->layer_bytes(0, site.shape, Dtype::kFp16, 10000, 10000);
  REQUIRE(bytes.has_value());
  CHECK(bytes->kv == Bytes{2 * 1000 * 512});
  CHECK(bytes->side == Bytes{2 * (9968 * 12 / 8 + 2 * 64 * 128)});
  CHECK(bytes->host == Bytes{2 * 10000 * 512});
  const StepTraffic step = method->decode_traffic(0, site.shape, Dtype::kFp16, 10001, false);
  CHECK(step.attention_read == 2 * 1001 * 512);
  CHECK(step.link_read == 2 * 484 * 512);
  CHECK(step.link_write == 2 * 512);
  // Candidates: 10,001 minus 32, 484 and the new token.
  CHECK(step.side_read == 2 * (9484 * 1.5 + 2 * 64 * 128));
  CHECK(step.extra_flops == 2 * 4 * (2.0 * 64 * 128 + 9484 * 6));
  CHECK(step.move_write == 2 * 484 * 512);
  const PrefillExtra prefill = method->prefill_extra(0, site.shape, Dtype::kFp16, 10000);
  CHECK(prefill.written == 2 * 10000 * 512);

  const auto why = [&](const Params& params, const std::string& name,
                       Budget budget) -> std::string {
    try {
      (void)make_method({name, params, budget}, 1000, site);
      return "";
    } catch (const InputError& error) {
      return error.what();
    }
  };
  CHECK(
      why({{"n_sink", std::int64_t{50}}}, "pqcache", {0, 40}).find("expected fewer than the 40") !=
      std::string::npos);
  CHECK(why({{"subvectors", std::int64_t{3}}}, "pqcache", {0, 40}).find("divisor") !=
        std::string::npos);
  CHECK(why({}, "pqcache+store=kivi", {0, 40}).find("floating-point store") != std::string::npos);
  CHECK(why({}, "pqcache+select=knorm", {0, 40}).find("select=all") != std::string::npos);
}

TEST_CASE("a replay of pqcache follows its law, and its recall is at most 1") {
  const auto result = replay(
      Trace::open(kSample), {{"pqcache", {}, Budget{0.2, 0}}, {"pqcache", {}, Budget{0.5, 0}}}, {});
  for (const ReplayMethod& m : result.methods) {
    CHECK(m.bytes_held_final == *m.closed_form_bytes_final);
    const double found = m.counts.at("pqcache_tokens_found");
    const double chosen = m.counts.at("pqcache_tokens_chosen");
    CHECK(found > 0);
    CHECK(found <= chosen);
  }
  CHECK(result.methods[1].rel_error_mean < result.methods[0].rel_error_mean);
}

}  // namespace
}  // namespace kvsim
