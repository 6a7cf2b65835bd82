#include <array>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "models/units/check.hpp"
#include "sim/report/batch/static_summary.hpp"
#include "sim/report/folder/results_folder.hpp"
#include "sim/report/run/run_document.hpp"
#include "sim/report/run/run_summary.hpp"
#include "sim/report/text/point_names.hpp"
#include "sim/report/text/progress.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "sim/run/run_report.hpp"
#include "sim/scenario/points/labels.hpp"
#include "tests/sim/report/report_samples.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

TEST_CASE("spare columns of a too wide table are dropped starting with the last and listed") {
  Table table{{{"name", Table::Align::kLeft},
               {"first"},
               {"second", Table::Align::kRight, "", true},
               {"third", Table::Align::kRight, "", true},
               {"last"}}};
  table.add_row({"a", "1", "2", "3", "4"});
  CHECK(table.str(80) == "name  first  second  third  last\na         1       2      3     4\n");
  CHECK(table.str(31) ==
        "name  first  second  last\na         1       2     4\nnot shown at this width: third\n");
  CHECK(table.str(24) ==
        "name  first  last\na         1     4\nnot shown at this width:\nsecond, third\n");
  CHECK(table.str(9).starts_with("name  first  last\n"));  // other columns stay
}

TEST_CASE("names stay distinct if a dropped column makes room") {
  Table table{
      {{"name", Table::Align::kLeft}, {"first"}, {"second", Table::Align::kRight, "", true}}};
  table.add_row({"compression_ratio", "1", "2"});
  table.add_row({"compression_ratio_spread", "3", "4"});
  CHECK(table.str(32) ==
        "name                      first\n"
        "compression_ratio             1\n"
        "compression_ratio_spread      3\n"
        "not shown at this width: second\n");
  // If there is too little space for distinguishable names, the names keep their ends and the spare
  // column is shown.
  table.add_row({"compression ratio of all keys", "5", "6"});
  table.add_row({"compression ratio of all values", "7", "8"});
  CHECK(table.str(27) ==
        "name          first  second\n"
        "compres…atio      1       2\n"
        "compres…read      3       4\n"
        "compres…keys      5       6\n"
        "compres…lues      7       8\n");
  // If the ends are also equal, the names are broken into several lines.
  table.add_row({"compression ratio of no keys", "9", "0"});
  CHECK(table.str(27) ==
        "name          first  second\n"
        "compression_      1       2\n"
        "ratio\n"
        "compression_      3       4\n"
        "ratio_spread\n"
        "compression       5       6\n"
        "ratio of all\n"
        "keys\n"
        "compression       7       8\n"
        "ratio of all\n"
        "values\n"
        "compression       9       0\n"
        "ratio of no\n"
        "keys\n");
}

TEST_CASE("widths are those of a terminal") {
  CHECK(display_width("") == 0);
  CHECK(display_width("abc") == 3);
  CHECK(display_width("é") == 1);
  CHECK(display_width("e\u0301") == 1);  // with a combining accent
  CHECK(display_width("零合") == 4);
  CHECK(display_width("\xff") == 1);
  CHECK(shortened("abcdef", 6) == "abcdef");
  CHECK(shortened("abcdef", 4) == "abc…");
  CHECK(shortened("零合零合", 6) == "零合…");  // half of a wide one does not fit
}

TEST_CASE("texts from files cannot control the terminal") {
  CHECK(clean_text("a\nb\tc\x1b[31m") == "a b c [31m");
  CHECK(clean_text("x\xc3\x28\xf8y") == "x?(?y");
  CHECK(clean_text("\xed\xa0\x80") == "???");  // a surrogate is not UTF-8
  CHECK(clean_text("\xc0\xaf") == "??");       // an overlong "/"
  CHECK(clean_text("µ – 零") == "µ – 零");
  CHECK(slug("Llama-2-7B / A800 80GB") == "llama-2-7b-a800-80gb");
  CHECK(slug("../..") == "unnamed");
  CHECK(slug("") == "unnamed");
}

TEST_CASE("numbers are grouped by thousands") {
  CHECK(with_commas(0) == "0");
  CHECK(with_commas(999) == "999");
  CHECK(with_commas(1000) == "1,000");
  CHECK(with_commas(-123456) == "-123,456");
  CHECK(with_commas(1234567890) == "1,234,567,890");
}

TEST_CASE("a table aligns columns and shortens names but never numbers") {
  Table table{{{"name", Table::Align::kLeft}, {"bytes"}}};
  table.add_row({"full", "1"});
  table.add_row({"a name that goes on and on", "123,456"});
  CHECK(table.str() ==
        "name                          bytes\n"
        "full                              1\n"
        "a name that goes on and on  123,456\n");
  CHECK(table.str(24) ==
        "name               bytes\n"
        "full                   1\n"
        "a name that go…  123,456\n");
  CHECK(table.str(5).find("123,456") != std::string::npos);
  CHECK_THROWS_AS(table.add_row({"one cell"}), ContractError);
  Table parted{{{"name", Table::Align::kLeft}, {"bytes"}}};
  parted.add_section("batch 1, and more than the columns are wide");
  parted.add_row({"full", "1"});
  parted.add_section("");  // no heading, so no line
  CHECK(parted.str() ==
        "name  bytes\n"
        "batch 1, and more than the columns are wide\n"
        "full      1\n");
}

TEST_CASE("an out-of-memory error is one sentence with the largest owner first") {
  OomEvent oom;
  oom.step = 33912;
  oom.tokens = 53912;
  oom.phase = "decode";
  oom.requested = Bytes{842LL * 1024 * 1024};
  oom.free = Bytes{310LL * 1024 * 1024};
  oom.owners = {{"kv_cache", test::gib(52.6)}, {"logits", Bytes{0}}, {"weights", test::gib(25.1)}};
  CHECK(
      oom_sentence("full", oom) ==
      "full: out of memory at decode step 33,912 (53,912 tokens): requested 842 MiB, 310 MiB free, "
      "short by 532 MiB; kv_cache 52.6 GiB, weights 25.1 GiB");
  oom.phase = "prefill";
  oom.what = "attention scores";
  oom.owners.clear();
  CHECK(oom_sentence("full", oom) ==
        "full: out of memory in prefill (53,912 tokens): requested 842 MiB for attention scores, "
        "310 MiB free, short by 532 MiB");
  // If both round to the same number, the shortage is stated.
  oom.free = oom.requested - Bytes{512};
  CHECK(oom_sentence("full", oom).ends_with("842 MiB free, short by 512 B"));
}

TEST_CASE("the summary states what fits, what fails first, the miss, and the files") {
  const Scenario scenario = test::sample_scenario();
  const RunReport report = test::sample_report(scenario);
  const ResultsFolder written{"out/x", {"figures/a.svg", "figures/a.png"}, {"a note"}};
  const std::string text = run_summary(report, run_document(report), &written);
  INFO(text);
  CHECK(text.find("3 of 4 points fit (usable HBM 79.0 GiB).") != std::string::npos);
  CHECK(text.find("- full: out of memory at decode step") != std::string::npos);
  CHECK(text.find("zeromerge budget 18,000") != std::string::npos);
  CHECK(text.find("54K tokens") != std::string::npos);
  // Prefill: 3.15 s of 4.2 limited by compute, the rest by memory; last step: a quarter by memory.
  CHECK(text.find("     75.0    25.0       0.0  40.0      0.0    25.0      75.0\n") !=
        std::string::npos);
  CHECK(text.find("figure   out/x/figures/a.png") != std::string::npos);
  CHECK(text.find("note: a note") != std::string::npos);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    REQUIRE(end != std::string::npos);
    CHECK(display_width(std::string_view{text}.substr(at, end - at)) <= 80);
    at = end + 1;
  }
  CHECK(text == run_summary(report, run_document(report), &written));
}

TEST_CASE("points are named by their differences") {
  const Scenario scenario = test::sample_scenario();
  CHECK(labels_within(scenario, {0, 1}) ==
        std::vector<std::string>{"full", "zeromerge budget 18,000"});
  CHECK(labels_within(scenario, {1, 2}) == std::vector<std::string>{"zeromerge", "h2o"});
  CHECK(labels_within(scenario, {1, 1}) == std::vector<std::string>{"zeromerge", "zeromerge (2)"});
  CHECK(common_description(scenario) ==
        "Llama-2-7B on A800-80GB-SXM, hf-sdpa, fp32, batch 1, prompt 20,000, output 34,000");
}

TEST_CASE("points that differ in more than the method are under headings") {
  Scenario scenario = test::sample_scenario();
  for (ScenarioPoint& point : scenario.points) point.keys["kv_dtype"] = "fp32";
  scenario.points[2].keys["batch"] = 4;
  scenario.points[3].keys["batch"] = 4;
  const auto groups = point_groups(scenario, surrounding_keys());
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].heading == "batch 1");
  CHECK(groups[0].suffix == "_batch-1");
  CHECK(groups[0].labels == std::vector<std::string>{"full", "zeromerge budget 18,000"});
  CHECK(groups[1].labels == std::vector<std::string>{"h2o", "streaming-llm"});
  CHECK(groups[1].description ==
        "Llama-2-7B on A800-80GB-SXM, hf-sdpa, fp32, batch 4, prompt 20,000, output 34,000");
}

TEST_CASE("the names of 20,000 points, different or equal, take seconds") {
  constexpr std::size_t kPoints = 20'000;
  const ScenarioPoint first = test::sample_scenario().points.front();
  for (const bool equal : {false, true}) {
    Scenario scenario = test::sample_scenario();
    scenario.points.assign(kPoints, first);
    std::vector<std::size_t> all(kPoints);
    for (std::size_t i = 0; i < kPoints; ++i) {
      all[i] = i;
      if (!equal) scenario.points[i].keys["prompt_tokens"] = 100 + i % (kPoints - 1);
    }
    const auto begin = std::chrono::steady_clock::now();
    const auto groups = point_groups(scenario, surrounding_keys());
    REQUIRE(groups.size() == (equal ? 1 : kPoints - 1));
    CHECK(groups.front().points.size() == (equal ? kPoints : 2));
    CHECK(groups.front().points.back() == kPoints - 1);
    const auto labels = labels_within(scenario, all);
    CHECK(std::set<std::string>(labels.begin(), labels.end()).size() == kPoints);
    set_labels(scenario.points);
    CHECK(scenario.points.back().label.ends_with(equal ? " (20000)" : " (2)"));
    // Pairwise comparison of all points once took minutes.
    CHECK(std::chrono::steady_clock::now() - begin <
          std::chrono::seconds{test::kSanitized ? 120 : 20});
  }
}

TEST_CASE("a progress line fits its width and counts down") {
  CHECK(progress_line("replay", 0.25, 10, 32, "layers", 79, false) ==
        "replay [#######-----------------------]  25 %  0.8 layers/s  30 s left");
  CHECK(progress_line("x", 2.0, 10, 0, "", 79, true).find("\x1b[32m") != std::string::npos);
  for (std::size_t width = 1; width < 100; ++width) {
    INFO(width);
    CHECK(display_width(progress_line("a long name of some work", 0.5, 3, 9, "points", width,
                                      false)) <= width);
  }
}

TEST_CASE("progress writes nothing without a terminal") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  {
    Progress progress{"work", 10, "points", ends[1]};
    std::this_thread::sleep_for(std::chrono::milliseconds{1100});
    progress.update(0.5);
  }
  ::close(ends[1]);
  char byte = 0;
  CHECK(::read(ends[0], &byte, 1) == 0);
  ::close(ends[0]);
}

TEST_CASE("on a terminal progress appears after a second and erases itself") {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0) {
    fmt::print("KVSIM-SKIPPED: no pseudo-terminal here\n");
    return;
  }
  const int terminal = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0);
  {
    Progress progress{"work", 0, "", terminal};
    progress.expect(10, "points");
    progress.update(0.1);  // too early to be shown
    std::this_thread::sleep_for(std::chrono::milliseconds{1050});
    progress.update(0.5);
    progress.update(0.51);  // too soon after the previous update
    progress.finish();
    progress.update(0.9);
  }
  std::array<char, 4096> buffer{};
  const ssize_t n = ::read(master, buffer.data(), buffer.size());
  ::close(terminal);
  ::close(master);
  const std::string text{buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0))};
  INFO(text);
  CHECK(text.find(" 10 %") == std::string::npos);
  CHECK(text.find(" 50 %") != std::string::npos);
  CHECK(text.find(" points/s") != std::string::npos);
  CHECK(text.find(" left") != std::string::npos);
  CHECK(text.find(" 51 %") == std::string::npos);
  CHECK(text.find(" 90 %") == std::string::npos);
  CHECK(text.ends_with("\x1b[K"));
}

}  // namespace
}  // namespace kvsim
