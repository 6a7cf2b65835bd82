// Wrappers that compare the heads of a layer or model, and every method of the family on recorded
// and made-up traces.

#include <filesystem>
#include <fstream>
#include <numeric>

#include <unistd.h>

#include "models/methods/params.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_content.hpp"
#include "tests/support/scratch.hpp"
#include "tests/support/session_run.hpp"
#include "traces/synthetic/generate.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using test::Ids;
using test::ReferenceScorer;
using test::rel;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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
  [[nodiscard]] std::vector<HeadVectors> heads(std::size_t layer) const {
    std::vector<HeadVectors> all;
    for (std::int32_t h = 0; h < trace.info().n_kv_heads; ++h) all.push_back(head(layer, h));
    return all;
  }
  Trace trace;
  std::vector<TraceLayer> layers;
};

Recorded sample() {
  return Recorded{fs::path{KVSIM_SOURCE_DIR} / "traces/samples/books-treasure-512.safetensors"};
}
Recorded generated(std::int32_t heads, std::int32_t kv_heads) {
  const fs::path path = test::scratch_folder() / fmt::format("content-{}.safetensors", ::getpid());
  GenerateOptions options;
  options.layers = 2;
  options.heads = heads;
  options.kv_heads = kv_heads;
  options.head_dim = 16;
  options.tokens = 170;
  options.prompt_tokens = 131;
  options.seed = 4;
  generate_trace(options, path);
  Recorded recorded{path};
  fs::remove(path);
  return recorded;
}

ReplayMethod run(const Recorded& on, const std::string& name, Params params = {},
                 std::optional<Budget> budget = {}) {
  ReplayOptions options;
  options.threads = 1;
  options.kept_positions = true;
  options.per_head = true;
  options.per_step = true;
  return replay(on.trace, {{name, std::move(params), budget}}, options).methods.front();
}
Ids kept_of(const ReplayMethod& m, std::size_t layer, std::size_t head) {
  Ids ids;
  for (const auto& members : m.kept[layer][head]) ids.push_back(members.front());
  return ids;
}

/// The ids of the prompt among the entries held at the end.
Ids of_prompt(Ids ids, std::int64_t prompt) {
  std::erase_if(ids, [prompt](std::int32_t id) { return id >= prompt; });
  return ids;
}

TEST_CASE("on a real trace the scorers keep the entries of a reference") {
  const Recorded real = sample();
  const TraceInfo& info = real.trace.info();
  test::ReferenceExpected far;
  far.theta = *info.rope_theta;
  far.interleaved = *info.rope_style == RopeStyle::kInterleaved;
  struct Case {
    std::string name;
    Params params;
    ReferenceScorer reference;
  };
  const std::vector<Case> cases{
      {"knorm", {}, test::reference_knorm},
      {"keydiff", {}, test::reference_keydiff},
      {"lagkv", {{"lag", std::int64_t{32}}}, test::reference_lagkv(4, 32, false)},
      {"expected-attention",
       {{"n_future_positions", std::int64_t{64}}},
       [&] {
         far.future = 64;
         return test::reference_expected(far);
       }()},
      {"select=last-window", {}, test::reference_last_window(32, 7)},
  };
  int compared = 0;
  for (const Case& each : cases) {
    const ReplayMethod m = run(real, each.name, each.params, Budget{0.2, 0});
    CHECK(*m.budget_reached == rel(76.0 / 384));
    CHECK(m.bytes_held_final == *m.closed_form_bytes_final);
    for (std::size_t l = 0; l < real.layers.size(); ++l) {
      for (std::int32_t h = 0; h < info.n_kv_heads; ++h) {
        INFO(each.name, " layer ", l, " head ", h);
        const HeadVectors head = real.head(l, h);
        bool clear = true;
        Ids want = test::reference_top(each.reference(head, test::first_ids(384), 384), 76, clear);
        if (!clear) continue;
        ++compared;
        for (std::int32_t t = 384; t < 512; ++t) want.push_back(t);
        CHECK(kept_of(m, l, static_cast<std::size_t>(h)) == want);
      }
    }
  }
  CHECK(compared >= 55);  // out of 60
}

TEST_CASE("on a real trace periodic compression and the oracle keep a reference's entries") {
  const Recorded real = sample();
  const ReplayMethod r_kv =
      run(real, "r-kv", {{"divide_length", std::int64_t{50}}}, Budget{0.2, 0});
  const ReplayMethod decoding =
      run(real, "decoding", {{"interval", std::int64_t{60}}, {"target", 100.0}});
  CHECK(r_kv.bytes_held_final == *r_kv.closed_form_bytes_final);
  CHECK(decoding.bytes_held_final == *decoding.closed_form_bytes_final);
  CHECK(*decoding.budget_reached == rel(1.0));
  int compared = 0;
  for (const std::size_t l : {std::size_t{0}, std::size_t{5}}) {
    for (std::int32_t h = 0; h < 2; ++h) {
      INFO("layer ", l, " head ", h);
      const HeadVectors head = real.head(l, h);
      bool clear = true;
      const Ids want =
          test::reference_periodic(head, test::reference_r_kv(8, 7, 0.07), 50, 76, true, clear);
      if (clear) CHECK(kept_of(r_kv, l, static_cast<std::size_t>(h)) == want);
      compared += clear ? 1 : 0;
      clear = true;
      const Ids slim = test::reference_periodic(head, test::reference_knorm, 60, 100, false, clear);
      if (clear) CHECK(kept_of(decoding, l, static_cast<std::size_t>(h)) == slim);
      compared += clear ? 1 : 0;
    }
  }
  CHECK(compared >= 6);  // out of 8
  // The oracle retains more than methods of equal size that use only past queries.
  const ReplayMethod oracle = run(real, "oracle-future", {}, Budget{0.2, 0});
  const ReplayMethod h2o = run(real, "h2o", {}, Budget{0.2, 0});
  const ReplayMethod streaming = run(real, "streaming-llm", {}, Budget{0.2, 0});
  CHECK(oracle.entries_held_final == h2o.entries_held_final);
  CHECK(*oracle.retained_mass_mean > *h2o.retained_mass_mean);
  CHECK(*oracle.retained_mass_mean > *streaming.retained_mass_mean);
}

/// Reference of AdaKV's head sizes, from its article: `open` scores per head, `base` entries per
/// head.
std::vector<std::int64_t> reference_ada(const std::vector<test::Scores>& open, std::int64_t base,
                                        double alpha, bool kvpress) {
  std::vector<std::tuple<double, std::int32_t, std::size_t>> all;
  std::vector<std::int64_t> safe(open.size(), 0);
  std::int64_t left = base * std::ssize(open);
  for (std::size_t h = 0; h < open.size(); ++h) {
    std::vector<std::tuple<double, std::int32_t, std::size_t>> mine;
    for (const auto& [id, x] : open[h]) mine.emplace_back(-x, id, h);
    std::sort(mine.begin(), mine.end());
    if (kvpress) {
      safe[h] = static_cast<std::int64_t>(alpha * static_cast<double>(base));
      left -= safe[h];
    }
    all.insert(all.end(), mine.begin() + safe[h], mine.end());
  }
  std::sort(all.begin(), all.end());
  std::vector<std::int64_t> count(open.size(), 0);
  for (std::int64_t i = 0; i < left; ++i) ++count[std::get<2>(all[static_cast<std::size_t>(i)])];
  for (std::size_t h = 0; h < open.size(); ++h) {
    count[h] = kvpress ? count[h] + safe[h]
                       : std::lrint((1 - alpha) * static_cast<double>(count[h]) +
                                    std::trunc(alpha * static_cast<double>(base)));
  }
  return count;
}

TEST_CASE("AdaKV's heads have the sizes of its paper and keep their best entries") {
  const std::int64_t window = 32;
  for (const Recorded& on : {sample(), generated(6, 6), generated(6, 2), generated(4, 1)}) {
    const TraceInfo& info = on.trace.info();
    const std::int64_t prompt = info.prompt_tokens;
    const std::int64_t budget = prompt / 3;
    for (const bool kvpress : {false, true}) {
      for (const double alpha : {0.0, 0.2, 0.5, 1.0}) {
        INFO(info.name, " heads ", info.n_kv_heads, " kvpress ", kvpress, " alpha ", alpha);
        // In kvpress the floor is a share of the whole budget including the window, so only scorers
        // without a window are compared.
        const std::string name = kvpress ? "keydiff+budget=ada" : "adakv";
        const ReplayMethod m =
            run(on, name,
                {{"ada_alpha", alpha}, {"ada_form", std::string{kvpress ? "kvpress" : "official"}}},
                Budget{0, budget});
        const ReferenceScorer scorer = kvpress ? ReferenceScorer{test::reference_keydiff}
                                               : test::reference_last_window(window, 7);
        CHECK_FALSE(m.closed_form_bytes_final.has_value());
        for (std::size_t l = 0; l < on.layers.size(); ++l) {
          std::vector<test::Scores> scores;
          std::vector<test::Scores> open;
          for (const HeadVectors& head : on.heads(l)) {
            scores.push_back(scorer(head, test::first_ids(prompt), prompt));
            open.push_back(scores.back());
            std::erase_if(open.back(), [](const auto& each) { return each.second == kInfinity; });
          }
          const std::int64_t own = kvpress ? 0 : window;
          const auto sizes = reference_ada(open, budget - own, alpha, kvpress);
          std::int64_t sum = 0;
          for (std::size_t h = 0; h < scores.size(); ++h) {
            const Ids kept = of_prompt(kept_of(m, l, h), prompt);
            const std::int64_t size = std::max<std::int64_t>(sizes[h] + own, 1);
            sum += std::ssize(kept);
            REQUIRE(std::ssize(kept) == size);
            bool clear = true;
            const Ids want = test::reference_top(scores[h], size, clear);
            if (clear) CHECK(kept == want);
            if (alpha == 1.0) CHECK(size == budget);
          }
          // The same total, except for rounding in the official form.
          const auto heads = std::ssize(scores);
          if (kvpress && alpha > 0) CHECK(sum == heads * budget);
          CHECK(std::abs(sum - heads * budget) <= heads + heads / 2);
        }
        // A length and an offset per head.
        CHECK(m.side_bytes_final == 8 * info.n_kv_heads * info.n_layers);
      }
    }
  }
}

TEST_CASE("AdaKV over other selectors: a fixed size per head under h2o, all kept if all fits") {
  const Recorded on = generated(6, 2);
  const ReplayMethod h2o = run(on, "h2o+budget=ada", {}, Budget{0.3, 0});
  for (const ReplayStep& step : h2o.series) {
    CHECK(step.entries_held == h2o.series.front().entries_held);
  }
  const ReplayMethod all = run(on, "adakv", {}, Budget{1.0, 0});
  const ReplayMethod full = run(on, "full");
  CHECK(all.entries_held_final == full.entries_held_final);
  CHECK(all.rel_error_mean == rel(full.rel_error_mean, 1e-6));
  // Weights change head sizes, but totals only by rounding.
  const ReplayMethod plain = run(on, "adakv", {}, Budget{0.4, 0});
  const ReplayMethod weighed = run(on, "adakv", {{"ada_normalize", true}}, Budget{0.4, 0});
  CHECK(std::abs(plain.entries_held_final - weighed.entries_held_final) <= 12);
}

TEST_CASE("CriticalKV: half by score, half by score times the value's effect on the output") {
  // Two KV heads of two query heads; W_O maps 4 x 8 channels to 12.
  const auto a = test::random_head(2, 8, 70, 60, 1);
  const auto b = test::random_head(2, 8, 70, 60, 2);
  test::Normal normal{5};
  std::vector<float> w(static_cast<std::size_t>(12) * 4 * 8);
  for (float& x : w) x = static_cast<float>(normal());
  LayerVectors layer;
  layer.heads = {a.view, b.view};
  layer.d_model = 12;
  layer.output_projection = w;
  for (const double first : {0.0, 0.5, 1.0}) {
    const auto method = make_method(
        {"criticalkv", {{"window", std::int64_t{4}}, {"first_stage", first}}, Budget{0, 21}}, 60,
        {.recorded = Dtype::kFp16});
    CHECK(method->needs().inputs.output_projection);
    for (std::int32_t h = 0; h < 2; ++h) {
      INFO("first ", first, " head ", h);
      const HeadVectors& head = layer.heads[static_cast<std::size_t>(h)];
      PromptScores scores{{head}, h, layer};
      CacheSession session{
          as_composed(*method),
          {.first_head = h, .group = 2, .head_dim = 8, .tokens = 70, .scale = head.scale},
          {head}};
      session.learn(scores);
      session.prefill(scores, {.entries = 21});
      const auto base = test::reference_last_window(4, 7)(head, test::first_ids(60), 60);
      bool clear = true;
      const Ids early = test::reference_top(base, static_cast<std::int64_t>(21 * first), clear);
      test::Scores second;
      for (const auto& [id, x] : base) {
        double norm = 0;  // mean over the group of the L1 norm of W_O^(j) v
        for (std::int32_t j = 2 * h; j < 2 * h + 2; ++j) {
          for (std::size_t r = 0; r < 12; ++r) {
            double y = 0;
            for (std::size_t c = 0; c < 8; ++c) {
              y += static_cast<double>(w[r * 32 + static_cast<std::size_t>(j) * 8 + c]) *
                   static_cast<double>(head.value(id)[c]);
            }
            norm += std::abs(y) / 2;
          }
        }
        second[id] = (x + 1e-4) * norm;
      }
      for (const auto id : early) second[id] = kInfinity;
      const Ids want = test::reference_top(second, 21, clear);
      REQUIRE(clear);
      Ids kept;
      for (const auto& members : session.kept()) kept.push_back(members.front());
      CHECK(kept == want);
      if (first == 1.0) CHECK(kept == test::reference_top(base, 21, clear));
    }
  }
  // 2 Hq s d D more than the unweighted scorer, D = 12.
  const MethodContext site{.recorded = Dtype::kFp16,
                           .shape = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 8},
                           .windows = {},
                           .n_layers = 1,
                           .d_model = 12};
  const auto critical = make_method({"criticalkv", {}, Budget{0, 40}}, 60, site);
  const auto plain = make_method({"select=last-window", {}, Budget{0, 40}}, 60, site);
  CHECK(critical->prefill_extra(0, site.shape, Dtype::kFp16, 60).flops -
            plain->prefill_extra(0, site.shape, Dtype::kFp16, 60).flops ==
        rel(2.0 * 4 * 60 * 8 * 12));
}

TEST_CASE("ChunkKV keeps whole chunks, the same in every head") {
  for (const Recorded& on : {sample(), generated(6, 2), generated(4, 1)}) {
    const TraceInfo& info = on.trace.info();
    const auto prompt = static_cast<std::int32_t>(info.prompt_tokens);
    for (const std::int32_t chunk : {1, 20, 16}) {
      INFO(info.name, " chunk ", chunk);
      const ReplayMethod m =
          run(on, "chunkkv",
              {{"scorer", std::string{"keydiff"}}, {"chunk", std::int64_t{chunk}}, {"ratio", 0.6}});
      const std::int32_t chunks = (prompt + chunk - 1) / chunk;
      const auto count = static_cast<std::int64_t>(chunks * (1.0 - 0.6));
      for (std::size_t l = 0; l < on.layers.size(); ++l) {
        test::Scores of_chunk;
        for (const HeadVectors& head : on.heads(l)) {
          for (const auto& [id, x] :
               test::reference_keydiff(head, test::first_ids(prompt), prompt)) {
            const std::int32_t c = id / chunk;
            of_chunk[c] += x / std::min(chunk, prompt - c * chunk);
          }
        }
        bool clear = true;
        const Ids best = test::reference_top(of_chunk, count, clear);
        REQUIRE(clear);
        Ids want;
        for (const auto c : best) {
          for (std::int32_t i = c * chunk; i < std::min((c + 1) * chunk, prompt); ++i) {
            want.push_back(i);
          }
        }
        for (std::size_t h = 0; h < on.heads(l).size(); ++h) {
          CHECK(of_prompt(kept_of(m, l, h), prompt) == want);
        }
      }
      // The law is exact if the last chunk is whole.
      CHECK(m.closed_form_bytes_final.has_value() == (prompt % chunk == 0));
      if (m.closed_form_bytes_final) CHECK(m.bytes_held_final == *m.closed_form_bytes_final);
    }
    // A budget is never exceeded; the unused part is smaller than a chunk.
    const ReplayMethod m = run(on, "chunkkv", {}, Budget{0.4, 0});
    CHECK(*m.budget_reached <= 0.4);
    CHECK(*m.budget_reached > 0.4 - 21.0 / prompt);
  }
  // A prompt shorter than a chunk is selected token by token.
  const auto method = make_method({"chunkkv", {}, Budget{0, 5}}, 12);
  CHECK(*method->entries_held(0, 12, 12) == 5);
}

TEST_CASE("SimLayerKV: a layer is lazy and streams depending on its last query") {
  const Recorded on = sample();
  const Params sizes{{"n_recent", std::int64_t{64}}};
  const auto with = [&](double threshold) {
    Params params = sizes;
    params["lazy_threshold"] = threshold;
    return run(on, "simlayerkv", params);
  };
  // At 1, no layer is lazy; at 0, all are: 4 + 63 entries in each of 12 heads, before and after.
  CHECK(with(1.0).entries_held_final == 12 * 512);
  const ReplayMethod all = with(0.0);
  CHECK(all.entries_held_final == 12 * 67);
  CHECK(*all.budget_reached == rel(67.0 / 384));
  Ids recent{0, 1, 2, 3};
  for (std::int32_t t = 512 - 63; t < 512; ++t) recent.push_back(t);
  CHECK(kept_of(all, 3, 1) == recent);
  // In between, the layers are determined by a reference of the statistic.
  const ReplayMethod some = with(0.7);
  int lazy = 0;
  for (std::size_t l = 0; l < on.layers.size(); ++l) {
    double mean = 0;
    for (const HeadVectors& head : on.heads(l)) {
      for (std::int32_t g = 0; g < head.group; ++g) {
        const auto p = test::naive_attention(head, g, 383, test::first_ids(384));
        for (std::size_t i = 0; i < p.size(); ++i) mean += i < 4 || i >= 320 ? p[i] / 6 : 0;
      }
    }
    REQUIRE(std::abs(mean - 0.7) > 1e-6);
    lazy += mean > 0.7 ? 1 : 0;
    CHECK(std::ssize(some.kept[l][0]) == (mean > 0.7 ? 67 : 512));
    CHECK(some.kept[l][0].size() == some.kept[l][1].size());
  }
  CHECK((lazy > 0 && lazy < 6));  // otherwise the test has little value
  // If sinks and recent tokens cover the prompt, the statistic is undefined: no layer streams.
  CHECK(run(on, "simlayerkv", {{"n_recent", std::int64_t{380}}, {"lazy_threshold", 0.0}})
            .entries_held_final == 12 * 512);
}

TEST_CASE("DuoAttention: whole heads, by table or by the distance of their attention") {
  const Recorded on = sample();
  const Params small{{"n_sink", std::int64_t{4}}, {"n_recent", std::int64_t{60}}};
  const auto with = [&](double fraction, Params more = {}) {
    more.insert(small.begin(), small.end());
    more["streaming_fraction"] = fraction;
    return run(on, "duo-attention", more);
  };
  CHECK(with(0.0).entries_held_final == 12 * 512);
  const ReplayMethod all = with(1.0);
  const ReplayMethod streaming =
      run(on, "streaming-llm", {{"n_sink", std::int64_t{4}}, {"window", std::int64_t{60}}});
  CHECK(all.kept == streaming.kept);
  CHECK(all.rel_error_mean == streaming.rel_error_mean);
  CHECK(all.side_bytes_final == 8 * 12);
  // The lowest half according to a reference of the scores.
  const TraceInfo& info = on.trace.info();
  const bool interleaved = *info.rope_style == RopeStyle::kInterleaved;
  std::vector<std::pair<double, std::size_t>> ranked;
  for (std::size_t l = 0; l < on.layers.size(); ++l) {
    for (std::int32_t h = 0; h < 2; ++h) {
      const HeadVectors head = on.head(l, h);
      const auto mean_of = [&](const auto& row_at) {
        test::Vec mean(32, 0.0);
        for (std::int64_t t = 0; t < 384; ++t) {
          const auto back = test::rotation(32, *info.rope_theta, interleaved, -t, 1);
          const test::Vec row = test::times(back, test::to_vec(row_at(t)));
          for (std::size_t j = 0; j < 32; ++j) mean[j] += row[j] / 384;
        }
        return mean;
      };
      const test::Vec k = mean_of([&](std::int64_t t) { return head.key(t); });
      double score = 0;
      for (std::int32_t g = 0; g < head.group; ++g) {
        const test::Vec q = mean_of([&](std::int64_t t) { return head.query(g, t); });
        const test::Vec last =
            test::times(test::rotation(32, *info.rope_theta, interleaved, 499, 1), q);
        test::Scores weights;
        for (std::int32_t p = 0; p < 500; ++p) {
          weights[p] =
              head.scale *
              test::inner(last,
                          test::times(test::rotation(32, *info.rope_theta, interleaved, p, 1), k));
        }
        test::reference_softmax_in_place(weights);
        // The mean of cumulated sums counts the weight on p (500 - p) times.
        for (const auto& [p, w] : weights) score += w * (500 - p) / 500 / head.group;
      }
      ranked.emplace_back(score, 2 * l + static_cast<std::size_t>(h));
    }
  }
  std::sort(ranked.begin(), ranked.end());
  REQUIRE(ranked[6].first - ranked[5].first > 1e-6);
  const ReplayMethod half = with(0.5);
  for (std::size_t i = 0; i < ranked.size(); ++i) {
    const std::size_t at = ranked[i].second;
    CHECK(std::ssize(half.kept[at / 2][at % 2]) == (i < 6 ? 64 : 512));
  }
  // A budget is never exceeded; the unused part is smaller than a head: 8 of 12 stream at 0.5.
  Params params = small;
  const ReplayMethod bought = run(on, "duo-attention", params, Budget{0.5, 0});
  CHECK(*bought.budget_reached == rel((4 * 384 + 8 * 64) / (12.0 * 384)));
  CHECK(*run(on, "duo-attention", params, Budget{1.0, 0}).budget_reached == rel(1.0));
  // A table in the released form: the fourth layer's two heads and one other head are the lowest.
  const fs::path table = test::scratch_folder() / fmt::format("duo-{}.tsv", ::getpid());
  const auto write = [&](const std::string& text) { std::ofstream{table} << text; };
  write("1\t.9\n.8\t.7\n.6\t.5\n.01\t.02\n.4\t.3\n.2\t.1\n");
  const ReplayMethod by_table = with(0.25, {{"heads", table.string()}});
  for (std::size_t l = 0; l < 6; ++l) {
    for (std::size_t h = 0; h < 2; ++h) {
      const bool streams = l == 3 || (l == 5 && h == 1);
      CHECK(std::ssize(by_table.kept[l][h]) == (streams ? 64 : 512));
    }
  }
  for (const auto& [text, reason] : std::vector<std::pair<std::string, std::string>>{
           {"", "a line for each layer"},
           {"1 2\n1 x\n", ":2: expected a number"},
           {"1 2\n1\n", ":2: expected 2 KV heads"},
           {"1 2\n3 4\n", "expected 6 layers of 2 KV heads, got 2 of 2"}}) {
    write(text);
    std::string message;
    try {
      with(0.5, {{"heads", table.string()}});
    } catch (const InputError& error) {
      message = error.what();
    }
    INFO(message);
    CHECK(message.find(reason) != std::string::npos);
  }
  fs::remove(table);
}

TEST_CASE(
    "the family runs on grouped, multi-head and multi-query traces on any number of threads") {
  const std::vector<std::string> names{"knorm", "keydiff", "lagkv", "random",
                                       "adakv", "chunkkv", "r-kv",  "oracle-future"};
  for (const Recorded& on : {generated(6, 2), generated(3, 3), generated(4, 1)}) {
    for (const std::string& name : names) {
      INFO(name, " heads ", on.trace.info().n_kv_heads);
      const ReplayMethod one = run(on, name, {}, Budget{0.3, 0});
      CHECK(one.rel_error_mean > 0);
      CHECK(*one.retained_mass_mean < 1);
      ReplayOptions options;
      options.threads = 2;
      const ReplayMethod two =
          replay(on.trace, {{name, {}, Budget{0.3, 0}}}, options).methods.front();
      CHECK(one.rel_error_mean == two.rel_error_mean);
      if (one.closed_form_bytes_final) CHECK(one.bytes_held_final == *one.closed_form_bytes_final);
      if (name == "adakv" || name == "chunkkv") continue;
      CHECK(one.closed_form_bytes_final.has_value());
      const ReplayMethod split =
          run(on, name, {{"granularity", std::string{"query_head"}}}, Budget{0.9, 0});
      CHECK(*split.budget_reached <= 0.9 + 1e-12);
    }
  }
}

}  // namespace
}  // namespace kvsim
