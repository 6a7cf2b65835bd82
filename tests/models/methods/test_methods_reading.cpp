// Readers: they hold all entries, and their budget limits the reads of a step.

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "models/math/low_rank/truncated_svd.hpp"
#include "models/methods/params.hpp"
#include "models/units/error.hpp"
#include "sim/replay/layer_block.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_reading.hpp"
#include "tests/support/session_run.hpp"

namespace kvsim {
namespace {

constexpr double kNear = 1e-6;
const std::filesystem::path kSample =
    std::filesystem::path{KVSIM_SOURCE_DIR} / "traces/samples/books-treasure-512.safetensors";

MethodSpec spec_of(const std::string& name, std::int64_t entries, Params params = {}) {
  return {name, std::move(params), Budget{0, entries}};
}

/// A session of the heads of one layer, as layer `layer` of a model of 8, stepped manually.
struct LayerRun {
  LayerRun(const MethodSpec& spec, std::vector<HeadVectors> vectors, std::int32_t layer,
           bool interleaved = true, double theta = 10000)
      : heads{std::move(vectors)}, rope{heads.front().head_dim, theta, interleaved} {
    const HeadVectors& one = heads.front();
    MethodContext site;
    site.n_layers = 8;
    site.shape = {.n_heads = static_cast<std::int32_t>(heads.size()) * one.group,
                  .n_kv_heads = static_cast<std::int32_t>(heads.size()),
                  .head_dim = one.head_dim};
    method = make_method(spec, one.prompt, site);
    view.heads = heads;
    view.rope = &rope;
    view.layer = layer;
    view.n_layers = 8;
    scores = std::make_unique<PromptScores>(heads, 0, view);
    const SessionPlace place{.layer = layer,
                             .n_layers = 8,
                             .first_head = 0,
                             .group = one.group,
                             .head_dim = one.head_dim,
                             .tokens = static_cast<std::int32_t>(one.tokens),
                             .scale = one.scale,
                             .seed = 0,
                             .rope = &rope};
    session = std::make_unique<CacheSession>(as_composed(*method), place, heads);
    session->learn(*scores);
    session->prefill(*scores, {});
  }
  std::vector<HeadVectors> heads;
  Rope rope;
  std::shared_ptr<const Method> method;
  LayerVectors view;
  std::unique_ptr<PromptScores> scores;
  std::unique_ptr<CacheSession> session;
};

/// Calls `check` with the heads of each layer of the sample, and of made-up layers: grouped,
/// multi-head, multi-query, odd lengths and dimensions.
template <class Check>
void on_layers(Check check) {
  const Trace trace = Trace::open(kSample);
  for (std::int32_t layer = 0; layer < trace.info().n_layers; ++layer) {
    LayerBlock block{trace, layer, 1, {}, nullptr};
    std::vector<HeadVectors> heads;
    for (std::int32_t h = 0; h < trace.info().n_kv_heads; ++h) {
      DecisionUnit unit{.layer = layer, .heads = {{layer, h, -1}}};
      heads.push_back(block.vectors(unit).front());
    }
    INFO("sample, layer ", layer);
    check(heads);
  }
  struct Shape {
    std::int32_t heads, group, d;
    std::int64_t tokens, prompt;
  };
  for (const Shape s : {Shape{2, 3, 8, 70, 31}, Shape{3, 1, 10, 290, 257}, Shape{1, 4, 6, 40, 1},
                        Shape{1, 2, 8, 60, 60}}) {
    std::vector<test::OwnedHead> owned;
    std::vector<HeadVectors> heads;
    for (std::int32_t h = 0; h < s.heads; ++h) {
      owned.push_back(test::random_head(s.group, s.d, s.tokens, s.prompt,
                                        static_cast<std::uint64_t>(s.tokens + h)));
    }
    for (const auto& each : owned) heads.push_back(each.view);
    INFO("made up, ", s.heads, " heads of ", s.group, " queries, prompt ", s.prompt);
    check(heads);
  }
}

void check_output(const CacheSession& session, std::size_t h, std::int32_t g,
                  const std::pair<std::vector<double>, double>& want) {
  const auto& [out, log_sum] = want;
  CHECK(session.log_sum(h, g) == doctest::Approx(log_sum).epsilon(1e-9));
  for (std::size_t j = 0; j < out.size(); ++j) {
    const double got = session.output(h)[static_cast<std::size_t>(g) * out.size() + j];
    REQUIRE(std::abs(got - out[j]) < 1e-9);
  }
}

TEST_CASE("quest reads the pages with the largest bounds, like a reference") {
  std::int64_t compared = 0;
  on_layers([&](const std::vector<HeadVectors>& heads) {
    for (const std::string choosing : {"query_head", "union", "sum"}) {
      LayerRun run{spec_of("quest", 40, {{"pages_chosen", choosing}, {"page", std::int64_t{8}}}),
                   heads, 3};
      const std::int64_t tokens = heads.front().tokens;
      for (std::int64_t t = heads.front().prompt; t < tokens; ++t) {
        run.session->step();
        if (tokens > 300 && t % 7 != 0) continue;  // the reference is slow
        for (std::size_t h = 0; h < heads.size(); ++h) {
          const auto reads = test::reference_quest(heads[h], t, 40, 8, choosing);
          std::set<std::int32_t> read;
          bool clear = true;
          for (const auto& each : reads) {
            clear = clear && each.gap > kNear;
            read.insert(each.positions.begin(), each.positions.end());
          }
          if (!clear) continue;
          ++compared;
          CHECK(run.session->events(h).read == static_cast<double>(read.size()));
          CHECK(run.session->entries(h).size() == t + 1);
          for (std::int32_t g = 0; g < heads[h].group; ++g) {
            check_output(*run.session, h, g,
                         test::reference_output(heads[h], g, t,
                                                reads[static_cast<std::size_t>(g)].positions));
          }
        }
      }
    }
  });
  CHECK(compared > 500);
}

TEST_CASE("quest's bound is above every logit of its page") {
  const auto head = test::random_head(2, 8, 60, 40);
  for (std::int32_t page = 0; page < 60 / 16; ++page) {
    for (std::int32_t g = 0; g < 2; ++g) {
      const double bound = test::reference_bound(head.view, g, 59, page, 16);
      for (std::int32_t i = page * 16; i < (page + 1) * 16; ++i) {
        CHECK(test::logit_of(head.view, g, 59, i) <= bound + 1e-12);
      }
    }
  }
}

TEST_CASE("quest by hand: three pages of one entry of four") {
  // One channel, query 1, keys 0.1 … 0.4 and 0.2 at the step: the bounds equal the keys, and the
  // pages of 0.4, 0.3 and the older 0.2 are read.
  const std::vector<float> keys{0.1F, 0.2F, 0.3F, 0.4F, 0.2F};
  const std::vector<float> values{1, 2, 3, 4, 5};
  const std::vector<float> q{1, 1, 1, 1, 1};
  const HeadVectors head{.q = q,
                         .keys = keys,
                         .values = values,
                         .group = 1,
                         .head_dim = 1,
                         .tokens = 5,
                         .prompt = 4,
                         .scale = 1};
  const auto method =
      make_method(spec_of("quest", 3, {{"page", std::int64_t{1}}, {"dense", std::int64_t{0}}}), 4);
  test::SessionRun run{method, head};
  run.session.step();
  const double a = std::exp(0.2F), b = std::exp(0.3F), c = std::exp(0.4F);
  CHECK(run.session.output(0)[0] == doctest::Approx((2 * a + 3 * b + 4 * c) / (a + b + c)));
  CHECK(run.session.events().read == 3);
}

TEST_CASE("oracle-step attends to the entries with the largest weights, which retain the most") {
  std::int64_t compared = 0;
  on_layers([&](const std::vector<HeadVectors>& heads) {
    const std::int64_t budget = 24;
    LayerRun run{spec_of("oracle-step", budget), heads, 0};
    LayerRun quest{spec_of("quest", 48), heads, 4};  // 3 pages of 16: twice the budget
    for (std::int64_t t = heads.front().prompt; t < heads.front().tokens; ++t) {
      run.session->step();
      quest.session->step();
      for (std::size_t h = 0; h < heads.size(); ++h) {
        std::set<std::int32_t> read;
        bool clear = true;
        for (std::int32_t g = 0; g < heads[h].group; ++g) {
          const auto right = test::reference_oracle(heads[h], g, t, budget);
          clear = clear && right.gap > kNear;
          if (right.gap <= kNear) continue;
          ++compared;
          read.insert(right.positions.begin(), right.positions.end());
          check_output(*run.session, h, g, test::reference_output(heads[h], g, t, right.positions));
        }
        if (clear) CHECK(run.session->events(h).read == static_cast<double>(read.size()));
      }
    }
  });
  CHECK(compared > 1000);
}

TEST_CASE("at one budget of entries nothing retains more than oracle-step") {
  const Trace trace = Trace::open(kSample);
  for (const std::int64_t budget : {48, 96, 160}) {
    ReplayOptions options;
    options.per_step = true;
    const auto result =
        replay(trace,
               {spec_of("oracle-step", budget + 1),  // evicting methods attend B + 1
                spec_of("quest", budget, {{"dense", std::int64_t{0}}}), spec_of("h2o", budget),
                spec_of("streaming-llm", budget)},
               options);
    const ReplayMethod& oracle = result.methods.front();
    for (std::size_t m = 1; m < result.methods.size(); ++m) {
      INFO(result.methods[m].name, " at ", budget);
      CHECK(*oracle.retained_mass_mean > *result.methods[m].retained_mass_mean);
      CHECK(oracle.rel_error_mean < result.methods[m].rel_error_mean);
      for (std::size_t i = 0; i < oracle.series.size(); ++i) {
        REQUIRE(*oracle.series[i].retained_mass >= *result.methods[m].series[i].retained_mass);
      }
    }
  }
}

TEST_CASE("shadowkv reads local, outlier, chosen and generated entries, like a reference") {
  std::int64_t compared = 0;
  on_layers([&](const std::vector<HeadVectors>& heads) {
    const std::int64_t prompt = heads.front().prompt;
    const std::int64_t budget = 64;  // 8 chunks; 24 * 64 / 1024 = 1 outlier
    // At full rank, the keys equal the recorded keys.
    LayerRun run{spec_of("shadowkv", budget, {{"rank", std::int64_t{4096}}}), heads, 0};
    std::vector<test::ReferenceShadow> references;
    const bool whole = budget >= prompt || prompt / 8 <= 4;
    for (const auto& head : heads) references.emplace_back(head, 1);
    for (std::int64_t t = prompt; t < heads.front().tokens; ++t) {
      run.session->step();
      for (std::size_t h = 0; h < heads.size(); ++h) {
        std::set<std::int32_t> positions;
        double gap = 1e300;
        if (whole) {
          for (std::int32_t i = 0; i <= t; ++i) positions.insert(i);
          CHECK(run.session->fetched(h) == Bytes{0});
        } else {
          std::size_t fresh = 0;
          std::tie(gap, fresh) = references[h].choose(heads[h], t, 8);
          positions = references[h].positions(heads[h], t);
          if (gap > 1e-7) {
            CHECK(run.session->fetched(h).count() ==
                  static_cast<std::int64_t>(fresh) * 8 * heads[h].head_dim * 2);
          }
        }
        if (gap <= 1e-7) continue;
        ++compared;
        CHECK(run.session->events(h).read == static_cast<double>(positions.size()));
        for (std::int32_t g = 0; g < heads[h].group; ++g) {
          check_output(*run.session, h, g, test::reference_output(heads[h], g, t, positions));
        }
      }
    }
  });
  CHECK(compared > 500);
}

TEST_CASE("shadowkv's rebuilt keys: of lower rank they deviate, never more than the rank says") {
  const Trace trace = Trace::open(kSample);  // 2 heads of 32 channels: rank 64 is the full rank
  std::map<std::int64_t, double> error;
  for (const std::int64_t rank : {4, 16, 32, 63, 64, 160}) {
    const auto result = replay(trace, {spec_of("shadowkv", 128, {{"rank", rank}})}, {});
    const ReplayMethod& m = result.methods.front();
    error[rank] = m.rel_error_mean;
    CHECK_FALSE(m.retained_mass_mean.has_value());
    CHECK(m.bytes_held_final == m.closed_form_bytes_final);
    // Values of 384 tokens, 2 heads, 6 layers, 32 channels of 2 bytes.
    CHECK(m.host_bytes_final == 384 * 2 * 6 * 32 * 2);
    CHECK(m.counts.at("shadowkv_chunks_chosen") == 128 * 12 * 16);
    CHECK(m.link_bytes_total == m.counts.at("shadowkv_chunks_fetched") * 8 * 32 * 2);
    CHECK(m.counts.at("shadowkv_chunks_fetched") < m.counts.at("shadowkv_chunks_chosen"));
  }
  CHECK(error[64] == error[160]);
  CHECK(error[4] > error[16]);
  CHECK(error[16] > error[32]);
  CHECK(error[32] > error[63]);
  CHECK(error[63] == doctest::Approx(error[64]).epsilon(0.02));
}

TEST_CASE("shadowkv's bytes by hand") {
  // Prompt 384 = 48 chunks, 44 before the 4 local ones; budget 128: 16 chosen, 3 outliers (24 * 128
  // / 1024), 41 landmarks. One head of two, d 32, fp16, rank 16, after 10 generated tokens:
  //   384 * 16 / 2 + 16 * 32 of factors, 2 * (32 + 24 + 10) * 32 rows in full, 16 * 8 * 32 values.
  MethodContext site;
  site.shape = {.n_heads = 6, .n_kv_heads = 2, .head_dim = 32};
  const auto method =
      make_method(spec_of("shadowkv", 128, {{"rank", std::int64_t{16}}}), 384, site);
  const auto bytes = method->layer_bytes(0, site.shape, Dtype::kFp16, 384, 394);
  REQUIRE(bytes.has_value());
  CHECK(bytes->kv.count() == 2 * 2 * (384 * 8 + 16 * 32 + 2 * 66 * 32 + 128 * 32));
  CHECK(bytes->side.count() == 2 * 2 * 41 * 32);
  CHECK(bytes->host.count() == 2 * 2 * 384 * 32);
}

TEST_CASE("budget >= prompt plus generated tokens: readers equal the full cache") {
  const Trace trace = Trace::open(kSample);
  const std::int64_t all = trace.info().tokens;
  const auto result = replay(trace,
                             {{"full", {}, {}},
                              spec_of("quest", all),
                              spec_of("oracle-step", all),
                              spec_of("shadowkv", all)},
                             {});
  const ReplayMethod& full = result.methods.front();
  for (const ReplayMethod& m : result.methods) {
    INFO(m.name);
    // Readers attend in fp64, the full cache and the reference in fp32 tiles.
    CHECK(m.rel_error_mean < 1e-6);
    CHECK(m.bytes_held_final - m.side_bytes_final == full.bytes_held_final);
    CHECK(*m.budget_reached == 1.0);
  }
}

TEST_CASE("readers hold everything and their reads are counted") {
  const Trace trace = Trace::open(kSample);
  const auto result = replay(trace,
                             {{"quest", {{"dense", std::int64_t{0}}}, Budget{0.2, 0}},
                              {"quest", {}, Budget{0.2, 0}},
                              {"oracle-step", {}, Budget{0.2, 0}},
                              {"quest", {{"pages_chosen", std::string{"sum"}}}, Budget{0.2, 0}},
                              {"full", {}, {}}},
                             {});
  const TraceInfo& info = trace.info();
  const std::int64_t full = info.tokens * 2 * 32 * 2 * 2 * 6;
  for (const ReplayMethod& m : result.methods) {
    INFO(m.name);
    CHECK(m.bytes_held_final - m.side_bytes_final == full);
    CHECK(m.closed_form_bytes_final == m.bytes_held_final);
    CHECK(*m.budget_reached == 1.0);
  }
  // 32 pages of 2 * 32 elements in 2 heads, for all 6 layers or for the last 4.
  CHECK(result.methods[0].side_bytes_final == 6 * 2 * 32 * 2 * 32 * 2);
  CHECK(result.methods[1].side_bytes_final == 4 * 2 * 32 * 2 * 32 * 2);
  CHECK(result.methods[2].side_bytes_final == 0);
  CHECK(result.methods[0].bytes_read_total < result.methods[1].bytes_read_total);
  CHECK(result.methods[3].bytes_read_total < result.methods[1].bytes_read_total);
  CHECK(result.methods[2].bytes_read_total < result.methods[4].bytes_read_total);
  // A group that decides jointly reads 4 pages of 16: 64 entries and the bounds of the pages; the
  // first two layers read everything. The newest page, if chosen, is only partly filled.
  double min = 0, max = 0;
  for (std::int64_t t = 385; t <= 512; ++t) {
    const double dense = 2.0 * 2 * 2 * 32 * 2 * static_cast<double>(t);
    const double bounds = 4.0 * 2 * 2 * 32 * 2 * std::ceil(static_cast<double>(t) / 16);
    max += dense + bounds + 4.0 * 2 * 64 * 2 * 32 * 2;
    min += dense + bounds + 4.0 * 2 * 49 * 2 * 32 * 2;
  }
  CHECK(result.methods[3].bytes_read_total <= max);
  CHECK(result.methods[3].bytes_read_total >= min);
}

TEST_CASE("nearest_of_rank") {
  test::Normal normal{5};
  for (const auto& [m, n] : {std::pair{31, 7}, std::pair{7, 31}, std::pair{12, 12}}) {
    // A matrix of rank 3 is restored by an approximation of rank 3.
    std::vector<double> left, right;
    for (int i = 0; i < m * 3; ++i) left.push_back(normal());
    for (int i = 0; i < n * 3; ++i) right.push_back(normal());
    std::vector<float> rows(static_cast<std::size_t>(m * n));
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        double sum = 0;
        for (int r = 0; r < 3; ++r) {
          sum += left[static_cast<std::size_t>(i * 3 + r)] *
                 right[static_cast<std::size_t>(j * 3 + r)];
        }
        rows[static_cast<std::size_t>(i * n + j)] = static_cast<float>(sum);
      }
    }
    const auto error = [&](std::int64_t rank) {
      const auto near = nearest_of_rank(rows, m, n, rank);
      double sum = 0;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        sum += std::pow(static_cast<double>(near[i]) - static_cast<double>(rows[i]), 2);
      }
      return std::sqrt(sum);
    };
    CHECK(error(3) < 1e-5);
    CHECK(error(2) > 0.1);
    CHECK(error(1) > error(2));
    CHECK(error(31) == 0);
  }
  // diag(3, 2, 1): at rank 1 only the first remains.
  const std::vector<float> diagonal{3, 0, 0, 0, 2, 0, 0, 0, 1};
  const auto one = nearest_of_rank(diagonal, 3, 3, 1);
  CHECK(static_cast<double>(one[0]) == doctest::Approx(3));
  CHECK(std::abs(static_cast<double>(one[4])) < 1e-12);
}

TEST_CASE("invalid settings of readers are refused") {
  const auto complaint = [](const MethodSpec& spec) -> std::string {
    try {
      (void)make_method(spec, 100);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  const auto says = [&](const MethodSpec& spec, const std::string& part) {
    const std::string text = complaint(spec);
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  says(spec_of("h2o+read=quest", 20), "select=all");
  says(spec_of("streaming-llm+read=oracle-step", 20), "select=all");
  says(spec_of("quest", 20, {{"token_budget", std::int64_t{10}}}), "token_budget");
  says(spec_of("quest", 20, {{"page", std::int64_t{0}}}), "page");
  says(spec_of("quest", 20, {{"pages_chosen", std::string{"all"}}}), "pages_chosen");
  says(spec_of("shadowkv", 20, {{"granularity", std::string{"query_head"}}}), "kv_head");
  says(spec_of("shadowkv", 20, {{"rank", std::int64_t{0}}}), "rank");
  says({"quest", {}, Budget{1.5, 0}}, "(0, 1]");
  says({"full", {}, Budget{0.5, 0}}, "takes no budget");
  CHECK(takes_budget("quest"));
  CHECK(takes_budget("oracle-step"));
  CHECK_FALSE(takes_budget("full"));
  CHECK(param_integer(make_method({"quest", {}, Budget{0.3, 0}}, 100)->params(), "token_budget") ==
        30);
  CHECK(param_integer(make_method({"quest", {}, {}}, 100)->params(), "token_budget") == 20);
  CHECK(param_integer(make_method({"shadowkv", {}, {}}, 100)->params(), "token_budget") == 2048);
}

}  // namespace
}  // namespace kvsim
