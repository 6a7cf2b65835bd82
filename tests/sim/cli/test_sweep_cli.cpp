// `kvsim sweep SCENARIO` executed as by a user: the same bytes for any number of threads and
// processes, and after being killed at any point.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/sweep/join_ranks.hpp"
#include "sim/sweep/points_file.hpp"
#include "tests/sim/cli/files_under.hpp"
#include "tests/sim/cli/program.hpp"
#include "tests/sim/search/sweep_files.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;
using test::files_under;
using test::fresh;
using test::has;
using test::Outcome;
using test::run_kvsim;
using test::sweep_file;
using test::text_of;
using test::Words;

Words sweep_words(const std::string& out, Words more = {}) {
  Words words{"sweep",        "s.json", "--vary", "/batch=1,2,4", "--vary",
              "/gpu=A40,L40", "-o",     out,      "-q",           "--no-figures"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Creates a folder like one left behind by a killed sweep: the first `bytes` of `points`.
void leave_behind(const fs::path& folder, const std::string& points, std::size_t bytes) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  std::ofstream{folder / "points.jsonl", std::ios::binary} << points.substr(0, bytes);
  std::ofstream{folder / ".kvsim-folder"}
      << "kvsim wrote these files and may replace them:\npoints.jsonl\n";
}

TEST_CASE("the same bytes at any number of threads, equal to `run` of a point") {
  const fs::path folder = fresh("threads");
  sweep_file(folder, "");
  std::map<std::string, std::string> first;
  for (const std::string threads : {"1", "2", "4", "0"}) {
    const Outcome outcome = run_kvsim(sweep_words("out" + threads, {"-j", threads}), folder);
    REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
    CHECK(outcome.out.empty());
    if (first.empty()) first = files_under(folder / "out1");
    CHECK(files_under(folder / ("out" + threads)) == first);
  }
  CHECK(first.contains("sweep.json"));
  CHECK(first.contains("sweep.csv"));
  CHECK(first.contains("points.jsonl"));
  const json document = json::parse(first.at("sweep.json"));
  REQUIRE(document.at("points").size() == 6);
  const json& point = document.at("points").at(5);
  const Outcome run =
      run_kvsim({"run", "s.json", "--set", "/batch=4", "--set", "/gpu=L40", "--json"}, folder);
  const json alone = json::parse(run.out);
  CHECK(point.at("hash") == alone.at("scenario").at("hash"));
  for (const char* key : {"peak_hbm_bytes", "kv_bytes", "throughput_tok_s", "latency_s",
                          "prefill_s", "decode_s", "prefill_peak_bytes", "decode_peak_bytes"}) {
    CHECK(point.at("results").at(key) == alone.at("points").at(0).at(key));
  }
  // --json prints the same content and creates no folder.
  Words words = sweep_words("x", {"--json"});
  words.erase(words.begin() + 6, words.begin() + 9);  // -o x -q
  const Outcome printed = run_kvsim(words, folder);
  CHECK(printed.out == first.at("sweep.json"));
  CHECK_FALSE(fs::exists(folder / "kvsim-out"));
}

TEST_CASE("cut at any line and within lines, a resumed sweep gives the same bytes") {
  const fs::path folder = fresh("resume");
  sweep_file(folder, "");
  REQUIRE(run_kvsim(sweep_words("whole"), folder).status == 0);
  const auto whole = files_under(folder / "whole");
  const std::string points = whole.at("points.jsonl");
  std::vector<std::size_t> cuts{0, 1, points.size() - 1, points.size()};
  for (std::size_t at = 0; (at = points.find('\n', at)) != std::string::npos; ++at) {
    cuts.insert(cuts.end(), {at, at + 1, at + 2});
  }
  for (std::size_t at = points.size() - 1200; at < points.size(); at += 173) cuts.push_back(at);
  for (const std::size_t cut : cuts) {
    INFO("cut at byte ", cut, " of ", points.size());
    leave_behind(folder / "cut", points, cut);
    const Outcome outcome = run_kvsim(sweep_words("cut", {"--resume", "-j", "2"}), folder);
    REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
    REQUIRE(files_under(folder / "cut") == whole);
  }
  // Without a file it starts; with a complete file it changes nothing.
  CHECK(run_kvsim(sweep_words("cut", {"--resume"}), folder).status == 0);
  CHECK(files_under(folder / "cut") == whole);
  CHECK(run_kvsim(sweep_words("new", {"--resume"}), folder).status == 0);
  CHECK(files_under(folder / "new") == whole);
  // A damaged line and all later lines are run again.
  std::string damaged = points;
  damaged[points.size() - 700] ^= 1;
  leave_behind(folder / "cut", damaged, damaged.size());
  Words loud = sweep_words("cut", {"--resume"});
  loud.erase(loud.begin() + 8);  // -q
  const Outcome outcome = run_kvsim(loud, folder);
  CHECK(has(outcome.err, "points.jsonl: dropped"));
  CHECK(files_under(folder / "cut") == whole);
}

TEST_CASE("points of another sweep or version are refused and unfinished ones not overwritten") {
  const fs::path folder = fresh("other");
  sweep_file(folder, "");
  REQUIRE(run_kvsim(sweep_words("out"), folder).status == 0);
  const std::string points = text_of(folder / "out/points.jsonl");
  const std::size_t two_lines = points.find('\n', points.find('\n') + 1) + 1;
  leave_behind(folder / "out", points, two_lines);
  const Outcome again = run_kvsim(sweep_words("out"), folder);
  CHECK(again.status == 2);
  CHECK(has(again.err, "out: contains 1 of 6 points of an unfinished sweep; --resume"));
  const Outcome other =
      run_kvsim(sweep_words("out", {"--resume", "--set", "/output_tokens=21"}), folder);
  CHECK(other.status == 2);
  CHECK(has(other.err, "belongs to another sweep: /output_tokens: 20 there, 21 here"));
  const Outcome version = [&] {
    const std::string header = points.substr(0, points.find('\n'));
    std::string object = "{" + header.substr(26);
    object.replace(object.find("\"kvsim\":\""), 10, "\"kvsim\":\"9");
    std::ofstream{folder / "out/points.jsonl"} << summed_line(object);
    return run_kvsim(sweep_words("out", {"--resume"}), folder);
  }();
  CHECK(version.status == 2);
  CHECK(has(version.err, "was started by kvsim 9"));
  CHECK_FALSE(fs::exists(folder / "out/sweep.json"));
}

TEST_CASE("bad input is refused in one line before anything is written") {
  const fs::path folder = fresh("refused");
  sweep_file(folder, "");
  const auto refused = [&](Words words, std::string_view why) {
    const Outcome outcome = run_kvsim(words, folder);
    INFO(outcome.err);
    CHECK(outcome.status == 2);
    CHECK(has(outcome.err, why));
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
    CHECK_FALSE(fs::exists(folder / "kvsim-out"));
  };
  refused({"sweep"}, "expected a scenario file, or --trace FILE");
  refused({"sweep", "s.json"}, "s.json: nothing is varied");
  refused({"sweep", "s.json", "t.json", "--vary", "/batch=1,2"}, "unexpected \"t.json\"");
  refused({"sweep", "none.json", "--vary", "/batch=1,2"}, "none.json");
  refused({"sweep", "s.json", "--vary", "/gpu=A40,XX"}, "(with /gpu = \"XX\"): /gpu: unknown GPU");
  refused({"sweep", "s.json", "--vary", "/batch=1,2", "--trace", "t"},
          "--trace applies to replays");
  refused({"sweep", "s.json", "--vary", "/batch=1,2", "--samples", "0"}, "--samples: expected");
  refused({"sweep", "s.json", "--vary", "/batch=1,2", "--json", "--resume"},
          "--resume needs the results folder");
  refused({"sweep", "--trace", "t", "-m", "h2o", "--vary", "window=1", "--resume"},
          "--resume applies to scenarios");
  refused({"run", "s.json", "s.json", "--set", R"(/sweep={"axes":[]})"},
          "s.json: has a sweep and must be run separately");
}

TEST_CASE("a plan next to a sweep is refused by run and sweep, in the file or by --set") {
  const fs::path folder = fresh("sweep-and-plan");
  const std::string message =
      "s.json: /plan: expected a sweep or a plan, got both; --set /plan=null removes the plan";
  sweep_file(folder, R"(, "sweep": {"axes": [{"key": "/batch", "values": [1, 2]}]})");
  const Words set{"--set", R"(/plan/questions=["longest_context"])"};
  for (const char* command : {"sweep", "run"}) {
    INFO(command);
    const Outcome outcome = run_kvsim(Words{command, "s.json", set[0], set[1]}, folder);
    CHECK(outcome.status == 2);
    CHECK(has(outcome.err, message));
  }
  sweep_file(folder, R"(, "plan": {"questions": "longest_context"})");
  const Words vary{"sweep", "s.json", "--vary", "/batch=1,2", "--json"};
  Words changed = vary;
  changed.insert(changed.end(), set.begin(), set.end());
  CHECK(has(run_kvsim(changed, folder).err, message));
  CHECK(run_kvsim(vary, folder).status == 0);  // `kvsim plan` uses the plan of the file
}

TEST_CASE("a sweep prints the assumed flags once and its document holds each engine") {
  const fs::path folder = fresh("flags");
  std::ofstream{folder / "v.json"} << R"({"model": "llama-3.1-8b", "gpu": "RTX-4090",
      "stack": "vllm@0.30", "prompt_tokens": 2000, "output_tokens": 20})";
  const Words words{"sweep", "v.json", "--vary", "/batch=1,2,4", "-o", "sw", "--no-figures"};
  const Outcome outcome = run_kvsim(words, folder);
  REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
  const std::string flag = "--max-num-batched-tokens 2048";
  CHECK(has(outcome.out, flag));
  CHECK(outcome.out.find(flag) == outcome.out.rfind(flag));
  CHECK(has(outcome.out, "Finding: The range of output tokens per second is "));
  const json document = json::parse(text_of(folder / "sw/sweep.json"));
  REQUIRE(document.at("engines").size() == 1);
  CHECK(document.at("engines")[0].at("gpu") == "RTX-4090");
  CHECK(document.at("engines")[0].at("flags").get<std::string>().starts_with(flag));
  CHECK(document.at("finding").get<std::string>().starts_with("The range of "));
  // An axis over an engine setting produces one engine per value.
  const Outcome engines = run_kvsim(
      {"sweep", "v.json", "--vary", "/engine/max_num_seqs=32,64", "--vary", "/batch=1,2", "--json"},
      folder);
  REQUIRE_MESSAGE(engines.status == 0, engines.err);
  CHECK(json::parse(engines.out).at("engines").size() == 2);
}

TEST_CASE("an axis may come from --set") {
  const fs::path folder = fresh("set-axes");
  sweep_file(folder, "");
  const Outcome outcome = run_kvsim(
      {"run", "s.json", "--set", R"(/sweep/axes=[{"key": "/batch", "values": [1, 2]}])", "--json"},
      folder);
  REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
  CHECK(json::parse(outcome.out).at("n_points") == 2);
}

TEST_CASE("a long value is cut in the message that refuses it") {
  const fs::path folder = fresh("long-value");
  sweep_file(folder, "");
  const Outcome outcome = run_kvsim(
      {"sweep", "s.json", "--vary", "/model=llama-3.1-8b," + std::string(50'000, 'x')}, folder);
  CHECK(outcome.status == 2);
  CHECK(outcome.err.size() < 400);
  CHECK(has(outcome.err, "unknown model"));
}

TEST_CASE("`run` of a scenario with a sweep sweeps it") {
  const fs::path folder = fresh("run");
  sweep_file(folder, R"(, "sweep": {"axes": [{"key": "/batch", "values": [1, 2]}]})");
  const Outcome outcome = run_kvsim({"run", "s.json", "--no-figures"}, folder);
  CHECK(outcome.status == 0);
  CHECK(has(outcome.out, "Sweep of s: 2 points over /batch (2)."));
  CHECK(fs::exists(folder / "kvsim-out/s/sweep.json"));
}

/// Starts a sweep with `program`. When the points file holds some points, calls `stop` with the
/// process id to end it; `stop` returns whether it succeeded.
template <class Stop>
Outcome interrupted(const fs::path& folder, const Words& words, const fs::path& points, Stop&& stop,
                    const Words& program = {KVSIM_PROGRAM}) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open((folder / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    if (::chdir(folder.c_str()) != 0) ::_exit(99);
    Words all = program;
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> argv;
    for (std::string& word : all) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::execvp(argv.front(), argv.data());
    ::_exit(99);
  }
  constexpr std::uintmax_t kSome = 20'000;
  int status = 0;
  bool sent = false;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    std::error_code absent;
    const auto size = fs::file_size(points, absent);
    if (!sent && !absent && size > kSome) sent = stop(child);
    std::this_thread::sleep_for(std::chrono::microseconds{200});
  }
  return {.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = "",
          .err = text_of(folder / "err")};
}

/// A sweep that takes long enough to be interrupted.
constexpr std::string_view kLong = R"(, "sweep": {"mode": "random", "samples": 1500, "axes": [
    {"key": "/batch", "low": 1, "high": 64, "integer": true},
    {"key": "/prompt_tokens", "low": 10, "high": 4000, "integer": true, "scale": "log"}]})";
Words long_words(const std::string& out, const Words& more = {}) {
  Words all{"sweep", "s.json", "-o", out, "-q", "--no-figures"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST_CASE("interrupted or killed, a sweep says how to resume and resumes to the same bytes") {
  const fs::path folder = fresh("killed");
  sweep_file(folder, kLong);
  REQUIRE(run_kvsim(long_words("whole"), folder).status == 0);
  const auto whole = files_under(folder / "whole");
  for (const int signal : {SIGINT, SIGKILL}) {
    const std::string out = fmt::format("out{}", signal);
    const Outcome cut = interrupted(folder, long_words(out), folder / out / "points.jsonl",
                                    [&](pid_t child) { return ::kill(child, signal) == 0; });
    CHECK(cut.status == 128 + signal);
    if (signal == SIGINT) CHECK(has(cut.err, "the same command with --resume continues"));
    CHECK_FALSE(fs::exists(folder / out / "sweep.json"));
    const Outcome resumed = run_kvsim(long_words(out, {"--resume"}), folder);
    REQUIRE_MESSAGE(resumed.status == 0, resumed.err);
    CHECK(files_under(folder / out) == whole);
  }
}

/// Runs kvsim under mpirun with `n` processes; if that is impossible, returns nullopt and skips the
/// case.
std::optional<Outcome> run_mpi(int n, const Words& words, const fs::path& folder) {
  if (!built_with_mpi()) {
    fmt::print("KVSIM-SKIPPED: built without MPI\n");
    return std::nullopt;
  }
  if (std::system("mpirun --version > /dev/null 2>&1") != 0) {
    fmt::print("KVSIM-SKIPPED: no mpirun in PATH\n");
    return std::nullopt;
  }
  // Open MPI holds memory until its end. Some containers forbid reading another process's memory,
  // which Open MPI uses for long messages by default.
  std::string command = fmt::format(
      "cd '{}' && OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
      "OMPI_MCA_btl_vader_single_copy_mechanism=none ASAN_OPTIONS=detect_leaks=0 mpirun "
      "--oversubscribe -n {} '{}'",
      folder.string(), n, KVSIM_PROGRAM);
  for (const std::string& word : words) command += fmt::format(" '{}'", word);
  const int status = std::system((command + " > mpi.out 2> mpi.err").c_str());
  return Outcome{.status = WEXITSTATUS(status),
                 .out = text_of(folder / "mpi.out"),
                 .err = text_of(folder / "mpi.err")};
}

TEST_CASE("the same bytes under mpirun, started there or resumed there") {
  const fs::path folder = fresh("mpi");
  sweep_file(folder, "");
  REQUIRE(run_kvsim(sweep_words("alone"), folder).status == 0);
  const auto alone = files_under(folder / "alone");
  for (const int n : {1, 2, 3}) {
    const std::string out = fmt::format("ranks{}", n);
    const auto outcome = run_mpi(n, sweep_words(out), folder);
    if (!outcome) return;
    REQUIRE_MESSAGE(outcome->status == 0, outcome->err);
    CHECK(outcome->out.empty());
    CHECK(files_under(folder / out) == alone);
  }
  const std::string points = alone.at("points.jsonl");
  leave_behind(folder / "cut", points, points.size() - 1100);
  const auto resumed = run_mpi(2, sweep_words("cut", {"--resume"}), folder);
  REQUIRE(resumed);
  CHECK(resumed->status == 0);
  CHECK(files_under(folder / "cut") == alone);
}

/// Id of the n-th process that `parent` started; 0 if it does not exist yet.
pid_t child_of(pid_t parent, int n) {
  std::vector<pid_t> children;
  for (const auto& entry : fs::directory_iterator{"/proc"}) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    // proc(5): pid (program) state ppid ...; the program may contain spaces and parentheses.
    const std::string stat = text_of(entry.path() / "stat");
    std::istringstream fields{stat.substr(std::min(stat.rfind(')'), stat.size() - 1) + 1)};
    std::string state;
    pid_t its_parent = 0;
    if (fields >> state >> its_parent && its_parent == parent) children.push_back(std::stoi(name));
  }
  std::sort(children.begin(), children.end());  // by age: process ids ascend
  const auto index = static_cast<std::size_t>(n);
  return index < children.size() ? children[index] : 0;
}

TEST_CASE("a job whose process is killed under mpirun resumes its points to the same bytes") {
  const fs::path folder = fresh("mpi-killed");
  sweep_file(folder, kLong);
  const auto whole = run_mpi(2, long_words("whole"), folder);
  if (!whole) return;
  REQUIRE_MESSAGE(whole->status == 0, whole->err);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  ::setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
  ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
  for (const int rank : {0, 1}) {  // the writing process, and a process that only computes
    const std::string out = fmt::format("cut{}", rank);
    const Outcome cut = interrupted(folder, long_words(out), folder / out / "points.jsonl",
                                    [&](pid_t job) {
                                      const pid_t process = child_of(job, rank);
                                      return process != 0 && ::kill(process, SIGKILL) == 0;
                                    },
                                    {"mpirun", "--oversubscribe", "-n", "2", KVSIM_PROGRAM});
    INFO(cut.err);
    CHECK(cut.status != 0);
    CHECK_FALSE(fs::exists(folder / out / "sweep.json"));
    const auto resumed = run_mpi(2, long_words(out, {"--resume"}), folder);
    REQUIRE(resumed);
    REQUIRE_MESSAGE(resumed->status == 0, resumed->err);
    CHECK(files_under(folder / out) == files_under(folder / "whole"));
  }
}

TEST_CASE("under mpirun errors are reported once and all processes end") {
  const fs::path folder = fresh("mpi-bad");
  sweep_file(folder, "");
  const auto said_once = [](const std::string& text, std::string_view part) {
    const std::size_t at = text.find(part);
    return at != std::string::npos && text.find(part, at + 1) == std::string::npos;
  };
  const auto bad = run_mpi(2, {"sweep", "s.json", "--vary", "/gpu=A40,XX"}, folder);
  if (!bad) return;
  CHECK(bad->status == 2);
  CHECK(said_once(bad->err, "unknown GPU"));
  // An invalid point that is reached during the sweep.
  const auto late = run_mpi(
      2, {"sweep", "s.json", "--vary", R"(/method=h2o,full)", "--vary", "/method/budget=0.1,0.2"},
      folder);
  CHECK(late->status == 2);
  CHECK(said_once(late->err, "s.json (point 2): /method"));
}

}  // namespace
}  // namespace kvsim
