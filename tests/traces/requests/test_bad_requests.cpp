// Invalid input is reported with its location; nothing crashes.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "models/units/error.hpp"
#include "tests/traces/scratch.hpp"
#include "traces/requests/formats/read_requests.hpp"
#include "traces/requests/formats/record_reader.hpp"
#include "traces/requests/formats/write_requests.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

constexpr const char* kHead = "arrival_s,prompt_tokens,output_tokens\n";

std::string why(const std::string& text, const ReadOptions& options = {}) {
  return complaint<InputError>([&] { (void)parse_requests(text, "f", options); });
}
std::string why_row(const std::string& row) { return why(kHead + row + "\n"); }

/// `text` with one to four random edits.
std::string mutated(std::string text, std::mt19937_64& random) {
  static const std::vector<std::string> pieces{"\n",       ",",
                                               "\"",       "-",
                                               "nan",      "1e309",
                                               "\r",       "\xFF",
                                               "[",        "]",
                                               "{",        "}",
                                               ":",        "99999999999999999999",
                                               "\\u0000",  "/*",
                                               "16777217", "\xEF\xBB\xBF",
                                               " "};
  for (std::uint64_t edits = 1 + random() % 4; edits > 0 && !text.empty(); --edits) {
    const std::size_t at = random() % text.size();
    switch (random() % 5) {
      case 0:
        text[at] = static_cast<char>(random() % 256);
        break;
      case 1:
        text.erase(at, 1 + random() % 8);
        break;
      case 2:
        text.insert(at, pieces[random() % pieces.size()]);
        break;
      case 3:
        text.resize(at);
        break;
      default: {
        const std::size_t length = random() % 40;
        text.insert(at, text.substr(random() % text.size(), length));
        break;
      }
    }
  }
  return text;
}

}  // namespace

TEST_CASE("a malformed record is named by file, line and column") {
  CHECK(why_row("1,2") == "f:2: expected 3 columns, got 2");
  CHECK(why_row("1,2,3,4") == "f:2: expected 3 columns, got 4");
  CHECK(why_row("-1,2,3") == "f:2: arrival_s: expected seconds in [0, 9000000], got \"-1\"");
  CHECK(why_row("1,,3") == "f:2: prompt_tokens: expected an integer in [1, 16777216], got \"\"");
  CHECK(why_row("1,2.5,3").starts_with("f:2: prompt_tokens: expected an integer"));
  CHECK(why_row("1,0,3").starts_with("f:2: prompt_tokens: expected an integer in [1,"));
  CHECK(why_row("1,16777217,3").starts_with("f:2: prompt_tokens: expected an integer"));
  CHECK(why_row("1,5,-3") ==
        "f:2: output_tokens: expected an integer in [0, 16777216], got \"-3\"");
  CHECK(why_row("1,99999999999999999999,3").starts_with("f:2: prompt_tokens"));
  CHECK(why_row("\"1,2,3") == "f:2: expected the end of a quoted cell, got an unmatched quote");
  for (const char* time : {"nan", "inf", "1e309", "-0.1", "1e9", "0x10", "1e", "1e5x", ".", "",
                           "e1", "9000000.000000000001", "99999999999999999999"}) {
    INFO(time);
    CHECK(why_row(fmt::format("{},2,3", time)).starts_with("f:2: arrival_s: expected seconds"));
  }
  CHECK(why(fmt::format("{}1,2,3\n\n2,x,3\n", kHead)).starts_with("f:4: prompt_tokens"));
  CHECK(why(fmt::format("{}1,2,3\n2,3", kHead)) ==
        "f:3: expected 3 columns, got 2; the file ends within this record");
}

TEST_CASE("binary input is refused: NUL, broken UTF-8, UTF-16") {
  CHECK(why(kHead + std::string{"1,2,3\n1,\0,3\n", 12}) ==
        "f:3: expected a line of UTF-8 text, got the byte 0x00 at column 3");
  CHECK(why_row("1,\xC3,3") == "f:2: expected a line of UTF-8 text, got the byte 0xC3 at column 3");
  for (const char* bytes : {"\xC0\x80", "\xED\xA0\x80", "\xF5\x80\x80\x80", "\x80", "\xE2\x82"}) {
    CHECK(why_row(bytes).starts_with("f:2: expected a line of UTF-8 text"));
  }
  CHECK(why_row("1,\xE2\x82\xAC,3").starts_with("f:2: prompt_tokens"));  // a valid euro sign
  CHECK(why("\xFF\xFE"
            "a")
            .find("UTF-16") != std::string::npos);
  CHECK(parse_requests(std::string{"\xEF\xBB\xBF"} + kHead + "1,2,3\n", "f").requests.size() == 1);
}

TEST_CASE("missing, duplicate and unknown columns, no known layout, empty files") {
  CHECK(why("arrival_s,prompt_tokens\n1,2\n") ==
        "f:1: expected a column \"output_tokens\" (layout of plain), got "
        "\"arrival_s,prompt_tokens\"");
  CHECK(why("arrival_s,prompt_tokens,output_tokens,prompt_tokens\n") ==
        "f:1: column \"prompt_tokens\" occurs twice");
  CHECK(why("arrival_s,prompt_tokens,output_tokens,priorty\n1,2,3,4\n")
            .starts_with("f:1: unknown column \"priorty\"; did you mean \"priority\"?"));
  CHECK(
      why("a,b,c\n1,2,3\n").starts_with("f:1: expected a trace in a known layout, got \"a,b,c\""));
  CHECK(why("1,2,3\n").starts_with("f:1: expected a trace in a known layout"));
  CHECK(why("{\"a\": 1}\n").starts_with("f:1: expected a trace in a known layout"));
  CHECK(why("") == "f: expected a request trace, got an empty file");
  CHECK(why("\n \n") == "f: expected a request trace, got an empty file");
  CHECK(why(kHead) == "f: expected at least one request, got none");
  CHECK(why("[]\n").find("expected at least one request") != std::string::npos);
  ReadOptions named;
  named.format = RequestFormat::kAzure;
  CHECK(why("TIMESTAMP,ContextTokens\n", named)
            .starts_with("f:1: expected a column \"GeneratedTokens\" (layout of azure"));
  CHECK(complaint<InputError>([] {
          (void)read_requests("/nowhere/x.csv");
        }).ends_with("cannot be read: No such file or directory"));
  CHECK(complaint<InputError>([] {
          (void)parse_request_format("azuer", "--format");
        }).starts_with("--format: unknown format \"azuer\"; did you mean \"azure\"?"));
}

TEST_CASE("columns of other programs are ignored with a note") {
  const RequestTrace trace = parse_requests(
      "user,arrival_s,prompt_tokens,output_tokens,\"cost, USD\"\nann,1,2,3,0.1\nbob,2,5,6,0.2\n",
      "f");
  REQUIRE(trace.requests.size() == 2);
  CHECK(trace.requests[1].prompt_tokens == 5);
  REQUIRE(trace.notes.size() == 1);
  CHECK(trace.notes[0] == "columns that are not used: \"user\", \"cost, USD\"");
}

TEST_CASE("times out of order: refused with the remedy, or sorted, ties in the file's order") {
  const std::string text = fmt::format("{}1,1,1\n3,2,1\n2,3,1\n1,4,1\n", kHead);
  CHECK(why(text).starts_with("f:4: expected a time not before that of the previous record"));
  CHECK(why(text).find("--sort") != std::string::npos);
  ReadOptions options;
  options.sort = true;
  const RequestTrace t = parse_requests(text, "f", options);
  std::vector<std::int32_t> order;
  for (const Request& r : t.requests) order.push_back(r.prompt_tokens);
  CHECK(order == std::vector<std::int32_t>{1, 4, 3, 2});
  // As a bad record it may also be skipped.
  ReadOptions skip;
  skip.skip_bad = 2;
  CHECK(parse_requests(text, "f", skip).skipped == 2);
  const RequestTrace azure = parse_requests(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:05,1,1\n2024-01-01 00:00:02,2,1\n",
      "f", options);
  CHECK(azure.requests[0].prompt_tokens == 2);
  CHECK(azure.requests[0].arrival == SimTime{});
  CHECK(azure.requests[1].arrival == SimTime{3 * kPicosecondsPerSecond});
}

TEST_CASE("skip_bad: at most the given number, counted") {
  const std::string text = fmt::format("{}x,1,1\n1,1,1\ny,1,1\n2,1,1\nz,1,1\n", kHead);
  ReadOptions options;
  options.skip_bad = 3;
  const RequestTrace t = parse_requests(text, "f", options);
  CHECK(t.skipped == 3);
  CHECK(t.requests.size() == 2);
  CHECK(t.notes.back() == "3 bad records were skipped");
  options.skip_bad = 2;
  CHECK(why(text, options) ==
        "f:6: arrival_s: expected seconds in [0, 9000000], got \"z\" (after 2 skipped bad records, "
        "the allowed maximum)");
  // Ids of a record that fails later are removed.
  options.skip_bad = 1;
  const RequestTrace m = parse_requests(
      "{\"timestamp\": 5, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1]}\n"
      "{\"timestamp\": 2, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [2]}\n"
      "{\"timestamp\": 6, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [3]}\n",
      "f", options);
  CHECK(m.prefix_ids == std::vector<std::uint64_t>{1, 3});
}

TEST_CASE("servegen: windows are records, and all of their columns are read") {
  const auto folder = scratch("servegen_bad");
  std::filesystem::create_directories(folder);
  const std::string file = (folder / "c-trace.csv").string();
  const auto trace = [&](const std::string& text, std::int64_t skip_bad = 0) {
    std::ofstream{folder / "c-trace.csv", std::ios::binary} << text;
    ReadOptions options;
    options.skip_bad = skip_bad;
    return read_requests(folder, options);
  };
  const auto wrong = [&](const std::string& text, std::int64_t skip_bad = 0) {
    const std::string all = complaint<InputError>([&] { (void)trace(text, skip_bad); });
    CHECK(all.starts_with(file));
    return all.substr(std::min(all.size(), file.size()));
  };
  std::ofstream{folder / "c-dataset.json"}
      << R"({"0": {"input_tokens": "{5: 1}", "output_tokens": "{1: 1}"}})";
  const std::string good = "0,1.0,1,Gamma,1,1\n";
  CHECK(wrong(good + "600,1.0,abc,Gamma,1,1\n") ==
        ":2: CV: expected a number in [0, 1e+06], got \"abc\"");
  CHECK(wrong(good + "600,1.0,1,Gamma,1,x\n") ==
        ":2: pattern parameter 2: expected a number in [0, 1e+12], got \"x\"");
  CHECK(wrong("0,1.0,1,Weibull,,1\n") ==
        ":1: pattern parameter 1: expected a number in [0, 1e+06], got \"\"");
  for (const char* bad : {"600,1,-1,Gamma,1,1", "600,1,nan,Gamma,1,1", "600,1,1,,x,", "600,1,y,,,",
                          "600,1,1,Poisson,0,z", "600,1,1,Gamma,1", "600,1,1,Gauss,1,1",
                          "0,1,1,Gamma,1,1", "600,1,1,Gamma,1,\xff"}) {
    INFO(bad);
    CHECK(wrong(fmt::format("{}{}\n", good, bad)).starts_with(":2"));
    // The bad record is skipped and counted; the result equals that of the file without it.
    const RequestTrace with = trace(fmt::format("{}{}\n1200,0,0,,0,0\n", good, bad), 1);
    CHECK(with.skipped == 1);
    CHECK(std::find(with.notes.begin(), with.notes.end(), "1 bad records were skipped") !=
          with.notes.end());
    const RequestTrace without = trace(good + "1200,0,0,,0,0\n");
    CHECK(without.skipped == 0);
    CHECK(requests_text(with, RequestFormat::kPlain) ==
          requests_text(without, RequestFormat::kPlain));
  }
  // A pattern without parameters may omit them.
  CHECK(trace("0,1,,,,\n").requests.size() > 400);
  CHECK(wrong("0,x,1,Gamma,1,1\n" + good + "y\nz\n", 2).starts_with(":4"));
  CHECK(wrong("y\nz\n", 2) == ": expected at least one window, got only bad records");
}

TEST_CASE("json records: keys, kinds, ends") {
  const std::string good = R"({"timestamp": 0, "input_length": 5, "output_length": 1})";
  CHECK(parse_requests(good, "f").requests.size() == 1);
  CHECK(why(R"({"timestamp": 0, "input_length": 5, "output_lenght": 1})")
            .starts_with("f:1: /output_lenght: unknown key; did you mean \"output_length\"?"));
  // A key that is not a misspelling is noted once and ignored.
  const std::string more =
      R"({"timestamp": 0, "input_length": 5, "output_length": 1, "extra": {"a": 1}, "user": "x"})";
  const RequestTrace noted = parse_requests(more + "\n" + more, "f");
  CHECK(noted.requests.size() == 2);
  REQUIRE(noted.notes.size() == 1);
  CHECK(noted.notes[0] == "keys that are not used: extra, user");
  CHECK(why(R"({"timestamp": 0, "input_length": 1.5, "output_length": 1})")
            .starts_with("f:1: /input_length: expected an integer"));
  CHECK(why(R"({"timestamp": 1e309, "input_length": 1, "output_length": 1})").starts_with("f:1: "));
  CHECK(why(good + "\n" + good.substr(0, 30)).find("the file ends within this record") !=
        std::string::npos);
  CHECK(why("[{\"conversations\": []}").find("\"]\" after the last conversation") !=
        std::string::npos);
  CHECK(why("[{\"conversations\": [").find("a complete conversation") != std::string::npos);
  CHECK(why("[1, 2]").find("a list of conversations") != std::string::npos);
}

TEST_CASE("numbers: exact decimals, rounding, limits") {
  CHECK(parse_scaled("0.1", 12) == 100'000'000'000);
  CHECK(parse_scaled("1.0000000000005", 12) == 1'000'000'000'001);
  CHECK(parse_scaled("1.00000000000049", 12) == 1'000'000'000'000);
  CHECK(parse_scaled("-2.5", 1) == -25);
  CHECK(parse_scaled("2.5e1", 2) == 2500);
  CHECK(parse_scaled("9223372", 12) == 9'223'372'000'000'000'000);
  CHECK_FALSE(parse_scaled("9223373", 12));
  for (const char* bad : {"", "-", ".", "1.2.3", "1 2", "+1", "nan", "1e400", "1e30"}) {
    INFO(bad);
    CHECK_FALSE(parse_scaled(bad, 12));
  }
  CHECK(parse_whole("374.00") == 374);
  CHECK_FALSE(parse_whole("374."));
  CHECK_FALSE(parse_whole("374.01"));
  CHECK_FALSE(parse_whole(" 374"));
}

TEST_CASE("mutated inputs give a valid trace or an InputError and nothing else") {
  const std::vector<std::string> seeds{
      fmt::format("{}0,1,1\n1.5,200,30\n2,3,4\n", kHead),
      "arrival_s,prompt_tokens,output_tokens,after,session\n0,1,1,,a\n1.5,200,30,0,a\n2,3,4,,b\n",
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
      "2023-11-16 18:17:04.0319600,3180,8\r\n",
      "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [0, 1]}\n"
      "{\"timestamp\": 3000, \"input_length\": 60, \"output_length\": 5, \"hash_ids\": [0]}\n",
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,\"Conversation log\"\n9,GPT-4,10,0,10,API log\n",
      "[{\"id\": \"a\", \"conversations\": [{\"from\": \"human\", \"tokens\": 100}, {\"from\": "
      "\"gpt\", \"tokens\": 30}]},\n {\"conversations\": [{\"from\": \"user\", \"num_tokens\": "
      "1}, {\"from\": \"gpt\", \"tokens\": 3}]}]\n",
      "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
      "0,2,0,0.125,1,374,44\n1,2,0,0.5,1,4,4\n",
      R"({"block_size": 4, "hash_id_scope": "local", "requests": [
        {"t": 0, "type": "n", "in": 9, "out": 3, "hash_ids": [1, 2], "api_time": 2.5},
        {"t": 3, "type": "subagent", "status": "completed", "requests": [
          {"t": 0, "type": "n", "in": 5, "out": 1, "hash_ids": [7]}]},
        {"t": 9, "type": "s", "in": 8, "out": 2, "hash_ids": [1, 5], "think_time": 1}]})",
      "{\"request_id\": \"a\", \"input_length\": 9, \"output_length\": 5, \"hash_ids\": [1, 2], "
      "\"timestamp\": 3}\n{\"request_id\": \"b\", \"input_length\": 12, \"output_length\": 5, "
      "\"hash_ids\": [1, 2, 4], \"wait_for\": [\"a\"], \"delay\": 2.5}\n",
      "{\"chat_id\": 1, \"parent_chat_id\": -1, \"timestamp\": 0.5, \"input_length\": 20, "
      "\"output_length\": 3, \"type\": \"text\", \"turn\": 1, \"hash_ids\": [1, 2]}\n"};
  std::mt19937_64 random{7};
  int sound = 0;
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string text = mutated(seeds[random() % seeds.size()], random);
    ReadOptions options;
    options.skip_bad = static_cast<std::int64_t>(random() % 3);
    options.sort = random() % 2 == 0;
    if (random() % 4 == 0) options.format = RequestFormat{static_cast<std::uint8_t>(random() % 11)};
    INFO(text);
    try {
      const RequestTrace t = parse_requests(text, "f", options);
      check_requests(t);
      CHECK(t.skipped <= options.skip_bad);
      CHECK_FALSE(t.requests.empty());
      ++sound;
    } catch (const InputError& error) {
      CHECK(std::string{error.what()}.find('f') != std::string::npos);
      ++refused;
    }
  }
  CHECK(sound > 1000);
  CHECK(refused > 2000);
}

TEST_CASE("mutated clients of ServeGen give a valid trace or an InputError and nothing else") {
  const std::string windows = "0,0.2,1,Gamma,0.5,9\n600,0,0,,0,0\n1200,0.3,1,Weibull,2,9\n";
  const std::string lengths =
      R"({"0": {"input_tokens": "{5: 0.5, 7: 0.5}", "output_tokens": "{1: 1}"},
          "1200": {"input_tokens": "{9: 1e0}", "output_tokens": "{2: 1}", "reason_ratio": "{}"}})";
  const auto folder = scratch("servegen_mutated");
  std::filesystem::create_directories(folder);
  std::ofstream{folder / "b-trace.csv"} << windows;
  std::ofstream{folder / "b-dataset.json"} << lengths;
  std::mt19937_64 random{11};
  int sound = 0;
  int passed_over = 0;
  int refused = 0;
  for (int round = 0; round < 800; ++round) {
    const bool of_windows = random() % 3 != 0;
    std::ofstream{folder / "c-trace.csv", std::ios::binary}
        << (of_windows ? mutated(windows, random) : windows);
    std::ofstream{folder / "c-dataset.json", std::ios::binary}
        << (of_windows ? lengths : mutated(lengths, random));
    ReadOptions options;
    options.skip_bad = static_cast<std::int64_t>(random() % 3);
    try {
      const RequestTrace trace = read_requests(folder, options);
      check_requests(trace);
      CHECK(trace.skipped <= options.skip_bad);
      passed_over += trace.skipped > 0 ? 1 : 0;
      ++sound;
    } catch (const InputError& error) {
      CHECK(std::string_view{error.what()}.starts_with(folder.string()));
      ++refused;
    }
  }
  CHECK(sound > 100);
  CHECK(passed_over > 100);
  CHECK(refused > 100);
}
