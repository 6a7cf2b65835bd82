// Ctrl-C during a run, a plan, a replay: finished parts are written completely, missing parts are
// listed.

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

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

/// Starts kvsim and sends it SIGINT after a while. Outcome::out is left empty.
Outcome interrupted(const fs::path& folder, const Words& words, std::chrono::milliseconds after) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::chdir(folder.c_str()) != 0) ::_exit(99);
    if (std::freopen("err", "w", stderr) == nullptr || std::freopen("out", "w", stdout) == nullptr)
      ::_exit(99);
    Words all{KVSIM_PROGRAM};
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> argv;
    for (std::string& word : all) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::execv(KVSIM_PROGRAM, argv.data());
    ::_exit(99);
  }
  std::this_thread::sleep_for(after);
  ::kill(child, SIGINT);
  int status = 0;
  ::waitpid(child, &status, 0);
  for (const auto& entry : fs::recursive_directory_iterator{folder}) {
    CHECK(entry.path().filename().string().find(".partial-") == std::string::npos);
  }
  return {.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = "",
          .err = text_of(folder / "err")};
}

/// Interrupts the command earlier or later until it leaves an incomplete `file` and its message
/// contains `missing`. The case fails if there is no such time between the first part and the last.
std::optional<Outcome> cut_in_the_middle(const fs::path& folder, const Words& words,
                                         const std::string& file,
                                         const std::string& missing = " missing") {
  constexpr int kTries = 14;
  int after_ms = 400, too_early_ms = 0, too_late_ms = 0;  // 0: unknown
  for (int i = 0; i < kTries; ++i) {
    fs::remove_all(folder / "r");
    const Outcome cut = interrupted(folder, words, std::chrono::milliseconds{after_ms});
    INFO(cut.err);
    if (cut.status == 0) {
      too_late_ms = after_ms;
      after_ms = (too_early_ms + too_late_ms) / 2;
      continue;
    }
    REQUIRE(cut.status == 130);
    if (fs::exists(folder / file)) {
      CHECK(has(cut.err, " missing"));
      if (has(cut.err, missing)) return cut;
    } else {
      CHECK_FALSE(fs::exists(folder / "r"));  // before the first part, or while files were written
    }
    too_early_ms = after_ms;
    after_ms = too_late_ms == 0 ? 2 * after_ms : (too_early_ms + too_late_ms) / 2;
  }
  FAIL("the interrupt always came before the first part or after the last");
  return std::nullopt;
}

TEST_CASE("an interrupt keeps finished points and names the missing ones") {
  const fs::path folder = fresh("interrupt");
  // About 20,000 points of many steps: more than a second of work, so that the interrupt occurs
  // within it.
  std::string batches = "1";
  for (int i = 2; i <= 200; ++i) batches += "," + std::to_string(i);
  write(folder / "s.json",
        R"({"model": "llama-2-7b", "gpu": "A100-80GB-SXM", "stack": "hf-sdpa", "dtype": "fp16",
            "figures": false, "prompt_tokens": 100, "output_tokens": 20000, "batch": [)" +
            batches + R"(], "method": ["full", {"name": "kivi-4"}]})");
  const auto cut =
      cut_in_the_middle(folder, {"run", "s.json", "-o", "r", "-j", "1"}, "r/result.json");
  if (!cut) return;
  CHECK(has(cut->err, "kvsim run s.json -o r -j 1"));
  const json result = json::parse(text_of(folder / "r/result.json"));
  const std::size_t n = result.at("points").size();
  CHECK(n > 0);
  CHECK(n < 400);
  CHECK(result.at("notes").dump().find("interrupted: ") != std::string::npos);
  for (const json& point : result.at("points")) CHECK(point.at("peak_hbm_bytes") > 0);
}

TEST_CASE("an interrupted replay of a scenario keeps its points and says that it is missing") {
  const fs::path folder = fresh("interrupt_scenario_replay");
  REQUIRE(run_kvsim({"trace", "generate", "large.safetensors", "--layers", "24", "--heads", "4",
                     "--kv-heads", "2", "--head-dim", "32", "--tokens", "1536"},
                    folder)
              .status == 0);
  write(folder / "s.json",
        R"({"model": "llama-2-7b", "gpu": "A100-80GB-SXM", "stack": "hf-sdpa", "dtype": "fp16",
            "figures": false, "prompt_tokens": 100, "output_tokens": 10, "batch": [1, 2],
            "replay": {"trace": "large.safetensors",
                       "methods": ["full", {"name": "h2o", "budget": 0.2},
                                   {"name": "snapkv", "budget": 0.2}]}})");
  const auto cut = cut_in_the_middle(folder, {"run", "s.json", "-o", "r", "-j", "1"},
                                     "r/result.json", "1 replay is missing");
  if (!cut) return;
  CHECK(
      has(cut->err,
          "1 replay is missing; r holds the others; to compute everything: kvsim run s.json -o r"));
  const json result = json::parse(text_of(folder / "r/result.json"));
  CHECK(result.at("points").size() == 2);
  CHECK_FALSE(result.contains("replay"));
  CHECK(has(result.at("notes").dump(), "interrupted: the replay of large is missing"));
}

TEST_CASE("an interrupted plan keeps finished answers and says how many are missing") {
  const fs::path folder = fresh("interrupt_plan");
  // Eight candidates that take several tenths of a second each.
  write(folder / "s.json", R"({"kind": "serve", "model": "llama-3.1-8b",
    "gpu": ["A100-80GB-SXM", "H100-80GB-SXM", "A40", "L40"], "stack": "vllm", "figures": false,
    "method": ["full", {"name": "snapkv", "budget": 0.2}], "slo": {"ttft": "2 s"},
    "requests": {"arrivals": {"kind": "poisson", "rate": 1}, "count": 4000,
                 "prompt_tokens": 1000, "output_tokens": 200},
    "plan": {"questions": ["highest_rate"]}})");
  const auto cut =
      cut_in_the_middle(folder, {"plan", "s.json", "-o", "r", "-j", "1"}, "r/plan.json");
  if (!cut) return;
  CHECK(
      has(cut->err, "candidates are missing; to compute everything: kvsim plan s.json -o r -j 1"));
  const json plan = json::parse(text_of(folder / "r/plan.json"));
  std::size_t answered = 0, missing = 0;
  for (const json& group : plan.at("answers")) {
    for (const json& one : group.at("candidates")) {
      const bool has_answer = one.at("answer") > 0 || !one.at("impossible").is_null();
      // A candidate that was not searched is marked as such and has no answer.
      if (!has_answer) CHECK_FALSE(one.at("pruned").is_null());
      (has_answer ? answered : missing) += 1;
    }
  }
  CHECK(answered > 0);
  CHECK(missing > 0);
  CHECK(fs::exists(folder / "r/plan.csv"));
}

/// Writes small.safetensors, which finishes immediately, and large.safetensors, which takes long
/// enough to be interrupted.
void write_traces(const fs::path& folder) {
  const auto trace = [&](const std::string& name, const std::string& layers,
                         const std::string& tokens) {
    REQUIRE(run_kvsim({"trace", "generate", name, "--layers", layers, "--heads", "4", "--kv-heads",
                       "2", "--head-dim", "32", "--tokens", tokens},
                      folder)
                .status == 0);
  };
  trace("small.safetensors", "1", "64");
  trace("large.safetensors", "24", "1536");
}

TEST_CASE("an interrupted replay keeps finished traces and names the missing ones") {
  const fs::path folder = fresh("interrupt_replay");
  write_traces(folder);
  const Words words{"replay",
                    "-t",
                    "small.safetensors",
                    "-t",
                    "large.safetensors",
                    "--method",
                    "full,h2o,snapkv,streaming-llm",
                    "-b",
                    "0.2",
                    "-o",
                    "r",
                    "-j",
                    "1",
                    "--no-figures"};
  const auto cut = cut_in_the_middle(folder, words, "r/small/result.json");
  if (!cut) return;
  CHECK(has(cut->err, "1 of 2 traces is missing; to compute everything: kvsim replay -t small"));
  CHECK_FALSE(fs::exists(folder / "r/large"));
  CHECK_FALSE(fs::exists(folder / "r/aggregate"));
  // The output equals that of an uninterrupted run over it.
  REQUIRE(
      run_kvsim({"replay", "-t", "small.safetensors", "--method", "full,h2o,snapkv,streaming-llm",
                 "-b", "0.2", "-o", "alone", "--no-figures", "-q"},
                folder)
          .status == 0);
  for (const auto& entry : fs::directory_iterator{folder / "alone"}) {
    const fs::path name = entry.path().filename();
    CHECK(text_of(folder / "r/small" / name) == text_of(entry.path()));
  }
}

TEST_CASE("an interrupted sweep of replays keeps the finished traces") {
  const fs::path folder = fresh("interrupt_sweep");
  write_traces(folder);
  const Words tail{"--method",    "h2o", "-b", "0.2",        "--vary",
                   "sinks=0,2,4", "-j",  "1",  "--no-report"};
  Words words{"sweep", "-t", "small.safetensors", "-t", "large.safetensors", "-o", "r"};
  words.insert(words.end(), tail.begin(), tail.end());
  const auto cut = cut_in_the_middle(folder, words, "r/result.json");
  if (!cut) return;
  CHECK(has(cut->err, "1 of 2 traces is missing; to compute everything: kvsim sweep -t small"));
  const json result = json::parse(text_of(folder / "r/result.json"));
  CHECK(result.at("points").size() == 3);
  REQUIRE(result.at("notes").size() >= 1);
  CHECK(result.at("notes").front() == "interrupted: 1 of 2 traces are missing, from large on");
  // Except for that note, it equals the output of an uninterrupted sweep.
  Words alone{"sweep", "-t", "small.safetensors", "-o", "alone", "-q"};
  alone.insert(alone.end(), tail.begin(), tail.end());
  REQUIRE(run_kvsim(alone, folder).status == 0);
  CHECK(text_of(folder / "r/sweep.csv") == text_of(folder / "alone/sweep.csv"));
  CHECK(result.at("points") == json::parse(text_of(folder / "alone/result.json")).at("points"));
}

TEST_CASE("an interrupted validation or calibration leaves nothing and repeats the command") {
  const fs::path folder = fresh("interrupt_validate");
  // Enough rows that the interrupt, sent as soon as the folder exists, occurs while they are
  // written.
  std::string published =
      "id,source,gpu,gpu_count,model,dtype,kv_dtype,framework,method,method_params,batch,"
      "prompt_len,output_len,metric,value,unit,note\n";
  for (int i = 0; i < 2000; ++i) {
    published += "MY-" + std::to_string(i) +
                 ",made up for a test,A100-80GB-SXM,1,Llama-2-7B,fp16,fp16,HF transformers 4.47.1,"
                 "full,,4," +
                 std::to_string(512 + i) + ",512,throughput_tok_s,60.0,tok/s,\n";
  }
  write(folder / "published.csv", published);
  fs::create_directories(folder / "timings");
  std::string timings =
      "gpu,source,num_q_heads,num_kv_heads,head_dim,dtype,kv_dtype,batch_size,kv_len,time_us\n";
  for (int i = 1; i <= 2000; ++i) {
    timings += "H100-80GB-SXM,mine-1.0,32,8,128,bf16,bf16," + std::to_string(1 + i % 40) + "," +
               std::to_string(64 * i) + "," + std::to_string(5 + i * (1 + i % 40) * 0.01) + "\n";
  }
  write(folder / "timings/decode_attention.csv", timings);
  for (const Words& words : {Words{"validate", "published", "published.csv", "-o", "r"},
                             Words{"validate", "measured", "timings", "-o", "r"},
                             Words{"validate", "kernels", "-o", "r"},
                             Words{"calibrate", "--measured", "timings", "-o", "r"}}) {
    INFO(words[0], " ", words[1]);
    const Outcome cut = test::interrupt_kvsim(words, folder, SIGINT);
    INFO(cut.err);
    CHECK(cut.status == 130);
    std::string again = "results are written completely or not at all; to repeat: kvsim";
    for (const std::string& word : words) again += " " + word;
    CHECK(has(cut.err, again + "\n"));
    CHECK_FALSE(fs::exists(folder / "r"));
  }
}

}  // namespace
}  // namespace kvsim
