// The key /requests, and transformations.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"
#include "tests/traces/scratch.hpp"
#include "traces/requests/formats/write_requests.hpp"
#include "traces/requests/generate/generate_requests.hpp"
#include "traces/requests/generate/transform_requests.hpp"
#include "traces/requests/generate/workload.hpp"
#include "traces/requests/request_stats.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

constexpr const char* kGenerator = R"("arrivals": {"kind": "poisson", "rate": 6}, "count": 1000,
  "prompt_tokens": {"kind": "lognormal", "mean": 1000, "p99": 4000}, "output_tokens": 200)";

WorkloadSpec spec_of(const std::string& members, const std::filesystem::path& folder = {}) {
  return read_workload(Field::parse("{" + members + "}", "s.json"), folder);
}
std::string why(const std::string& members) {
  return complaint<InputError>([&] { (void)spec_of(members); });
}
RequestTrace plain(const std::string& rows) {
  return parse_requests("arrival_s,prompt_tokens,output_tokens,session,after\n" + rows, "f");
}
std::string text_of(const RequestTrace& trace) {
  return requests_text(trace, RequestFormat::kPlain);
}

}  // namespace

TEST_CASE("a generator from a scenario's keys") {
  const WorkloadSpec spec = spec_of(kGenerator);
  CHECK_FALSE(spec.file);
  const RequestTrace t = make_workload(spec, 5);
  CHECK(t.requests.size() == 1000);
  CHECK(t.format == "generated");
  CHECK(text_of(t) == text_of(make_workload(spec, 5)));
  const RequestStats stats = summarise_requests(t);
  CHECK(stats.rate.value() == doctest::Approx(6.0).epsilon(0.15));
  CHECK(stats.output.min == 200);
  const WorkloadSpec all = spec_of(R"(
    "arrivals": {"kind": "closed", "users": 8, "ramp": "4 s"}, "count": 100, "think": "2 s",
    "prompt_tokens": {"kind": "zipf", "exponent": 1.1, "max": 512},
    "output_tokens": {"kind": "empirical", "values": [1, 9], "weights": [1, 1]},
    "sessions": {"turns": {"kind": "uniform", "min": 1, "max": 3},
                 "think": {"kind": "exponential", "mean": "5 s"}},
    "shared_prefix": {"tokens": 128, "prompts": 2, "share": 0.5, "exponent": 1},
    "prefix_block": 32, "declared_tokens": 5)");
  const RequestTrace closed = make_workload(all, 1);
  CHECK(closed.prefix_block == 32);
  CHECK(summarise_requests(closed).output.max == 5);
  CHECK(closed.requests.front().declared_tokens == 5);
}

TEST_CASE("in a closed loop of one list requests have no users, and no turns of sessions") {
  const std::string lengths = R"(, "count": 6, "prompt_tokens": 8, "output_tokens": 2)";
  const auto loop = [&](const std::string& shared) {
    return R"("arrivals": {"kind": "closed", "users": 2, "shared": )" + shared + "}" + lengths;
  };
  const RequestTrace own = make_workload(spec_of(loop("false")), 1);
  const RequestTrace list = make_workload(spec_of(loop("true")), 1);
  CHECK_FALSE(own.shared_list);
  CHECK(list.shared_list);
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(own.requests[i].session == static_cast<std::int32_t>(i % 2));
    CHECK(list.requests[i].session == -1);
    CHECK((list.requests[i].after >= 0) == (i >= 2));
  }
  CHECK(has(why(loop("1")), "/arrivals/shared"));
  CHECK(has(why(loop("true") + R"(, "sessions": {"turns": 2, "think": "1 s"})"),
            "/arrivals/shared: turns of a session"));
  CHECK_THROWS_AS((void)text_of(list), InputError);  // in a file, each user would have a separate
                                                     // list
  CHECK_FALSE(text_of(own).empty());
  // From a file: requests that wait for others keep their order.
  RequestTrace talks = list;
  talks.requests.resize(2);  // one turn each, none waits
  talks.shared_list = false;
  talks.conversations = true;
  CHECK_THROWS_AS(
      replace_arrivals(talks, {.kind = ArrivalKind::kClosed, .users = 2, .shared = true}, {}, 1),
      InputError);
  RequestTrace turns = own;
  CHECK_THROWS_AS(
      replace_arrivals(turns, {.kind = ArrivalKind::kClosed, .users = 2, .shared = true}, {}, 1),
      InputError);
}

TEST_CASE("pairs of lengths are drawn together, within their bounds") {
  const auto folder = scratch("pairs");
  std::filesystem::create_directories(folder);
  std::ofstream{folder / "lengths.csv"}
      << "output_length,other,input_length\n10,x,100\n20,x,200\n5000,x,300\n30,x,0\n";
  const std::string rest = R"("arrivals": {"kind": "fixed", "rate": 1}, "count": 200)";
  const RequestTrace t = make_workload(
      spec_of(rest + R"(, "lengths": {"file": "lengths.csv", "max_total_tokens": 1000})", folder),
      3);
  int first = 0;
  for (const Request& r : t.requests) {
    CHECK(r.prompt_tokens == 10 * r.output_tokens);  // the two remaining rows
    first += r.output_tokens == 10 ? 1 : 0;
  }
  // Half of 200 draws, plus or minus five standard deviations of 7.07.
  CHECK(first > 64);
  CHECK(first < 136);
  const RequestTrace parted = make_workload(spec_of(rest + R"(, "stratified_lengths": true,
                "lengths": {"file": "lengths.csv", "max_total_tokens": 1000})",
                                                    folder),
                                            3);
  CHECK(std::count_if(parted.requests.begin(), parted.requests.end(),
                      [](const Request& r) { return r.output_tokens == 10; }) == 100);
  const auto refused = [&](const std::string& members) {
    return complaint<InputError>([&] { (void)spec_of(members, folder); });
  };
  CHECK(has(refused(rest + R"(, "lengths": {"file": "lengths.csv", "min_prompt_tokens": 999})"),
            "/lengths: expected lengths within the bounds"));
  CHECK(has(refused(rest + R"(, "output_tokens": 3, "lengths": {"file": "lengths.csv"})"),
            "/output_tokens: expected this or \"lengths\""));
  std::ofstream{folder / "bad.csv"} << "input_length,output_length\n1,2\n1,many\n";
  CHECK(has(refused(rest + R"(, "lengths": {"file": "bad.csv"})"), "bad.csv:3: output_length:"));
  std::ofstream{folder / "none.csv"} << "a,b\n1,2\n";
  CHECK(has(refused(rest + R"(, "lengths": {"file": "none.csv"})"),
            "none.csv:1: expected a column of prompt lengths"));
}

TEST_CASE("stratified lengths: totals match the distribution for any seed") {
  const std::string spread = R"(, "count": 40, "arrivals": {"kind": "fixed", "rate": 1},
    "prompt_tokens": {"kind": "uniform", "min": 1, "max": 400},
    "output_tokens": {"kind": "empirical", "values": [1, 9], "weights": [3, 1]})";
  const auto drawn = [&](const std::string& first, std::uint64_t seed) {
    return make_workload(spec_of(first + spread), seed).requests;
  };
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const auto requests = drawn(R"("stratified_lengths": true)", seed);
    std::vector<std::int32_t> prompts;
    std::int64_t nines = 0;
    for (const Request& r : requests) {
      prompts.push_back(r.prompt_tokens);
      nines += r.output_tokens == 9 ? 1 : 0;
    }
    CHECK_FALSE(std::is_sorted(prompts.begin(), prompts.end()));
    std::sort(prompts.begin(), prompts.end());
    for (int i = 0; i < 40; ++i) {
      CHECK((prompts[static_cast<std::size_t>(i)] - 1) / 10 == i);  // one from each ten
    }
    CHECK(nines == 10);
  }
  const std::string off = R"("stratified_lengths": false)";
  const auto same = [](const std::vector<Request>& a, const std::vector<Request>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
      return x.prompt_tokens == y.prompt_tokens && x.output_tokens == y.output_tokens;
    });
  };
  CHECK(same(drawn(off, 1), drawn(R"("stratified_lengths": false, "limit": 40)", 1)));
  CHECK_FALSE(same(drawn(off, 1), drawn(R"("stratified_lengths": true)", 1)));
  CHECK(has(why(R"("stratified_lengths": true, "count": 4, "arrivals": {"kind": "fixed", "rate": 1},
    "prompt_tokens": {"kind": "zipf", "exponent": 1, "max": 100000}, "output_tokens": 1)"),
            "/stratified_lengths: stratified lengths are not supported for a zipf distribution"));
  CHECK(has(why(std::string{kGenerator} + R"(, "stratified_lengths": 1)"), "/stratified_lengths"));
  CHECK(has(why(R"("file": "a.csv", "stratified_lengths": true)"), "/stratified_lengths"));
}

TEST_CASE("repeated prompts share their full blocks and others none") {
  const RequestTrace t =
      make_workload(spec_of(R"("arrivals": {"kind": "fixed", "rate": 1}, "count": 6,
    "prompt_tokens": 40, "output_tokens": 4, "distinct_prompts": 2, "declared_tokens": "output")"),
                    0);
  REQUIRE(t.prefix_block == 16);
  const auto ids = [&](std::size_t i) {
    const Request& r = t.requests[i];
    const auto begin = t.prefix_ids.begin() + r.prefix_first;
    return std::vector<std::uint64_t>(begin, begin + r.prefix_count);
  };
  // 40 tokens: two full blocks that repeat, and a last block of 8 tokens that does not.
  for (std::size_t i = 2; i < 6; ++i) {
    const auto now = ids(i);
    const auto before = ids(i - 2);
    REQUIRE(now.size() == 3);
    CHECK(now[0] == before[0]);
    CHECK(now[1] == before[1]);
    CHECK(now[2] != before[2]);
    CHECK(now[0] != ids(i - 1)[0]);
    CHECK(t.requests[i].declared_tokens == 4);
  }
  CHECK(has(why(std::string{kGenerator} + R"(, "declared_tokens": "all")"), "/declared_tokens"));
  CHECK(has(why(std::string{kGenerator} + R"(, "distinct_prompts": 0)"), "/distinct_prompts"));
}

TEST_CASE("benchmark clients' column names are accepted in the plain layout") {
  const RequestTrace t = parse_requests(
      "arrival_s,input_tokens,output_tokens,ttft_s,e2e_s\n0.5,7,3,0.1,\n1.5,8,4,,\n", "log.csv");
  REQUIRE(t.requests.size() == 2);
  CHECK(t.requests[1].prompt_tokens == 8);
  CHECK(t.requests[0].arrival == to_sim_time(Seconds{0.5}));
  CHECK(t.format == "plain");
}

TEST_CASE("a file from a scenario's keys, relative to its folder") {
  const auto folder = scratch("workload");
  std::filesystem::create_directories(folder);
  std::ofstream{folder / "t.csv"}
      << "arrival_s,prompt_tokens,output_tokens\n0,5,1\nx,1,1\n4,7,2\n3,9,3\n";
  const WorkloadSpec spec =
      spec_of(R"("file": "t.csv", "format": "plain", "skip_bad": 1, "sort": true, "rate_scale": 2)",
              folder);
  const RequestTrace t = make_workload(spec, 0);
  REQUIRE(t.requests.size() == 3);
  CHECK(t.skipped == 1);
  CHECK(t.requests[1].prompt_tokens == 9);
  CHECK(t.requests[1].arrival == to_sim_time(Seconds{1.5}));
  const RequestTrace other = make_workload(
      spec_of(R"("file": "t.csv", "skip_bad": 2, "arrivals": {"kind": "fixed", "rate": 1})",
              folder),
      0);
  CHECK(other.requests.size() == 2);
  CHECK(other.requests[1].arrival == to_sim_time(Seconds{1.0}));
  const RequestTrace drawn = make_workload(
      spec_of(R"("arrivals": {"kind": "fixed", "rate": 1}, "count": 50, "output_tokens": 1,
                 "prompt_tokens": {"kind": "uniform", "min": 3, "max": 4})"),
      0);
  CHECK(summarise_requests(drawn).prompt.max == 4);
  std::ofstream{folder / "good.csv"} << "arrival_s,prompt_tokens,output_tokens\n0,5,0\n4,7,2\n";
  const RequestTrace empirical = make_workload(
      spec_of(R"("arrivals": {"kind": "fixed", "rate": 1}, "count": 50, "output_tokens": 1,
        "prompt_tokens": {"kind": "empirical", "file": "good.csv", "column": "prompt_tokens"})",
              folder),
      0);
  CHECK(summarise_requests(empirical).prompt.min == 5);
  CHECK(summarise_requests(empirical).prompt.max == 7);
}

TEST_CASE("errors of /requests name their pointer") {
  const std::string g = kGenerator;
  CHECK(why("").starts_with("s.json: expected \"file\" (a request trace) or \"arrivals\""));
  CHECK(why(R"("fiel": "x")").find("did you mean \"file\"?") != std::string::npos);
  CHECK(why(R"("file": "x.csv", "count": 5)")
            .starts_with("s.json: /count: applies only to generated requests"));
  CHECK(why(g + R"(, "skip_bad": 5)").starts_with("s.json: /skip_bad: applies only to \"file\""));
  CHECK(why(g + R"(, "rate_scal": 5)").find("did you mean \"rate_scale\"?") != std::string::npos);
  CHECK(why(g + R"(, "think": "5 s")")
            .starts_with("s.json: /think: applies only to arrivals of the kind"));
  CHECK(
      why(g + R"(, "prefix_block": 5)").starts_with("s.json: /prefix_block: no prefix is shared"));
  CHECK(why(g + R"(, "from": "5 s", "until": "5 s")")
            .starts_with("s.json: /until: expected a time later"));
  CHECK(why(R"("file": "x", "format": "azur")").find("did you mean \"azure\"?") !=
        std::string::npos);
  CHECK(why(R"("file": "x", "chars_per_token": 4, "tokens_per_word": 1)")
            .starts_with("s.json: /tokens_per_word"));
  CHECK(why(R"("arrivals": {"kind": "poison", "rate": 1})").find("poisson") != std::string::npos);
  CHECK(
      why(R"("arrivals": {"kind": "poisson", "rate": 0})").starts_with("s.json: /arrivals/rate: "));
  const auto prompt = [&](const std::string& text) {
    return why(R"("arrivals": {"kind": "fixed", "rate": 1}, "count": 1, "output_tokens": 0,
                  "prompt_tokens": )" +
               text);
  };
  CHECK(prompt("0").starts_with("s.json: /prompt_tokens: expected an integer"));
  CHECK(prompt(R"({"kind": "uniform", "min": 5, "max": 4})")
            .starts_with("s.json: /prompt_tokens/max"));
  CHECK(prompt(R"({"kind": "lognormal", "mean": 100, "p99": 99})")
            .starts_with("s.json: /prompt_tokens/p99"));
  CHECK(prompt(R"({"kind": "lognormal", "mean": 100, "p99": 1500})")
            .starts_with("s.json: /prompt_tokens/p99"));
  CHECK(prompt(R"({"kind": "lognormal", "mean": 100, "sigma": 1})").find("some of both") !=
        std::string::npos);
  CHECK(
      prompt(R"({"kind": "lognormal", "mu": 0, "sigma": 0.1, "min": 1000})").find("a millionth") !=
      std::string::npos);
  CHECK(prompt(R"({"kind": "zipf", "exponent": 1})").find("max") != std::string::npos);
  CHECK(prompt(R"({"kind": "empirical", "values": []})")
            .starts_with("s.json: /prompt_tokens/values"));
  CHECK(prompt(R"({"kind": "empirical", "values": [1], "weights": [0]})").find("not all 0") !=
        std::string::npos);
  CHECK(prompt(R"({"kind": "empirical", "values": [1], "weights": [1, 2]})")
            .find("1 weights, one for each") != std::string::npos);
}

TEST_CASE("windows, limits, caps") {
  RequestTrace t = plain("1,10,1,a,\n5,20,2,b,\n2,30,3,a,0\n2,40,4,b,1\n9,50,5,,\n");
  RequestTrace w = t;
  transform_requests(w, {.from = Seconds{2.0}, .until = Seconds{9.0}}, 0);
  CHECK(text_of(w) ==
        "arrival_s,prompt_tokens,output_tokens,session,after\n3,20,2,1,\n2,40,4,1,0\n");
  RequestTrace l = t;
  transform_requests(l, {.limit = 3, .max_prompt_tokens = 15, .max_output_tokens = 2}, 0);
  CHECK(text_of(l) ==
        "arrival_s,prompt_tokens,output_tokens,session,after\n1,10,1,0,\n5,15,2,1,\n2,15,2,0,0\n");
  CHECK(l.notes.size() == 2);
  CHECK_THROWS_AS(transform_requests(t, {.from = Seconds{10.0}}, 0), InputError);
}

TEST_CASE("rates scale arrivals but not pauses, repeats follow after the mean gap") {
  RequestTrace t = plain("0,10,1,a,\n4,20,2,b,\n2,30,3,a,0\n");
  transform_requests(t, {.repeat = 2, .rate_scale = 2.0}, 0);
  // span 4 s, one gap of 4 s: the copy begins at 8 s; then everything at twice the rate
  CHECK(text_of(t) ==
        "arrival_s,prompt_tokens,output_tokens,session,after\n0,10,1,0,\n2,20,2,1,\n2,30,3,0,0\n"
        "4,10,1,2,\n6,20,2,3,\n2,30,3,2,3\n");
  RequestTrace at_once = plain("0,10,1,a,\n0,20,2,b,\n");
  CHECK_THROWS_AS(transform_requests(at_once, {.repeat = 2}, 0), InputError);
}

TEST_CASE("prefixes: repetitions share none, scaling keeps whole blocks") {
  const std::string text =
      "{\"timestamp\": 0, \"input_length\": 1024, \"output_length\": 3, \"hash_ids\": [40, 9]}\n"
      "{\"timestamp\": 27, \"input_length\": 513, \"output_length\": 0, \"hash_ids\": [40, 7]}\n";
  RequestTrace t = parse_requests(text, "f");
  transform_requests(t, {.repeat = 3, .prompt_scale = 0.25}, 0);
  const RequestStats stats = summarise_requests(t);
  CHECK(stats.prefix->block == 128);
  CHECK(stats.prefix->blocks == 12);
  CHECK(stats.prefix->distinct == 9);
  CHECK(stats.prefix->reusable == 3);
  for (const Request& r : t.requests) CHECK(r.prefix_count == (r.prompt_tokens + 127) / 128);
  CHECK(t.requests[1].prompt_tokens == 129);
  RequestTrace odd = parse_requests(text, "f");
  CHECK_THROWS_AS(transform_requests(odd, {.prompt_scale = 0.3}, 0), InputError);
  RequestTrace cut = parse_requests(text, "f");
  transform_requests(cut, {.max_prompt_tokens = 100}, 0);
  CHECK(cut.requests[0].prefix_count == 1);
}

TEST_CASE("spreading keeps each arrival within its quantum, and the order") {
  std::string rows;
  for (int i = 0; i < 3000; ++i) rows += fmt::format("{},{},1,,\n", i / 10 * 3, i + 1);
  const RequestTrace before = plain(rows);
  RequestTrace t = before;
  transform_requests(t, {.spread = Seconds{3.0}}, 4);
  double moved = 0.0;
  for (const Request& r : t.requests) {
    const Request& old = before.requests[static_cast<std::size_t>(r.prompt_tokens - 1)];
    const double by = to_seconds(r.arrival - old.arrival).count();
    CHECK(by >= 0.0);
    CHECK(by <= 3.0);
    moved += by;
  }
  CHECK(std::abs(moved / 3000 - 1.5) < 5.0 * 3.0 / std::sqrt(12.0 * 3000));
  CHECK(summarise_requests(t).distinct_arrivals == 3000);
  RequestTrace again = before;
  transform_requests(again, {.spread = Seconds{3.0}}, 4);
  CHECK(text_of(again) == text_of(t));
}
