// `kvsim plan` executed as by a user.

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/sim/cli/program.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"
#include "tests/support/scratch.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using test::has;
using test::run_kvsim;
using test::Words;
namespace fs = std::filesystem;
using test::fresh;

const std::string kShipped =
    (fs::path{KVSIM_SOURCE_DIR} / "scenarios/plan-h100-longcontext.json").string();

TEST_CASE("the shipped plan runs out of the box with plan and with run") {
  const fs::path folder = fresh("shipped");
  const auto plan = run_kvsim({"plan", kShipped, "--no-figures", "-o", "results"}, folder);
  CHECK(plan.status == 0);
  CHECK(plan.out.find("- Longest context of llama-3.1-8b") != std::string::npos);
  for (const char* file : {"plan.json", "plan.csv", "front.csv"}) {
    CHECK(fs::exists(folder / "results" / file));
  }
  const auto run = run_kvsim({"run", kShipped, "--json", "-j", "2"}, folder);
  CHECK(run.status == 0);
  const json document = json::parse(run.out);
  CHECK(document.at("schema") == "kvsim.plan/1");
  CHECK(document.at("answers").size() == 6);
  for (const json& answer : document.at("answers")) {
    CHECK(answer.at("answer").is_number());
    for (const json& one : answer.at("candidates")) CHECK(one.at("points").size() >= 1);
  }
}

TEST_CASE("a run says that its batch exceeds the sequences that the engine runs at once") {
  const fs::path folder = fresh("num-seqs");
  const auto run = [&](const std::string& batch) {
    const Words words{"run",       "--model", "llama-2-7b", "--gpu", "L40S", "--stack",
                      "vllm@0.19", "--isl",   "16",         "--osl", "2",    "--no-figures",
                      "-o",        "out",     "--batch",    batch};
    const auto outcome = run_kvsim(words, folder);
    CHECK(outcome.status == 0);
    return outcome.out;
  };
  // Only one note, regardless of the number of points that exceed it.
  const std::string two = run("300,310");
  CHECK(has(two, "note: vllm runs 256 sequences at once"));
  CHECK(two.find("runs 256 sequences") == two.rfind("runs 256 sequences"));
  CHECK_FALSE(has(run("256"), "sequences at once"));
}

TEST_CASE("every command that writes a folder writes its page, reproducibly, unless disabled") {
  const fs::path folder = fresh("pages");
  // Without figures, so that gnuplot is not used.
  std::ofstream{folder / "s.json"}
      << R"({"schema": "kvsim.scenario/1", "model": "llama-3.1-8b", "gpu": "A100-80GB-SXM",
             "stack": "vllm", "method": ["full", {"name": "h2o", "budget": 0.2}], "batch": 2,
             "prompt_tokens": 1024, "output_tokens": 64, "figures": false})";
  const std::string trace =
      (fs::path{KVSIM_SOURCE_DIR} / "traces/samples/books-treasure-512.safetensors").string();
  const std::vector<std::vector<std::string>> commands{
      {"run", "s.json"},
      {"sweep", "s.json", "--vary", "/batch=1,2"},
      {"replay", "--trace", trace, "--method", "full,h2o", "--budget", "0.2"},
  };
  const auto text_of = [](const fs::path& file) {
    std::ifstream in{file, std::ios::binary};
    return std::string{std::istreambuf_iterator<char>{in}, {}};
  };
  for (const auto& command : commands) {
    INFO(command.front());
    const auto into = [&](const std::string& out, const std::string& option) {
      std::vector<std::string> words = command;
      words.insert(words.end(), {"-o", out});
      if (!option.empty()) words.push_back(option);
      const auto outcome = run_kvsim(words, folder);
      CHECK(outcome.status == 0);
      return outcome.out;
    };
    CHECK(into("a", "").find("a/report.html") != std::string::npos);
    (void)into("b", "-j2");
    const std::string page = text_of(folder / "a/report.html");
    CHECK(page.starts_with("<!doctype html>"));
    CHECK(page == text_of(folder / "b/report.html"));
    CHECK(page.find("\"charts\":[{") != std::string::npos);  // for any value of "figures"
    for (const char* option : {"--no-report", "--no-figures"}) {
      CHECK(into("c", option).find("report.html") == std::string::npos);
      CHECK_FALSE(fs::exists(folder / "c/report.html"));
    }
    for (const char* name : {"a", "b", "c"}) fs::remove_all(folder / name);
  }
}

TEST_CASE("run and plan print the assumed flags and results state their origin") {
  const fs::path folder = fresh("flags");
  const std::string flags =
      "--max-num-batched-tokens 2048 --max-num-seqs 256 --gpu-memory-utilization 0.92";
  const std::vector<std::string> requested{"--model",  "llama-3.1-8b", "--gpu",
                                           "rtx-4090", "--stack",      "vllm@0.30"};
  const auto with = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), requested.begin(), requested.end());
    words.insert(words.end(), more.begin(), more.end());
    return run_kvsim(words, folder);
  };
  const auto plan = with({"plan"}, {"--no-figures", "-o", "p"});
  INFO(plan.out);
  std::string line = plan.out;  // with line breaks removed
  std::replace(line.begin(), line.end(), '\n', ' ');
  CHECK(line.find("vLLM 0.30: " + flags) != std::string::npos);
  const json document = json::parse(test::text_of(folder / "p/plan.json"));
  REQUIRE(document.at("engines").size() == 1);
  CHECK(document.at("engines")[0].at("gpu") == "RTX-4090");
  CHECK(document.at("engines")[0].at("flags").get<std::string>().starts_with(flags));

  const auto run = with({"run"}, {"--no-figures", "-o", "r", "--set", "/engine/max_num_seqs=64"});
  CHECK(run.out.find("--max-num-seqs 64") != std::string::npos);
  const json result = json::parse(test::text_of(folder / "r/result.json"));
  const json& engine = result.at("points")[0].at("startup").at("engine");
  CHECK(engine.at("name") == "vLLM");
  CHECK(engine.at("version") == "0.30");
  for (const json& setting : engine.at("settings")) {
    const bool mine = setting.at("key") == "max_num_seqs";
    CHECK(setting.at("by_user") == mine);
    CHECK(setting.at("from").get<std::string>().starts_with(mine ? "set by the user"
                                                                 : "default of vLLM 0.30"));
    CHECK((mine || !setting.at("source").get<std::string>().empty()));
  }
  const auto unknown = run_kvsim(
      {"plan", "--model", "llama-3.1-8b", "--gpu", "rtx-4090", "--stack", "vllm@0.99"}, folder);
  CHECK(unknown.status == 2);
  CHECK(unknown.err.find("expected a version of vLLM from 0.8 to 0.30") != std::string::npos);
}

TEST_CASE("contexts end at the model's positions by options and by file unless extended") {
  const fs::path folder = fresh("positions");
  const std::vector<std::string> options{"plan",   "--model",       "llama-3.1-8b",
                                         "--gpu",  "h100-80gb-sxm", "--method",
                                         "snapkv", "--budget",      "0.2"};
  const auto screen = run_kvsim(options, folder);
  CHECK(screen.status == 0);
  for (std::size_t from = 0; from < screen.out.size();) {
    const std::size_t end = std::min(screen.out.find('\n', from), screen.out.size());
    CHECK(end - from <= 80);
    from = end + 1;
  }
  CHECK(screen.out.find("131,072") != std::string::npos);
  CHECK(screen.out.find("positions") != std::string::npos);
  CHECK(screen.out.find("Finding: Compression changes nothing here") != std::string::npos);
  CHECK(screen.out.find("vLLM has no snapkv") != std::string::npos);
  CHECK(screen.out.find("\navailable in: snapkv: kvpress, research code\n") != std::string::npos);
  const auto answers = [&](std::vector<std::string> words) {
    words.emplace_back("--json");
    const json document = json::parse(run_kvsim(words, folder).out);
    std::vector<double> out;
    for (const json& one : document.at("answers")[0].at("candidates")) {
      out.push_back(one.at("answer").get<double>());
      CHECK(one.at("limited_by").is_string());
      const bool full = one.at("method") == "full";
      const json& available = one.at("available_in");
      CHECK(available.at(0) == json{{"software", full ? "vLLM" : "kvpress"},
                                    {"version", nullptr},
                                    {"as", full ? "" : "SnapKVPress"}});
    }
    return out;
  };
  CHECK(answers(options) == std::vector<double>{131072, 131072});
  std::vector<std::string> beyond = options;
  beyond.emplace_back("--beyond-positions");
  const std::vector<double> more = answers(beyond);
  CHECK(more[0] > 131072);
  // A prompt is compressed in its last chunk: the pool holds the entries of all earlier chunks.
  CHECK(more[1] > more[0] - 8192);
  CHECK(more[1] <= more[0] + 8192);
  std::ofstream{folder / "context.json"}
      << R"({"model": "llama-3.1-8b", "gpu": "H100-80GB-SXM", "stack": "vllm", "output_tokens": 512,
             "method": ["full", {"name": "snapkv", "budget": 0.2}],
             "plan": {"questions": "longest_context"}})";
  CHECK(answers({"plan", "context.json"}) == std::vector<double>{131072, 131072});
  CHECK(answers({"plan", "context.json", "--beyond-positions"}) == more);
}

TEST_CASE("run prints the essential parts of services, and all percentiles with --verbose") {
  const fs::path folder = fresh("brief-service");
  const std::string scenario =
      (fs::path{KVSIM_SOURCE_DIR} / "scenarios/serve-azure-code.json").string();
  const auto run = [&](const Words& more) {
    Words words{"run", scenario, "--no-figures", "-o", "out", "--set", "/requests/limit=100"};
    words.insert(words.end(), more.begin(), more.end());
    const auto outcome = run_kvsim(words, folder);
    REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
    return outcome.out;
  };
  const std::string brief = run({});
  INFO(brief);
  CHECK(std::count(brief.begin(), brief.end(), '\n') <= 50);  // of nine points
  CHECK(has(brief, "p99 s"));
  CHECK(has(brief, "90 % interv"));
  CHECK(has(brief, "Finding: "));
  CHECK_FALSE(has(brief, "the service"));
  const std::string all = run({"-v"});
  for (const char* percentile : {"p50 s", "p90 s", "p95 s", "p99 s", "p95 ms"}) {
    CHECK(has(all, percentile));
  }
  CHECK(has(all, "the service"));
  // Only the requested percentile.
  const std::string chosen = run({"--set", "/slo/percentile=95"});
  CHECK(has(chosen, "p95 s"));
  CHECK_FALSE(has(chosen, "p99 s"));
  const auto odd = run_kvsim({"run", scenario, "--set", "/slo/percentile=97"}, folder);
  CHECK(odd.status == 2);
  CHECK(has(odd.err, "slo/percentile: expected 50, 90, 95 or 99, got 97"));
}

TEST_CASE("run prints the first of many points and counts the others") {
  const fs::path folder = fresh("brief-many");
  const std::string scenario =
      (fs::path{KVSIM_SOURCE_DIR} / "scenarios/a100-vs-h200.json").string();
  const auto run = [&](const char* more) {
    const auto outcome = run_kvsim({"run", scenario, "--no-figures", "-o", "out", more}, folder);
    REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
    return outcome.out;
  };
  const auto full = [](const std::string& text) {
    std::size_t n = 0;
    for (std::size_t at = text.find("\n  full "); at != std::string::npos;
         at = text.find("\n  full ", at + 1)) {
      ++n;
    }
    return n;
  };
  const std::string brief = run("--color=never");
  INFO(brief);
  // 24 of 80 points, in whole groups of four.
  CHECK(full(brief) == 6);
  CHECK(has(brief, "\nand 56 more points: -v, or result.json\n"));
  CHECK(has(brief, "Finding: "));
  const std::string all = run("-v");
  CHECK(full(all) >= 20);
  CHECK_FALSE(has(all, "more points"));
}

TEST_CASE("run prints the essential parts of a point and everything with --verbose") {
  const fs::path folder = fresh("brief");
  const std::string scenarios = (fs::path{KVSIM_SOURCE_DIR} / "scenarios").string();
  const auto run = [&](std::vector<std::string> files, bool verbose) {
    std::vector<std::string> words{"run", "--no-figures", "-o", files.size() > 1 ? "out" : "one"};
    for (const std::string& file : files) words.push_back(scenarios + "/" + file);
    if (verbose) words.emplace_back("--verbose");
    const auto outcome = run_kvsim(words, folder);
    CHECK(outcome.status == 0);
    return outcome.out;
  };
  const auto count = [](const std::string& text, const std::string& what) {
    std::size_t n = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
      ++n;
    }
    return n;
  };
  const auto n_lines = [&](const std::string& text) { return count(text, "\n"); };
  // Standard output of ./kv demo.
  const std::string demo = run({"zeromerge-a800.json", "replay-sample.json"}, false);
  INFO(demo);
  CHECK(n_lines(demo) <= 48);
  CHECK(count(demo, "\n  ") >= 12);  // the table of points, in groups
  for (const char* row : {"\n  full ", "\n  zeromerge budget 18,000 ", "\n  h2o budget 18,000 ",
                          "\n  streaming-llm budget 18,000 ", "\n  h2o budget 0.05 "}) {
    CHECK(has(demo, row));
  }
  CHECK(has(demo, "\n2: fp32, batch 1, output 100\n"));
  CHECK(has(demo, "\nthroughput_tok_s     4: zeromerge"));
  CHECK(count(demo, "\n- ") == 3);  // two points of the first scenario, one of the second
  CHECK(has(demo, "\n- full fp32 batch 1 output 40,000: out of memory at 54,171 tokens\n"));
  CHECK(count(demo, "\noom_tokens ") + count(demo, "\npeak_hbm_bytes ") +
            count(demo, "\ndecode_peak_bytes ") + count(demo, "\ndecode_tok_s ") +
            count(demo, "\nthroughput_tok_s ") + count(demo, "\noom ") ==
        12);  // published figures
  CHECK(count(demo, "\nnote: ") == 2);
  CHECK(has(demo, "1M-parameter model, 829 + 67 tokens"));
  CHECK(has(demo, "equal bytes"));
  CHECK(count(demo, "\nFinding: ") == 2);
  CHECK(has(demo, "\nwritten: out/zeromerge-a800/result.json; more: -v\n"));
  CHECK(has(demo, "\nwritten: out/replay-sample/result.json; more: -v\n"));

  const std::string memory = run({"zeromerge-a800.json"}, false);
  const std::string all = run({"zeromerge-a800.json"}, true);
  CHECK(n_lines(all) > n_lines(memory) + 20);
  for (const char* both : {"out of memory", "published", "Finding: ", "one/result.json"}) {
    INFO(both);
    CHECK(has(memory, both));
    CHECK(has(all, both));
  }
  for (const char* part : {"% TTFT", "10 of 12 points fit", "engines refuse such sequences"}) {
    INFO(part);
    CHECK_FALSE(has(memory, part));
    CHECK(has(all, part));
  }
}

TEST_CASE("the longest context of a small GPU is that of vLLM's memory") {
  const auto plan = run_kvsim(
      {"plan", "--model", "llama-3.1-8b", "--gpu", "rtx-4090", "--stack", "vllm@0.19", "--json"},
      fresh("small-gpu"));
  REQUIRE(plan.status == 0);
  const json answer = json::parse(plan.out).at("answers").at(0);
  CHECK(answer.at("question") == "longest_context");
  CHECK(answer.at("candidates").at(0).at("predicted") == 47056);
}

TEST_CASE("the page of a plan has the range next to the answer") {
  const fs::path folder = fresh("range-page");
  const auto plan = run_kvsim({"plan", "--model", "llama-3.1-8b", "--gpu", "rtx-4090", "--set",
                               "/figures=false", "-o", "out"},
                              folder);
  REQUIRE(plan.status == 0);
  std::ifstream json_file{folder / "out/plan.json"}, page_file{folder / "out/report.html"};
  const std::string page{std::istreambuf_iterator<char>{page_file}, {}};
  const json document = json::parse(json_file);
  for (const json& answer : document.at("answers")) {
    const auto range = answer.at("range").get<std::string>();
    INFO(range);
    CHECK(range.find(" to ") != std::string::npos);
    CHECK(page.find(", range " + range) != std::string::npos);
  }
  // The table has the columns of the metrics.
  for (const char* column : {R"({"key":"cost","header":"cost")", R"({"key":"latency_s",)",
                             R"({"key":"ttft_s",)", R"({"key":"prefill_one_s",)"}) {
    CHECK(page.find(column) != std::string::npos);
  }
}

TEST_CASE("exit status 1 for a question without an answer and 2 for an invalid one") {
  const fs::path folder = fresh("impossible");
  const auto impossible = run_kvsim(
      {"plan", kShipped, "--no-figures", "--set", "/memory={\"hbm\": \"8 GiB\"}"}, folder);
  CHECK(impossible.status == 1);
  CHECK(impossible.out.find("impossible (weights)") != std::string::npos);
  CHECK(impossible.out.find("hbm x 1.1") != std::string::npos);
  // For a service: changes that increase the number of GPUs of an engine.
  const auto service =
      run_kvsim({"plan", "--model", "llama-3.1-70b", "--gpu", "H100-80GB-SXM", "--rate", "5",
                 "--isl", "2000", "--osl", "300", "--ttft", "2s", "--no-figures"},
                folder);
  CHECK(service.status == 1);
  CHECK(service.out.find("--layouts 8") != std::string::npos);
  CHECK(impossible.out.find("--layouts 8") == std::string::npos);
  const auto none = run_kvsim({"plan", kShipped, "--set", "/plan=null"}, folder);
  CHECK(none.status == 2);
  CHECK(none.err.find("has no \"plan\"") != std::string::npos);
  const auto wrong = run_kvsim({"plan", kShipped, "--set", "/plan/questions=largest_bach"}, folder);
  CHECK(wrong.status == 2);
  CHECK(wrong.err.find("/plan/questions") != std::string::npos);
}

}  // namespace
}  // namespace kvsim
