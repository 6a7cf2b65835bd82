// Scenarios as options, in the style of vLLM and AIConfigurator: a service in one line, other
// spellings, names in any case, messages that contain the typed option.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tests/sim/cli/program.hpp"
#include "tests/sim/report/explained.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using test::complaint;
using test::fresh;
using test::has;
using test::Outcome;
using test::run_kvsim;
using test::text_of;
using test::write;
namespace fs = std::filesystem;
using test::Words;

Words operator+(Words first, const Words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

const Words kSmall{"--model", "llama-3.1-8b", "--gpu", "h100"};
/// Arguments for a service whose plan takes about a second.
const Words kService = kSmall + Words{"--rate", "4",  "--isl",      "500", "--osl",  "50",
                                      "--ttft", "2s", "--requests", "200", "--tpot", "50ms"};

/// Returns `text` with every run of blanks and line ends replaced by one blank.
std::string one_line(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool is_blank = c == ' ' || c == '\n';
    if (!is_blank) out += c;
    if (is_blank && !out.ends_with(' ')) out += ' ';
  }
  return out;
}

/// The scenario created from the options of `kvsim plan`.
json scenario_of(const Words& options, const fs::path& folder,
                 const std::string& command = "plan") {
  const Outcome outcome = run_kvsim(Words{command} + options + Words{"--print-scenario"}, folder);
  REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
  return json::parse(outcome.out);
}

/// The message of a refused command line, without "kvsim: " and the line's end.
std::string refusal(const Words& words, const fs::path& folder) {
  const Outcome outcome = run_kvsim(words, folder);
  INFO(fmt::format("{}", fmt::join(words, " ")));
  CHECK(outcome.status == 2);
  CHECK(outcome.out.empty());
  constexpr std::string_view kHead = "kvsim: ";
  REQUIRE(outcome.err.starts_with(kHead));
  CHECK(outcome.err.find('\n') == outcome.err.size() - 1);
  return outcome.err.substr(kHead.size(), outcome.err.size() - kHead.size() - 1);
}

TEST_CASE("the number of GPUs for 5 requests per second and its cost is one line") {
  const fs::path folder = fresh("one-line");
  const Words line =
      kSmall + Words{"--tp",         "1",  "--rate",     "5",   "--isl",        "500",
                     "--osl",        "50", "--ttft",     "2s",  "--tpot",       "50ms",
                     "--e2e",        "9s", "--price",    "2.5", "--percentile", "95",
                     "--confidence", "0",  "--max-gpus", "16"};
  const json scenario = scenario_of(line, folder);
  CHECK(scenario.at("kind") == "serve");
  CHECK(scenario.at("title") == "llama-3.1-8b on H100-80GB-SXM, full, 5 requests/s");
  CHECK(scenario_of(kSmall + Words{"--rate", "5/s, 0.5"}, folder, "run").at("title") ==
        "llama-3.1-8b on H100-80GB-SXM, full, 5,0.5 requests/s");
  CHECK(scenario.at("gpu") == "H100-80GB-SXM");
  CHECK(scenario.at("gpu_count") == 1);
  CHECK(scenario.at("requests") ==
        json::parse(R"({"arrivals": {"kind": "poisson", "rate": 5}, "count": 3000,
                        "prompt_tokens": 500, "output_tokens": 50, "declared_tokens": "output"})"));
  CHECK(scenario.at("slo") == json::parse(R"({"ttft": "2 s", "tpot": "50 ms", "e2e": "9 s"})"));
  CHECK(scenario.at("plan") ==
        json::parse(R"({"questions": ["fewest_gpus"], "confidence": 0.0, "attainment": 0.95,
                        "prices": {"H100-80GB-SXM": "2.5 USD/h"}, "most_gpus": 16})"));
  const Outcome answered = run_kvsim(Words{"plan"} + line, folder);
  CHECK_MESSAGE(answered.status == 0, answered.err);
  CHECK(has(answered.out, "GPU"));
  const std::string answer = one_line(answered.out);
  CHECK(has(answer, "Fewest GPUs of llama-3.1-8b"));
  CHECK(has(answer, " USD per hour, "));
  CHECK(has(answer, " USD per million output tokens."));
  CHECK(has(answered.err,
            "--gpu: \"h100\" is taken as H100-80GB-SXM; the catalogue also has "
            "H100-80GB-PCIe, H100-NVL"));
  CHECK(fs::is_empty(folder));  // no folder without -o
  // `kvsim run` with an option of plans prints the same answer.
  const Outcome by_run = run_kvsim(Words{"run"} + line, folder);
  CHECK(by_run.out == answered.out);
}

TEST_CASE("plans of static batches print the cost of their answers") {
  const fs::path folder = fresh("cost");
  const Words by_option{"--price", "2.5"};
  const Words by_set{"--set", R"(/plan/prices={"H100-80GB-SXM": "2.5 USD/h"})"};
  for (const Words& price : {by_option, by_set}) {
    for (const char* command : {"plan", "run"}) {
      const Outcome outcome = run_kvsim(Words{command} + kSmall + price, folder);
      INFO(outcome.err);
      CHECK(outcome.status == 0);
      const std::string text = one_line(outcome.out);
      CHECK(has(text, "Largest batch"));
      CHECK(has(text, "Cost of full: 2.50 USD per hour, "));
      CHECK(has(text, " USD per million output tokens. Finding:"));
    }
  }
  const Outcome without = run_kvsim(Words{"plan"} + kSmall, folder);
  CHECK_FALSE(has(without.out, "Cost"));
}

TEST_CASE("a name of a quantized checkpoint implies its weights, and dtype takes precedence") {
  const fs::path folder = fresh("checkpoint");
  const auto weights = [&](const Words& more) {
    const Outcome outcome = run_kvsim(
        Words{"run", "--gpu", "H100-80GB-SXM", "--isl", "100", "--osl", "4", "--json"} + more,
        folder);
    REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
    return json::parse(outcome.out)
        .at("points")
        .at(0)
        .at("peak_owners")
        .at("weights")
        .get<double>();
  };
  const double fp8 = weights({"--model", "Qwen/Qwen3-30B-A3B-FP8"});
  const double bf16 = weights({"--model", "Qwen/Qwen3-30B-A3B"});
  CHECK(fp8 < 0.55 * bf16);
  CHECK(weights({"--model", "Qwen/Qwen3-30B-A3B-FP8", "--dtype", "bf16"}) == bf16);
  CHECK(weights({"--model", "Qwen/Qwen3-30B-A3B", "--dtype", "fp8-block"}) == fp8);
  const Outcome printed = run_kvsim({"run", "--model", "Qwen/Qwen3-30B-A3B-FP8", "--gpu",
                                     "H100-80GB-SXM", "--isl", "100", "--osl", "4"},
                                    folder);
  CHECK(has(one_line(printed.out),
            "- weights of qwen3-30b-a3b-fp8: fp8_e4m3: fp8-block, the rest bf16; as published"));
}

TEST_CASE("the printed scenario gives identical results") {
  for (const auto& [command, options] :
       {std::pair<std::string, Words>{"plan", kService + Words{"--price", "2.5"}},
        {"run", kService},
        {"plan", kSmall + Words{"--max-model-len", "32K", "--kv-cache-dtype", "fp8"}},
        {"run", kSmall + Words{"--isl", "2K", "--osl", "20", "--batch", "1,4"}}}) {
    INFO(fmt::format("{} {}", command, fmt::join(options, " ")));
    const fs::path folder = fresh("printed");
    const Outcome printed = run_kvsim(Words{command} + options + Words{"--print-scenario"}, folder);
    REQUIRE_MESSAGE(printed.status == 0, printed.err);
    const Words output{"-q", "--no-figures", "-o"};
    const Outcome by_options =
        run_kvsim(Words{command} + options + output + Words{"by-options"}, folder);
    CHECK_MESSAGE(by_options.status == 0, by_options.err);
    CHECK(by_options.err.empty());  // -q: also no notes
    // The name of a result is that of the file, here the default name for options.
    const bool plans = command == "plan";
    const fs::path main_file = folder / "by-options" / (plans ? "plan.json" : "result.json");
    const json result = json::parse(text_of(main_file));
    const std::string name = result.at("scenario").at("name");
    write(folder / (name + ".json"), printed.out);
    const Outcome by_file =
        run_kvsim(Words{command, name + ".json"} + output + Words{"by-file"}, folder);
    CHECK_MESSAGE(by_file.status == 0, by_file.err);
    std::size_t files = 0;
    for (const auto& entry : fs::recursive_directory_iterator{folder / "by-options"}) {
      if (!entry.is_regular_file()) continue;
      const fs::path relative = fs::relative(entry.path(), folder / "by-options");
      INFO(relative.string());
      CHECK(text_of(entry.path()) == text_of(folder / "by-file" / relative));
      ++files;
    }
    CHECK(files >= 3);
    const Words as_json{"--json", "-q"};
    CHECK(run_kvsim(Words{command} + options + as_json, folder).status == 0);
    if (plans) {
      CHECK(run_kvsim(Words{command} + options + as_json, folder).out ==
            run_kvsim(Words{command, name + ".json"} + as_json, folder).out);
    }
  }
}

TEST_CASE("lengths are numbers, ranges, lists and distributions") {
  const fs::path folder = fresh("lengths");
  const auto requests = [&](const Words& lengths) {
    return scenario_of(kSmall + Words{"--rate", "0.5", "--ttft", "1s"} + lengths, folder)
        .at("requests");
  };
  const json plain = requests({"--input-len", "2K", "--output-len", "300"});
  CHECK(plain.at("prompt_tokens") == 2048);
  CHECK(plain.at("output_tokens") == 300);
  CHECK(plain.at("count") == 1000);
  CHECK(plain.at("arrivals").at("rate") == 0.5);
  const json range = requests({"--isl", "1000-3000", "--osl", "lognormal:mean=200,p99=800"});
  CHECK(range.at("prompt_tokens") ==
        json::parse(R"({"kind": "uniform", "min": 1000, "max": 3000})"));
  CHECK(range.at("output_tokens") ==
        json::parse(R"({"kind": "lognormal", "mean": 200, "p99": 800})"));
  const json list = requests({"--isl", "1000,2000", "--osl", "100,200", "--num-prompts", "50"});
  REQUIRE(list.size() == 4);
  CHECK(list.at(1).at("output_tokens") == 200);
  CHECK(list.at(2).at("prompt_tokens") == 2000);
  CHECK(list.at(3).at("count") == 50);
  const json shared = requests({"--isl", "1000", "--osl", "10", "--prefix", "600"});
  CHECK(shared.at("prompt_tokens") == 400);
  CHECK(shared.at("shared_prefix") == json::parse(R"({"tokens": 600, "prompts": 1})"));
  // Without --rate: a static batch.
  const json batch = scenario_of(kSmall + Words{"--isl", "2K,4K", "--osl", "10"}, folder);
  CHECK(batch.at("prompt_tokens") == json::parse("[2048, 4096]"));
  CHECK_FALSE(batch.contains("kind"));
  // Assumed defaults are printed.
  const Outcome assumed = run_kvsim(
      Words{"plan"} + kSmall + Words{"--rate", "1", "--ttft", "1s", "--print-scenario"}, folder);
  CHECK(has(assumed.err, "assumed: --isl 8192"));
  CHECK(has(assumed.err, "assumed: --osl 512"));
  // Without --isl, the prompt length fits together with the output.
  const Outcome shorter = run_kvsim(
      Words{"plan"} + kSmall + Words{"--max-model-len", "4096", "--print-scenario"}, folder);
  CHECK(has(shorter.err, "assumed: --isl 3584, as --max-model-len 4096 allows"));
  CHECK(json::parse(shorter.out).at("prompt_tokens") == 3584);
  const json longer = scenario_of(kSmall + Words{"--max-model-len", "32K"}, folder);
  CHECK(longer.at("prompt_tokens") == 8192);
}

TEST_CASE("spellings of vLLM and AIConfigurator make the same scenario") {
  const fs::path folder = fresh("spellings");
  const json ours = scenario_of({"--model",
                                 "llama-3.1-70b",
                                 "--gpu",
                                 "H200-141GB-SXM",
                                 "--tp",
                                 "4",
                                 "--pp",
                                 "2",
                                 "--stack",
                                 "vllm",
                                 "--rate",
                                 "2",
                                 "--isl",
                                 "1000",
                                 "--osl",
                                 "100",
                                 "--e2e",
                                 "20s",
                                 "--kv-dtype",
                                 "fp8_e4m3",
                                 "--dtype",
                                 "fp8-tensor",
                                 "--max-model-len",
                                 "16384",
                                 "--max-num-seqs",
                                 "64",
                                 "--max-num-batched-tokens",
                                 "4096",
                                 "--gpu-memory-utilization",
                                 "0.85",
                                 "--block-size",
                                 "32"},
                                folder);
  CHECK(ours.at("engine") == json::parse(R"({"max_model_len": 16384, "max_num_seqs": 64,
    "prefill_chunk": 4096, "memory_fraction": 0.85, "block_tokens": 32})"));
  CHECK(ours.at("pipeline_parallel") == 2);
  CHECK(ours.at("dtype") == "fp8-tensor");
  CHECK(ours.at("kv_dtype") == "fp8_e4m3");
  json theirs = scenario_of({"--model-path",
                             "meta-llama/Llama-3.1-70B-Instruct",
                             "--system",
                             "h200_sxm",
                             "--tensor-parallel-size",
                             "4",
                             "-pp",
                             "2",
                             "--backend",
                             "VLLM",
                             "--request-rate",
                             "2",
                             "--random-input-len",
                             "1000",
                             "--random-output-len",
                             "100",
                             "--request-latency",
                             "20s",
                             "--kv-cache-dtype",
                             "fp8",
                             "--quantization",
                             "fp8",
                             "--max_model_len",
                             "16K",
                             "--max-num-seqs=64",
                             "--max_num_batched_tokens=4096",
                             "--gpu_memory_utilization",
                             "0.85",
                             "--block-size",
                             "32"},
                            folder);
  CHECK(theirs == ours);
  // "auto" is the default without the option.
  const json bare = scenario_of(kSmall, folder);
  CHECK(scenario_of(kSmall + Words{"--dtype", "auto", "--kv-cache-dtype", "auto"}, folder) == bare);
  CHECK(scenario_of(kSmall + Words{"--dtype", "BFloat16"}, folder).at("dtype") == "bf16");
  CHECK(scenario_of(kSmall + Words{"--quantization", "AWQ"}, folder).at("dtype") == "awq-int4");
  CHECK(scenario_of(kSmall + Words{"--enforce-eager"}, folder).at("engine").at("cuda_graphs") ==
        false);
  const json cached = scenario_of(kService + Words{"--enable-prefix-caching"}, folder);
  CHECK(cached.at("scheduler").at("prefix_caching") == true);
  CHECK(scenario_of(kService + Words{"--no-enable-prefix-caching"}, folder)
            .at("scheduler")
            .at("prefix_caching") == false);
  CHECK(scenario_of(kService + Words{"-dp", "2"}, folder).at("cluster").at("replicas") == 2);
}

TEST_CASE("each engine option changes the answer") {
  const fs::path folder = fresh("engine-options");
  const auto answers = [&](const Words& more) {
    const Outcome outcome = run_kvsim(
        Words{"plan"} + kSmall + Words{"--confidence", "0", "--json", "-q"} + more, folder);
    REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
    json all = json::parse(outcome.out).at("answers");
    for (json& one : all) one.erase("keys");
    return all;
  };
  const json bare = answers({});
  for (const Words& option :
       {Words{"--max-num-seqs", "16"}, Words{"--max-num-batched-tokens", "1024"},
        Words{"--gpu-memory-utilization", "0.5"}, Words{"--block-size", "512"},
        Words{"--enforce-eager"}, Words{"--kv-cache-dtype", "fp8"}, Words{"--quantization", "fp8"},
        Words{"--tp", "2"}}) {
    INFO(fmt::format("{}", fmt::join(option, " ")));
    CHECK(answers(option) != bare);
  }
}

TEST_CASE("max-model-len ends the longest context") {
  const fs::path folder = fresh("max-model-len");
  const Outcome outcome =
      run_kvsim(Words{"plan"} + kSmall + Words{"--max-model-len", "16K", "--json"}, folder);
  REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
  const json document = json::parse(outcome.out);
  const json& longest = document.at("answers").at(0).at("candidates").at(0);
  CHECK(longest.at("answer") == 16384);
  CHECK(longest.at("predicted") == 16384);
  CHECK(longest.at("runs_out").at("constraint") == "max_model_len");
  // 8,192 + 512 tokens exceed 8,192; without --isl, the prompt is shorter.
  CHECK(run_kvsim(Words{"plan"} + kSmall + Words{"--max-model-len", "8K"}, folder).status == 0);
  const Outcome none = run_kvsim(
      Words{"plan"} + kSmall + Words{"--max-model-len", "8K", "--isl", "8K", "--json"}, folder);
  CHECK(none.status == 1);
  const json batches = json::parse(none.out).at("answers").at(1);
  CHECK(batches.at("candidates").at(0).at("impossible").at("constraint") == "max_model_len");
}

TEST_CASE("names may be typed in any case, with other separators") {
  const fs::path folder = fresh("names");
  const json plain = scenario_of({"--model", "llama-3.1-8b", "--gpu", "H100-80GB-SXM", "--method",
                                  "snapkv,streaming-llm", "--stack", "hf-sdpa"},
                                 folder);
  CHECK(scenario_of({"--model", "Llama_3.1 8B", "--gpu", "h100_80gb sxm", "--method",
                     "SnapKV,Streaming_LLM", "--stack", "HF_SDPA"},
                    folder) == plain);
  // The version of a stack is preserved.
  CHECK(scenario_of(kSmall + Words{"--stack", "VLLM@0.19"}, folder).at("stack") == "vllm@0.19");
  CHECK(
      refusal(Words{"plan"} + kSmall + Words{"--stack", "vllm@"}, folder).starts_with("--stack: "));
  // In a file as well; its result contains the catalogue's names and the note.
  write(folder / "s.json", R"({"model": "Llama 3.1-8B", "gpu": "h100", "stack": "VLLM",
    "method": ["Full", {"name": "SnapKV", "budget": 0.2}], "prompt_tokens": 1000,
    "output_tokens": 10})");
  const Outcome ran = run_kvsim({"run", "s.json", "--json"}, folder);
  REQUIRE_MESSAGE(ran.status == 0, ran.err);
  const json result = json::parse(ran.out);
  const json& point = result.at("points").at(1);
  CHECK(point.at("gpu") == "H100-80GB-SXM");
  CHECK(point.at("method") == "snapkv");
  CHECK(point.at("stack") == "vllm");
  const json& notes = result.at("notes");
  CHECK(std::count_if(notes.begin(), notes.end(), [](const json& note) {
          return has(note.get<std::string>(), "\"h100\" is taken as H100-80GB-SXM");
        }) == 1);
  const Outcome summary = run_kvsim({"run", "s.json", "-o", "out", "--no-figures"}, folder);
  CHECK(has(summary.out, "\"h100\" is taken as H100-80GB-SXM"));
  CHECK(run_kvsim({"show", "method", "Streaming_LLM"}, folder).status == 0);
  CHECK(run_kvsim({"show", "stack", "VLLM"}, folder).status == 0);
  CHECK(has(run_kvsim({"show", "gpu", "a100"}, folder).err, "taken as A100-80GB-SXM"));
}

TEST_CASE("show stack lists the settings of each rule of an engine's defaults") {
  const fs::path folder = fresh("stack-rules");
  for (const char* stack : {"vllm", "sglang", "trtllm"}) {
    INFO(stack);
    const std::string text = run_kvsim({"show", "stack", stack}, folder).out;
    const std::size_t start = text.find("\nDefaults of ");
    REQUIRE(start != std::string::npos);
    std::istringstream lines{text.substr(start)};
    std::string line, rule;
    int rules = 0;
    while (std::getline(lines, line)) {
      if (line.starts_with("- ") || line.empty()) {
        if (!rule.empty()) CHECK_MESSAGE(!rule.ends_with(':'), rule);
        rule.clear();
      }
      if (line.starts_with("- ")) ++rules;
      if (line.starts_with("- ") || (!rule.empty() && line.starts_with("  "))) rule += line;
    }
    CHECK(rules > 1);
  }
}

TEST_CASE("messages name the typed option") {
  const fs::path folder = fresh("typed");
  const auto plan = [&](const Words& more) {
    return refusal(Words{"plan"} + kSmall + more, folder);
  };
  CHECK(plan({"--tensor-parallel-size", "x"}) ==
        "--tensor-parallel-size: expected integers in [1, 65536], such as 4096 or 32K, got \"x\"");
  CHECK(plan({"-tp", "0"}).starts_with("-tp: expected integers in [1, 65536]"));
  CHECK(plan({"--tp", "7"}).starts_with("--tp: "));  // 32 heads
  CHECK(plan({"--gpus", "7"}).starts_with("--gpus: "));
  CHECK(refusal({"plan", "--model", "llama-3.1-8b", "--gpu", "h300"}, folder)
            .starts_with("--gpu: unknown GPU \"h300\""));
  CHECK(refusal({"plan", "--model", "llama-3.1-8b", "--system", "h101_sxm"}, folder)
            .starts_with("--system: unknown GPU \"h101_sxm\"; did you mean"));
  CHECK(refusal({"run", "--model", "lama-3.1-8b", "--gpu", "h100"}, folder) ==
        "--model: unknown model \"lama-3.1-8b\"; did you mean \"llama-3.1-8b\"?");
  CHECK(plan({"--stack", "vlm"}) == "--stack: unknown stack \"vlm\"; did you mean \"vllm\"?");
  CHECK(plan({"--backend", "vlm"}).starts_with("--backend: unknown stack"));
  CHECK(plan({"--method", "snapkw"}) ==
        "--method: unknown method \"snapkw\"; did you mean \"snapkv\"?");
  CHECK(plan({"-m", "snapkw"}).starts_with("-m: unknown method"));
  CHECK(plan({"--kv-cache-dtype", "fp9"}).starts_with("--kv-cache-dtype: unknown format \"fp9\""));
  CHECK(plan({"--quantization", "gguf"}).starts_with("--quantization: unknown format \"gguf\""));
  CHECK(plan({"--gpu-memory-utilization", "90"}) ==
        "--gpu-memory-utilization: expected a number in [0.01, 1], such as 0.9, got \"90\"; 0.9?");
  CHECK(plan({"--max_num_seqs", "0"}).starts_with("--max_num_seqs: expected integers in [1, "));
  const auto service = [&](const Words& more) {
    return refusal(Words{"plan"} + kSmall + Words{"--rate", "5"} + more, folder);
  };
  CHECK(service({"--ttft", "2000"}) ==
        "--ttft: expected a time with its unit, such as 2s or 500ms, got \"2000\"; 2000s or "
        "2000ms?");
  CHECK(service({"--ttft", "2s", "--isl", "lognormal:mean=100"}).starts_with("--isl: "));
  CHECK(service({"--ttft", "2s", "--input-len", "gaussian:mean=100"}).starts_with("--input-len: "));
  CHECK(service({"--ttft", "2s", "--isl", "300-200"}).starts_with("--isl: expected tokens"));
  CHECK(service({"--ttft", "2s", "--percentile", "0.95"}) ==
        "--percentile: expected percent in [1, 100], such as 95, got \"0.95\"; 95?");
  CHECK(service({"--ttft", "2s", "--price", "cheap"}) ==
        "--price: expected a price of one GPU per hour, such as 2.5 or 2.2EUR, got \"cheap\"");
  CHECK(service({"--ttft", "2s", "--price", "h200=3"}).starts_with("--price: expected prices of"));
  CHECK(service({"--ttft", "2s", "--confidence", "90"}).ends_with("got \"90\"; 0.9?"));
  CHECK(
      service({"--ttft", "2s", "--prefix", "9000"}).starts_with("--prefix: expected fewer tokens"));
  CHECK(refusal(Words{"plan"} + kSmall + Words{"--request-rate", "-5", "--ttft", "2s"}, folder)
            .starts_with("--request-rate: expected requests per second"));
  CHECK(refusal({"plan", "--model", "llama-3.1-8b", "--gpu", "h100,h200", "--rate", "5", "--ttft",
                 "2s", "--price", "2.5"},
                folder)
            .starts_with("--price: expected a price for each GPU, such as H100-80GB-SXM=2.5"));
  CHECK(has(plan({"--tensor-parallel-size"}), "'--tensor-parallel-size' is missing"));
  CHECK(plan({"--set", "/batch=0"}).starts_with("--set /batch: "));
}

TEST_CASE("messages of every command name the typed option") {
  const fs::path folder = fresh("typed-letters");
  const std::string trace =
      (fs::path{KVSIM_SOURCE_DIR} / "traces/samples/books-treasure-512.safetensors").string();
  const Words replay{"replay", "-t", trace};
  CHECK(refusal(replay + Words{"-m", "h2o", "-b", "0.1,0.1"}, folder) == "-b 0.1 is given twice");
  CHECK(refusal(replay + Words{"-m", "h2o", "--budget", "0.1,0.1"}, folder) ==
        "--budget 0.1 is given twice");
  CHECK(refusal(replay + Words{"-m", "h2o,h2o"}, folder) == "-m h2o is given twice");
  CHECK(has(refusal(replay + Words{"-m", "h2o", "-b", "x"}, folder), "-b: expected "));
  CHECK(refusal(replay + Words{"-m", "h2o", "-b", "0.2", "-p", "sinks="}, folder)
            .ends_with(", got \"\""));
  CHECK(refusal({"sweep", "-t", trace, "-m", "h2o", "-v", "window=1,1"}, folder) ==
        "-v window: 1 is given twice");
  // Quoted text is the user's input, not the name of an option.
  CHECK(refusal({"sweep", "s.json", "-s", "--set"}, folder) ==
        R"(-s: expected /json/pointer=value, got "--set")");
}

TEST_CASE("--set /sweep next to options is refused with a hint") {
  const fs::path folder = fresh("set-sweep");
  for (const char* set : {R"(/sweep/axes=[{"key": "/batch", "values": [1, 2]}])", "/sweep={}"}) {
    CHECK(refusal(Words{"run"} + Words{"--model", "llama-3.1-8b", "--gpu", "H100-80GB-SXM"} +
                      Words{"--set", set},
                  folder) ==
          "--set /sweep: expected a scenario file; --print-scenario writes one to start from");
  }
  CHECK(fs::is_empty(folder));
}

TEST_CASE("meaningless combinations are refused with their options") {
  const fs::path folder = fresh("combinations");
  const auto plan = [&](const Words& more) {
    return refusal(Words{"plan"} + kSmall + more, folder);
  };
  for (const Words& option :
       {Words{"--ttft", "2s"}, Words{"--tpot", "50ms"}, Words{"--request-latency", "9s"},
        Words{"--percentile", "95"}, Words{"--pp", "2"}, Words{"--enable-prefix-caching"},
        Words{"--num-prompts", "9"}, Words{"--max-gpus", "8"}, Words{"--dp", "2"}}) {
    CHECK(plan(option).starts_with(option.front() + ": applies to services, but there is no load"));
  }
  CHECK(plan({"--rate", "5", "--ttft", "2s", "--batch-size", "8"})
            .starts_with("--batch-size: applies to static batches, but --rate makes a service"));
  CHECK(plan({"--rate", "5"}).starts_with("--rate: a plan of a service needs a bound"));
  CHECK(plan({"--dtype", "bf16", "--quantization", "fp8"}) ==
        "--dtype and --quantization both set the format of the weights; expected one of them");
  CHECK(plan({"--tp", "2", "--gpus", "2"}) ==
        "plan: --tp and --gpus are the same option; expected one of them");
  CHECK(plan({"--kv-cache-dtype", "auto,fp8"}).starts_with("--kv-cache-dtype: expected \"auto\""));
  CHECK(plan(kService + Words{"--no-enable-prefix-caching"}).starts_with("plan: --model is given"));
  CHECK(plan({"--rate", "5", "--ttft", "2s", "--enable-prefix-caching",
              "--no-enable-prefix-caching"}) ==
        "--enable-prefix-caching and --no-enable-prefix-caching contradict each other");
  write(folder / "s.json", "{}");
  CHECK(refusal({"plan", "s.json", "--confidence", "0.5"}, folder) ==
        "--confidence: expected options or a scenario file, got both (s.json); --set "
        "/plan/confidence=VALUE changes the file's key");
}

TEST_CASE("words of other tools and incomplete commands are refused with a hint") {
  const fs::path folder = fresh("other-words");
  CHECK(
      has(refusal({"serve"}, folder), "type `kvsim run --model llama-3.1-8b --gpu h100 --rate 2`"));
  // The message contains the typed word, not the word it resembles.
  CHECK(has(refusal({"optimise"}, folder), "unknown command \"optimise\"; type `kvsim plan --"));
  CHECK(refusal({"xyzzy"}, folder) == "unknown command \"xyzzy\"; `kvsim help` lists the commands");
  for (const char* word : {"simulate", "bench", "benchmark"}) {
    CHECK(has(refusal({word}, folder), "type `kvsim run --model"));
  }
  for (const char* word : {"estimate", "optimize", "cost"}) {
    CHECK(has(refusal({word}, folder), "type `kvsim plan --model"));
  }
  CHECK(has(refusal({"models"}, folder), "type `kvsim list models`"));
  CHECK(has(refusal({"my.json"}, folder), "type `kvsim run my.json`"));
  CHECK(refusal({"validate"}, folder) ==
        "validate: expected one of validate allocator, validate e2e, validate kernels, validate "
        "measured, validate published, validate served; `kvsim help validate` explains them");
  CHECK(has(refusal({"validate", "s.json"}, folder), "`kvsim run FILE` checks a scenario"));
  CHECK(has(refusal({"trace"}, folder), "trace: expected one of trace info"));
  // The commands printed in messages work.
  CHECK(run_kvsim({"run", "--model", "llama-3.1-8b", "--gpu", "h100", "--isl", "8K", "--batch", "8",
                   "--no-figures"},
                  folder)
            .status == 0);
  CHECK(run_kvsim({"plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--rate", "5", "--isl",
                   "2000", "--osl", "300", "--ttft", "2s"},
                  folder)
            .status == 0);
}

TEST_CASE("lists are filtered by a part of names") {
  const fs::path folder = fresh("list-filter");
  const auto names = [&](const Words& words) {
    const Outcome outcome = run_kvsim(Words{"list"} + words + Words{"--json"}, folder);
    REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
    Words out;
    const json document = json::parse(outcome.out);
    for (const json& entry : document.at("entries")) {
      out.push_back(entry.at("name"));
    }
    return out;
  };
  for (const std::string& name : names({"models", "QWEN3"})) CHECK(name.starts_with("qwen3"));
  CHECK(names({"models", "qwen3"}).size() >= 5);
  CHECK(names({"gpus", "h100"}) == Words{"H100-80GB-PCIe", "H100-80GB-SXM", "H100-NVL"});
  CHECK(names({"gpus", "H100_80GB SXM"}) == Words{"H100-80GB-SXM"});
  CHECK(names({"gpus", "hopper"}).size() > 4);  // the generation
  CHECK(names({"models", "llama3"}).size() > 5);
  for (const std::string& name : names({"methods", "KV"})) CHECK(has(name, "kv"));
  CHECK(names({"stacks", "VLLM"}).size() < names({"stacks"}).size());
  CHECK(names({"calibrations", "h100"}).size() < names({"calibrations"}).size());
  CHECK(has(run_kvsim({"list", "models", "qwen3"}, folder).out, "qwen3-32b"));
  CHECK_FALSE(has(run_kvsim({"list", "models", "qwen3"}, folder).out, "llama"));
  for (const char* kind : {"models", "gpus", "methods", "stacks", "calibrations"}) {
    CHECK(refusal({"list", kind, "no-such-name"}, folder) ==
          fmt::format("list {0}: no name contains \"no-such-name\"; `kvsim list {0}` lists all",
                      kind));
  }
  CHECK(has(refusal({"list", "devices", "x"}, folder), "list devices: expected no part"));
}

TEST_CASE("help groups the options and lists other spellings") {
  const fs::path folder = fresh("grouped-help");
  for (const char* command : {"run", "plan"}) {
    const std::string help = run_kvsim({"help", command}, folder).out;
    for (const char* part : {"model and hardware", "load (with --rate", "bounds of a service",
                             "engine:", "output:", "--tensor-parallel-size", "--input-len",
                             "--kv-cache-dtype", "--system"}) {
      CHECK(has(help, part));
    }
  }
}

TEST_CASE("options: a distribution without a number and equal values of a list are refused") {
  const fs::path folder = fresh("options-lengths");
  const auto said = [&](const Words& more) {
    Words words{"run", "--model", "llama-3.1-8b", "--gpu", "H100-80GB-SXM", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return complaint(words, folder);
  };
  const std::string forms =
      ": expected uniform:min=1,max=1023, lognormal:mean=1000,p99=4000 or another distribution "
      "with "
      "all of its numbers, got one without ";
  CHECK(has(said({"--rate", "1", "--isl", "uniform:min=1"}), "--isl" + forms + "max="));
  CHECK(has(said({"--rate", "1", "--osl", "lognormal:mean=9"}), "--osl" + forms + "p99="));
  CHECK(has(said({"--rate", "1", "--isl", "uniform:min=a,max=9"}),
            "--isl: min: expected an integer"));
  for (const auto& [option, value, twice] : {std::tuple{"--tp", "1,1", "1"},
                                             {"--batch", "2,4,2", "2"},
                                             {"--isl", "1K,1024", "1024"},
                                             {"--rate", "5,5.0", "5.0"}}) {
    CHECK(has(said({option, value}), fmt::format("{}: {} is given twice", option, twice)));
  }
}

}  // namespace
}  // namespace kvsim
