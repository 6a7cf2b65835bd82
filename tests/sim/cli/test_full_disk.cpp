// A full disk, and a limit on file sizes: a clear message, no partial output, earlier output is
// kept.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/cli/program.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using test::fresh;
using test::has;
using test::Outcome;
using test::run_kvsim;
using test::run_kvsim_up_to;
using test::text_of;
using test::Words;
using test::write;

/// Every file under `place`, or `place` itself, with its text.
std::map<std::string, std::string> files_of(const fs::path& place) {
  std::map<std::string, std::string> out;
  if (fs::is_regular_file(place)) out["."] = text_of(place);
  if (!fs::is_directory(place)) return out;
  for (const auto& entry : fs::recursive_directory_iterator{place}) {
    if (!entry.is_regular_file()) continue;
    out[entry.path().lexically_relative(place).string()] = text_of(entry.path());
  }
  return out;
}

bool holds_partial(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator{folder}) {
    const std::string name = entry.path().filename().string();
    if (has(name, ".partial-") || has(name, ".unchecked") || has(name, ".old-")) return true;
  }
  return false;
}

std::int64_t largest(const std::map<std::string, std::string>& files) {
  std::size_t max = 0;
  for (const auto& [name, text] : files) max = std::max(max, text.size());
  return static_cast<std::int64_t>(max);
}

/// Creates the inputs for the commands of the cases below.
fs::path with_inputs(std::string_view name) {
  const fs::path folder = fresh(name);
  write(folder / "s.json",
        R"({"model": "llama-2-7b", "gpu": "A100-80GB-SXM", "stack": "hf-sdpa", "dtype": "fp16",
            "prompt_tokens": 100, "output_tokens": 20, "batch": [1, 2, 4], "method": "full"})");
  write(folder / "serve.json", R"({"kind": "serve", "model": "llama-3.1-8b",
    "gpu": "A100-80GB-SXM", "stack": "vllm", "slo": {"ttft": "2 s"},
    "requests": {"arrivals": {"kind": "poisson", "rate": 1}, "count": 100,
                 "prompt_tokens": 100, "output_tokens": 20},
    "plan": {"questions": ["highest_rate"]}})");
  REQUIRE(run_kvsim({"trace", "generate", "t.safetensors", "--layers", "2", "--heads", "2",
                     "--kv-heads", "1", "--head-dim", "8", "--tokens", "201", "--prompt-tokens",
                     "100", "--with-hidden", "--with-wo", "--with-repeat", "-q"},
                    folder)
              .status == 0);
  return folder;
}

struct Written {
  std::string what;
  Words words;            // without the output path
  Words earlier;          // another result of the same kind
  std::string at = "-o";  // the option before its path; empty: the path is the last word
};

std::vector<Written> all_written() {
  const Words sweep{"sweep", "-t", "t.safetensors", "-m", "h2o", "-b", "8", "-q", "--vary"};
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const Words run{"run", "s.json", "-q", "--no-figures"};
  const Words serve{"run", "serve.json", "-q", "--no-figures"};
  const Words plan{"plan", "serve.json", "-q", "--no-figures"};
  const Words replay{"replay", "-t", "t.safetensors", "-q", "--no-figures", "-m"};
  const Words fit{"fit-surrogate", "t.safetensors", "-q", "--model", "mlp", "--width", "64"};
  const Words requests{"requests", "generate", "--arrivals", "poisson:rate=2", "--prompt",
                       "100",      "--output", "20",         "--count"};
  return {
      {"run", run, with(run, {"--set", "/batch=8"})},
      {"serve", serve, with(serve, {"--set", "/requests/count=60"})},
      {"plan", plan, with(plan, {"--set", "/requests/count=60"})},
      {"replay", with(replay, {"full,h2o", "-b", "8"}), with(replay, {"full"})},
      {"sweep of replays", with(sweep, {"recent=0.2,0.5"}), with(sweep, {"recent=0.3"})},
      {"requests", with(requests, {"500"}), with(requests, {"100"})},
      {"weights", with(fit, {"--epochs", "3"}), with(fit, {"--epochs", "2"})},
      {"trace convert",
       {"trace", "convert", "-q", "t.safetensors", "--dtype", "fp32"},
       {"trace", "convert", "-q", "t.safetensors", "--tokens", "150"},
       ""},
      {"trace generate",
       {"trace", "generate", "-q", "--tokens", "300"},
       {"trace", "generate", "-q", "--tokens", "64"},
       ""},
  };
}

Words placed(const Written& one, Words words, const std::string& place) {
  if (!one.at.empty()) words.push_back(one.at);
  words.push_back(place);
  return words;
}

TEST_CASE("a file beyond its limit ends every command that writes and leaves no partial output") {
  const fs::path folder = with_inputs("limit");
  for (const Written& one : all_written()) {
    INFO(one.what);
    const std::string end = one.at.empty() || one.what == "weights" ? ".safetensors"
                            : one.what == "requests"                ? ".csv"
                                                                    : "";
    const std::string place = "out" + end;
    const Outcome free = run_kvsim(placed(one, one.words, "whole" + end), folder);
    REQUIRE_MESSAGE(free.status == 0, free.err);
    const auto whole = files_of(folder / ("whole" + end));
    const std::int64_t max = largest(whole);
    REQUIRE(max > 1500);
    REQUIRE(run_kvsim(placed(one, one.earlier, place), folder).status == 0);
    const auto earlier = files_of(folder / place);
    REQUIRE_FALSE(earlier.empty());
    for (const std::int64_t limit : {std::int64_t{1024}, max / 2, max - 1}) {
      INFO("no file past ", limit, " of ", max, " bytes");
      for (const bool in_new_folder : {false, true}) {
        const std::string to = in_new_folder ? "new/" + place : place;
        if (in_new_folder && !end.empty()) fs::create_directories(folder / "new");
        const Outcome full = run_kvsim_up_to(limit, placed(one, one.words, to), folder);
        CHECK(full.status == 2);
        INFO(full.err);
        CHECK(has(full.err, to));
        CHECK(has(full.err, "cannot be written: File too large"));
        CHECK_FALSE(has(full.err, ".partial-"));
        CHECK(std::count(full.err.begin(), full.err.end(), '\n') == 1);
        CHECK_FALSE(fs::exists(folder / "new" / place));
        CHECK_FALSE(holds_partial(folder));
        fs::remove_all(folder / "new");
      }
      CHECK(files_of(folder / place) == earlier);
    }
    // A sufficient limit is accepted, and the earlier output is replaced.
    REQUIRE(run_kvsim_up_to(max, placed(one, one.words, place), folder).status == 0);
    CHECK(files_of(folder / place) == whole);
    fs::remove_all(folder / place);
    fs::remove_all(folder / ("whole" + end));
  }
}

TEST_CASE("a sweep stopped by a full disk keeps its points and resumes when there is room") {
  const fs::path folder = with_inputs("sweep_limit");
  const Words words{"sweep", "s.json", "--vary", "/prompt_tokens=100,200,300", "-q", "--no-figures",
                    "-j",    "1",      "-o"};
  const auto to = [&](const std::string& place, bool resume) {
    Words all = words;
    all.push_back(place);
    if (resume) all.emplace_back("--resume");
    return all;
  };
  REQUIRE(run_kvsim(to("whole", false), folder).status == 0);
  const auto whole = files_of(folder / "whole");
  const std::string& points = whole.at("points.jsonl");
  // In the line of the fifth point, and just below the size of the whole file.
  const std::size_t lines = [&] {
    std::size_t at = 0;
    for (int i = 0; i < 5; ++i) at = points.find('\n', at) + 1;
    return at;
  }();
  for (const std::size_t limit : {lines + 40, points.size() - 1}) {
    INFO("no file past ", limit, " of ", points.size(), " bytes");
    fs::remove_all(folder / "out");
    const Outcome full =
        run_kvsim_up_to(static_cast<std::int64_t>(limit), to("out", false), folder);
    CHECK(full.status == 2);
    CHECK(has(full.err, "kvsim: out/points.jsonl: cannot be written: File too large"));
    const std::string kept = text_of(folder / "out/points.jsonl");
    CHECK(kept.size() <= limit);
    CHECK(kept.ends_with("\n"));  // no half line
    CHECK(points.starts_with(kept));
    CHECK(kept.size() >= lines);
    CHECK_FALSE(holds_partial(folder));
    REQUIRE(run_kvsim(to("out", true), folder).status == 0);
    CHECK(files_of(folder / "out") == whole);
  }
}

/// Runs `work` in a child process in which `folder` is a separate disk of `bytes`. The result is
/// returned through `report`, outside the disk; nullopt if the system does not permit such a disk.
std::optional<std::string> on_small_disk(const fs::path& folder, std::int64_t bytes,
                                         const fs::path& report,
                                         const std::function<std::string()>& work) {
  constexpr int kNotPermitted = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string size = fmt::format("size={},mode=0755", bytes);
    const bool own = ::geteuid() == 0 ? ::unshare(CLONE_NEWNS) == 0
                                      : ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
    // Without the private mount, the disk would be visible outside.
    if (!own || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", folder.c_str(), "tmpfs", 0, size.c_str()) != 0) {
      ::_exit(kNotPermitted);
    }
    write(report, work());
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotPermitted) return std::nullopt;
  REQUIRE(status == 0);
  return text_of(report);
}

TEST_CASE("a full disk leaves the earlier result and no part of the failed one") {
  const fs::path folder = with_inputs("disk");
  fs::create_directories(folder / "disk");
  constexpr std::int64_t kDisk = 4 << 20;
  const auto free_bytes = [&] {
    return static_cast<std::int64_t>(fs::space(folder / "disk").available);
  };
  const auto failures = on_small_disk(folder / "disk", kDisk, folder / "report", [&] {
    std::string report;
    const auto expect = [&](bool holds, const std::string& what) {
      if (!holds) report += what + "\n";
    };
    const auto run = [&](const Words& more) {
      Words words{"run", "s.json", "-q", "-o", "disk/out"};
      words.insert(words.end(), more.begin(), more.end());
      return run_kvsim(words, folder);
    };
    expect(run({"--set", "/batch=8", "--no-figures"}).status == 0, "no earlier result");
    const auto earlier = files_of(folder / "disk/out");
    const std::int64_t whole = free_bytes();
    expect(whole > kDisk / 4, "the earlier result took the disk");
    // From no space to slightly too little, in steps; with figures, which gnuplot writes.
    int full = 0;
    for (const std::int64_t left : {0, 8, 24, 64, 160, 400}) {
      const std::string at = fmt::format("{} KiB left: ", left);
      std::string ballast(static_cast<std::size_t>(whole - (left << 10)), 'x');
      write(folder / "disk/ballast", ballast);
      const Outcome outcome = run({});
      fs::remove(folder / "disk/ballast");
      expect(!holds_partial(folder / "disk"), at + "something half-written is left");
      if (outcome.status == 0) {
        for (const auto& [name, text] : files_of(folder / "disk/out")) {
          if (name.ends_with(".svg")) expect(has(text, "</svg>"), at + name + " is cut");
        }
        break;
      }
      ++full;
      expect(outcome.status == 2, at + fmt::format("status {}", outcome.status));
      expect(has(outcome.err, "No space left on device") && has(outcome.err, "disk/out") &&
                 !has(outcome.err, ".partial-"),
             at + outcome.err);
      expect(files_of(folder / "disk/out") == earlier, at + "the earlier result changed");
    }
    expect(full >= 2, fmt::format("the disk was full {} times", full));
    expect(run({}).status == 0, "not with all of the room");
    return report;
  });
  if (!failures) {
    fmt::print("KVSIM-SKIPPED: no small disk can be mounted here\n");
    return;
  }
  CHECK(*failures == "");
}

TEST_CASE("plot replaces only figures that it wrote itself") {
  if (std::system("gnuplot --version > /dev/null 2>&1") != 0) {
    fmt::print("KVSIM-SKIPPED: gnuplot is not installed\n");
    return;
  }
  const fs::path folder = with_inputs("plot_foreign");
  REQUIRE(run_kvsim({"run", "s.json", "-q", "-o", "result"}, folder).status == 0);
  const Words plot{"plot", "result", "-q", "-o", "out", "--formats", "svg"};
  REQUIRE(run_kvsim(plot, folder).status == 0);
  CHECK(run_kvsim(plot, folder).status == 0);
  std::string figure;
  for (const auto& [name, text] : files_of(folder / "out")) {
    if (name.ends_with(".svg")) figure = name;
  }
  REQUIRE_FALSE(figure.empty());
  fs::remove_all(folder / "out");
  fs::create_directories(folder / "out");
  write(folder / "out" / figure, "of the user");
  const auto before = files_of(folder / "out");
  const Outcome refused = run_kvsim(plot, folder);
  CHECK(refused.status == 2);
  CHECK_MESSAGE(has(refused.err, "already exists, and kvsim did not draw it"), refused.err);
  CHECK(files_of(folder / "out") == before);
}

TEST_CASE("plot on a full disk leaves the earlier figures and ends with an error") {
  if (std::system("gnuplot --version > /dev/null 2>&1") != 0) {
    fmt::print("KVSIM-SKIPPED: gnuplot is not installed\n");
    return;
  }
  const fs::path folder = with_inputs("plot_disk");
  fs::create_directories(folder / "disk");
  REQUIRE(run_kvsim({"run", "s.json", "-q", "-o", "result"}, folder).status == 0);
  constexpr std::int64_t kDisk = 4 << 20;
  const auto problems = on_small_disk(folder / "disk", kDisk, folder / "report", [&] {
    std::string report;
    const auto expect = [&](bool holds, const std::string& what) {
      if (!holds) report += what + "\n";
    };
    const auto plot = [&](const char* width) {
      return run_kvsim({"plot", "result", "-q", "-o", "disk/out", "--style", "paper", "--width",
                        width, "--formats", "svg,png"},
                       folder);
    };
    expect(plot("6.9").status == 0, "no earlier figures");
    write(folder / "disk/out/mine.txt", "of the user");
    const auto earlier = files_of(folder / "disk/out");
    const auto room = static_cast<std::int64_t>(fs::space(folder / "disk").available);
    int full = 0;
    for (const std::int64_t left : {0, 8, 24, 48, 96, 160}) {
      const std::string at = fmt::format("{} KiB left: ", left);
      write(folder / "disk/ballast",
            std::string(static_cast<std::size_t>(room - (left << 10)), 'x'));
      const Outcome outcome = plot("3.3");
      fs::remove(folder / "disk/ballast");
      expect(!holds_partial(folder / "disk"), at + "something half-written is left");
      if (outcome.status == 0) break;
      ++full;
      expect(outcome.status == 2, at + fmt::format("status {}", outcome.status));
      expect(has(outcome.err, "No space left on device") && has(outcome.err, "disk/out") &&
                 !has(outcome.err, ".partial-"),
             at + outcome.err);
      expect(files_of(folder / "disk/out") == earlier, at + "the earlier figures changed");
    }
    expect(full >= 2, fmt::format("the disk was full {} times", full));
    expect(plot("3.3").status == 0, "not with all of the room");
    const auto now = files_of(folder / "disk/out");
    expect(now != earlier && now.contains("mine.txt"), "the new figures are not there");
    return report;
  });
  if (!problems) {
    fmt::print("KVSIM-SKIPPED: no small disk can be mounted here\n");
    return;
  }
  CHECK(*problems == "");
}

}  // namespace
}  // namespace kvsim
