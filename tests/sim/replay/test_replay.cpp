// Replay of whole traces: totals agree with their parts, threads do not change results, and on real
// traces the kept sets equal those of a reference.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include <unistd.h>

#include "models/units/error.hpp"
#include "sim/replay/best_mass.hpp"
#include "sim/replay/replay.hpp"
#include "sim/replay/summary.hpp"
#include "tests/support/basic_methods.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_methods.hpp"
#include "tests/support/scratch.hpp"
#include "traces/trace_writer.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using test::rel;

fs::path sample() {
  return fs::path{KVSIM_SOURCE_DIR} / "traces/samples/books-treasure-512.safetensors";
}

/// Writes a made-up trace: `layers` layers of random heads.
fs::path made_up(std::int32_t layers, std::int32_t kv_heads, std::int32_t group,
                 std::int64_t tokens, std::int64_t prompt, bool permute = false) {
  constexpr std::int32_t kDim = 16;
  const fs::path path = test::scratch_folder() / fmt::format("made-up-{}.safetensors", ::getpid());
  std::vector<TensorPlan> plan;
  for (std::int32_t l = 0; l < layers; ++l) {
    plan.push_back(
        {fmt::format("layers.{}.q", l), TensorType::kF32, {tokens, kv_heads * group, kDim}});
    plan.push_back({fmt::format("layers.{}.k", l), TensorType::kF32, {tokens, kv_heads, kDim}});
    plan.push_back({fmt::format("layers.{}.v", l), TensorType::kF32, {tokens, kv_heads, kDim}});
  }
  SafetensorsWriter writer{path,
                           plan,
                           {{"format", "kv-attention-trace"},
                            {"version", "1"},
                            {"num_layers", std::to_string(layers)},
                            {"num_q_heads", std::to_string(kv_heads * group)},
                            {"num_kv_heads", std::to_string(kv_heads)},
                            {"head_dim", std::to_string(kDim)},
                            {"num_tokens", std::to_string(tokens)},
                            {"prompt_len", std::to_string(prompt)}}};
  for (std::int32_t l = 0; l < layers; ++l) {
    std::vector<test::OwnedHead> heads;
    for (std::int32_t h = 0; h < kv_heads; ++h) {
      const std::int32_t seed = l * 100 + (permute ? kv_heads - 1 - h : h);
      heads.push_back(
          test::random_head(group, kDim, tokens, prompt, static_cast<std::uint64_t>(seed + 1)));
    }
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (const auto& head : heads) {
        for (std::int32_t g = 0; g < group; ++g)
          writer.write(test::row_of(head.q, g * tokens + t, kDim));
      }
    }
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (const auto& head : heads) writer.write(test::row_of(head.keys, t, kDim));
    }
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (const auto& head : heads) writer.write(test::row_of(head.values, t, kDim));
    }
  }
  writer.finish();
  return path;
}

std::vector<MethodSpec> all_methods(const std::vector<double>& fractions) {
  std::vector<MethodSpec> specs;
  for (const MethodInfo& info : test::basic_methods()) {
    if (!takes_budget(info.name)) {
      specs.push_back({info.name, {}, std::nullopt});
      continue;
    }
    for (const double f : fractions) specs.push_back({info.name, {}, Budget{f, 0}});
  }
  return specs;
}

ReplayOptions detailed(std::int32_t threads = 1) {
  ReplayOptions options;
  options.threads = threads;
  options.per_step = true;
  options.per_head = true;
  options.kept_positions = true;
  return options;
}

void check_laws(const Trace& trace, const ReplayMethod& m) {
  INFO(m.name, " budget ", m.budget.value_or(-1));
  const TraceInfo& info = trace.info();
  CHECK(m.steps == info.tokens - info.prompt_tokens);
  REQUIRE(m.closed_form_bytes_final.has_value());
  CHECK(m.bytes_held_final == *m.closed_form_bytes_final);  // I9
  CHECK(m.side_bytes_final <= m.bytes_held_final);
  std::int64_t entries = 0;
  std::int64_t bytes = 0;
  for (const ReplayCell& layer : m.layers) {
    entries += layer.entries_final;
    bytes += layer.bytes_final;
  }
  CHECK(entries == m.entries_held_final);
  CHECK(bytes == m.bytes_held_final);
  double read = 0;
  double error = 0;
  for (const ReplayStep& step : m.series) {
    read += step.bytes_read;
    error += step.rel_error / static_cast<double>(m.steps);
    CHECK(step.entries_held <= step.entries_attended);
    CHECK(step.cosine <= 1.0);
    if (step.retained_mass) CHECK(*step.retained_mass <= 1.0);
  }
  // A step of the whole is the sum or the mean of the layers' steps.
  REQUIRE(m.layer_series.size() == static_cast<std::size_t>(info.n_layers));
  for (std::size_t i = 0; i < m.series.size(); ++i) {
    std::int64_t held = 0;
    std::int64_t attended = 0;
    double mean_error = 0;
    for (const auto& layer : m.layer_series) {
      held += layer[i].bytes_held;
      attended += layer[i].bytes_attended;
      mean_error += layer[i].rel_error / static_cast<double>(info.n_layers);
    }
    CHECK(held == m.series[i].bytes_held);
    CHECK(attended == m.series[i].bytes_attended);
    CHECK(mean_error == doctest::Approx(m.series[i].rel_error).epsilon(1e-9));
  }
  CHECK(read == rel(m.bytes_read_total));
  CHECK(error == doctest::Approx(m.rel_error_mean).epsilon(1e-9));
  CHECK(m.rel_error_p99 >= 0);
  // Every token is either kept once or dropped; merging drops none.
  for (const auto& layer : m.kept) {
    for (const auto& head : layer) {
      std::set<std::int32_t> seen;
      std::size_t count = 0;
      for (const auto& entry : head) {
        seen.insert(entry.begin(), entry.end());
        count += entry.size();
      }
      CHECK(seen.size() == count);
      if (m.name.starts_with("zeromerge")) CHECK(static_cast<std::int64_t>(count) == info.tokens);
    }
  }
  if (m.name == "full") {
    CHECK(m.bytes_held_final == m.bytes_full_final);
    CHECK(m.rel_error_mean < 1e-5);
    CHECK(*m.retained_mass_mean == rel(1.0, 1e-5));
    // Step n reads prompt + n tokens: their sum times the bytes per token.
    const double per_token =
        2.0 * info.head_dim * info.n_kv_heads * info.n_layers * bits_of(info.dtype) / 8;
    const auto n = static_cast<double>(m.steps);
    CHECK(m.bytes_read_total ==
          rel(per_token * (n * static_cast<double>(info.prompt_tokens) + n * (n + 1) / 2)));
    CHECK(m.bytes_written_total == rel(per_token * n));
  }
}

TEST_CASE("totals are the sums of their parts, on the shipped trace") {
  const Trace trace = Trace::open(sample());
  const ReplayResult result = replay(trace, all_methods({0.1, 0.2, 0.5}), detailed());
  for (const ReplayMethod& m : result.methods) check_laws(trace, m);
  // f times the prompt, truncated, divided by the prompt.
  CHECK(*result.methods[1].budget_reached == rel(38.0 / 384));
}

TEST_CASE("multi-head, grouped and multi-query traces of odd sizes") {
  for (const auto& [kv_heads, group] : {std::pair{3, 1}, std::pair{2, 3}, std::pair{1, 5}}) {
    for (const auto& [prompt, tokens] :
         {std::pair{1, 31}, std::pair{31, 31}, std::pair{100, 257}}) {
      const Trace trace = Trace::open(made_up(2, kv_heads, group, tokens, prompt));
      std::vector<MethodSpec> specs{{"full", {}, std::nullopt}};
      for (const char* name : {"streaming-llm", "h2o", "zeromerge", "zeromerge-paper"}) {
        specs.push_back({name, {}, Budget{0, 12}});
      }
      for (const ReplayMethod& m : replay(trace, specs, detailed()).methods) {
        if (m.steps > 0) {
          check_laws(trace, m);
        } else {
          CHECK(m.bytes_held_final == *m.closed_form_bytes_final);
          CHECK(std::isnan(m.rel_error_mean));
        }
      }
    }
  }
}

TEST_CASE("I10: threads and repetition change no bit") {
  const Trace trace = Trace::open(sample());
  const auto once = replay(trace, all_methods({0.2}), detailed(1));
  for (const std::int32_t threads : {1, 2, 5}) {
    const auto again = replay(trace, all_methods({0.2}), detailed(threads));
    for (std::size_t m = 0; m < once.methods.size(); ++m) {
      CHECK(once.methods[m].rel_error_mean == again.methods[m].rel_error_mean);
      CHECK(once.methods[m].rel_error_p99 == again.methods[m].rel_error_p99);
      CHECK(once.methods[m].bytes_read_total == again.methods[m].bytes_read_total);
      CHECK(once.methods[m].kept == again.methods[m].kept);
    }
  }
}

TEST_CASE("I8: permuting heads permutes results") {
  const Trace a = Trace::open(made_up(1, 3, 2, 90, 50));
  const auto straight = replay(a, all_methods({0.3}), detailed());
  const Trace b = Trace::open(made_up(1, 3, 2, 90, 50, true));
  const auto permuted = replay(b, all_methods({0.3}), detailed());
  for (std::size_t m = 0; m < straight.methods.size(); ++m) {
    for (std::size_t h = 0; h < 3; ++h) {
      CHECK(straight.methods[m].kept[0][h] == permuted.methods[m].kept[0][2 - h]);
      CHECK(straight.methods[m].heads[h].rel_error_mean ==
            permuted.methods[m].heads[2 - h].rel_error_mean);
    }
  }
}

TEST_CASE("a method gives the same result without others and among others") {
  const Trace trace = Trace::open(sample());
  const auto together = replay(trace, all_methods({0.2}), detailed());
  for (const ReplayMethod& m : together.methods) {
    const auto budget = m.budget ? std::optional{Budget{*m.budget, 0}} : std::nullopt;
    const auto alone = replay(trace, {{m.name, {}, budget}}, detailed()).methods[0];
    CHECK(alone.rel_error_mean == m.rel_error_mean);
    CHECK(alone.kept == m.kept);
  }
}

TEST_CASE("a larger budget retains more of the attention") {
  const Trace trace = Trace::open(sample());
  for (const char* name : {"streaming-llm", "h2o"}) {
    double before = 0;
    for (const double f : {0.05, 0.1, 0.2, 0.4, 0.8}) {
      const auto m = replay(trace, {{name, {}, Budget{f, 0}}}, {}).methods[0];
      CHECK(*m.retained_mass_mean > before);
      before = *m.retained_mass_mean;
    }
  }
}

/// The vectors of a head in a layer, in the form that the reference uses.
HeadVectors head_of(const Trace& trace, const TraceLayer& layer, std::int32_t h) {
  const TraceInfo& info = trace.info();
  const std::int32_t group = info.n_heads / info.n_kv_heads;
  const auto row = static_cast<std::size_t>(info.tokens * info.head_dim);
  return {.q = std::span{layer.q}.subspan(static_cast<std::size_t>(h * group) * row,
                                          static_cast<std::size_t>(group) * row),
          .keys = std::span{layer.k}.subspan(static_cast<std::size_t>(h) * row, row),
          .values = std::span{layer.v}.subspan(static_cast<std::size_t>(h) * row, row),
          .group = group,
          .head_dim = info.head_dim,
          .tokens = info.tokens,
          .prompt = info.prompt_tokens,
          .scale = info.softmax_scale};
}

/// Compares final kept sets if no choice was within 1e-6; returns the number of heads compared.
int compare_with_reference(const Trace& trace, const std::string& name, std::int64_t budget,
                           const test::ReferenceSettings& settings) {
  const auto result = replay(trace, {{name, {}, Budget{0, budget}}}, detailed()).methods[0];
  int compared = 0;
  for (std::int32_t l = 0; l < trace.info().n_layers; ++l) {
    const TraceLayer layer = trace.read_layer(l);
    for (std::int32_t h = 0; h < trace.info().n_kv_heads; ++h) {
      test::ReferenceAccumulated reference{head_of(trace, layer, h), settings};
      bool clear = reference.clear_prompt;
      for (auto t = static_cast<std::int32_t>(trace.info().prompt_tokens); t < trace.info().tokens;
           ++t) {
        clear = reference.step(t) && clear;
      }
      if (!clear) continue;
      ++compared;
      INFO(name, " layer ", l, " head ", h);
      CHECK(result.kept[static_cast<std::size_t>(l)][static_cast<std::size_t>(h)] ==
            reference.kept());
    }
  }
  return compared;
}

void compare_all(const Trace& trace, int at_least) {
  const std::int64_t b = trace.info().prompt_tokens / 5;
  const std::int64_t tail = std::max<std::int64_t>(2, b / 10);
  CHECK(compare_with_reference(trace, "h2o", b,
                               {.budget = b, .tail_prompt = b - b / 2, .tail_decode = b - b / 2}) >=
        at_least);
  test::ReferenceSettings zero{
      .budget = b, .decay = 0.98, .tail_prompt = tail, .tail_decode = tail, .slots = 1};
  CHECK(compare_with_reference(trace, "zeromerge", b, zero) >= at_least);
  // If it is fed token by token, a long prompt causes hundreds of choices per head, so more are
  // near ties.
  zero.online = true;
  CHECK(compare_with_reference(trace, "zeromerge-paper", b, zero) >= at_least / 2);
}

TEST_CASE("kept sets on the shipped trace equal those of a reference") {
  compare_all(Trace::open(sample()), 6);
}

TEST_CASE("kept sets and laws on the other real traces") {
  const auto data = test::data_dir();
  if (!data) return;
  for (const char* file : {"stories260k-tim-512", "books-alice-1024"}) {
    const Trace trace = Trace::open(*data / "attention" / (std::string{file} + ".safetensors"));
    compare_all(trace, 6);
    for (const ReplayMethod& m : replay(trace, all_methods({0.2}), detailed(2)).methods)
      check_laws(trace, m);
  }
}

TEST_CASE("the largest possible mass of a number of entries by hand, by query head") {
  // One head of two query heads over five keys of one channel: e^logit is 1, 2, 4, 8, 1 for the
  // first, and uniform for the second.
  test::OwnedHead head;
  for (const double x : {1.0, 2.0, 4.0, 8.0, 1.0}) {
    head.keys.push_back(static_cast<float>(std::log(x)));
    head.values.push_back(0);
  }
  head.q = {1, 1, 1, 1, 1, 0, 0, 0, 0, 0};
  head.view = {.q = head.q,
               .keys = head.keys,
               .values = head.values,
               .group = 2,
               .head_dim = 1,
               .tokens = 5,
               .prompt = 3,
               .scale = 1};
  HeadSeries both;
  both.queries = 2;
  both.costs.resize(2);
  both.costs[0].max_read = 2;
  both.costs[1].max_read = 3;
  HeadSeries second;
  second.first_query = 1;
  second.costs.resize(2);
  second.costs[0].max_read = 1;
  second.costs[1].max_read = 9;
  both.best_mass.resize(4);
  second.best_mass.resize(2);
  const CausalAttention reference =
      causal_attention(head.q, head.keys, head.values, 2, 1, 5, 3, 1.0);
  REQUIRE(best_mass_blocks(head.view) == 1);
  add_best_mass(head.view, reference, 0, StepSample{head.view.tokens - head.view.prompt},
                {&both, &second});
  const std::vector<double> want{12.0 / 15, 0.5, 14.0 / 16, 0.6};
  for (std::size_t i = 0; i < want.size(); ++i) {
    CHECK(static_cast<double>(both.best_mass[i]) == rel(want[i], 1e-6));
  }
  CHECK(static_cast<double>(second.best_mass[0]) == rel(0.25, 1e-6));
  CHECK(second.best_mass[1] == 1.0F);
}

TEST_CASE("the largest possible mass equals that of ordered rows, ties and long rows included") {
  constexpr std::int32_t kGroup = 3, kDim = 4;
  constexpr std::int64_t kTokens = 700, kPrompt = 600;
  test::OwnedHead head = test::random_head(kGroup, kDim, kTokens, kPrompt, 5);
  for (std::int64_t t = 1; t < kTokens; t += 3) {  // equal keys have equal weights
    std::copy_n(head.keys.begin() + (t - 1) * kDim, kDim, head.keys.begin() + t * kDim);
  }
  const HeadVectors& view = head.view;
  const CausalAttention reference =
      causal_attention(view.q, view.keys, view.values, kGroup, kDim, kTokens, kPrompt, view.scale);
  HeadSeries few, many;
  few.queries = many.queries = kGroup;
  for (std::int64_t i = 0; i < kTokens - kPrompt; ++i) {
    few.costs.emplace_back().max_read = static_cast<std::int32_t>(1 + i);
    many.costs.emplace_back().max_read = static_cast<std::int32_t>(300 + 4 * i);
  }
  few.best_mass.resize(static_cast<std::size_t>(kTokens - kPrompt) * kGroup);
  many.best_mass.resize(few.best_mass.size());
  for (std::size_t block = 0; block < best_mass_blocks(view); ++block) {
    add_best_mass(view, reference, block, StepSample{view.tokens - view.prompt}, {&few, &many});
  }
  std::size_t checked = 0;
  each_causal_row(view.q, view.keys, kGroup, kDim, kTokens, kTokens, kPrompt, view.scale,
                  [&](const CausalRow& row) {
                    std::vector<double> p{row.probabilities.begin(), row.probabilities.end()};
                    std::sort(p.rbegin(), p.rend());
                    const auto step = static_cast<std::size_t>(row.t - kPrompt);
                    for (const HeadSeries* series : {&few, &many}) {
                      const auto n =
                          std::min<std::ptrdiff_t>(series->costs[step].max_read, std::ssize(p));
                      const double want = std::accumulate(p.begin(), p.begin() + n, 0.0);
                      const double got = static_cast<double>(
                          series->best_mass[step * kGroup + static_cast<std::size_t>(row.g)]);
                      REQUIRE(got == rel(want, 2e-6));
                      ++checked;
                    }
                  });
  CHECK(checked == 2 * few.best_mass.size());
}

TEST_CASE("percentiles are linear between ranks") {
  CHECK(percentile({4.0F, 1.0F, 3.0F, 2.0F}, 0.5) == rel(2.5));
  CHECK(percentile({4.0F, 1.0F, 3.0F, 2.0F}, 1.0) == 4.0);
  CHECK(percentile({7.0F}, 0.99) == 7.0);
  CHECK(std::isnan(percentile({}, 0.99)));
}

TEST_CASE("a method that cannot run on a trace names the missing input") {
  const Trace trace = Trace::open(made_up(1, 1, 1, 20, 10));
  CHECK_THROWS_WITH_AS(
      (void)replay(trace,
                   {{"streaming-llm", {{"positions", std::string{"rerotate"}}}, Budget{0, 8}}}, {}),
      doctest::Contains("does not have: rope_style and rope_theta"), InputError);
}

TEST_CASE("rerotated positions run on a real trace") {
  const Trace trace = Trace::open(sample());
  const auto a =
      replay(trace, {{"h2o", {{"positions", std::string{"rerotate"}}}, Budget{0.2, 0}}}, {})
          .methods[0];
  const auto b = replay(trace, {{"h2o", {}, Budget{0.2, 0}}}, {}).methods[0];
  CHECK(a.bytes_held_final == b.bytes_held_final);
  CHECK(a.rel_error_mean != b.rel_error_mean);
  CHECK(a.extra_flops_total > b.extra_flops_total);
}

}  // namespace
}  // namespace kvsim
