// Output for people at a terminal, and for shells: the answer by options, compare, plot, colour,
// sparklines, widths, manual pages, completion, the version.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/scenario/fields/keys.hpp"
#include "tests/sim/cli/program.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using test::Outcome;
using test::run_kvsim;
namespace fs = std::filesystem;
using test::fresh;
using test::has;
using test::text_of;
using test::Words;
using test::write;

std::string shipped(const std::string& name) {
  return (fs::path{KVSIM_SOURCE_DIR} / "scenarios" / (name + ".json")).string();
}
json json_of(const Words& words, const fs::path& folder, int status = 0) {
  const Outcome outcome = run_kvsim(words, folder);
  REQUIRE_MESSAGE(outcome.status == status, outcome.err);
  return json::parse(outcome.out);
}
std::string complaint(const Words& words, const fs::path& folder) {
  const Outcome outcome = run_kvsim(words, folder);
  CHECK(outcome.status == 2);
  CHECK(outcome.out.empty());
  return outcome.err;
}

/// Number of columns of a line of UTF-8 without wide characters: its code points.
std::size_t columns(std::string_view line) {
  return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}
std::size_t widest(const std::string& text, std::string& line_of) {
  std::istringstream in{text};
  std::size_t max = 0;
  for (std::string line; std::getline(in, line);) {
    if (columns(line) <= max) continue;
    max = columns(line);
    line_of = line;
  }
  return max;
}

/// Whether this machine has pseudo-terminals: some containers and bare roots do not.
bool has_terminals() {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0) return false;
  const bool given = ::grantpt(master) == 0 && ::unlockpt(master) == 0 &&
                     ::access(::ptsname(master), R_OK | W_OK) == 0;
  ::close(master);
  return given;
}

/// Output of kvsim on a terminal 80 columns wide, with these environment settings.
std::string on_terminal(const Words& arguments, const fs::path& folder,
                        const std::vector<std::pair<const char*, const char*>>& environment) {
  winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    ::unsetenv("NO_COLOR");
    ::setenv("TERM", "xterm-256color", 1);
    ::setenv("LC_ALL", "C.UTF-8", 1);
    for (const auto& [name, value] : environment) ::setenv(name, value, 1);
    if (::chdir(folder.c_str()) != 0) ::_exit(99);
    Words words{KVSIM_PROGRAM};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::execv(KVSIM_PROGRAM, argv.data());
    ::_exit(99);
  }
  std::string out;
  char chunk[4096];
  for (ssize_t n = 0; (n = ::read(terminal, chunk, sizeof chunk)) > 0;) {
    out.append(chunk, static_cast<std::size_t>(n));
  }
  ::close(terminal);
  int status = 0;
  ::waitpid(child, &status, 0);
  return out;
}

constexpr std::string_view kOom = R"({"model": "llama-2-7b", "gpu": "A100-40GB-SXM",
  "stack": "hf-sdpa", "dtype": "fp16", "batch": [1, 16], "prompt_tokens": 4000,
  "output_tokens": 100})";

TEST_CASE("options in place of a file answer the question of what fits on one screen") {
  const fs::path folder = fresh("by-options");
  const Words question{"plan",     "--model", "llama-3.1-8b", "--gpu", "h100-80gb-sxm",
                       "--method", "snapkv",  "--budget",     "0.2"};
  const Outcome outcome = run_kvsim(question, folder);
  CHECK(outcome.status == 0);
  for (const char* part :
       {"Longest context", "Largest batch", "predicted", "safe (p90)", "optimistic", "peak",
        "tok/s", "snapkv budget 20 %", "full", "limited"}) {
    CHECK(has(outcome.out, part));
  }
  CHECK(std::count(outcome.out.begin(), outcome.out.end(), '\n') <= 40);
  CHECK(fs::is_empty(folder));
  Words with_json = question;
  with_json.emplace_back("--json");
  const json document = json_of(with_json, folder);
  CHECK(document.at("schema") == "kvsim.plan/1");
  REQUIRE(document.at("answers").size() == 2);
  for (const json& answer : document.at("answers")) {
    for (const json& one : answer.at("candidates")) {
      CHECK(one.at("answer") == one.at("predicted"));
      CHECK(one.at("safe") <= one.at("predicted"));
      CHECK(one.at("predicted") <= one.at("optimistic"));
      CHECK(one.at("peak_hbm_bytes") <= one.at("usable_hbm_bytes"));
      CHECK_FALSE(one.at("runs_out").at("text").get<std::string>().empty());
    }
  }
  // A safe answer is requested; it is the safe end of the predicted range.
  with_json.insert(with_json.end(), {"--set", "/plan/confidence=0.9"});
  const json requested = json_of(with_json, folder);
  for (std::size_t a = 0; a < 2; ++a) {
    for (std::size_t c = 0; c < 2; ++c) {
      const json& plain = document.at("answers").at(a).at("candidates").at(c);
      const json& safe = requested.at("answers").at(a).at("candidates").at(c);
      CHECK(safe.at("answer") == plain.at("safe"));
      for (const char* end : {"predicted", "safe", "optimistic", "range"}) {
        CHECK(safe.at(end) == plain.at(end));
      }
    }
  }
}

TEST_CASE("options are keys of a scenario: the printed one gives the same answer") {
  const fs::path folder = fresh("print-scenario");
  const Words options{"--model",    "llama-2-7b", "--gpu",    "A100-80GB-SXM",
                      "--stack",    "hf-sdpa",    "--method", "full,h2o",
                      "--budget",   "0.1,0.2",    "--param",  "score_exec=fused_two_pass",
                      "--prompt",   "2K",         "--output", "16",
                      "--batch",    "1,2",        "--dtype",  "fp16",
                      "--kv-dtype", "fp8_e4m3"};
  for (const std::string command : {"run", "plan"}) {
    Words print{command};
    print.insert(print.end(), options.begin(), options.end());
    Words run = print;
    print.emplace_back("--print-scenario");
    run.emplace_back("--json");
    const Outcome printed = run_kvsim(print, folder);
    REQUIRE_MESSAGE(printed.status == 0, printed.err);
    write(folder / "s.json", printed.out);
    json by_file = json_of({command, "s.json", "--json"}, folder);
    json by_options = json_of(run, folder);
    by_file.at("scenario").erase("name");
    by_options.at("scenario").erase("name");
    CHECK(by_file == by_options);
    const json scenario = json::parse(printed.out);
    CHECK(scenario.at("prompt_tokens") == 2048);
    CHECK(scenario.at("method").at(1).at("budget") == json::parse("[0.1, 0.2]"));
    CHECK(scenario.contains("plan") == (command == "plan"));
  }
}

TEST_CASE("errors in options name the option or the key") {
  const fs::path folder = fresh("option-slips");
  const auto with = [](Words more) {
    Words words{"plan", "--model", "llama-3.1-8b", "--gpu", "h100-80gb-sxm"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  CHECK(has(complaint({"plan", "--gpu", "T4"}, folder), "--model NAME is missing"));
  CHECK(has(complaint({"run", "--model", "llama-2-7b"}, folder), "--gpu NAME is missing"));
  // --set sets a key to the same value as an option.
  const Words set_gpu{"plan", "--model", "llama-3.1-8b", "--set"};
  const auto with_gpu = [&](const char* value) {
    Words words = set_gpu;
    words.emplace_back(value);
    return words;
  };
  CHECK(has(run_kvsim(with_gpu("/gpu=h100"), folder).out, "H100-80GB-SXM"));
  CHECK(has(complaint(with_gpu("/gpu=h10"), folder), "/gpu: unknown GPU \"h10\""));
  CHECK(has(complaint(with_gpu("/gpu=null"), folder), "\"gpu\" is missing"));
  CHECK(has(complaint({"plan", "--model", "llama-3.1-8b", "--gpu", "8xh100"}, folder),
            "got \"8xh100\"; --gpu h100 --tp 8 shares the model over 8 GPUs"));
  CHECK(has(complaint({"plan", "--model", "llama-3.1-8b", "--gpu", "H100-NVLx2"}, folder),
            "unknown GPU \"H100-NVLx2\""));
  CHECK(has(complaint({"plan", "--model", "llama-3.1-8b", "--gpu", "h100x8"}, folder),
            "--gpu h100 --tp 8"));
  CHECK(has(complaint(with({"--gpu-memory-utilization", "90%"}), folder), "got \"90%\"; 0.9?"));
  CHECK(has(complaint(with({"--set", "/engin/max_num_seqs=3"}), folder),
            "--set /engin/max_num_seqs: /engin: unknown key; did you mean \"engine\"?"));
  CHECK(has(complaint({"plan", "-m", "llama-3.1-8b", "--gpu", "T4"}, folder),
            "--model NAME is missing (-m names a method); "));
  CHECK(has(complaint({"replay", "trace.safetensors"}, folder),
            "unexpected \"trace.safetensors\"; expected only options: --trace FILE names a trace"));
  CHECK(has(complaint({"plan", "--model", "llama-3.1-8", "--gpu", "T4"}, folder),
            "did you mean \"llama-3.1-8b\"?"));
  CHECK(has(complaint(with({"--method", "h20"}), folder), "did you mean \"h2o\"?"));
  CHECK(has(complaint(with({"--budget", "0.2"}), folder),
            "--budget: none of the methods takes a budget"));
  CHECK(has(complaint(with({"--prompt", "32X"}), folder), "--prompt: expected integers"));
  CHECK(has(complaint(with({"--param", "alpha=1"}), folder), "unknown parameter \"alpha\""));
  CHECK(has(complaint(with({"s.json"}), folder),
            "--model: expected options or a scenario file, got both (s.json)"));
}

TEST_CASE("compare shows values in the unit of their metric") {
  const fs::path folder = fresh("compare-units");
  for (const auto& [out, rate] : {std::pair{"a", "2"}, {"b", "4"}}) {
    REQUIRE(run_kvsim({"run", "--model", "llama-3.1-8b", "--gpu", "H100-80GB-SXM", "--rate", rate,
                       "--isl", "200", "--osl", "20", "--requests", "50", "-o", out, "--no-figures",
                       "-q"},
                      folder)
                .status == 0);
  }
  const std::string all = run_kvsim({"compare", "a", "b", "--all"}, folder).out;
  const auto line = [&](const std::string& figure) {
    const std::size_t at = all.find("  " + figure + " ");
    REQUIRE_MESSAGE(at != std::string::npos, figure);
    return all.substr(at, all.find('\n', at) - at);
  };
  CHECK(has(line("ttft_s.p99"), " ms "));
  CHECK(has(line("makespan_s"), " s "));
  CHECK_FALSE(has(line("output_tok_s"), " s "));
}

TEST_CASE("compare finds changes but none between a result and itself") {
  const fs::path folder = fresh("compare");
  write(folder / "s.json", kOom);
  for (const auto& [out, set] : {std::pair{"a", "/seed=1"}, {"b", "/output_tokens=101"}}) {
    REQUIRE(run_kvsim({"run", "s.json", "-o", out, "--set", set, "--no-figures", "-q"}, folder)
                .status == 0);
  }
  const json none =
      json_of({"compare", "a", "a/result.json", "--json", "--tolerance", "0"}, folder);
  CHECK(none.at("moved") == false);
  CHECK(none.at("comparisons").at(0).at("points") == 2);
  CHECK(none.at("comparisons").at(0).at("figures") > 40);
  // One more token: the length changes in all points, so the points are matched and compared.
  const json some = json_of({"compare", "a", "b", "--json"}, folder);
  const json& comparison = some.at("comparisons").at(0);
  CHECK(comparison.at("notes").dump().find("output_tokens: 100 and 101") != std::string::npos);
  CHECK(comparison.at("only_before").empty());
  REQUIRE(comparison.at("changed").size() >= 1);
  const json a = json::parse(text_of(folder / "a/result.json")).at("points").at(0);
  const json b = json::parse(text_of(folder / "b/result.json")).at("points").at(0);
  bool found = false;
  for (const json& figure : comparison.at("changed").at(0).at("figures")) {
    if (figure.at("figure") != "kv_bytes") continue;
    found = true;
    CHECK(figure.at("before") == a.at("kv_bytes"));
    CHECK(figure.at("after") == b.at("kv_bytes"));
    const double before = a.at("kv_bytes");
    CHECK(figure.at("relative").get<double>() ==
          test::rel((b.at("kv_bytes").get<double>() - before) / before));
  }
  CHECK(found);
  // kv_bytes changes from 4,100 to 4,101 tokens, by 0.024 %; the result depends on the tolerance.
  CHECK(run_kvsim({"compare", "a", "b", "--tolerance", "1e-6"}, folder).status == 1);
  CHECK(run_kvsim({"compare", "a", "b", "--tolerance", "0.5"}, folder).status == 0);
  CHECK(run_kvsim({"compare", "a", "b"}, folder).status == 0);
  CHECK(has(run_kvsim({"compare", "a", "b"}, folder).out, "kv_bytes"));
  // Points that only one result has.
  REQUIRE(run_kvsim({"run", "s.json", "-o", "c", "--set", "/batch=[1, 2]", "--no-figures", "-q"},
                    folder)
              .status == 0);
  const json parts = json_of({"compare", "a", "c", "--json"}, folder).at("comparisons").at(0);
  CHECK(parts.at("only_before") == json::parse(R"(["batch 16"])"));
  CHECK(parts.at("only_after") == json::parse(R"(["batch 2"])"));
}

TEST_CASE("compare reports errors in its input") {
  const fs::path folder = fresh("compare-broken");
  write(folder / "broken.json", "{\"schema\": \"kvsim.run/1\",");
  write(folder / "other.json", R"({"schema": "kvsim.list/1"})");
  write(folder / "bare.json", R"({"schema": "kvsim.run/1"})");
  write(folder / "replay.json",
        R"({"schema": "kvsim.replay/1", "kvsim": {"version": "1"}, "methods": []})");
  write(folder / "run.json",
        R"({"schema": "kvsim.run/1", "kvsim": {"version": "1"}, "points": []})");
  CHECK(has(complaint({"compare", "run.json"}, folder), "two results"));
  CHECK(has(complaint({"compare", "run.json", "gone"}, folder), "gone"));
  CHECK(has(complaint({"compare", "run.json", "broken.json"}, folder),
            "broken.json: not valid JSON: line 1"));
  CHECK(has(complaint({"compare", "run.json", "other.json"}, folder), "kvsim.scenario-sweep/1"));
  CHECK(has(complaint({"compare", "run.json", "bare.json"}, folder), "bare.json"));
  CHECK(has(complaint({"compare", "run.json", "replay.json"}, folder), "results of the same kind"));
  CHECK(has(complaint({"compare", "run.json", "."}, folder), "not a results folder"));
}

/// Whether a colour or weight is set. Erasing a progress line of a slow run sets neither.
bool has_colour(const std::string& text) {
  for (std::size_t at = text.find("\x1b["); at != std::string::npos;
       at = text.find("\x1b[", at + 1)) {
    const std::size_t end = text.find_first_not_of("0123456789;", at + 2);
    if (end != std::string::npos && text[end] == 'm') return true;
  }
  return false;
}

TEST_CASE("colour and sparklines appear only on a terminal and never with NO_COLOR") {
  if (!has_terminals()) {
    fmt::print("KVSIM-SKIPPED: no pseudo-terminal here\n");
    return;
  }
  const fs::path folder = fresh("colour");
  write(folder / "s.json", R"({"model": "llama-2-7b", "gpu": "A100-40GB-SXM", "stack": "hf-sdpa",
    "dtype": "fp16", "prompt_tokens": 4000, "output_tokens": [100, 90000]})");
  const Words run{"run", "s.json", "-o", "out", "--no-figures", "--verbose"};
  const std::string piped = run_kvsim(run, folder).out;
  CHECK(piped.find('\x1b') == std::string::npos);
  CHECK(piped.find("HBM over tokens") == std::string::npos);
  const std::string shown = on_terminal(run, folder, {});
  CHECK(has(shown, "\x1b[31m"));  // a point runs out of memory
  CHECK(has(shown, "\x1b[1m"));
  CHECK(has(shown, "HBM over tokens"));
  CHECK(has(shown, "▄"));
  CHECK(has(shown, "█×"));  // the run is out of memory
  const std::string plain = on_terminal(run, folder, {{"NO_COLOR", "1"}});
  CHECK_FALSE(has_colour(plain));
  CHECK(has(plain, "HBM over tokens"));
  CHECK(on_terminal(run, folder, {{"TERM", "dumb"}}).find('\x1b') == std::string::npos);
  CHECK_FALSE(has(on_terminal(run, folder, {{"LC_ALL", "C"}}), "HBM over tokens"));
  Words never = run;
  never.insert(never.end(), {"--color", "never"});
  CHECK_FALSE(has_colour(on_terminal(never, folder, {})));
  Words always = run;
  always.insert(always.end(), {"--color=always"});
  CHECK(has(run_kvsim(always, folder).out, "\x1b[31m"));
  CHECK(has(complaint({"list", "gpus", "--color", "red"}, folder), "auto, always or never"));
}

TEST_CASE("no help is wider than 80 columns and a group of commands has help") {
  const fs::path folder = fresh("help");
  std::istringstream general{run_kvsim({"help"}, folder).out};
  std::vector<Words> requested{{"help"}, {"list", "calibrations"}, {"list", "methods"}};
  for (std::string line; std::getline(general, line);) {
    if (!line.starts_with("  ") || line.size() < 4 || line[2] == ' ' || line[2] == 'k') continue;
    std::istringstream words{line.substr(0, 20)};
    Words command{"help"};
    for (std::string word; words >> word;) command.push_back(word);
    requested.push_back(command);
  }
  CHECK(requested.size() > 25);  // every command
  for (const char* group : {"trace", "requests", "validate"}) {
    requested.push_back({"help", group});
    CHECK(run_kvsim({group, "--help"}, folder).out == run_kvsim({"help", group}, folder).out);
    CHECK(has(run_kvsim({"help", group}, folder).out, std::string{"kvsim help "} + group));
  }
  for (const Words& words : requested) {
    const Outcome outcome = run_kvsim(words, folder);
    INFO(fmt::format("{}", fmt::join(words, " ")));
    CHECK(outcome.status == 0);
    CHECK(!outcome.out.empty());
    std::string line;
    CHECK_MESSAGE(widest(outcome.out, line) <= 80, line);
  }
  CHECK(complaint({"help", "nonsense"}, folder).find("unknown command") != std::string::npos);
}

TEST_CASE("no line of a shipped scenario's summary is wider than 80 columns") {
  const fs::path folder = fresh("widths");
  for (const char* name : {"zeromerge-a800", "kv-sizes", "replay-sample", "a100-vs-h200"}) {
    for (const bool verbose : {false, true}) {
      Words words{"run", shipped(name), "-o", "out", "--no-figures"};
      if (verbose) words.emplace_back("--verbose");
      const Outcome outcome = run_kvsim(words, folder);
      REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
      std::string line;
      CHECK_MESSAGE(widest(outcome.out, line) <= 80, name << ": " << line);
    }
  }
  const Outcome plan =
      run_kvsim({"plan", shipped("plan-h100-longcontext"), "-o", "out", "--no-figures"}, folder);
  std::string line;
  CHECK_MESSAGE(widest(plan.out, line) <= 80, line);
}

TEST_CASE("plot draws a result again, in other formats and for a page") {
  if (std::system("gnuplot --version > /dev/null 2>&1") != 0) {
    fmt::print("KVSIM-SKIPPED: gnuplot is not installed\n");
    return;
  }
  const fs::path folder = fresh("plot");
  write(folder / "s.json", R"({"model": "llama-2-7b", "gpu": "A100-40GB-SXM", "stack": "hf-sdpa",
    "dtype": "fp16", "prompt_tokens": 4000, "output_tokens": 4000,
    "method": ["full", {"name": "h2o", "budget": 0.2}], "figures": ["memory_vs_length"]})");
  REQUIRE(run_kvsim({"run", "s.json", "-o", "a", "-q"}, folder).status == 0);
  REQUIRE(
      run_kvsim({"run", "s.json", "-o", "b", "-q", "--set", "/kv_dtype=fp8_e4m3"}, folder).status ==
      0);
  const Outcome paper = run_kvsim(
      {"plot", "a", "-o", "paper", "--style", "paper", "--width", "3.3", "--formats", "svg,pdf"},
      folder);
  REQUIRE_MESSAGE(paper.status == 0, paper.err);
  const std::string svg = text_of(folder / "paper/memory_vs_length.svg");
  CHECK(has(svg, "width=\"317\""));  // 3.3 inches of 96 pixels
  CHECK(svg.find("Peak memory versus length") == std::string::npos);
  CHECK(has(text_of(folder / "a/figures/memory_vs_length.svg"), "Peak memory versus length"));
  CHECK(has(text_of(folder / "paper/memory_vs_length.pdf").substr(0, 8), "%PDF"));
  CHECK_FALSE(fs::exists(folder / "paper/memory_vs_length.png"));
  CHECK(text_of(folder / "paper/memory_vs_length.csv") ==
        text_of(folder / "a/figures/memory_vs_length.csv"));
  // Without options it equals the original.
  REQUIRE(run_kvsim({"plot", "a", "-o", "again", "-q"}, folder).status == 0);
  CHECK(text_of(folder / "again/memory_vs_length.svg") ==
        text_of(folder / "a/figures/memory_vs_length.svg"));
  const Outcome both = run_kvsim({"plot", "a", "b", "-o", "both", "--formats", "svg"}, folder);
  REQUIRE_MESSAGE(both.status == 0, both.err);
  const std::string overlaid = text_of(folder / "both/memory_vs_length.svg");
  for (const char* label : {"a: full", "b: full", "a: h2o", "b: h2o", "HBM (GiB)",
                            "length of a sequence, prompt and output (tokens)", "usable HBM",
                            "Peak memory versus length: a, b"}) {
    CHECK_MESSAGE(has(overlaid, label), label);
  }
  CHECK(has(text_of(folder / "both/memory_vs_length.csv"), "a: full"));
  // Figures drawn together can be drawn again, and folders of one name are distinguished by their
  // parents.
  REQUIRE(
      run_kvsim({"plot", "both", "-o", "both-again", "-q", "--formats", "svg"}, folder).status ==
      0);
  CHECK(text_of(folder / "both-again/memory_vs_length.svg") == overlaid);
  for (const char* place : {"x", "y"}) {
    fs::create_directories(folder / place);
    fs::copy(folder / "a", folder / place / "run", fs::copy_options::recursive);
  }
  REQUIRE(
      run_kvsim({"plot", "x/run", "y/run/figures", "-o", "xy", "-q", "--formats", "svg"}, folder)
          .status == 0);
  CHECK(has(text_of(folder / "xy/memory_vs_length.csv"), "x/run: full"));
  CHECK(has(complaint({"plot", "a", "./a", "-o", "z"}, folder), "./a: is given twice"));
  CHECK(has(complaint({"plot", "a", "-o", "x", "--formats", "gif"}, folder), "--formats"));
  CHECK(has(complaint({"plot", "a", "-o", "x", "--figure", "memory_vs_lenght"}, folder),
            "did you mean \"memory_vs_length\"?"));
  CHECK(has(complaint({"plot", ".", "-o", "x"}, folder), "not a results folder"));
  CHECK(has(complaint({"plot", "a"}, folder), "-o DIR"));
}

TEST_CASE("plot names figures that results cannot share and the reason") {
  const fs::path folder = fresh("plot_apart");
  const std::string common = R"("model": "llama-2-7b", "gpu": "A100-40GB-SXM", "stack": "hf-sdpa",
    "prompt_tokens": 4000, )";
  write(folder / "a.json", "{" + common + R"("output_tokens": 4000, "figures": ["memory_vs_length",
    "hbm_breakdown"]})");
  write(folder / "b.json",
        "{" + common + R"("output_tokens": 4000, "figures": ["hbm_breakdown"]})");
  write(folder / "c.json", "{" + common + R"("output_tokens": 0, "figures": ["cache_size"]})");
  for (const std::string name : {"a", "b", "c"}) {
    REQUIRE(run_kvsim({"run", name + ".json", "-o", name, "-q"}, folder).status == 0);
  }
  const Outcome bars = run_kvsim({"plot", "a", "b", "-o", "ab"}, folder);
  CHECK(bars.status == (std::system("gnuplot --version > /dev/null 2>&1") == 0 ? 0 : 2));
  CHECK(has(bars.err, "memory_vs_length (peak_bytes over tokens): there is none in b (not drawn)"));
  CHECK(fs::exists(folder / "ab/hbm_breakdown.csv"));
  CHECK_FALSE(fs::exists(folder / "ab/memory_vs_length.csv"));
  const std::string none = complaint({"plot", "a", "c", "-o", "ac"}, folder);
  CHECK(has(none, "no figure can be drawn of all of the results"));
  CHECK(has(none, "cache_size (bytes): there is none in a"));
  CHECK_FALSE(fs::exists(folder / "ac"));
}

TEST_CASE("plot runs no script that it finds and reads documents like any input") {
  const fs::path folder = fresh("plot_poisoned");
  write(folder / "s.json", R"({"model": "llama-2-7b", "gpu": "A100-40GB-SXM", "stack": "hf-sdpa",
    "prompt_tokens": 4000, "output_tokens": 4000, "figures": ["memory_vs_length"]})");
  REQUIRE(run_kvsim({"run", "s.json", "-o", "a", "-q"}, folder).status == 0);
  const std::string pwned = (folder / "pwned").string();
  const std::string poison = "system('touch " + pwned + "')\n";
  const fs::path script = folder / "a/figures/memory_vs_length.gp";
  write(script, poison + text_of(script));
  write(folder / "a/figures/extra.gp", poison);
  const fs::path data = folder / "a/figures/memory_vs_length.csv";
  write(data, "`touch " + pwned + "`\n" + text_of(data));
  for (const Words& words : {Words{"plot", "a", "-o", "x"}, Words{"plot", "a", "-o", "y", "--style",
                                                                  "paper", "--formats", "pdf"}}) {
    const Outcome drawn = run_kvsim(words, folder);
    CHECK_FALSE(fs::exists(pwned));
    CHECK(has(text_of(folder / words[3] / "memory_vs_length.gp"), "# Drawn by kvsim"));
    CHECK(text_of(folder / words[3] / "memory_vs_length.gp").find("touch") == std::string::npos);
    CHECK_FALSE(fs::exists(folder / words[3] / "extra.gp"));
  }
  const fs::path document = folder / "a/figures/memory_vs_length.figure.json";
  const std::string good = text_of(document);
  const auto with = [&](const std::string& before, const std::string& after) {
    std::string text = good;
    const std::size_t at = text.find(before);
    REQUIRE(at != std::string::npos);
    write(document, text.replace(at, before.size(), after));
    return complaint({"plot", "a", "-o", "z"}, folder);
  };
  CHECK(has(with("\"name\":\"memory_vs_length\"", "\"name\":\"other\""),
            "/name: expected the file's name, memory_vs_length, got \"other\""));
  CHECK(has(with("\"name\":\"memory_vs_length\"", "\"name\":\"a'\\nsystem 'id'\""),
            "/name: expected a file name"));
  CHECK(has(with("\"y_unit\":", "\"y_unit\":-"), "/y_unit: expected a number above 0"));
  CHECK(has(with("{", "{\"run\":1,"), "/run: unknown key"));
  fs::remove(document);
  CHECK(has(complaint({"plot", "a", "-o", "z"}, folder), "without their documents"));
  CHECK_FALSE(fs::exists(folder / "z"));
  CHECK_FALSE(fs::exists(pwned));
}

TEST_CASE("figures come in the requested formats or the request is refused") {
  const fs::path folder = fresh("formats");
  write(folder / "s.json", R"({"model": "llama-2-7b", "gpu": "A100-80GB-SXM", "stack": "hf-sdpa",
    "prompt_tokens": 1000, "output_tokens": 20, "batch": [1, 2]})");
  CHECK(has(complaint({"run", "s.json", "--json", "--formats", "pdf"}, folder), "-o DIR"));
  CHECK(has(complaint({"run", "s.json", "--no-figures", "--formats", "pdf"}, folder),
            "--formats and --no-figures"));
  CHECK(has(complaint({"run", "s.json", "--formats", "pdff"}, folder), "did you mean \"pdf\"?"));
  CHECK(has(complaint({"run", "s.json", "--formats", "pdf,pdf"}, folder), "given twice"));
  const std::string trace =
      std::string{KVSIM_SOURCE_DIR} + "/traces/samples/books-treasure-512.safetensors";
  CHECK(
      has(complaint({"replay", "-t", trace, "-m", "full", "--formats", "pdf"}, folder), "-o DIR"));
  CHECK_FALSE(fs::exists(folder / "kvsim-out"));
  if (std::system("gnuplot --version > /dev/null 2>&1") != 0) {
    fmt::print("KVSIM-SKIPPED: gnuplot is not installed\n");
    return;
  }
  write(folder / "plan.json", R"({"model": "llama-3.1-8b", "gpu": "H100-80GB-SXM", "stack": "vllm",
    "prompt_tokens": 1000, "output_tokens": 20, "plan": {"questions": ["largest_batch"]}})");
  const std::vector<Words> commands{
      {"run", "s.json", "--verbose"},
      {"plan", "plan.json"},
      {"replay", "-t", trace, "-m", "full,streaming-llm", "-b", "0.2"},
      {"sweep", "s.json", "--vary", "/prompt_tokens=500,1000"}};
  for (Words words : commands) {
    INFO(words.front());
    fs::remove_all(folder / "out");
    words.insert(words.end(), {"-o", "out", "--formats", "pdf,svg"});
    const Outcome outcome = run_kvsim(words, folder);
    REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
    std::size_t pdf = 0, svg = 0;
    for (const auto& entry : fs::directory_iterator{folder / "out/figures"}) {
      const std::string extension = entry.path().extension().string();
      if (extension == ".pdf") {
        CHECK(has(text_of(entry.path()).substr(0, 8), "%PDF-"));
        ++pdf;
      }
      if (extension == ".svg") ++svg;
      CHECK(extension != ".png");
    }
    CHECK(pdf > 0);
    CHECK(pdf == svg);
    if (words.front() == "run") CHECK(has(outcome.out, "(each as .pdf too)"));
  }
}

TEST_CASE("every option of the help is in the manual page and in the completion") {
  const fs::path folder = fresh("tables");
  write(folder / "kvsim.bash", run_kvsim({"completion", "bash"}, folder).out);
  const std::string fish = run_kvsim({"completion", "fish"}, folder).out;
  const std::string zsh = run_kvsim({"completion", "zsh"}, folder).out;
  REQUIRE(std::system(("bash -n " + (folder / "kvsim.bash").string()).c_str()) == 0);
  const bool groff = std::system("groff --version > /dev/null 2>&1") == 0;
  for (const std::string command : {"run", "plan", "compare", "plot", "replay", "sweep", "explain",
                                    "list", "completion", "help"}) {
    const std::string help = run_kvsim({"help", command}, folder).out;
    const std::string page = run_kvsim({"help", "--man", command}, folder).out;
    const std::string bash = text_of(folder / "kvsim.bash");
    std::istringstream lines{help};
    std::size_t options = 0;
    for (std::string line; std::getline(lines, line);) {
      CHECK_MESSAGE(columns(line) <= 80, line);
      const std::size_t at = line.find("--");
      if (at == std::string::npos || at > 6 || line.find_first_not_of(' ') < 2) continue;
      if (line.substr(0, at).find_first_not_of(" -,abcdefghijklmnopqrstuvwxyz") != line.npos)
        continue;
      std::string name = line.substr(at, line.find(' ', at) - at);
      ++options;
      CHECK(has(bash, name));
      std::string escaped;
      for (const char c : name) escaped += c == '-' ? std::string{"\\-"} : std::string{c};
      CHECK(has(page, escaped));
      CHECK(has(fish, "-l " + name.substr(2)));
      CHECK(has(zsh, name + "["));
    }
    CHECK(options >= 1);
    if (!groff) continue;
    write(folder / "page.1", page);
    const std::string check = "groff -ww -man -Tutf8 " + (folder / "page.1").string() + " > " +
                              (folder / "page.txt").string() + " 2> " +
                              (folder / "page.err").string();
    CHECK(std::system(check.c_str()) == 0);
    CHECK(text_of(folder / "page.err") == "");
  }
  if (!groff) fmt::print("KVSIM-SKIPPED: groff is not installed\n");
  CHECK(has(run_kvsim({"help", "--man"}, folder).out, ".TH KVSIM 1"));
}

TEST_CASE("bash completes commands, options, and names of the catalogues after a comma") {
  const fs::path folder = fresh("bash");
  write(folder / "kvsim.bash", run_kvsim({"completion", "bash"}, folder).out);
  const auto completed = [&](const std::string& words, int at) {
    const std::string script = "source kvsim.bash; COMP_WORDS=(" + words +
                               "); COMP_CWORD=" + std::to_string(at) +
                               "; _kvsim; printf '%s\\n' \"${COMPREPLY[@]}\"";
    write(folder / "ask.sh", script);
    const std::string run = "cd " + folder.string() + " && bash ask.sh > answer 2> complaint";
    CHECK(std::system(run.c_str()) == 0);
    CHECK(text_of(folder / "complaint") == "");
    return text_of(folder / "answer");
  };
  CHECK(completed("kvsim comp", 1) == "compare\ncompletion\n");
  CHECK(completed("kvsim trace i", 2) == "info\n");
  CHECK(completed("kvsim plan --gp", 2) == "--gpu\n--gpus\n--gpu-memory-utilization\n");
  CHECK(completed("kvsim plan --gpu H200", 3) == "H200-141GB-SXM\nH200-NVL\n");
  CHECK(completed("kvsim plan --method full,streaming-", 3) == "full,streaming-llm\n");
  CHECK(completed("kvsim plan -m streaming-", 3) == "streaming-llm\n");
  CHECK(completed("kvsim plan --model = llama-3.1-8", 4) == "llama-3.1-8b\n");
  CHECK(completed("kvsim run --color n", 3) == "never\n");
  CHECK(completed("kvsim list me", 2) == "methods\n");
  // Keys of scenarios, from the reader's table.
  CHECK(completed("kvsim run --set /engine/max_n", 3) == "/engine/max_num_seqs=\n");
  CHECK(completed("kvsim sweep -s /plan/conf", 3) == "/plan/confidence=\n");
  CHECK(completed("kvsim plan -s /requests/arrivals/r", 3) ==
        "/requests/arrivals/rate=\n/requests/arrivals/ramp=\n");
}

TEST_CASE("completion offers every key of scenarios to --set") {
  const fs::path folder = fresh("keys");
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string text = run_kvsim({"completion", shell}, folder).out;
    for (const std::string& pointer : scenario_pointers()) {
      INFO(shell << ": " << pointer);
      CHECK(has(text, pointer + "="));
    }
  }
  const std::vector<std::string> pointers = scenario_pointers();
  for (const char* one : {"/model", "/model/config", "/scheduler/order", "/replay/trace"}) {
    INFO(one);
    CHECK(std::find(pointers.begin(), pointers.end(), one) != pointers.end());
  }
}

TEST_CASE("a model given by file: a folder, a typing error, a name that only looks like a path") {
  const fs::path folder = fresh("model_files");
  fs::create_directories(folder / "own");
  fs::create_directories(folder / "empty");
  write(folder / "own/config.json", R"({"model_type": "llama", "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 4096})");
  for (const char* name : {"own", "own/config.json", "./own"}) {
    INFO(name);
    const Outcome ran =
        run_kvsim({"run", "--model", name, "--gpu", "A40", "--prompt", "1000", "--json"}, folder);
    CHECK_MESSAGE(ran.status == 0, ran.err);
    CHECK(run_kvsim({"show", "model", name}, folder).status == 0);
  }
  for (const Words& words : {Words{"show", "model"}, Words{"run", "--gpu", "A40", "--model"}}) {
    const auto said = [&](const std::string& name) {
      Words all = words;
      all.push_back(name);
      return complaint(all, folder);
    };
    const std::string slip = said("models/llama-2-7b/confg.json");
    CHECK(has(slip, "no such file: models/llama-2-7b/confg.json (looked for "));
    CHECK(has(slip, (folder / "models/llama-2-7b/confg.json").string()));
    CHECK(has(slip, "the catalogue has llama-2-7b"));
    CHECK(has(said("./nowhere"), "kvsim list models"));
    CHECK(has(said("empty"), "empty: this folder contains no config.json"));
    // Hub ids have one slash: they are names.
    CHECK(has(said("meta-llama/Lama-9"), "unknown model \"meta-llama/Lama-9\""));
  }
  write(folder / "s.json", R"({"model": "own/config.json", "gpu": "A40", "prompt_tokens": 10})");
  CHECK(has(complaint({"run", "s.json"}, folder),
            R"(/model: a model's own file is given as {"config")"));
}

TEST_CASE("the version states how it was built and the basis of times") {
  const fs::path folder = fresh("version");
  const Outcome version = run_kvsim({"--version"}, folder);
  CHECK(version.status == 0);
  CHECK(version.out.starts_with("kvsim 0.2.0\nbuild: "));
  CHECK(has(version.out, "calibrations: "));
  const json document = json_of({"--version", "--json"}, folder);
  CHECK(document.at("version") == "0.2.0");
  for (const char* part : {"cuda", "mpi", "explorer", "python"}) {
    CHECK(document.at("build").at(part).is_boolean());
  }
  for (const char* part : {"CUDA o", "MPI o", "explorer o", "Python module o"}) {
    CHECK(has(version.out, part));
  }
  std::int64_t rows = 0;
  for (const json& one : document.at("calibrations")) {
    CHECK(one.at("rows_fitted") > 0);
    CHECK(one.at("date").get<std::string>().size() == 10);
    rows += one.at("rows_fitted").get<std::int64_t>();
  }
  const json listed = json_of({"list", "calibrations", "--json"}, folder);
  std::int64_t listed_rows = 0;
  for (const json& entry : listed.at("entries")) {
    listed_rows += entry.at("fitted").at("rows").get<std::int64_t>();
  }
  CHECK(rows == listed_rows);
  CHECK(has(complaint({"--version", "--jsno"}, folder), "did you mean \"--json\"?"));
}

}  // namespace
}  // namespace kvsim
