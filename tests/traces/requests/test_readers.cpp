// Each layout, read from a hand-written text.

#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/traces/scratch.hpp"
#include "traces/requests/formats/csv_requests.hpp"
#include "traces/requests/formats/read_requests.hpp"
#include "traces/requests/formats/write_requests.hpp"
#include "traces/requests/request_stats.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

constexpr std::int64_t kMs = 1'000'000'000;  // in picoseconds

std::int64_t arrival(const RequestTrace& trace, std::size_t i) {
  return trace.requests.at(i).arrival.count();
}

}  // namespace

TEST_CASE("plain: exact times, optional columns in any order") {
  const RequestTrace t = parse_requests(
      "session,arrival_s,prompt_tokens,output_tokens,priority,max_tokens\n"
      "ann,0,10,5,,\n"
      "bob,0.000000000001, 20 ,0,-2,64\n"
      "ann,1.5e3,30.0,7,1,7\n",
      "f");
  CHECK(t.format == "plain");
  REQUIRE(t.requests.size() == 3);
  CHECK(arrival(t, 0) == 0);
  CHECK(arrival(t, 1) == 1);
  CHECK(arrival(t, 2) == 1'500'000 * kMs);
  CHECK(t.requests[1].prompt_tokens == 20);
  CHECK(t.requests[1].priority == -2);
  CHECK(t.requests[1].declared_tokens == 64);
  CHECK(t.requests[2].prompt_tokens == 30);
  CHECK(t.requests[0].session == 0);
  CHECK(t.requests[1].session == 1);
  CHECK(t.requests[2].session == 0);
  CHECK(t.prefix_block == 0);
}

TEST_CASE("plain: a request may wait for another one by its record") {
  const std::string text =
      "arrival_s,prompt_tokens,output_tokens,after\n0,1,1,\nbad,1,1,\n2,1,1,0\n1,1,1,\n";
  ReadOptions options;
  options.skip_bad = 1;
  const RequestTrace t = parse_requests(text, "f", options);
  REQUIRE(t.requests.size() == 3);
  CHECK(t.skipped == 1);
  CHECK(t.requests[1].after == 0);
  CHECK(arrival(t, 1) == 2000 * kMs);
  CHECK(t.requests[2].after == -1);
  const std::string to_bad = complaint<InputError>([&] {
    (void)parse_requests("arrival_s,prompt_tokens,output_tokens,after\nx,1,1,\n2,1,1,0\n", "f",
                         options);
  });
  CHECK(to_bad.starts_with("f:3: after: expected a valid record"));
  CHECK_THROWS_AS(
      (void)parse_requests("arrival_s,prompt_tokens,output_tokens,after\n0,1,1,0\n", "f"),
      InputError);
}

TEST_CASE("azure 2023: wall clock of 100 ns, CRLF, no newline after the last line") {
  const RequestTrace t = parse_requests(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.9799600,4808,10\r\n"
      "2023-11-17 00:00:00.0000001,3180,8",
      "folder/azure.csv");
  CHECK(t.format == "azure");
  CHECK(t.name == "azure.csv");
  REQUIRE(t.requests.size() == 2);
  CHECK(arrival(t, 0) == 0);
  CHECK(arrival(t, 1) == 20'040'100'000);  // 0.0200401 s
  CHECK(t.requests[1].prompt_tokens == 3180);
  CHECK(t.requests[1].output_tokens == 8);
}

TEST_CASE("azure 2024: times with and without decimals and zone") {
  const RequestTrace t = parse_requests(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-02-29 23:00:00+00:00,1,1\n"
      "2024-02-29 23:00:00.009930+00:00,2,1\n2024-03-01T01:00:01+01:00,3,1\n"
      "2024-03-01 00:00:02Z,4,1\n2024-03-01 00:00:03,5,1\n",
      "f");
  REQUIRE(t.requests.size() == 5);
  CHECK(arrival(t, 1) == 9'930'000'000);
  CHECK(arrival(t, 2) == 3601 * 1000 * kMs);
  CHECK(arrival(t, 3) == 3602 * 1000 * kMs);
  CHECK(arrival(t, 4) == 3603 * 1000 * kMs);
}

TEST_CASE("timestamps: the calendar and invalid dates") {
  CHECK(parse_timestamp("1970-01-01 00:00:00") == 0);
  CHECK(parse_timestamp("2000-03-01 00:00:00") == 951'868'800'000'000'000);
  CHECK(parse_timestamp("2023-11-16 18:17:03.9799600") == 1'700'158'623'979'960'000);
  CHECK(parse_timestamp("2023-11-16 18:17:03.9799600-0130") == 1'700'164'023'979'960'000);
  for (const char* bad : {"", "2023-11-16", "2023-02-29 00:00:00", "2023-13-01 00:00:00",
                          "2023-04-31 00:00:00", "2023-11-16 24:00:00", "2023-11-16 00:60:00",
                          "2023-11-16 00:00:00.", "2023-11-16 00:00:00x", "2023-11-16 00:00:00+",
                          "23-11-16 00:00:00", "2023-11-16 00:00:00.5+1"}) {
    INFO(bad);
    CHECK_FALSE(parse_timestamp(bad).has_value());
  }
}

TEST_CASE("mooncake: ids, their blocks, quantised times") {
  std::string text;
  for (int i = 0; i < 6; ++i) {
    text += fmt::format(
        "{{\"timestamp\": {}, \"input_length\": 1025, \"output_length\": 3, \"hash_ids\": [7, 8, "
        "{}]}}\n",
        i / 3 * 3000, 10 + i);
  }
  const RequestTrace t = parse_requests(text, "f");
  CHECK(t.format == "mooncake");
  CHECK(t.prefix_block == 512);
  REQUIRE(t.requests.size() == 6);
  CHECK(arrival(t, 3) == 3000 * kMs);
  CHECK(t.requests[4].prefix_first == 12);
  CHECK(t.requests[4].prefix_count == 3);
  CHECK(t.prefix_ids[14] == 14);
  REQUIRE(t.notes.size() == 1);
  CHECK(t.notes[0].starts_with("arrivals are quantised to 3 s (2 distinct times of 6 requests)"));
  const RequestStats stats = summarise_requests(t);
  REQUIRE(stats.prefix);
  CHECK(stats.prefix->blocks == 18);
  CHECK(stats.prefix->distinct == 8);
  CHECK(stats.prefix->reusable == 10);  // 7 and 8 of all but the first
  const std::string wrong = complaint<InputError>([] {
    (void)parse_requests(
        "{\"timestamp\": 0, \"input_length\": 513, \"output_length\": 3, \"hash_ids\": [1]}\n",
        "f");
  });
  CHECK(wrong ==
        "f:1: /hash_ids: expected 2 ids, one for each block of 512 tokens, got an array of 1");
}

TEST_CASE("burstgpt: failed requests are kept and counted, empty ones left out and counted") {
  const RequestTrace t = parse_requests(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,10,0,10,API log\n46,GPT-4,0,0,0,API log\n"
      "118.5,\"Chat, GPT\",417,276,693,Conversation log\n",
      "f");
  CHECK(t.format == "burstgpt");
  REQUIRE(t.requests.size() == 3);
  CHECK(arrival(t, 0) == 0);
  CHECK(arrival(t, 2) == 113'500 * kMs);
  REQUIRE(t.notes.size() == 2);
  CHECK(t.notes[0] == "1 failed requests without any tokens were left out");
  CHECK(t.notes[1] == "1 failed requests (0 response tokens) were kept");
  const RequestTrace sessions = parse_requests(
      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log "
      "Type\n10454400,a,1.5,GPT-4,1,1,2,x\n10454401,,1.5,GPT-4,1,1,2,x\n10454401,a,1,GPT-4,1,1,2,"
      "x\n",
      "f");
  CHECK(sessions.requests[0].session == 0);
  CHECK(sessions.requests[1].session == -1);
  CHECK(sessions.requests[2].session == 0);
}

TEST_CASE("vidur and splitwise") {
  const RequestTrace v = parse_requests(
      "arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,100,20\n0.5,3,4\n", "f");
  CHECK(v.format == "vidur");
  CHECK(arrival(v, 0) == 250 * kMs);
  const RequestTrace s = parse_requests(
      "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
      "0,2,0,0.125,1,374,44\n",
      "f");
  CHECK(s.format == "splitwise");
  CHECK(arrival(s, 0) == 125 * kMs);
  CHECK(s.requests[0].prompt_tokens == 374);
  CHECK(s.requests[0].output_tokens == 44);
}

TEST_CASE("sharegpt: turns wait for the previous one, contexts grow, whole blocks are shared") {
  const std::string text = R"([
    {"id": "a", "conversations": [
      {"from": "human", "value": "say {\"[}", "tokens": 100},
      {"from": "gpt", "value": "", "tokens": 30},
      {"from": "human", "value": "", "num_tokens": 70},
      {"from": "gpt", "value": "", "tokens": 5},
      {"from": "human", "value": "", "tokens": 9}]},
    {"id": "b", "conversations": [{"from": "gpt", "tokens": 9}]},
    {"id": "c", "conversations": [{"from": "system", "tokens": 9}, {"from": "user", "tokens": 1},
                                  {"from": "assistant", "tokens": 2}]}
  ])";
  const RequestTrace t = parse_requests(text, "f");
  CHECK(t.format == "sharegpt");
  REQUIRE(t.requests.size() == 3);
  CHECK(t.requests[0].prompt_tokens == 100);
  CHECK(t.requests[0].output_tokens == 30);
  CHECK(t.requests[1].prompt_tokens == 200);  // 100 + 30 + 70
  CHECK(t.requests[1].after == 0);
  CHECK(t.requests[1].session == 0);
  CHECK(t.requests[2].prompt_tokens == 10);
  CHECK(t.requests[2].after == -1);
  CHECK(t.requests[2].session == 1);
  CHECK(t.prefix_block == 64);
  REQUIRE(t.requests[0].prefix_count == 2);
  REQUIRE(t.requests[1].prefix_count == 4);
  const auto* ids = t.prefix_ids.data();
  CHECK(ids[t.requests[0].prefix_first] == ids[t.requests[1].prefix_first]);
  CHECK(ids[t.requests[0].prefix_first + 1] != ids[t.requests[1].prefix_first + 1]);
  REQUIRE(t.notes.size() == 3);
  CHECK(t.notes[0] == "1 conversations without an answered turn were left out");
}

TEST_CASE("sharegpt: lengths from texts only with a given ratio") {
  const std::string text =
      R"({"conversations": [{"from": "human", "value": "four words äöü here"}, {"from": "gpt", "value": "ok"}]})";
  const std::string why = complaint<InputError>([&] { (void)parse_requests(text, "f"); });
  CHECK(why.find("/conversations/0: expected a count \"tokens\" or \"num_tokens\"") !=
        std::string::npos);
  ReadOptions options;
  options.chars_per_token = 4;  // 19 characters
  CHECK(parse_requests(text, "f", options).requests.at(0).prompt_tokens == 5);
  options.chars_per_token.reset();
  options.tokens_per_word = 1.5;
  CHECK(parse_requests(text, "f", options).requests.at(0).prompt_tokens == 6);
}

TEST_CASE("servegen: a window has the requests of its rate") {
  const auto folder = scratch("servegen");
  std::filesystem::create_directories(folder);
  std::ofstream{folder / "c-1-trace.csv"}
      << "0,2,1,Gamma,0.5,9\n600,0,0,,0,0\n1200,4,1,Weibull,2,9\n";
  std::ofstream{folder / "c-1-dataset.json"}
      << R"({"0": {"input_tokens": "{5: 0.5, 7: 0.5}", "output_tokens": "{1: 1.0}", "reason_ratio": "{}"},
             "1200": {"input_tokens": "{9: 1e0}", "output_tokens": "{2: 1}"}})";
  ReadOptions options;
  double first = 0;
  double second = 0;
  constexpr int kSeeds = 40;
  for (int seed = 0; seed < kSeeds; ++seed) {
    options.seed = static_cast<std::uint64_t>(seed);
    const RequestTrace t = read_requests(folder, options);
    for (const Request& r : t.requests) {
      const double at = to_seconds(r.arrival).count();
      CHECK((at <= 600 || at >= 1200));
      CHECK(at <= 1800);
      (at <= 600 ? first : second) += 1;
      if (at <= 600) CHECK((r.prompt_tokens == 5 || r.prompt_tokens == 7));
      if (at > 1200) CHECK(r.prompt_tokens == 9);
      CHECK(r.output_tokens == (at <= 600 ? 1 : 2));
    }
  }
  // 1200 and 2400 expected; the standard deviation of a renewal count is about sqrt(n) CV, with a
  // CV of sqrt(2) and 0.52
  CHECK(first / kSeeds == doctest::Approx(1200).epsilon(0.02));
  CHECK(second / kSeeds == doctest::Approx(2400).epsilon(0.01));
  CHECK(requests_text(read_requests(folder / "c-1-dataset.json", options), RequestFormat::kPlain) ==
        requests_text(read_requests(folder / "c-1-trace.csv", options), RequestFormat::kPlain));
}

TEST_CASE("written requests read back") {
  RequestTrace t = parse_requests(
      "arrival_s,prompt_tokens,output_tokens,priority,max_tokens,session,after\n"
      "0.000000000001,5,6,1,7,x,\n1.25,5,0,0,0,,\n3,9,9,-1,0,x,0\n",
      "f");
  const std::string text = requests_text(t, RequestFormat::kPlain);
  CHECK(requests_text(parse_requests(text, "g"), RequestFormat::kPlain) == text);
  CHECK_THROWS_AS((void)requests_text(t, RequestFormat::kAzure), InputError);
  CHECK_THROWS_AS((void)requests_text(t, RequestFormat::kVidur), InputError);

  const std::string azure =
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-01-01 00:00:00.0000000,1,2\r\n"
      "2024-02-29 23:59:59.9999999,3,4\r\n2024-03-01 00:00:00.5000000,5,0\r\n";
  CHECK(requests_text(parse_requests(azure, "f"), RequestFormat::kAzure) == azure);
  const std::string mooncake =
      "{\"timestamp\": 0, \"input_length\": 513, \"output_length\": 3, \"hash_ids\": [4, 9]}\n"
      "{\"timestamp\": 27, \"input_length\": 5, \"output_length\": 0, \"hash_ids\": [4]}\n";
  CHECK(requests_text(parse_requests(mooncake, "f"), RequestFormat::kMooncake) == mooncake);
  CHECK(left_out_by(parse_requests(mooncake, "f"), RequestFormat::kPlain) ==
        std::vector<std::string>{"prefix ids"});
}
