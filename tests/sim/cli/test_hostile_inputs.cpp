// Inputs that are not regular files, never end or claim excessive sizes: exit 2, one bounded line,
// no output file.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/cli/program.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::fresh;
using test::has;
using test::Outcome;
using test::run_kvsim;
using test::text_of;
using test::Words;
using test::write;

const fs::path kRoot{KVSIM_SOURCE_DIR};

/// The message of a refusal.
std::string complaint(const Words& words, const fs::path& folder) {
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = run_kvsim(words, folder);
  INFO(fmt::format("{}: {}", words.front(), outcome.err));
  CHECK(outcome.status == 2);
  CHECK(outcome.out.empty());
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  CHECK(outcome.err.size() < 5000);
  CHECK_FALSE(has(outcome.err, "json.exception"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds{60});
  return outcome.err;
}

constexpr const char* kStatic =
    R"({"model": "llama-2-7b", "gpu": "A100-80GB-SXM", "stack": "hf-sdpa", "dtype": "fp16",
        "prompt_tokens": 100, "output_tokens": 20, "figures": false})";

/// Every command that reads a file, with `path` as that file.
std::vector<Words> readers(const std::string& path) {
  return {{"run", path},
          {"plan", path},
          {"show", "model", path},
          {"replay", "--trace", path, "-m", "full"},
          {"trace", "info", path},
          {"trace", "convert", path, "out.safetensors"},
          {"requests", "info", path},
          {"requests", "convert", path, "-o", "out.csv"},
          {"calibrate", "--from-log", path, "-o", "out.json"},
          {"calibrate", "--from-bench", path, "absent.json", "-o", "out.json"},
          {"calibrate", "--measured", path, "-o", "out"},
          {"fit-surrogate", path, "-o", "out.safetensors"},
          {"quality", path},
          {"validate", "measured", path},
          {"validate", "published", path},
          {"validate", "allocator", path},
          {"explain", path, "peak_hbm_bytes"},
          {"compare", path, path},
          {"plot", path, "-o", "out"}};
}

TEST_CASE("folders, devices and pipes without a writer are refused by every reader") {
  const fs::path folder = fresh("no-files");
  fs::create_directories(folder / "folder");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  for (const char* path : {"folder", "pipe", "/dev/zero", "/dev/full"}) {
    for (const Words& words : readers(path)) {
      INFO(words[0], " ", words[1], ": ", path);
      (void)complaint(words, folder);
    }
  }
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator{folder}) left.push_back(entry.path().filename());
  std::sort(left.begin(), left.end());
  CHECK(left == Words{"folder", "pipe"});
}

TEST_CASE("entries of a replay that are not regular files are refused") {
  const fs::path folder = fresh("kept-no-file");
  const std::string trace = (kRoot / "traces/samples/books-treasure-512.safetensors").string();
  REQUIRE(
      run_kvsim({"replay", "--trace", trace, "-m", "h2o", "-b", "64", "-o", "out", "-q"}, folder)
          .status == 0);
  const fs::path file = folder / "out/replay_kept.csv";
  const Words words{"explain", "out", "kept"};
  REQUIRE(run_kvsim(words, folder).status == 0);
  fs::remove(file);
  REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  CHECK(has(complaint(words, folder), "it is a pipe that no program writes to"));
  for (const char* target : {"/dev/zero", "/dev/full"}) {
    fs::remove(file);
    fs::create_symlink(target, file);
    CHECK(has(complaint(words, folder), "expected a file, got a device"));
  }
  fs::remove(file);
  fs::create_directories(file);
  CHECK(has(complaint(words, folder), "expected a file, got a folder"));
  fs::remove(file);
  CHECK(has(complaint(words, folder), "kvsim replay -o lists the entries of methods"));
}

TEST_CASE("a folder whose list of files is not a regular file is not replaced") {
  const fs::path folder = fresh("manifest-no-file");
  write(folder / "s.json", kStatic);
  const Words words{"run", "s.json", "-o", "out"};
  const fs::path manifest = folder / "out/.kvsim-folder";
  fs::create_directories(folder / "out");
  REQUIRE(::mkfifo(manifest.c_str(), 0600) == 0);
  CHECK(has(complaint(words, folder), "out: contains files not written by kvsim (.kvsim-folder)"));
  fs::remove(manifest);
  fs::create_symlink("/dev/zero", manifest);
  CHECK(has(complaint(words, folder), "out: contains files not written by kvsim (.kvsim-folder)"));
  CHECK(fs::is_symlink(manifest));
}

TEST_CASE("files of one endless line, of deep nesting and of broken text are refused") {
  const fs::path folder = fresh("strange-files");
  const std::string megabytes(3U << 20U, 'a');
  const std::vector<std::pair<std::string, std::string>> files{
      {"line", megabytes},
      {"quote", "\"" + megabytes},
      {"deep", std::string(200'000, '[')},
      {"deep-objects",
       [] {
         std::string text;
         for (int i = 0; i < 50'000; ++i) text += "{\"a\":";
         return text;
       }()},
      {"key", "{\"" + megabytes + "\": 1}"},
      {"huge-number", "{\"model\": 1e999}"},
      {"nan", "{\"model\": NaN}"},
      {"twice", "{\"model\": \"a\", \"model\": \"b\"}"},
      {"latin-1", "{\"model\": \"\xE9\"}"},
      {"nul", std::string("{\"model\": \"a\0b\"}", 16)},
      {"digits", "Model loading took " + std::string(50'000, '9') + " GiB\n"}};
  for (const auto& [name, text] : files) {
    write(folder / name, text);
    for (const Words& words : readers(name)) {
      INFO(words[0], " ", words[1], ": ", name);
      (void)complaint(words, folder);
    }
  }
  CHECK(std::distance(fs::directory_iterator{folder}, fs::directory_iterator{}) ==
        std::ssize(files));
}

TEST_CASE("files that extend a common file several times are read once each") {
  const fs::path folder = fresh("extends-twice");
  write(folder / "0.json", kStatic);
  constexpr int kLevels = 15;  // 2^15 reads once took minutes
  for (int i = 1; i <= kLevels; ++i) {
    write(folder / fmt::format("{}.json", i),
          fmt::format(R"({{"extends": ["{0}.json", "./{0}.json"]}})", i - 1));
  }
  const auto begin = std::chrono::steady_clock::now();
  CHECK(run_kvsim({"run", fmt::format("{}.json", kLevels), "-q"}, folder).status == 0);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds{30});
}

TEST_CASE("too many groups of points are refused at once") {
  const fs::path folder = fresh("many-points");
  std::string text = R"({"model": "llama-2-7b", "gpu": "A100-80GB-SXM", "prompt_tokens": 100,
    "output_tokens": 20, "points": [{})";
  for (int i = 0; i < 100'000; ++i) text += ",{}";
  write(folder / "s.json", text + "]}");
  const auto begin = std::chrono::steady_clock::now();
  CHECK(has(complaint({"run", "s.json"}, folder),
            "/points: the groups make at least 100001 points, more than 100000"));
  CHECK(std::chrono::steady_clock::now() - begin <
        std::chrono::seconds{test::kSanitized ? 60 : 15});
}

TEST_CASE("overrides that would be ignored are refused") {
  const fs::path folder = fresh("ignored-overrides");
  write(folder / "s.json", kStatic);
  CHECK(has(complaint({"run", "s.json", "--set", "/extends=other.json"}, folder),
            "--set /extends: other files are read before --set"));
  const Words options{"--model", "llama-3.1-8b", "--gpu", "H100-80GB-SXM"};
  for (const char* command : {"run", "plan"}) {
    Words words{command};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"--set", "/extends=s.json"});
    CHECK(has(complaint(words, folder), "--set /extends"));
    words.back() = "/paln/prices=3";
    CHECK(has(complaint(words, folder), "/paln: unknown key"));
  }
}

TEST_CASE("a budget that looks like per cent is refused while counts and shares are accepted") {
  const fs::path folder = fresh("per-cent");
  const auto words = [](const std::string& budget) {
    return Words{"run", "--model", "llama-3.1-8b", "--gpu", "H100-80GB-SXM",
                 "-m",  "snapkv",  "-b",           budget,  "--json"};
  };
  for (const char* budget : {"2", "20", "100"}) {
    CHECK(has(complaint(words(budget), folder),
              fmt::format("-b: a bare {0} may mean {0} % or {0} entries per head", budget)));
  }
  const auto held = [&](const std::string& budget) {
    const Outcome outcome = run_kvsim(words(budget), folder);
    INFO(budget, outcome.err);
    REQUIRE(outcome.status == 0);
    return json::parse(outcome.out).at("points").at(0).at("kv_bytes").get<std::int64_t>();
  };
  CHECK(held("20%") == held("0.2"));
  CHECK(held("256") == held("256 entries"));
  CHECK(held("64 entries") < held("256"));
  Words print = words("64 entries");
  print.back() = "--print-scenario";
  const Outcome printed = run_kvsim(print, folder);
  REQUIRE(printed.status == 0);
  CHECK(json::parse(printed.out).at("method").at("budget") == "64 entries");
}

TEST_CASE("a date is a day of the calendar") {
  const fs::path folder = fresh("dates");
  const std::string timings = (kRoot / "tests/documents/fixtures/timings").string();
  for (const char* date : {"today", "2025-02-29", "2025-13-01", "2025-1-1", "2025-01-01x"}) {
    CHECK(has(complaint({"calibrate", "--measured", timings, "-o", "c", "--date", date}, folder),
              "--date: expected a day as YYYY-MM-DD"));
  }
  CHECK_FALSE(fs::exists(folder / "c"));
}

TEST_CASE("too few timings for a fit are an error and leave no empty folder") {
  const fs::path folder = fresh("few-timings");
  std::string text = "gpu,source,dtype,m,n,k,time_us\n";
  for (int i = 1; i <= 5; ++i) text += fmt::format("A40,x,bf16,{},4096,4096,4\n", i);
  write(folder / "t.csv", text);
  const std::string refused = complaint({"calibrate", "--measured", "t.csv", "-o", "c"}, folder);
  CHECK(has(refused, "t.csv: expected at least 16 rows"));
  CHECK(has(refused, "5 of 16 rows"));
  CHECK_FALSE(fs::exists(folder / "c"));
  // Rows that no fit accepts are reported with their reason.
  write(folder / "gpu.csv", "gpu,source,dtype,m,n,k,time_us\nA4000,x,bf16,1,4096,4096,4\n");
  CHECK(has(complaint({"calibrate", "--measured", "gpu.csv", "-o", "c"}, folder),
            "got none; left out: GPU A4000 (1 row)"));
  write(folder / "page.csv", "<html>\n<body>Not found</body>\n");
  CHECK(has(complaint({"validate", "measured", "page.csv"}, folder),
            "page.csv: expected kernel timings"));
}

TEST_CASE("a symbolic link is never written through") {
  const fs::path folder = fresh("links");
  write(folder / "s.json", kStatic);
  write(folder / "v.log", "Model loading took 14.99 GiB\n");
  write(folder / "precious", "mine");
  fs::create_symlink("precious", folder / "link");
  const std::string message =
      "link: cannot be written: it is a symbolic link to precious; name that file itself";
  CHECK(has(complaint({"calibrate", "--from-log", "v.log", "-o", "link"}, folder), message));
  CHECK(has(complaint({"trace", "generate", "link", "--tokens", "20", "-q"}, folder), message));
  CHECK(text_of(folder / "precious") == "mine");
  CHECK(fs::is_symlink(folder / "link"));
}

TEST_CASE("a results folder is replaced behind a link to it") {
  const fs::path folder = fresh("folder-links");
  write(folder / "s.json", kStatic);
  const auto run = [&](const std::string& tokens, const std::string& out) {
    return run_kvsim(
        {"run", "s.json", "--set", fmt::format("/prompt_tokens={}", tokens), "-o", out, "-q"},
        folder);
  };
  REQUIRE(run("100", "real").status == 0);
  const std::string before = text_of(folder / "real/result.json");
  fs::create_directory_symlink("real", folder / "link");
  CHECK(run("200", "link").status == 0);
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(fs::read_symlink(folder / "link") == "real");
  CHECK_FALSE(fs::is_symlink(folder / "real"));
  CHECK(text_of(folder / "real/result.json") != before);
  REQUIRE(run("200", "other").status == 0);
  CHECK(json::parse(text_of(folder / "real/result.json")).at("points") ==
        json::parse(text_of(folder / "other/result.json")).at("points"));
  // A folder with other files is also refused behind a link.
  fs::create_directories(folder / "foreign");
  write(folder / "foreign/precious", "mine");
  fs::create_directory_symlink("foreign", folder / "foreign-link");
  CHECK(has(complaint({"run", "s.json", "-o", "foreign-link"}, folder),
            "foreign-link: contains files not written by kvsim (precious)"));
  CHECK(text_of(folder / "foreign/precious") == "mine");
}

TEST_CASE("times beyond the clock are refused with their point") {
  const fs::path folder = fresh("long-times");
  const auto refused = [&](const std::string& keys) {
    write(
        folder / "s.json",
        R"({"kind": "serve", "model": "llama-3.1-8b", "gpu": "A100-80GB-SXM", "stack": "vllm", )" +
            keys + "}");
    const std::string text = complaint({"run", "s.json", "-o", "out"}, folder);
    CHECK(has(text, "point \""));
    CHECK(has(text, ": a time exceeds the range of the simulated clock (9,223,372 s, 106 days)"));
    CHECK_FALSE(fs::exists(folder / "out"));
  };
  const std::string prompts = R"("count": 4, "prompt_tokens": 20000, "output_tokens": 4)";
  // 20,000 tokens of 128 KiB over 1 B/s take 83 years.
  refused(R"("method": {"name": "quest", "budget": 2048}, "requests": {"arrivals":
               {"kind": "fixed", "rate": 1}, )" +
          prompts + R"(}, "offload": {"to": "nvme"},
             "nvme": {"capacity": "2 TB", "read": "1 B/s", "write": "1 B/s"})");
  // The third request of a user arrives after two pauses, 1.8e7 s.
  refused(R"("requests": {"arrivals": {"kind": "closed", "users": 1}, "think": "9000000 s", )" +
          prompts + "}");
  refused(R"("requests": {"arrivals": {"kind": "fixed", "rate": 1}, )" + prompts +
          R"(}, "cluster": {"prefill_replicas": 1, "link": "1 B/s"})");
  // The run is within the clock's range, but its interval, a slower repetition, is not.
  refused(R"("engine": {"front_end_latency": "9000000 s"},
             "requests": {"arrivals": {"kind": "fixed", "rate": 1}, )" +
          prompts + "}");
  // A link of 104 days is slow, but within the clock's range.
  write(folder / "s.json",
        R"({"kind": "serve", "model": "llama-3.1-8b", "gpu": "A100-80GB-SXM", "stack": "vllm",
            "requests": {"arrivals": {"kind": "fixed", "rate": 1}, )" +
            prompts + R"(}, "cluster": {"prefill_replicas": 1, "link": "50 GB/s",
                                        "link_latency": "9000000 s"}})");
  const Outcome slow = run_kvsim({"run", "s.json", "--json"}, folder);
  REQUIRE(slow.status == 0);
  CHECK(json::parse(slow.out).at("points").at(0).at("e2e_s").at("p50").get<double>() > 9e6);
}

TEST_CASE("points of a sweep that exceed the clock are named") {
  const fs::path folder = fresh("long-times-swept");
  write(folder / "s.json",
        R"({"kind": "serve", "model": "llama-3.1-8b", "gpu": "A100-80GB-SXM", "stack": "vllm",
            "requests": {"arrivals": {"kind": "closed", "users": 1}, "think": "1 s",
                         "count": 4, "prompt_tokens": 2000, "output_tokens": 4}})");
  const Words words{"sweep", "s.json", "--vary", "/requests/think=1s,9000000s"};
  Words strict = words;
  strict.insert(strict.end(), {"-o", "out"});
  CHECK(has(complaint(strict, folder),
            "s.json (point 1): a time exceeds the range of the simulated clock"));
  Words lenient = words;
  lenient.insert(lenient.end(), {"--skip-impossible", "--json"});
  const Outcome skipped = run_kvsim(lenient, folder);
  REQUIRE(skipped.status == 0);
  CHECK(has(skipped.out, "\"point 1: a time exceeds the range of the simulated clock"));
}

TEST_CASE("a candidate of a plan that exceeds the clock has that reason") {
  const fs::path folder = fresh("long-times-planned");
  const auto planned = [&](const std::string& keys, int status) {
    write(folder / "p.json",
          R"({"kind": "serve", "model": "llama-3.1-8b", "gpu": "A100-80GB-SXM", "stack": "vllm",
              "slo": {"e2e": "60 s"}, "plan": {"questions": "highest_rate"}, )" +
              keys + "}");
    const Outcome plan = run_kvsim({"plan", "p.json", "--json"}, folder);
    INFO(plan.err);
    REQUIRE(plan.status == status);
    return json::parse(plan.out).at("answers").at(0).at("candidates");
  };
  const auto check = [](const json& candidate) {
    CHECK(candidate.at("answer").is_null());
    CHECK(candidate.at("impossible").at("constraint") == "overflow");
    CHECK(has(candidate.at("impossible").at("text"), "the range of the simulated clock"));
  };
  const json paused = planned(R"("requests": {"arrivals": {"kind": "closed", "users": 1},
      "think": "9000000 s", "count": 4, "prompt_tokens": 2000, "output_tokens": 4})",
                              1);
  check(paused.at(0));
  const json slow = planned(R"("method": ["full", {"name": "quest", "budget": 2048}],
      "requests": {"arrivals": {"kind": "fixed", "rate": 1}, "count": 4, "prompt_tokens": 20000,
                   "output_tokens": 4},
      "offload": {"to": "nvme"}, "nvme": {"capacity": "2 TB", "read": "1 B/s", "write": "1 B/s"})",
                            0);
  REQUIRE(slow.size() == 2);
  CHECK(slow.at(0).at("answer").is_number());
  check(slow.at(1));
}

TEST_CASE("with very few file descriptors there is no partial output") {
  const fs::path folder = fresh("descriptors");
  write(folder / "s.json", kStatic);
  for (const rlim_t max : {4U, 5U, 6U, 8U}) {
    const pid_t child = ::fork();
    if (child == 0) {
      (void)::chdir(folder.c_str());
      const int null = ::open("/dev/null", O_RDWR);
      for (const int stream : {0, 1, 2}) (void)::dup2(null, stream);
      const rlimit limit{max, max};
      (void)::setrlimit(RLIMIT_NOFILE, &limit);
      for (int fd = 3; fd < 64; ++fd) (void)::close(fd);
      ::execl(KVSIM_PROGRAM, KVSIM_PROGRAM, "run", "s.json", "-o", "out", "-q", nullptr);
      ::_exit(127);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    INFO(max);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) != 127);
    for (const auto& entry : fs::directory_iterator{folder}) {
      CHECK_FALSE(has(entry.path().filename().string(), ".partial-"));
    }
    fs::remove_all(folder / "out");
  }
}

}  // namespace
}  // namespace kvsim
