// Launch commands of scenarios: every printed flag is in the engine's list of arguments, and
// settings that the engine does not have are refused.

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "models/launch/engine_command.hpp"
#include "models/methods/method.hpp"
#include "models/methods/resolve/availability.hpp"
#include "models/units/error.hpp"
#include "sim/launch/launch.hpp"
#include "sim/launch/launch_parts.hpp"
#include "sim/launch/manifest.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

json service(const std::string& stack) {
  return {{"kind", "serve"},
          {"model", "llama-3.1-8b"},
          {"gpu", "H100-80GB-SXM"},
          {"stack", stack},
          {"requests",
           {{"arrivals", {{"kind", "poisson"}, {"rate", 1}}},
            {"count", 2},
            {"prompt_tokens", 100},
            {"output_tokens", 10}}}};
}

Scenario scenario_from(json document) {
  document["schema"] = "kvsim.scenario/1";
  return scenario_of(document, "test.json", "test.json", false);
}

Launch launch_from(json document, const LaunchChoice& choice = {}) {
  const Scenario scenario = scenario_from(std::move(document));
  return launch_of(scenario.points.front(), choice);
}

std::string refusal(json document) {
  try {
    (void)launch_from(std::move(document));
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

/// The value after `flag`; "" for a flag without a value, "absent" if the flag is missing.
std::string value_of(const LaunchRole& role, const std::string& flag) {
  const auto at = std::find(role.words.begin(), role.words.end(), flag);
  if (at == role.words.end()) return "absent";
  return at + 1 == role.words.end() || (at + 1)->starts_with("--") ? "" : *(at + 1);
}

/// Independent of the parser: checks that every word with two dashes is a flag, or a flag's --no-
/// form, in the lists around that version.
void check_flags(const Launch& launch) {
  const auto version = parse_engine_version(launch.version);
  REQUIRE(version);
  for (const LaunchRole& role : launch.roles) {
    for (const std::string& word : role.words) {
      if (!word.starts_with("--")) continue;
      INFO(launch.engine->engine, " ", launch.version, " ", word);
      const std::string plain = word.starts_with("--no-") ? "--" + word.substr(5) : word;
      for (const std::size_t list :
           {launch.engine->around(*version).first, launch.engine->around(*version).second}) {
        CHECK(std::any_of(
            launch.engine->flags.begin(), launch.engine->flags.end(), [&](const EngineFlag& flag) {
              return flag.first <= list && list <= flag.last &&
                     (flag.name == word || (flag.name == plain && flag.type == FlagType::kSwitch));
            }));
      }
    }
  }
}

const std::vector<std::string> kStacks{"vllm@0.8",     "vllm@0.9.2",    "vllm@0.11", "vllm@0.15",
                                       "vllm@0.18",    "vllm@0.24",     "vllm",      "sglang@0.4.9",
                                       "sglang@0.5.4", "sglang@0.5.12", "sglang",    "trtllm@1.0",
                                       "trtllm@1.1",   "trtllm"};

TEST_CASE("every printed flag is in the lists of arguments of that version") {
  for (const std::string& stack : kStacks) {
    INFO(stack);
    json plain = service(stack);
    check_flags(launch_from(plain));
    json full = service(stack);
    full["gpu_count"] = 4;
    full["pipeline_parallel"] = 2;
    full["kv_dtype"] = "fp8_e4m3";
    full["engine"] = {{"max_model_len", 8192},
                      {"max_num_seqs", 64},
                      {"prefill_chunk", 4096},
                      {"memory_fraction", 0.85},
                      {"cuda_graphs", false}};
    full["scheduler"] = {{"prefix_caching", false}};
    full["cluster"] = {{"replicas", 3}, {"router", "least-loaded"}};
    const Launch launch = launch_from(full, {.method = {}, .copies = 2, .sequence_tokens = {}});
    check_flags(launch);
    REQUIRE(launch.roles.size() == 1);
    CHECK(launch.roles[0].replicas == 6);
    CHECK(launch.roles[0].gpus == 8);
    CHECK(launch.router == "least-loaded");
  }
}

TEST_CASE("the flags state the assumptions of the simulation") {
  const LaunchRole role = launch_from(service("vllm@0.30")).roles.front();
  CHECK(role.words[2] == "meta-llama/Llama-3.1-8B");
  CHECK(value_of(role, "--max-num-seqs") == "1024");  // an H100 has 80 GB
  CHECK(value_of(role, "--max-num-batched-tokens") == "8192");
  CHECK(value_of(role, "--gpu-memory-utilization") == "0.92");
  CHECK(value_of(role, "--block-size") == "16");
  CHECK(value_of(role, "--kv-cache-dtype") == "absent");
  CHECK(value_of(role, "--max-model-len") == "absent");  // the model's length, the engine's default

  json batch{{"model", "llama-3.1-8b"}, {"gpu", "H100-80GB-SXM"}, {"stack", "sglang"},
             {"prompt_tokens", 1000},   {"output_tokens", 24},    {"batch", 2}};
  const LaunchRole sglang = launch_from(batch).roles.front();
  CHECK(value_of(sglang, "--model-path") == "meta-llama/Llama-3.1-8B");
  CHECK(value_of(sglang, "--context-length") == "1024");
  CHECK(value_of(sglang, "--page-size") == "1");
  // The answer of a plan.
  const Launch found = launch_from(batch, {.method = {}, .copies = 1, .sequence_tokens = 4096});
  CHECK(value_of(found.roles.front(), "--context-length") == "4096");
}

TEST_CASE("weights' formats, speculation, experts and split roles have their flags") {
  json fp16 = service("vllm");
  fp16["dtype"] = "fp16";
  CHECK(value_of(launch_from(fp16).roles[0], "--dtype") == "float16");
  json fp8 = service("sglang");
  fp8["dtype"] = "fp8-tensor";
  CHECK(value_of(launch_from(fp8).roles[0], "--quantization") == "fp8");
  json mixed = service("sglang");
  mixed["scheduler"] = {{"max_prefill_tokens", 5500}, {"mixed_chunk", true}};
  const LaunchRole mixing = launch_from(mixed).roles[0];
  CHECK(value_of(mixing, "--max-prefill-tokens") == "5500");
  CHECK(value_of(mixing, "--enable-mixed-chunk") == "");
  json awq = service("vllm");
  awq["dtype"] = "awq-int4";
  const Launch checkpoint = launch_from(awq);
  CHECK(value_of(checkpoint.roles[0], "--quantization") == "absent");
  REQUIRE(checkpoint.notes.size() == 1);
  CHECK(checkpoint.notes[0].find("must be a checkpoint") != std::string::npos);

  json draft = service("vllm");
  draft["speculation"] = {{"draft", "llama-3.2-1b"}, {"tokens", 3}};
  CHECK(json::parse(value_of(launch_from(draft).roles[0], "--speculative-config")) ==
        json{{"model", "meta-llama/Llama-3.2-1B"}, {"num_speculative_tokens", 3}});

  json experts = service("vllm");
  experts["model"] = "deepseek-v3";
  experts["gpu"] = "H200-141GB-SXM";
  experts["gpu_count"] = 8;
  experts["engine"] = {{"expert_parallel", 8}};
  CHECK(value_of(launch_from(experts).roles[0], "--enable-expert-parallel") == "");
  experts["engine"]["expert_parallel"] = 16;
  experts["engine"]["expert_link"] = "50 GB/s";
  CHECK(refusal(experts).find("do not make groups of 16") != std::string::npos);
  experts["cluster"] = {{"replicas", 4}};
  const LaunchRole wide = launch_from(experts).roles[0];
  CHECK(value_of(wide, "--data-parallel-size") == "2");
  CHECK(wide.gpus == 16);
  CHECK(wide.replicas == 2);

  // SGLang's attention groups are parts of one engine: --tp-size counts the GPUs of all groups.
  json grouped = service("sglang@0.5.6");
  grouped["model"] = "deepseek-v3";
  grouped["gpu"] = "H200-141GB-SXM";
  grouped["gpu_count"] = 2;
  grouped["engine"] = {{"expert_parallel", 8}, {"prefill_chunk", 16384}, {"graph_sequences", 64}};
  grouped["cluster"] = {{"replicas", 8}};
  const LaunchRole groups = launch_from(grouped).roles[0];
  CHECK(value_of(groups, "--tp-size") == "8");
  CHECK(value_of(groups, "--dp-size") == "4");
  CHECK(value_of(groups, "--enable-dp-attention") == "");
  CHECK(value_of(groups, "--ep-size") == "8");
  CHECK(value_of(groups, "--chunked-prefill-size") == "16384");  // of all groups together
  CHECK(value_of(groups, "--cuda-graph-max-bs") == "64");
  CHECK(groups.gpus == 8);
  CHECK(groups.replicas == 2);
  grouped["engine"]["expert_parallel"] = 4;
  grouped["cluster"] = {{"replicas", 3}};  // not a multiple of two
  CHECK(refusal(grouped).find("SGLang requires the number of tensor-parallel GPUs") !=
        std::string::npos);

  json padded = service("vllm@0.19");
  padded["engine"] = {{"graph_padding", true}};
  CHECK(launch_from(padded).roles[0].words.size() > 1);
  padded["engine"]["graph_padding"] = false;
  CHECK(refusal(padded).find("vLLM always pads steps") != std::string::npos);

  json dealt = experts;
  dealt["cluster"] = nullptr;
  dealt["engine"] = {{"decode_context_parallel", 4}};
  CHECK(value_of(launch_from(dealt).roles[0], "--decode-context-parallel-size") == "4");
  dealt["engine"] = {{"prefill_context_parallel", 2}, {"expert_parallel", 16}};
  dealt["gpu"] = "GB200";
  const LaunchRole halves = launch_from(dealt).roles[0];
  CHECK(value_of(halves, "--prefill-context-parallel-size") == "2");
  CHECK(value_of(halves, "--enable-expert-parallel") == "");
  CHECK(halves.gpus == 16);
  CHECK(halves.replicas == 1);
  dealt["engine"] = {{"decode_context_parallel", 4}};
  dealt["stack"] = "vllm@0.9";
  CHECK(refusal(dealt).find("modelled for vLLM from 0.11 on") != std::string::npos);

  json split = service("vllm");
  split["cluster"] = {{"replicas", 2}, {"prefill_replicas", 1}};
  const Launch apart = launch_from(split);
  REQUIRE(apart.roles.size() == 2);
  CHECK(apart.roles[0].name == "prefill");
  CHECK(apart.roles[0].replicas == 1);
  CHECK(apart.roles[1].replicas == 2);
  for (const LaunchRole& role : apart.roles)
    CHECK(value_of(role, "--kv-transfer-config") != "absent");
  split["stack"] = "sglang";
  CHECK(value_of(launch_from(split).roles[0], "--disaggregation-mode") == "prefill");
}

TEST_CASE("an engine that loads no vision encoder has the flag of its version") {
  json text = service("vllm@0.30");
  text["model"] = "qwen3.5-27b";
  text["engine"] = {{"language_model_only", true}};
  CHECK(value_of(launch_from(text).roles.front(), "--language-model-only") != "absent");
  text["stack"] = "vllm@0.11";
  CHECK(value_of(launch_from(text).roles.front(), "--limit-mm-per-prompt") ==
        R"({"image": 0, "video": 0})");
  text["model"] = "llama-3.1-8b";  // which has no encoder
  CHECK(value_of(launch_from(text).roles.front(), "--limit-mm-per-prompt") == "absent");
}

TEST_CASE("the format of recurrent states has the name used by each engine") {
  json text = service("vllm@0.11");
  text["model"] = "nemotron-nano-9b-v2";
  text["engine"] = {{"state_dtype", "fp32"}};
  CHECK(value_of(launch_from(text).roles.front(), "--mamba-ssm-cache-dtype") == "float32");
  text["stack"] = "sglang";
  CHECK(value_of(launch_from(text).roles.front(), "--mamba-ssm-dtype") == "float32");
  text["engine"] = {{"state_dtype", "int8"}};
  CHECK_THROWS_WITH_AS(launch_from(text), doctest::Contains("expected one of fp32, bf16, fp16"),
                       InputError);
  text["model"] = "llama-3.1-8b";
  text["engine"] = {{"state_dtype", "fp32"}};
  CHECK_THROWS_WITH_AS(launch_from(text), doctest::Contains("has no recurrent states"), InputError);
}

TEST_CASE("SGLang's limit of requests with speculation is the printed one") {
  json drafts = service("sglang");
  CHECK(value_of(launch_from(drafts).roles.front(), "--max-running-requests") == "2048");
  drafts["speculation"] = {{"draft", "llama-3.2-1b"}, {"tokens", 3}};
  CHECK(value_of(launch_from(drafts).roles.front(), "--max-running-requests") == "48");
}

TEST_CASE("TensorRT-LLM's options without a flag are in its file") {
  json with = service("trtllm@1.2");
  with["kv_dtype"] = "fp8_e4m3";
  with["scheduler"] = {{"prefix_caching", false}};
  with["engine"] = {{"cuda_graphs", false}, {"block_tokens", 64}};
  const LaunchRole role = launch_from(with).roles[0];
  REQUIRE(role.files.size() == 1);
  CHECK(value_of(role, "--extra_llm_api_options") == role.files[0].name);
  CHECK(role.files[0].text ==
        "kv_cache_config:\n  dtype: fp8\n  tokens_per_block: 64\n  enable_block_reuse: false\n"
        "cuda_graph_config: null\n");
}

TEST_CASE("a method is a flag of the engine that supports it, and refused for others") {
  const std::map<std::string, std::string> software{
      {"vllm", "vllm"}, {"sglang", "sglang"}, {"trtllm", "trtllm"}};
  std::size_t printed = 0, refused = 0;
  for (const MethodInfo& method : builtin_methods()) {
    for (const auto& [stack, name] : software) {
      json document{{"model", "llama-3.1-8b"},
                    {"gpu", "H100-80GB-SXM"},
                    {"stack", stack},
                    {"prompt_tokens", 4096},
                    {"output_tokens", 16}};
      if (method.name != "full") document["method"] = method.name;
      if (takes_budget(method.name)) document["method"] = {{"name", method.name}, {"budget", 0.2}};
      Scenario scenario;
      try {
        scenario = scenario_from(document);
      } catch (const InputError&) {
        continue;  // needs a trace, or another model
      }
      const auto available = availability_of(method.name);
      const auto here = std::find_if(available.begin(), available.end(),
                                     [&](const Availability& one) { return one.software == name; });
      INFO(method.name, " on ", stack);
      try {
        const Launch launch = launch_of(scenario.points.front());
        check_flags(launch);
        CHECK(here != available.end());
        ++printed;
      } catch (const InputError& error) {
        const std::string text = error.what();
        CHECK(text.find(fmt::format("method {}: ", method.name)) != std::string::npos);
        if (here == available.end()) CHECK(text.find("has no such method") != std::string::npos);
        ++refused;
      }
    }
  }
  CHECK(printed >= 6);
  CHECK(refused > 50);
}

TEST_CASE("features that an engine or a version does not have are refused with the reason") {
  json ideal = service("vllm");
  ideal["stack"] = "hf-sdpa";
  ideal.erase("kind");
  ideal.erase("requests");
  ideal["prompt_tokens"] = 100;
  ideal["output_tokens"] = 10;
  CHECK(refusal(ideal) ==
        "launch command: stack \"hf-sdpa\" is not a server with known arguments; expected one of "
        "vllm, sglang, trtllm");
  json old = service("trtllm@0.12");
  CHECK(refusal(old) ==
        "launch command: the arguments of TensorRT-LLM are known from 0.20, got 0.12");
  json int8 = service("vllm@0.11");
  int8["method"] = "int8-per-token-head";
  CHECK(refusal(int8) ==
        "launch command: method int8-per-token-head: vLLM has it since 0.23, and the stack is vLLM "
        "0.11");
  json cache = service("sglang");
  cache["kv_dtype"] = "int8";
  CHECK(refusal(cache) == "launch command: cache in int8: SGLang 0.5.21 has no such format");
  json async = service("vllm@0.8");
  async["engine"] = {{"async_scheduling", true}};
  CHECK(refusal(async) ==
        "launch command: asynchronous scheduling: vLLM 0.8 has no --async-scheduling; 0.11 and "
        "later has it");
  json order = service("sglang");
  order["scheduler"] = {{"order", "shortest-declared"}};
  CHECK(refusal(order).find("has no such order") != std::string::npos);
}

TEST_CASE("the YAML is read identically by other parsers") {
  CHECK(
      yaml_text({{"a", 1}, {"b", {{"c", "x y"}, {"d", nullptr}}}, {"e", ordered_json::array()}}) ==
      "a: 1\nb:\n  c: \"x y\"\n  d: null\ne: []\n");
  CHECK(yaml_text({{"l", {"a", "1", "true", ""}}}) ==
        "l:\n  - a\n  - \"1\"\n  - \"true\"\n  - \"\"\n");
  CHECK(yaml_text({{"l", ordered_json::array({{{"a", 1}, {"b", {2}}}, {{"c", "d:e"}}})}}) ==
        "l:\n  - a: 1\n    b:\n      - 2\n  - c: \"d:e\"\n");
}

TEST_CASE("manifests contain every engine with its GPUs and its command") {
  json two = service("vllm");
  two["gpu_count"] = 2;
  two["cluster"] = {{"replicas", 2}};
  const Launch launch = launch_from(two);
  const auto count = [](const std::string& text, const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
      ++n;
    return n;
  };
  const std::string compose = manifest_text(launch, ManifestKind::kCompose, "My Service!");
  CHECK(compose.find("name: my-service\n") != std::string::npos);
  CHECK(count(compose, "image: \"vllm/vllm-openai:v0.30.0\"") == 2);
  for (const char* gpu : {"\"0\"", "\"1\"", "\"2\"", "\"3\""}) {
    CHECK(compose.find(fmt::format("              - {}\n", gpu)) != std::string::npos);
  }
  CHECK(compose.find("proxy_pass http://engines") != std::string::npos);
  const std::string kubernetes = manifest_text(launch, ManifestKind::kKubernetes, "a");
  CHECK(count(kubernetes, "kind: Deployment") == 1);
  CHECK(count(kubernetes, "kind: Service") == 1);
  CHECK(kubernetes.find("  replicas: 2\n") != std::string::npos);
  CHECK(count(kubernetes, "nvidia.com/gpu: 2\n") == 2);
  const std::string llm_d = manifest_text(launch, ManifestKind::kLlmD, "a");
  CHECK(llm_d.find("    tensor: 2\n") != std::string::npos);
  CHECK(llm_d.find("--tensor-parallel-size") == std::string::npos);  // the chart writes it
  CHECK(llm_d.find("  uri: \"hf://meta-llama/Llama-3.1-8B\"\n") != std::string::npos);
  const std::string dynamo = manifest_text(launch, ManifestKind::kDynamo, "a");
  CHECK(dynamo.find("kind: DynamoGraphDeployment\n") != std::string::npos);
  CHECK(dynamo.find("- dynamo.vllm\n") != std::string::npos);

  const Launch sglang = launch_from(service("sglang"));
  CHECK_THROWS_AS((void)manifest_text(sglang, ManifestKind::kLlmD, "a"), InputError);
  const Launch trt = launch_from(service("trtllm"));
  CHECK_THROWS_AS((void)manifest_text(trt, ManifestKind::kDynamo, "a"), InputError);
  CHECK_THROWS_AS((void)read_manifest_kind("helm", "--manifest"), InputError);
}

}  // namespace
}  // namespace kvsim
