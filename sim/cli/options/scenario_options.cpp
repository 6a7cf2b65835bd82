#include "sim/cli/options/scenario_options.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include <fmt/format.h>

#include "sim/cli/options/figure_options.hpp"
#include "sim/cli/options/overrides.hpp"
#include "sim/cli/options/replay_request.hpp"
#include "sim/cli/options/scenario_flags.hpp"
#include "sim/launch/manifest.hpp"
#include "sim/scenario/fields/document.hpp"
#include "sim/scenario/fields/plan_field.hpp"

namespace kvsim {
namespace {

using Of = ScenarioFlag::Of;
using V = Option::Values;

// In the order of messages.
constexpr std::array kFlags{
    ScenarioFlag{"model", "/model"},
    ScenarioFlag{"gpu", "/gpu"},
    ScenarioFlag{"tp", "/gpu_count"},
    ScenarioFlag{"pp", "/pipeline_parallel", Of::kServices},
    ScenarioFlag{"replicas", "/cluster/replicas", Of::kServices},
    ScenarioFlag{"stack", "/stack"},
    ScenarioFlag{"method", "/method"},
    ScenarioFlag{"method-lib", "/method"},
    ScenarioFlag{"budget", "/method/budget"},
    ScenarioFlag{"param", "/method"},
    ScenarioFlag{"rate", "/requests/arrivals/rate", Of::kServices},
    ScenarioFlag{"isl", "/requests/prompt_tokens"},
    ScenarioFlag{"isl", "/prompt_tokens"},
    ScenarioFlag{"osl", "/requests/output_tokens"},
    ScenarioFlag{"osl", "/output_tokens"},
    ScenarioFlag{"prefix", "/requests/shared_prefix", Of::kServices},
    ScenarioFlag{"requests", "/requests/count", Of::kServices},
    ScenarioFlag{"batch", "/batch", Of::kBatches},
    ScenarioFlag{"ttft", "/slo/ttft", Of::kServices},
    ScenarioFlag{"tpot", "/slo/tpot", Of::kServices},
    ScenarioFlag{"e2e", "/slo/e2e", Of::kServices},
    ScenarioFlag{"percentile", "/plan/attainment", Of::kServices, true},
    ScenarioFlag{"price", "/plan/prices", Of::kBoth, true},
    ScenarioFlag{"confidence", "/plan/confidence", Of::kBoth, true},
    ScenarioFlag{"max-gpus", "/plan/most_gpus", Of::kServices, true},
    ScenarioFlag{"layouts", "/plan/layouts", Of::kServices, true},
    ScenarioFlag{"disaggregated", "/plan/disaggregated", Of::kServices, true},
    ScenarioFlag{"dtype", "/dtype"},
    ScenarioFlag{"quantization", "/dtype"},
    ScenarioFlag{"kv-dtype", "/kv_dtype"},
    ScenarioFlag{"max-model-len", "/engine/max_model_len"},
    ScenarioFlag{"max-num-seqs", "/engine/max_num_seqs"},
    ScenarioFlag{"max-num-batched-tokens", "/engine/prefill_chunk"},
    ScenarioFlag{"gpu-memory-utilization", "/engine/memory_fraction"},
    ScenarioFlag{"block-size", "/engine/block_tokens"},
    ScenarioFlag{"enforce-eager", "/engine/cuda_graphs"},
    ScenarioFlag{"enable-prefix-caching", "/scheduler/prefix_caching", Of::kServices},
    ScenarioFlag{"no-enable-prefix-caching", "/scheduler/prefix_caching", Of::kServices},
    ScenarioFlag{"print-scenario", ""},
    ScenarioFlag{"from-command", ""},
};

/// Adds `options` under one heading of the help.
void add_group(std::vector<Option>& all, const std::string& group, std::vector<Option> options) {
  for (Option& option : options) {
    option.group = group;
    all.push_back(std::move(option));
  }
}

/// Returns `option` with aliases.
Option also(Option option, std::vector<std::string> aliases) {
  option.aliases = std::move(aliases);
  return option;
}

std::vector<Option> hardware_options() {
  return {also({"model", 0, "NAME[,NAME…]", false,
                "the LLM: a name of `kvsim list models`, a Hugging Face name or a config.json",
                V::kModels},
               {"--model-path"}),
          also({"gpu", 0, "NAME[,NAME…]", false,
                "the GPU: a name of `kvsim list gpus`; h100 is the SXM card", V::kGpus},
               {"--system"}),
          also({"tp", 0, "N[,N…]", false, "GPUs that share the model by tensor parallelism (1)"},
               {"--tensor-parallel-size", "--tp-size", "--gpus", "-tp"}),
          also({"pp", 0, "N[,N…]", false, "for services: pipeline stages, each of --tp GPUs (1)"},
               {"--pipeline-parallel-size", "--pp-size", "-pp"}),
          also({"replicas", 0, "N[,N…]", false,
                "for services: engines behind a round-robin router (1)"},
               {"--data-parallel-size", "--dp", "-dp"}),
          also({"stack", 0, "NAME[,NAME…]", false,
                "the serving software: a name of `kvsim list stacks`, optionally with a version: "
                "vllm@0.19 "
                "(vllm)",
                V::kStacks},
               {"--backend"})};
}

std::vector<Option> load_options() {
  return {
      also({"rate", 0, "R[,R…]", false,
            "requests per second: the scenario is a service with Poisson arrivals"},
           {"--request-rate"}),
      also({"isl", 0, "TOKENS", false,
            fmt::format("input length: 2000, 32K or a list; for services also 1000-3000, "
                        "uniform:min=1,max=1023 or lognormal:mean=1000,p99=4000 ({})",
                        kFlagPrompt)},
           {"--input-len", "--prompt", "--random-input-len"}),
      also({"osl", 0, "TOKENS", false, fmt::format("output length, as --isl ({})", kFlagOutput)},
           {"--output-len", "--output", "--random-output-len"}),
      also({"prefix", 0, "TOKENS", false, "for services: input tokens that all requests share (0)"},
           {"--random-prefix-len"}),
      also({"requests", 0, "N", false,
            "for services: requests to simulate (10 minutes of load, at least 1000)"},
           {"--num-prompts"}),
      also({"batch", 0, "N[,N…]", false, "for static batches: sequences served together (1)"},
           {"--batch-size"})};
}

std::vector<Option> bound_options() {
  return {{"ttft", 0, "TIME", false, "longest time to the first token, such as 2s or 500ms"},
          {"tpot", 0, "TIME", false, "longest time per output token after the first, such as 50ms"},
          also({"e2e", 0, "TIME", false, "longest time from arrival to the last token"},
               {"--request-latency"})};
}

std::vector<Option> plan_options() {
  const PlanSection plan;  // its defaults
  return {
      {"percentile", 0, "P", false,
       fmt::format("for services: percentage of requests that must meet all bounds ({:g})",
                   100 * plan.attainment)},
      {"price", 0, "P", false,
       "price per GPU and hour: 2.5 (USD), 2.2EUR, or by GPU: h100=2.5,h200=3.5"},
      {"confidence", 0, "C", false,
       fmt::format("0 to 0.999: the answer allows for the error of the prediction in this share of "
                   "cases; 0: as predicted ({:g})",
                   plan.confidence)},
      also({"max-gpus", 0, "N", false,
            fmt::format("for services: largest number of GPUs to try ({})", plan.max_gpus)},
           {"--total-gpus"}),
      {"layouts", 0, "N", false,
       "for services: try every layout of tensor, pipeline and expert parallelism on at most N "
       "GPUs"},
      {"disaggregated", 0, "", false,
       "with --layouts: also try separate engines for prefill and decode"}};
}

std::vector<Option> compression_options() {
  return {
      {"method", 'm', "NAME[,NAME…]", true,
       "compression of the cache: a name of `kvsim list methods` (full), or FILE.py:CLASS",
       V::kMethods},
      method_lib_option(),
      {"budget", 'b', "B[,B…]", true,
       "budget of methods: a share of the prompt's cache (0.2, 20%), or entries per head (256)"},
      {"param", 'p', "NAME=VALUE", true, "a parameter, for the methods that have it"}};
}

std::vector<Option> engine_options() {
  return {
      {"dtype", 0, "FORMAT[,…]", false, "format of the weights; auto: as published", V::kFormats},
      {"quantization", 0, "NAME[,…]", false,
       "quantized weights, by vLLM's name: awq, gptq, fp8, bitsandbytes, mxfp4", V::kFormats},
      also({"kv-dtype", 0, "FORMAT[,…]", false,
            "format of the cache: auto (that of the activations), fp8, nvfp4, …", V::kCacheFormats},
           {"--kv-cache-dtype"}),
      also({"max-model-len", 0, "TOKENS", false, "longest sequence of the engine"},
           {"--context-length", "--max-seq-len"}),
      also({"max-num-seqs", 0, "N", false, "sequences that run at once"},
           {"--max-running-requests"}),
      also({"max-num-batched-tokens", 0, "N", false, "tokens per iteration"},
           {"--chunked-prefill-size", "--max-num-tokens"}),
      {"gpu-memory-utilization", 0, "X", false, "share of the GPU's memory that the engine uses"},
      {"block-size", 0, "N", false, "tokens per block of a paged cache"},
      {"enforce-eager", 0, "", false, "capture no CUDA graphs"},
      {"enable-prefix-caching", 0, "", false, "for services: share blocks of equal prefixes"},
      {"no-enable-prefix-caching", 0, "", false, "for services: do not share them"}};
}

std::vector<Option> deployment_options() {
  return {{"from-command", 0, "COMMAND", false,
           "options from an engine's command line in quotes: \"vllm serve MODEL --max-num-seqs "
           "64\"; needs --gpu"},
          {"print-command", 0, "", false,
           "only print the command that starts the engine of the answer"},
          {"manifest",
           0,
           "KIND",
           false,
           "only print that deployment as compose, kubernetes, llm-d or dynamo",
           Option::Values::kWords,
           {manifest_kinds().begin(), manifest_kinds().end()}}};
}

/// `pointer` without list indices: "/method/0/budget" becomes "/method/budget".
std::string without_indices(std::string_view pointer) {
  std::string out;
  while (!pointer.empty()) {
    const std::size_t end = std::min(pointer.find('/', 1), pointer.size());
    const std::string_view token = pointer.substr(0, end);
    const bool is_index =
        token.size() > 1 && std::all_of(token.begin() + 1, token.end(),
                                        [](unsigned char c) { return std::isdigit(c) != 0; });
    if (!is_index) out += token;
    pointer.remove_prefix(end);
  }
  return out;
}

bool is_within(std::string_view pointer, std::string_view parent) {
  return pointer == parent ||
         (pointer.starts_with(parent) && pointer.substr(parent.size()).starts_with('/'));
}

/// The option that sets the key at `pointer`: a --set, else the flag with the longest pointer,
/// preferring flags that are given. Empty if there is none.
std::string option_at(std::string_view pointer, const Arguments& arguments) {
  for (const Override& change : read_overrides(arguments)) {
    if (is_within(pointer, change.pointer)) return fmt::format("--set {}", change.pointer);
  }
  const std::string plain = without_indices(pointer);
  const ScenarioFlag* best = nullptr;
  for (const ScenarioFlag& flag : kFlags) {
    if (flag.pointer.empty() || !is_within(plain, flag.pointer)) continue;
    const bool is_better =
        best == nullptr || flag.pointer.size() > best->pointer.size() ||
        (flag.pointer == best->pointer && !arguments.has(best->name) && arguments.has(flag.name));
    if (is_better) best = &flag;
  }
  if (best != nullptr) return arguments.typed(best->name);
  // The error for an unknown key in --set is at the first unknown part of its pointer.
  for (const Override& change : read_overrides(arguments)) {
    if (is_within(change.pointer, pointer)) {
      return fmt::format("--set {}: {}", change.pointer, pointer);
    }
  }
  return "";
}

/// "max" of "/requests/prompt_tokens/max" or "/requests/prompt_tokens/1/max": a key of the
/// distribution in --isl or --osl. Empty if there is none.
std::string key_of_length(std::string_view pointer) {
  const std::string plain = without_indices(pointer);
  for (const std::string_view parent : {"/requests/prompt_tokens/", "/requests/output_tokens/"}) {
    if (plain.starts_with(parent)) return plain.substr(parent.size());
  }
  return "";
}

}  // namespace

std::span<const ScenarioFlag> scenario_flags() { return kFlags; }

std::vector<Option> scenario_command_options(std::string out, std::string_view schema) {
  std::vector<Option> all;
  add_group(all, "model and hardware (in place of a scenario file)", hardware_options());
  add_group(all, "load (with --rate a service, without it a static batch)", load_options());
  add_group(all, "bounds of a service", bound_options());
  add_group(all, "plans (with one of these, `kvsim run` answers like `kvsim plan`)",
            plan_options());
  add_group(all, "compression of the cache", compression_options());
  add_group(all, "engine", engine_options());
  add_group(
      all, "scenario",
      {{"set", 's', "/KEY=VALUE", true,
        "override a key of the scenario: JSON pointer, JSON value or a word", V::kKeys},
       skip_bad_option(),
       {"print-scenario", 0, "", false, "only print the scenario that results from the options"}});
  add_group(all, "deployment (vLLM, SGLang, TensorRT-LLM)", deployment_options());
  add_group(
      all, "output",
      {{"out", 'o', "DIR", false, std::move(out), V::kFolders},
       {"json", 0, "", false,
        fmt::format("print JSON (schema {}) and nothing else; no folder without -o", schema)},
       {"no-figures", 0, "", false, "leave figures and report.html out of the results folder"},
       {"no-report", 0, "", false, "leave report.html out of it"},
       formats_option(),
       {"threads", 'j', "N", false, "threads (0: all of the machine); results do not depend on it"},
       {"quiet", 'q', "", false, "no summary, no progress"}});
  return all;
}

InputError named_by_option(const InputError& error, const Arguments& arguments) {
  const std::string text = error.what();
  const std::string head = fmt::format("{}: /", kOptionsPlace);
  if (!text.starts_with(head)) return error;
  const std::size_t begin = head.size() - 1;
  const std::size_t end = text.find(": ", begin);
  if (end == std::string::npos) return error;
  const std::string pointer = text.substr(begin, end - begin);
  const std::string option = option_at(pointer, arguments);
  if (option.empty()) return error;
  const std::string key = key_of_length(pointer);
  if (key.empty() || option.starts_with("--set")) return InputError{option + text.substr(end)};
  if (text.substr(end) == ": missing") {
    return InputError{
        option,
        "uniform:min=1,max=1023, lognormal:mean=1000,p99=4000 or another distribution "
        "with all of its numbers",
        fmt::format("one without {}=", key)};
  }
  return InputError{fmt::format("{}: {}{}", option, key, text.substr(end))};
}

}  // namespace kvsim
