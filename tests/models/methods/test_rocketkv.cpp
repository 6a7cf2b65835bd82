// RocketKV: reads of a step compared with a reference and by hand, sizes, costs and refusals.

#include <cmath>
#include <map>
#include <set>
#include <string>

#include "models/methods/params.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_learned.hpp"
#include "tests/support/reference/reference_reading.hpp"
#include "tests/support/session_run.hpp"

namespace kvsim {
namespace {

using Ids = std::vector<std::int32_t>;
const std::string kSample = KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors";

std::shared_ptr<const Method> resolved(const Params& params, const HeadVectors& head,
                                       std::optional<Budget> budget,
                                       const std::string& name = "rocketkv") {
  return make_method({name, params, budget}, head.prompt,
                     {.recorded = Dtype::kFp16,
                      .shape = {.n_heads = head.group, .n_kv_heads = 1, .head_dim = head.head_dim},
                      .windows = {},
                      .n_layers = 1});
}

/// The nearest number with two bits after the leading one, ties to even.
double e5m2(double x) {
  if (x == 0) return x;
  const double step = std::ldexp(1.0, std::max(std::ilogb(x), -14) - 2);
  return std::nearbyint(x / step) * step;
}

struct ReferenceRocket {
  bool by_page = true;
  std::size_t page = 4, channels = 128, chosen = 0;
};
/// Positions read at step t from the entries `ids`, of which the first `prompt_entries` existed at
/// the end of the prompt.
test::ReferenceRead reference_rocket(const ReferenceRocket& set, const HeadVectors& head,
                                     std::int64_t t, const Ids& ids, std::size_t prompt_entries) {
  const auto d = static_cast<std::size_t>(head.head_dim);
  const auto number = [&](double x) { return set.by_page ? e5m2(x) : x; };
  std::vector<std::vector<double>> queries;
  for (std::int32_t g = 0; g < head.group; ++g) {
    const auto q = test::query_of(head, g, t);
    queries.emplace_back(q.begin(), q.end());
  }
  std::vector<std::pair<double, std::int32_t>> sizes;
  for (std::size_t j = 0; j < d; ++j) {
    double size = 0;
    for (const auto& q : queries) size += std::abs(q[j]);
    sizes.emplace_back(size, static_cast<std::int32_t>(j));
  }
  const std::set<std::int32_t> used = test::best(sizes, set.channels).first;
  std::map<std::size_t, double> mean;  // by page
  for (const auto& q : queries) {
    double part = 0;
    double whole = 0;
    for (std::size_t j = 0; j < d; ++j) {
      whole += std::abs(q[j]);
      if (used.contains(static_cast<std::int32_t>(j))) part += std::abs(q[j]);
    }
    const double divisor = std::sqrt(static_cast<double>(d) * (set.by_page ? 1 : part / whole));
    std::map<std::size_t, double> logit, tokens;
    for (std::size_t i = 0; i < ids.size(); i += set.page) {
      double sum = 0;
      for (const std::int32_t channel : used) {
        const auto j = static_cast<std::size_t>(channel);
        double sign = 0;
        for (const auto& each : queries) sign += each[j];
        std::vector<double> keys;
        for (std::size_t r = i; r < std::min(i + set.page, ids.size()); ++r) {
          keys.push_back(
              number(static_cast<double>(test::row_of(head.keys, ids[r], head.head_dim)[j])));
        }
        const bool has_end = prompt_entries > i && prompt_entries < i + set.page;
        if (set.by_page && has_end) keys.push_back(0);
        sum += number(q[j]) * (sign > 0 ? *std::max_element(keys.begin(), keys.end())
                                        : *std::min_element(keys.begin(), keys.end()));
      }
      logit[i / set.page] = sum / divisor;
      tokens[i / set.page] =
          set.by_page ? 1 : static_cast<double>(std::min(set.page, ids.size() - i));
    }
    double total = 0;
    for (const auto& [p, x] : logit) total += tokens[p] * std::exp(x);
    for (const auto& [p, x] : logit) {
      mean[p] += std::exp(x) / total / static_cast<double>(head.group);
    }
  }
  std::vector<std::pair<double, std::int32_t>> pages;
  for (const auto& [p, x] : mean) pages.emplace_back(x, static_cast<std::int32_t>(p));
  std::sort(pages.begin(), pages.end(), [](const auto& a, const auto& b) {
    return a.first > b.first || (a.first == b.first && a.second < b.second);
  });
  test::ReferenceRead read;
  std::size_t taken = 0;
  for (std::size_t n = 0; n < pages.size() && taken < set.chosen; ++n) {
    if (n + 1 < pages.size()) {
      const double gap = pages[n].first - pages[n + 1].first;
      if (gap > 0) read.gap = std::min(read.gap, gap / pages[n].first);
    }
    const auto first = static_cast<std::size_t>(pages[n].second) * set.page;
    for (std::size_t i = first; i < std::min(first + set.page, ids.size()); ++i) {
      if (!set.by_page && taken == set.chosen) break;
      read.positions.insert(ids[i]);
      taken += set.by_page ? 0 : 1;
    }
    taken += set.by_page ? 1 : 0;
  }
  return read;
}

void check_step(const CacheSession& session, const HeadVectors& head, std::int64_t t,
                const std::set<std::int32_t>& positions) {
  REQUIRE(session.events().read == static_cast<double>(positions.size()));
  for (std::int32_t g = 0; g < head.group; ++g) {
    const auto [out, log_sum] = test::reference_output(head, g, t, positions);
    REQUIRE(session.log_sum(0, g) == doctest::Approx(log_sum).epsilon(1e-9));
    for (std::size_t j = 0; j < out.size(); ++j) {
      REQUIRE(std::abs(session.output(0)[static_cast<std::size_t>(g) * out.size() + j] - out[j]) <
              1e-9);
    }
  }
}

TEST_CASE("rocketkv reads the same pages or tokens as a reference, on made-up and recorded heads") {
  int compared = 0;
  const auto compare = [&](const HeadVectors& head, std::int64_t budget) {
    // Pages of 4 with all and with 5 channels; tokens at compressions 1, 6 (pages of 3) and 20.
    for (const std::int64_t channels : {128, 5, -1, -6, -20}) {
      const bool by_page = channels > 0;
      const std::int64_t topk = by_page ? 4 : 13;
      Params params{{"topk", topk}};
      ReferenceRocket set{.by_page = by_page, .chosen = static_cast<std::size_t>(topk)};
      if (by_page) {
        params["channels"] = channels;
        set.channels = static_cast<std::size_t>(channels);
      } else {
        const auto c = static_cast<double>(-channels);
        params["parts"] = std::string{"tokens"};
        params["compression"] = c;
        set.page = c == 1 ? 1 : c == 6 ? 3 : 5;
        set.channels = static_cast<std::size_t>(head.head_dim * static_cast<double>(set.page) / c);
      }
      test::SessionRun run{resolved(params, head, Budget{0, budget}), head};
      const test::SessionRun snap{
          resolved({{"kernel", std::int64_t{63}}}, head, Budget{0, budget}, "snapkv"), head};
      CHECK(std::ranges::equal(run.session.entries().ids(), snap.session.entries().ids()));
      const auto prompt_entries = static_cast<std::size_t>(run.session.entries().size());
      CHECK(prompt_entries == static_cast<std::size_t>(std::min(budget, head.prompt)));
      for (std::int64_t t = head.prompt; t < head.tokens; ++t) {
        run.session.step();
        const auto held = run.session.entries().ids();
        const Ids ids{held.begin(), held.end()};
        CHECK(std::ssize(ids) == *run.method->entries_held(0, head.prompt, t + 1));
        const auto units = by_page ? (ids.size() + 3) / 4 : ids.size();
        std::set<std::int32_t> want{ids.begin(), ids.end()};
        if (units > static_cast<std::size_t>(topk)) {
          const auto read = reference_rocket(set, head, t, ids, prompt_entries);
          if (read.gap < 1e-9) continue;
          want = read.positions;
        }
        check_step(run.session, head, t, want);
        ++compared;
      }
    }
  };
  for (const auto& [group, d, tokens, prompt] :
       std::vector<std::tuple<std::int32_t, std::int32_t, std::int64_t, std::int64_t>>{
           {1, 8, 90, 70}, {3, 16, 120, 101}, {2, 10, 60, 1}, {4, 8, 150, 110}}) {
    compare(test::random_head(group, d, tokens, prompt, 17).view, 50);
  }
  const test::WholeTrace real{Trace::open(kSample)};
  for (const std::int32_t layer : {0, 4}) compare(real.head(layer, 0), 150);
  CHECK(compared > 1500);
}

TEST_CASE("rocketkv by hand: one page of two, by the bounds of the group's sign") {
  // One channel, pages of 2, queries 2 and -1: the sum is above 0, so page keys are maxima: 1 of
  // (1, -3), 0.5 of (0.5, 0.25) and, with the new key, 0.75. Weights of the first query are e^2 : e
  // : e^1.5, of the second e^-1 : e^-0.5 : e^-0.75. The first page has the highest mean.
  const std::vector<float> keys{1, -3, 0.5F, 0.25F, 0.75F};
  const std::vector<float> values{1, 2, 3, 4, 5};
  const std::vector<float> q{0, 0, 0, 0, 2, 0, 0, 0, 0, -1};
  const HeadVectors head{.q = q,
                         .keys = keys,
                         .values = values,
                         .group = 2,
                         .head_dim = 1,
                         .tokens = 5,
                         .prompt = 4,
                         .scale = 1};
  test::SessionRun run{resolved({{"page", std::int64_t{2}}, {"topk", std::int64_t{1}}}, head, {}),
                       head};
  run.session.step();
  check_step(run.session, head, 4, {0, 1});
  // Pages of two keys: the last entry has a page to itself, and its 0.75 exceeds 0.5.
  test::SessionRun two{resolved({{"page", std::int64_t{2}}, {"topk", std::int64_t{2}}}, head, {}),
                       head};
  two.session.step();
  check_step(two.session, head, 4, {0, 1, 4});
  // With reversed signs, page keys are minima: -3, 0.25, 0.75.
  std::vector<float> other = q;
  other[4] = -2, other[9] = 1;
  HeadVectors turned = head;
  turned.q = other;
  test::SessionRun low{resolved({{"page", std::int64_t{2}}, {"topk", std::int64_t{1}}}, turned, {}),
                       turned};
  low.session.step();
  check_step(low.session, turned, 4, {0, 1});
}

TEST_CASE("the prompt's last page, if not full, also contains a key of zeros") {
  // Pages of 2: (-1, -1), (-2, then -2 of the step). The maximum of the second page is 0, so it
  // ranks first although its keys are lower. If the prompt ends with a whole page, it does not.
  const std::vector<float> keys{-1, -1, -2, -2};
  const std::vector<float> values{1, 2, 3, 4};
  const std::vector<float> q{1, 1, 1, 1};
  HeadVectors head{.q = q,
                   .keys = keys,
                   .values = values,
                   .group = 1,
                   .head_dim = 1,
                   .tokens = 4,
                   .prompt = 3,
                   .scale = 1};
  const Params params{{"page", std::int64_t{2}}, {"topk", std::int64_t{1}}};
  test::SessionRun odd{resolved(params, head, {}), head};
  odd.session.step();
  check_step(odd.session, head, 3, {2, 3});
  head.prompt = 2;
  test::SessionRun even{resolved(params, head, {}), head};
  even.session.step();
  even.session.step();
  check_step(even.session, head, 3, {0, 1});
}

TEST_CASE(
    "rocketkv that reads everything equals its first stage, and one-token pages equal tokens") {
  auto owned = test::random_head(2, 8, 120, 90, 5);
  for (float& x : owned.q) x = std::round(x * 2) / 2;  // exact in E5M2
  for (float& x : owned.keys) x = std::round(x * 2) / 2;
  owned.view.q = owned.q;
  owned.view.keys = owned.keys;
  const HeadVectors& head = owned.view;
  test::SessionRun all{resolved({{"topk", std::int64_t{1000}}}, head, Budget{0, 40}), head};
  test::SessionRun snap{resolved({{"kernel", std::int64_t{63}}}, head, Budget{0, 40}, "snapkv"),
                        head};
  test::SessionRun pages{
      resolved({{"topk", std::int64_t{9}}, {"page", std::int64_t{1}}}, head, Budget{0, 40}), head};
  test::SessionRun tokens{
      resolved({{"topk", std::int64_t{9}}, {"parts", std::string{"tokens"}}, {"compression", 1.0}},
               head, Budget{0, 40}),
      head};
  for (std::int64_t t = head.prompt; t < head.tokens; ++t) {
    for (test::SessionRun* run : {&all, &snap, &pages, &tokens}) run->session.step();
    CHECK(pages.session.events().read == 9);
    for (std::size_t j = 0; j < 16; ++j) {
      CHECK(std::abs(all.session.output(0)[j] - snap.session.output(0)[j]) < 1e-9);
      CHECK(std::abs(pages.session.output(0)[j] - tokens.session.output(0)[j]) < 1e-9);
    }
  }
}

TEST_CASE("sizes, reads and defaults of rocketkv by hand") {
  MethodContext site;
  site.shape = {.n_heads = 8, .n_kv_heads = 2, .head_dim = 128};
  site.n_layers = 4;
  const auto method = make_method({"rocketkv", {}, std::nullopt}, 5000, site);
  CHECK(param_integer(method->params(), "cap") == 2048);
  CHECK(param_integer(method->params(), "kernel") == 63);
  CHECK(param_integer(method->params(), "topk") == 64);
  CHECK(*method->entries_held(0, 5000, 5003) == 2051);
  const auto bytes = method->layer_bytes(0, site.shape, Dtype::kFp16, 5000, 5003);
  REQUIRE(bytes.has_value());
  CHECK(bytes->kv == Bytes{2 * 2 * 2051 * 128 * 2});
  CHECK(bytes->side == Bytes{2 * 513 * 2 * 128});  // 513 pages, 2 bounds in E5M2
  const StepTraffic step = method->decode_traffic(0, site.shape, Dtype::kFp16, 2051, false);
  CHECK(step.attention_read == 2 * 256 * 2 * 128 * 2);
  CHECK(step.side_read == 2 * 513 * 256);
  CHECK(step.extra_flops == 2 * 513 * 4 * (2 * 128 + 5));
  // Prompts below the cap are kept whole; if there are few entries, all are read.
  CHECK(*method->entries_held(0, 100, 130) == 130);
  CHECK(method->decode_traffic(0, site.shape, Dtype::kFp16, 130, false).attention_read ==
        2 * 130 * 2 * 128 * 2);
  // 2048 entries over a budget of 1024: c = 2, pages of 2, 128 * 2 / 2 channels.
  const auto tokens =
      make_method({"rocketkv", {{"parts", std::string{"tokens"}}}, std::nullopt}, 5000, site);
  CHECK(param_number(tokens->params(), "compression") == 2);
  CHECK(param_integer(tokens->params(), "topk") == 512);
  CHECK(tokens->layer_bytes(0, site.shape, Dtype::kFp16, 5000, 5000)->side ==
        Bytes{2 * 1024 * 2 * 128 * 2});
  CHECK(tokens->decode_traffic(0, site.shape, Dtype::kFp16, 2048, false).side_read ==
        2 * 1024 * 128 * 2);
  // The first layers are neither paged nor partially read.
  const auto dense =
      make_method({"rocketkv", {{"dense", std::int64_t{2}}}, std::nullopt}, 5000, site);
  CHECK(dense->layer_bytes(1, site.shape, Dtype::kFp16, 5000, 5000)->side == Bytes{0});
  CHECK(dense->layer_bytes(2, site.shape, Dtype::kFp16, 5000, 5000)->side > Bytes{0});
  CHECK(dense->layer_kind(1) != dense->layer_kind(2));
}

TEST_CASE("a replay of rocketkv holds the bytes of its law, and reads less") {
  const Trace trace = Trace::open(kSample);
  const auto result =
      replay(trace,
             {{"rocketkv", {{"topk", std::int64_t{16}}}, Budget{0.5, 0}},
              {"snapkv", {{"kernel", std::int64_t{63}}}, Budget{0.5, 0}},
              {"select=all+read=rocket", {{"topk", std::int64_t{16}}}, std::nullopt}},
             {});
  const ReplayMethod& rocket = result.methods[0];
  const ReplayMethod& snap = result.methods[1];
  CHECK(rocket.bytes_held_final == *rocket.closed_form_bytes_final);
  // 192 and 128 entries in 80 pages of 2 bounds of 32 channels, 12 heads.
  CHECK(rocket.side_bytes_final == 80 * 2 * 32 * 12);
  CHECK(rocket.bytes_held_final - rocket.side_bytes_final == snap.bytes_held_final);
  CHECK(rocket.bytes_read_total < snap.bytes_read_total);
  CHECK(rocket.rel_error_mean > snap.rel_error_mean);
  CHECK(*rocket.budget_reached == 0.5);
  for (const std::string& note : rocket.notes) {
    CHECK(note.find("keeps every token") == std::string::npos);
  }
  CHECK(*result.methods[2].budget_reached == 1.0);
}

TEST_CASE("rocketkv refuses caches that lose entries in decode, and settings out of range") {
  const auto owned = test::random_head(1, 8, 40, 30);
  const auto why = [&](const Params& params, const std::string& name) -> std::string {
    try {
      (void)resolved(params, owned.view, {}, name);
    } catch (const InputError& error) {
      return error.what();
    }
    return "made";
  };
  const auto has = [](const std::string& text, const char* part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  has(why({}, "streaming-llm+read=rocket"), "select=window or all");
  has(why({}, "rocketkv+merge=zip"), "merge=drop");
  has(why({}, "rocketkv+store=kivi"), "rewrites them later");
  has(why({{"parts", std::string{"tokens"}}, {"compression", 0.5}}, "rocketkv"), ">= 1");
  has(why({{"parts", std::string{"tokens"}}, {"page", std::int64_t{8}}}, "rocketkv"),
      "has no effect");
  has(why({{"page", std::int64_t{0}}}, "rocketkv"), "[1, 65536]");
  has(why({{"page_keys", std::string{"int8"}}}, "rocketkv"), "fp8_e5m2, bf16");
  CHECK(why({{"page_keys", std::string{"bf16"}}}, "rocketkv") == "made");
}

}  // namespace
}  // namespace kvsim
