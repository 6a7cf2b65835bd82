// Launch commands printed for a user, and engine command lines as input.

#include <algorithm>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/sim/cli/program.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using test::fresh;
using test::has;
using test::Outcome;
using test::run_kvsim;
using test::Words;
namespace fs = std::filesystem;

Words operator+(Words first, const Words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

const Words kLoad{"--rate", "1", "--isl", "500", "--osl", "20", "--requests", "10"};
const Words kService = Words{"--gpu", "h100"} + kLoad;

json scenario_by(const Words& options, const fs::path& folder) {
  const Outcome outcome =
      run_kvsim(Words{"run"} + options + Words{"--print-scenario", "-q"}, folder);
  REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
  return json::parse(outcome.out);
}

/// The command line of the only role in a launch document.
std::string command_by(const Words& options, const fs::path& folder) {
  const Outcome outcome =
      run_kvsim(Words{"run"} + options + Words{"--print-command", "--json", "-q"}, folder);
  REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
  const json document = json::parse(outcome.out);
  CHECK(document.at("schema") == "kvsim.launch/1");
  REQUIRE(document.at("launches").size() == 1);
  return document.at("launches").at(0).at("roles").at(0).at("command").get<std::string>();
}

TEST_CASE("a printed command read back prints the same command") {
  const fs::path folder = fresh("launch_round_trip");
  const std::vector<Words> services{
      {"--model", "llama-3.1-8b"},
      {"--model", "qwen3-8b", "--stack", "vllm@0.8", "--tp", "2", "--max-model-len", "16K"},
      {"--model", "qwen3-8b", "--stack", "vllm@0.11", "--kv-dtype", "fp8", "--enforce-eager",
       "--no-enable-prefix-caching", "--max-num-seqs", "33", "--set",
       "/engine/async_scheduling=false", "--set", "/engine/api_servers=3"},
      {"--model", "deepseek-v3", "--gpu", "h200", "--tp", "8", "--set", "/engine/expert_parallel=8",
       "--set", R"(/speculation={"draft": "mtp", "tokens": 2})"},
      {"--model", "llama-3.1-8b", "--set", R"(/speculation={"draft": "llama-3.2-1b", "tokens": 3})",
       "--set", "/scheduler/order=priority", "--pp", "2"},
      {"--model", "llama-3.1-8b", "--dtype", "fp16"},
      {"--model", "qwen3.5-27b", "--set", "/engine/language_model_only=true"},
      {"--model", "nemotron-nano-9b-v2", "--set", "/engine/state_dtype=fp32"},
      {"--model", "qwen3-next-80b-a3b", "--gpu", "h200", "--stack", "sglang", "--set",
       "/engine/state_dtype=bf16"},
      {"--model", "llama-3.1-8b", "--quantization", "fp8", "--stack", "sglang", "--block-size",
       "16"},
      {"--model", "qwen3-8b", "--stack", "sglang@0.4.9", "--gpu-memory-utilization", "0.8", "--set",
       "/scheduler/policy=lpm"},
      {"--model", "qwen3-8b", "--stack", "sglang", "--set", "/scheduler/max_prefill_tokens=5500",
       "--set", "/scheduler/mixed_chunk=true"},
      {"--model", "qwen3-8b", "--stack", "trtllm", "--max-num-batched-tokens", "4096"},
      {"--model", "llama-3.1-8b", "--method", "int8-per-token-head"}};
  for (const Words& service : services) {
    const bool names_gpu = std::find(service.begin(), service.end(), "--gpu") != service.end();
    const Words rest = names_gpu ? kLoad : kService;
    const std::string printed = command_by(service + rest, folder);
    INFO(printed);
    Words again = rest + Words{"--from-command", printed};
    for (std::size_t i = 0; i + 1 < service.size(); ++i) {
      // The command does not contain the GPU and the release.
      if (service[i] == "--gpu" || service[i] == "--stack") {
        again = again + Words{service[i], service[i + 1]};
      }
    }
    CHECK(command_by(again, folder) == printed);
  }
}

TEST_CASE("a command line sets the keys of the scenario, and options take precedence") {
  const fs::path folder = fresh("launch_keys");
  const std::string command =
      "vllm serve 'Qwen/Qwen3-32B' -tp 4 --data-parallel-size 2 --enable-expert-parallel "
      "--max-model-len=32K --kv-cache-dtype fp8 --quantization awq_marlin --enable-prefix-caching "
      "--max-num-batched-tokens 2k --port 9000";
  const json made = scenario_by(kService + Words{"--from-command", command}, folder);
  CHECK(made.at("model") == "qwen3-32b");
  CHECK(made.at("gpu_count") == 4);
  CHECK(made.at("dtype") == "awq-int4");
  CHECK(made.at("kv_dtype") == "fp8_e4m3");
  CHECK(made.at("stack") == "vllm");
  CHECK(made.at("cluster") == json{{"replicas", 2}});
  CHECK(made.at("scheduler") == json{{"prefix_caching", true}});
  CHECK(made.at("engine") ==
        json{{"max_model_len", 32768}, {"prefill_chunk", 2000}, {"expert_parallel", 8}});
  const json changed = scenario_by(kService + Words{"--from-command", command, "--tp", "2", "--set",
                                                    "/engine/expert_parallel=1"},
                                   folder);
  CHECK(changed.at("gpu_count") == 2);
  CHECK(changed.at("engine").at("expert_parallel") == 1);
  CHECK(scenario_by(
            {"--gpu", "h200", "--from-command", "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 -dcp 4"},
            folder)
            .at("engine") == json{{"decode_context_parallel", 4}});
  CHECK(scenario_by({"--gpu", "h200", "--from-command",
                     "vllm serve deepseek-ai/DeepSeek-V3 -tp 2 -pcp 4 --enable-expert-parallel"},
                    folder)
            .at("engine") == json{{"prefill_context_parallel", 4}, {"expert_parallel", 8}});
  for (const char* flag :
       {"--language-model-only", R"(--limit-mm-per-prompt '{"image": 0, "video": 0}')",
        "--limit-mm-per-prompt.image 0 --limit-mm-per-prompt.video 0"}) {
    CHECK(scenario_by({"--gpu", "h200", "--from-command",
                       fmt::format("vllm serve Qwen/Qwen3.5-27B {}", flag)},
                      folder)
              .at("engine") == json{{"language_model_only", true}});
  }
  const Outcome images = run_kvsim(
      {"run", "--gpu", "h200", "--isl", "100", "--osl", "1", "--print-scenario", "--from-command",
       R"(vllm serve Qwen/Qwen3.5-27B --limit-mm-per-prompt '{"image": 2}')"},
      folder);
  CHECK(has(images.err, "--limit-mm-per-prompt"));
  const Outcome all_used =
      run_kvsim({"run", "--gpu", "H200-141GB-SXM", "--isl", "100", "--osl", "1", "--print-scenario",
                 "--from-command", "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 -dcp 4"},
                folder);
  CHECK(!has(all_used.err, "not part of the simulation"));
  // Each group of tensor-parallel GPUs has separate requests; all groups share the experts.
  const std::string shares =
      "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp-size 8 --dp-size 4 "
      "--enable-dp-attention";
  const Words eight = Words{"--gpu", "h200"} + kLoad;
  const json groups =
      scenario_by(eight + Words{"--from-command", shares + " --chunked-prefill-size 8192"}, folder);
  CHECK(groups.at("gpu_count") == 2);
  CHECK(groups.at("cluster") == json{{"replicas", 4}});
  CHECK(groups.at("engine") == json{{"prefill_chunk", 8192}, {"expert_parallel", 8}});
  CHECK(scenario_by(kService + Words{"--from-command",
                                     "vllm serve Qwen/Qwen3-8B --no-scheduler-reserve-full-isl"},
                    folder)
            .at("scheduler") == json{{"reserve_full_isl", false}});
  // Cache formats that are methods of the catalogue.
  CHECK(scenario_by({"--gpu", "h100", "--from-command",
                     "vllm serve Qwen/Qwen3-8B --kv-cache-dtype int8_per_token_head"},
                    folder)
            .at("method") == "int8-per-token-head");
}

TEST_CASE("a note lists the parts of a command that are not simulated") {
  const fs::path folder = fresh("launch_notes");
  const Outcome read = run_kvsim({"run", "--gpu", "H100-80GB-SXM", "--isl", "100", "--osl", "1",
                                  "--print-scenario", "--from-command",
                                  "A=1 vllm serve Qwen/Qwen3-8B --port 1 -tp 2 --cpu-offload-gb 4 "
                                  "--speculative-config '{\"method\": \"medusa\"}'",
                                  "--tp", "1"},
                                 folder);
  CHECK(read.status == 0);
  CHECK(has(read.err,
            "--from-command: not part of the simulation: --port, --cpu-offload-gb, "
            "speculation by medusa"));
  CHECK(has(read.err, "not part of the simulation: variable A"));
  CHECK(has(read.err, "--tp replaces the command's"));
}

TEST_CASE("broken commands and impossible launches end with status 2 and the reason") {
  const fs::path folder = fresh("launch_broken");
  const auto refused = [&](const Words& words) {
    const Outcome outcome = run_kvsim(words, folder);
    CHECK(outcome.status == 2);
    CHECK(outcome.out.empty());
    return outcome.err;
  };
  const Words run{"run", "--gpu", "h100", "-q", "--from-command"};
  CHECK(
      has(refused(run + Words{"vllm serve m --max-modl-len 3"}), "did you mean --max-model-len?"));
  CHECK(has(refused(run + Words{"vllm serve 'm"}), "character 12: expected a closing '"));
  CHECK(has(refused(run + Words{"vllm serve $M"}), "replace the variable by its value"));
  CHECK(has(refused(run + Words{"docker run x"}), "expected a command that begins with one of"));
  CHECK(has(refused(run + Words{"vllm serve no/such-model"}), "unknown model"));
  CHECK(has(refused(run + Words{"vllm serve Qwen/Qwen3-8B --kv-cache-dtype fp8_ds_mla"}),
            "this format of the cache is not simulated"));
  CHECK(has(refused(run + Words{"vllm serve Qwen/Qwen3-8B", "--stack", "sglang"}),
            "expected --stack vllm"));
  CHECK(
      has(refused({"run", "--from-command", "vllm serve Qwen/Qwen3-8B"}), "--gpu NAME is missing"));
  CHECK(has(refused({"run", "--model", "qwen3-8b", "--gpu", "h100", "-q", "--method", "snapkv",
                     "--print-command"}),
            "vLLM has no such method; software that has it: kvpress (SnapKVPress)"));
  CHECK(has(refused({"run", "--model", "qwen3-8b", "--gpu", "h100", "-q", "--manifest", "helm"}),
            "expected one of compose, kubernetes, llm-d, dynamo"));
  CHECK(has(
      refused({"run", "--model", "qwen3-8b", "--gpu", "h100,a100", "-q", "--manifest", "compose"}),
      "expected one deployment, got 2"));
}

TEST_CASE("a plan prints the launch of its best candidate") {
  const fs::path folder = fresh("launch_plan");
  const Words plan{"plan",  "--model", "llama-3.1-8b", "--gpu",    "h100",           "-q",
                   "--isl", "8K",      "--method",     "fp8-e4m3", "--print-command"};
  const Outcome both = run_kvsim(plan, folder);
  CHECK(both.status == 0);
  CHECK(has(both.out, "# longest context of llama-3.1-8b"));
  CHECK(has(both.out, "# largest batch of llama-3.1-8b"));
  CHECK(has(both.out, "--kv-cache-dtype fp8_e4m3"));  // the larger batch
  CHECK_FALSE(fs::exists(folder / "kvsim-out"));
  const Outcome one = run_kvsim(
      plan + Words{"--set", "/plan/questions=largest_batch", "--manifest", "kubernetes"}, folder);
  CHECK(one.status == 0);
  CHECK(has(one.out, "kind: Deployment"));
  const Outcome none = run_kvsim(
      {"plan", "--model", "llama-3.1-405b", "--gpu", "h100", "-q", "--print-command"}, folder);
  CHECK(none.status == 1);
  CHECK(none.out.empty());
  CHECK(has(none.err, "no answer, so no command"));
}

}  // namespace
}  // namespace kvsim
