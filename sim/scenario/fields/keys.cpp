#include "sim/scenario/fields/keys.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/check.hpp"
#include "models/units/units_format.hpp"
#include "sim/serve/schedulers/scheduler.hpp"

namespace kvsim {
namespace {

using Kind = KeyType::Kind;
constexpr KeyValues kPoints = KeyValues::kPoints;

constexpr KeyType text() { return {.kind = Kind::kText}; }
constexpr KeyType path() { return {.kind = Kind::kPath}; }
/// One of `words`, joined by ", "; any name if there are none.
constexpr KeyType name(std::string_view words = {}) {
  return {.kind = Kind::kName, .words = words};
}
constexpr KeyType name_of(std::vector<std::string> (*names)()) {
  return {.kind = Kind::kName, .names = names};
}
template <class Low, class High>
constexpr KeyType integer(Low low, High high) {
  return {
      .kind = Kind::kInteger, .low = static_cast<double>(low), .high = static_cast<double>(high)};
}
constexpr KeyType number(double low, double high) {
  return {.kind = Kind::kNumber, .low = low, .high = high};
}
constexpr KeyType boolean() { return {.kind = Kind::kBoolean}; }
constexpr KeyType size() { return {.kind = Kind::kSize}; }
constexpr KeyType time() { return {.kind = Kind::kTime}; }
constexpr KeyType above_0(Kind kind) { return {.kind = kind, .above = true}; }
constexpr KeyType object(std::string_view called) {
  return {.kind = Kind::kObject, .words = called};
}
constexpr KeyType of(Kind kind) { return {.kind = kind}; }

constexpr KeyType kTokens = integer(1, kMostPointTokens);
constexpr KeyType kOutputTokens = integer(0, kMostPointTokens);
constexpr KeyType kSeed = integer(0, kLargestSeed);
constexpr double kLargestNumber = 1e300;
constexpr KeyType kAnyNumber = number(-kLargestNumber, kLargestNumber);
constexpr KeyType kScale = number(1e-6, 1e6);

std::vector<std::string> figure_words() { return {figure_names().begin(), figure_names().end()}; }
std::vector<std::string> metric_words() {
  std::vector<std::string> words;
  for (const PublishedMetric& metric : published_metrics()) words.emplace_back(metric.name);
  return words;
}

constexpr std::array kPointKeys{
    ScenarioKey{.name = "model",
                .type = object("model"),
                .values = kPoints,
                .default_text = "required",
                .help = "the LLM: a name of `kvsim list models`, or a Hugging Face config.json"},
    ScenarioKey{.name = "gpu",
                .type = name(),
                .values = kPoints,
                .default_text = "required",
                .help = "a name of `kvsim list gpus`"},
    ScenarioKey{.name = "gpu_count",
                .type = integer(1, kMostGpus),
                .values = kPoints,
                .default_text = "1",
                .help = "GPUs that share the model by tensor parallelism; memory, work and traffic "
                        "of a result are per GPU, tokens per second are of all"},
    ScenarioKey{.name = "stack",
                .type = object("stack"),
                .values = kPoints,
                .default_text = "ideal",
                .help = "the serving software: a name of `kvsim list stacks`, with its version and "
                        "usage; \"vllm@0.19:llm\" is the same in one word"},
    ScenarioKey{.name = "calibration",
                .type = path(),
                .values = kPoints,
                .default_text = "builtin",
                .help = "the basis of times: builtin, nominal, or files of `kvsim calibrate`"},
    ScenarioKey{.name = "dtype",
                .type = of(Kind::kWeights),
                .values = kPoints,
                .default_text = "as published",
                .help = "element format of weights and activations, or a quantization of the "
                        "weights"},
    ScenarioKey{.name = "kv_dtype",
                .type = of(Kind::kFormat),
                .values = kPoints,
                .default_text = "dtype; 16-bit if that is quantized",
                .help = "element format of the cache"},
    ScenarioKey{.name = "batch",
                .type = integer(1, kMostBatch),
                .values = kPoints,
                .default_text = "1",
                .help = "sequences served together"},
    ScenarioKey{.name = "prompt_tokens",
                .type = kTokens,
                .values = kPoints,
                .default_text = "required",
                .help = "prompt length of each sequence; a plan that asks only for longest_context "
                        "needs none"},
    ScenarioKey{.name = "output_tokens",
                .type = kOutputTokens,
                .values = kPoints,
                .default_text = "required",
                .help =
                    "decode steps: tokens that each sequence generates after its prompt; 0 ends "
                    "after prefill. All are cached: a full cache ends at prompt_tokens + "
                    "output_tokens tokens"},
    ScenarioKey{.name = "method",
                .type = object("method"),
                .values = kPoints,
                .default_text = "full",
                .help = "the cache compression, a name of `kvsim list methods`"},
    ScenarioKey{.name = "memory",
                .type = object("memory"),
                .help = "corrections to the GPU's memory, and how it is allocated"},
    ScenarioKey{.name = "engine",
                .type = object("engine"),
                .default_text = "the stack's",
                .help = "settings of the stack's engine"},
    ScenarioKey{.name = "requests",
                .type = object("requests"),
                .values = kPoints,
                .default_text = "required of a service",
                .help = "the workload: a file of requests or a generator"},
    ScenarioKey{.name = "scheduler",
                .type = object("scheduler"),
                .values = kPoints,
                .default_text = "the stack's",
                .help = "how the engine forms its batches"},
    ScenarioKey{.name = "slo",
                .type = object("slo"),
                .default_text = "none",
                .help = "latency bounds of requests that count as goodput"},
    ScenarioKey{.name = "cluster",
                .type = object("cluster"),
                .values = kPoints,
                .default_text = "one replica",
                .help = "several engines behind one router"},
    ScenarioKey{.name = "pipeline_parallel",
                .type = integer(1, 1024),
                .values = kPoints,
                .default_text = "1",
                .help = "pipeline stages, each of gpu_count GPUs; at most the model's layers"},
    ScenarioKey{.name = "speculation",
                .type = object("speculation"),
                .values = kPoints,
                .default_text = "none",
                .help = "a draft model that proposes tokens, verified together"},
    ScenarioKey{.name = "host_memory",
                .type = size(),
                .default_text = "none",
                .help = "host memory of one replica for swapped and offloaded caches"},
    ScenarioKey{.name = "nvme",
                .type = object("nvme"),
                .default_text = "none",
                .help = "NVMe of one replica, for swapped caches that exceed host memory"},
    ScenarioKey{.name = "offload",
                .type = object("offload"),
                .default_text = "none",
                .help = "where entries are kept that a method holds but a step does not read"},
};

constexpr std::array kFirstKeys{
    ScenarioKey{
        .name = "schema", .type = name("kvsim.scenario/1"), .help = "the version of these keys"},
    ScenarioKey{.name = "title",
                .type = text(),
                .default_text = "the file's name",
                .help = "one line for tables and figures"},
    ScenarioKey{
        .name = "description", .type = text(), .help = "the question that the scenario answers"},
    ScenarioKey{.name = "extends",
                .type = path(),
                .values = KeyValues::kMany,
                .help = "scenario files whose keys apply unless this file sets them; later ones "
                        "win"},
    ScenarioKey{.name = "kind",
                .type = name("static, serve"),
                .default_text = "static",
                .help = "static: equal sequences, prefilled together and decoded in lock step; "
                        "serve: a service under a workload"},
    ScenarioKey{
        .name = "seed", .type = kSeed, .default_text = "0", .help = "seed of every random choice"},
};
constexpr std::array kLastKeys{
    ScenarioKey{.name = "points",
                .type = object("point"),
                .values = KeyValues::kList,
                .default_text = "one, of the keys above",
                .help = "groups of points: each takes the keys above and overrides some"},
    ScenarioKey{.name = "replay",
                .type = object("replay"),
                .default_text = "none",
                .help = "an attention trace to run through methods"},
    ScenarioKey{.name = "sweep",
                .type = object("sweep"),
                .default_text = "none",
                .help = "many runs, each with other values of some keys"},
    ScenarioKey{.name = "plan",
                .type = object("plan"),
                .default_text = "none",
                .help = "a search: the largest batch, the highest rate, the fewest GPUs, …"},
    ScenarioKey{.name = "published",
                .type = object("published"),
                .values = KeyValues::kList,
                .default_text = "none",
                .help = "values from the literature, shown next to the predicted ones",
                .may_be_empty = true},
    ScenarioKey{.name = "figures",
                .type = boolean(),
                .other = name_of(&figure_words),
                .values = KeyValues::kMany,
                .default_text = "all that apply",
                .help = "which figures are drawn"},
};
/// Keys of a point are keys of the scenario, too.
constexpr auto kScenarioKeys = [] {
  std::array<ScenarioKey, kFirstKeys.size() + kPointKeys.size() + kLastKeys.size()> all{};
  auto at = std::copy(kFirstKeys.begin(), kFirstKeys.end(), all.begin());
  at = std::copy(kPointKeys.begin(), kPointKeys.end(), at);
  std::copy(kLastKeys.begin(), kLastKeys.end(), at);
  return all;
}();

constexpr std::array kModelKeys{
    ScenarioKey{.name = "config",
                .type = path(),
                .default_text = "required",
                .help = "a Hugging Face config.json, relative to the scenario file"},
    ScenarioKey{.name = "name",
                .type = text(),
                .default_text = "name of the file's folder",
                .help = "the model's name in results"},
};
constexpr std::array kStackKeys{
    ScenarioKey{.name = "name",
                .type = name(),
                .default_text = "required",
                .help = "a name of `kvsim list stacks`"},
    ScenarioKey{.name = "version",
                .type = text(),
                .default_text = "the newest known",
                .help = "a release in quotes, such as \"0.19\": the engine's defaults are those of "
                        "that version"},
    ScenarioKey{.name = "usage",
                .type = name("server, llm"),
                .default_text = "server",
                .help = "the HTTP server, or the engine's offline class (vLLM's `LLM`), whose "
                        "defaults differ"},
};
constexpr std::string_view kBudgetHelp =
    "what is kept: a share of the prompt's cache (0.2, \"20 %\"), or entries per head (256, \"64 "
    "entries\")";
constexpr std::array kMethodKeys{
    ScenarioKey{.name = "name",
                .type = name(),
                .default_text = "required",
                .help = "a preset, or presets and single choices joined by +"},
    ScenarioKey{.name = "budget",
                .type = {.kind = Kind::kBudget, .low = 101},
                .values = kPoints,
                .default_text = "the method's",
                .help = kBudgetHelp},
    ScenarioKey{.name = "measured_on",
                .type = path(),
                .help = "an attention trace (safetensors), relative to the scenario file, that the "
                        "size law is measured on if it depends on the data"},
};
constexpr std::array kReplayMethodKeys{
    kMethodKeys[0],
    ScenarioKey{.name = "budget",
                .type = {.kind = Kind::kBudget, .low = 2},
                .values = kPoints,
                .default_text = "the method's",
                .help = kBudgetHelp},
    ScenarioKey{.name = "measured_on", .type = {}, .help = "not in a replay: it measures itself"},
};
constexpr std::array kMemoryKeys{
    ScenarioKey{.name = "hbm",
                .type = above_0(Kind::kSize),
                .default_text = "the catalogue's",
                .help = "HBM, nominal and usable, of a GPU that does not exist: what if it had "
                        "more?"},
    ScenarioKey{.name = "usable_hbm",
                .type = above_0(Kind::kSize),
                .default_text = "the catalogue's",
                .help = "HBM that the driver reports to a process, at most the nominal HBM"},
    ScenarioKey{.name = "allocator",
                .type = name("analytic, simulate"),
                .default_text = "analytic",
                .help = "simulate: every allocation also goes through PyTorch's caching allocator; "
                        "of services only in static batches"},
    ScenarioKey{.name = "alloc_conf",
                .type = text(),
                .default_text = "PyTorch's defaults",
                .help = "its settings, as PYTORCH_CUDA_ALLOC_CONF: \"expandable_segments:True\""},
};
constexpr std::array kEngineKeys{
    ScenarioKey{.name = "max_model_len",
                .type = kTokens,
                .other = name("workload"),
                .default_text = "the run's length; of a service the model's context",
                .help = "tokens of the longest sequence that the engine is configured for; "
                        "workload: the longest request's"},
    ScenarioKey{.name = "max_num_seqs",
                .type = kTokens,
                .default_text = "the stack's",
                .help = "sequences running at once"},
    ScenarioKey{.name = "prefill_chunk",
                .type = kTokens,
                .default_text = "the stack's",
                .help = "tokens of one iteration (vLLM's max_num_batched_tokens)"},
    ScenarioKey{.name = "block_tokens",
                .type = kTokens,
                .default_text = "the stack's",
                .help = "tokens of a block of a paged cache"},
    ScenarioKey{.name = "kv_blocks",
                .type = name("across-heads, per-head"),
                .default_text = "across-heads",
                .help = "of a service: whether a block of a paged cache holds all heads of a layer "
                        "or one"},
    ScenarioKey{.name = "compaction",
                .type = name("at-once, lazy"),
                .default_text = "at-once",
                .help = "of a service: whether entries are compacted whenever some are dropped, or "
                        "when a quarter of a layer's blocks is holes"},
    ScenarioKey{.name = "memory_fraction",
                .type = number(0.01, 1),
                .default_text = "the stack's",
                .help = "the share of the GPU's memory that the engine uses, as its stack defines "
                        "it (`kvsim show stack`): gpu_memory_utilization, mem_fraction_static, "
                        "free_gpu_memory_fraction, cache_max_entry_count"},
    ScenarioKey{.name = "cuda_graphs",
                .type = boolean(),
                .default_text = "the stack's",
                .help = "false: none are captured (enforce_eager)"},
    ScenarioKey{.name = "expert_parallel",
                .type = integer(1, 1024),
                .default_text = "1",
                .help = "GPUs that each layer's routed experts are distributed over; tokens reach "
                        "them in two all-to-all exchanges"},
    ScenarioKey{.name = "expert_imbalance",
                .type = number(1, 1024),
                .default_text = "1",
                .help = "tokens routed to the most loaded GPU, over the mean; 1: balanced"},
    ScenarioKey{.name = "expert_link",
                .type = above_0(Kind::kBandwidth),
                .default_text = "none",
                .help = "one GPU's link to the network between nodes, in one direction; required "
                        "if expert_parallel spans several nodes"},
    ScenarioKey{.name = "expert_link_latency",
                .type = time(),
                .default_text = "0 s",
                .help = "latency from one node to another"},
    ScenarioKey{.name = "weights",
                .type = size(),
                .default_text = "from the model",
                .help = "measured bytes of weights per GPU"},
    ScenarioKey{.name = "non_torch",
                .type = size(),
                .default_text = "the stack's",
                .help = "measured bytes outside the framework's allocator per GPU"},
    ScenarioKey{.name = "activation",
                .type = size(),
                .default_text = "from the model",
                .help = "measured peak of the start-up's profiling run"},
    ScenarioKey{.name = "graphs",
                .type = size(),
                .default_text = "the stack's",
                .help = "measured bytes of CUDA graphs per GPU"},
};
constexpr std::array kSchedulerKeys{
    ScenarioKey{.name = "name",
                .type = name_of(&scheduler_names),
                .values = kPoints,
                .default_text = "the stack's",
                .help = "the scheduler's policy"},
    ScenarioKey{.name = "order",
                .type = name("fcfs, priority, shortest-declared"),
                .values = kPoints,
                .default_text = "fcfs",
                .help = "which waiting request comes first"},
    ScenarioKey{.name = "max_num_batched_tokens",
                .type = kTokens,
                .values = kPoints,
                .default_text = "the stack's",
                .help = "tokens of one iteration; another name of /engine/prefill_chunk"},
    ScenarioKey{.name = "max_num_seqs",
                .type = kTokens,
                .values = kPoints,
                .default_text = "the stack's",
                .help = "sequences running at once; another name of /engine/max_num_seqs"},
    ScenarioKey{.name = "long_prefill_token_threshold",
                .type = kTokens,
                .values = kPoints,
                .default_text = "none",
                .help = "most tokens of one prompt in an iteration"},
    ScenarioKey{.name = "chunked_prefill",
                .type = boolean(),
                .values = kPoints,
                .default_text = "the scheduler's",
                .help = "whether a prompt may be prefilled over several iterations"},
    ScenarioKey{.name = "prefix_caching",
                .type = boolean(),
                .values = kPoints,
                .default_text = "the scheduler's",
                .help = "whether blocks of equal prefixes are shared and kept"},
    ScenarioKey{.name = "batch",
                .type = integer(1, kMostBatch),
                .values = kPoints,
                .default_text = "8",
                .help = "static: sequences per batch"},
    ScenarioKey{.name = "watermark",
                .type = number(0, 0.99),
                .values = kPoints,
                .default_text = "the scheduler's",
                .help = "share of blocks kept free when requests are admitted"},
    ScenarioKey{.name = "swap",
                .type = boolean(),
                .values = kPoints,
                .default_text = "false",
                .help = "vllm-v0: preempted caches move to host memory instead of being "
                        "recomputed"},
    ScenarioKey{.name = "policy",
                .type = name("fcfs, lpm, guaranteed-no-evict, max-utilization"),
                .values = kPoints,
                .default_text = "the scheduler's",
                .help = "sglang: fcfs or lpm (longest cached prefix first); trtllm: the other two"},
    ScenarioKey{.name = "conservativeness",
                .type = number(0, 1000),
                .values = kPoints,
                .default_text = "1",
                .help = "sglang: factor of its estimate of future output tokens "
                        "(schedule_conservativeness)"},
};
constexpr std::array kSloKeys{
    ScenarioKey{.name = "ttft",
                .type = above_0(Kind::kTime),
                .default_text = "none",
                .help = "bound of the time to the first token"},
    ScenarioKey{.name = "tpot",
                .type = above_0(Kind::kTime),
                .default_text = "none",
                .help = "bound of the mean time per token after the first"},
    ScenarioKey{.name = "e2e",
                .type = above_0(Kind::kTime),
                .default_text = "none",
                .help = "bound of the time to the last token"},
};
constexpr std::array kClusterKeys{
    ScenarioKey{.name = "replicas",
                .type = integer(1, 4096),
                .values = kPoints,
                .default_text = "1",
                .help = "engines that serve; with prefill_replicas, those that decode"},
    ScenarioKey{.name = "router",
                .type = name("round-robin, least-loaded, prefix-aware"),
                .values = kPoints,
                .default_text = "round-robin",
                .help = "which replica a request goes to"},
    ScenarioKey{.name = "prefill_replicas",
                .type = integer(0, 4096),
                .values = kPoints,
                .default_text = "0",
                .help = "above 0: engines that only prefill; the cache then moves to one that "
                        "decodes"},
    ScenarioKey{.name = "prefix_margin",
                .type = kOutputTokens,
                .values = kPoints,
                .default_text = "32",
                .help = "prefix-aware: requests that the replica with the prefix may have more "
                        "than the least loaded"},
    ScenarioKey{.name = "link",
                .type = above_0(Kind::kBandwidth),
                .values = kPoints,
                .default_text = "the GPU's NVLink or PCIe",
                .help = "from one replica to another, in one direction"},
    ScenarioKey{.name = "link_latency",
                .type = time(),
                .values = kPoints,
                .default_text = "0 s",
                .help = "latency from one replica to another"},
    ScenarioKey{.name = "compress_before_transfer",
                .type = boolean(),
                .values = kPoints,
                .default_text = "true",
                .help = "true: the entries that the method keeps move; false: the whole prompt's "
                        "cache"},
};
constexpr std::array kSpeculationKeys{
    ScenarioKey{.name = "draft",
                .type = name(),
                .values = kPoints,
                .default_text = "required",
                .help = "the draft model, a name of `kvsim list models`"},
    ScenarioKey{.name = "tokens",
                .type = integer(1, 64),
                .values = kPoints,
                .default_text = "4",
                .help = "tokens proposed per step"},
    ScenarioKey{.name = "acceptance",
                .type = number(0, 1),
                .values = kPoints,
                .default_text = "0.7",
                .help = "probability that a proposed token is accepted, given that those before it "
                        "were"},
};
constexpr std::array kNvmeKeys{
    ScenarioKey{.name = "capacity",
                .type = above_0(Kind::kSize),
                .default_text = "required",
                .help = "per replica"},
    ScenarioKey{.name = "read",
                .type = above_0(Kind::kBandwidth),
                .default_text = "required",
                .help = "per replica"},
    ScenarioKey{.name = "write",
                .type = above_0(Kind::kBandwidth),
                .default_text = "required",
                .help = "per replica"},
};
constexpr std::array kOffloadKeys{
    ScenarioKey{.name = "to",
                .type = name("host, nvme"),
                .default_text = "required",
                .help = "the memory that holds what a step reads partially"},
    ScenarioKey{.name = "prefetch",
                .type = boolean(),
                .default_text = "true",
                .help = "true: transfers overlap with the arithmetic of their step; false: they "
                        "precede it"},
    ScenarioKey{.name = "reuse",
                .type = number(0, 1),
                .default_text = "0",
                .help = "share of the entries read in a step that the previous step read"},
};
constexpr std::array kReplayKeys{
    ScenarioKey{.name = "trace",
                .type = path(),
                .default_text = "required",
                .help = "an attention trace (safetensors), relative to the scenario file"},
    ScenarioKey{.name = "methods",
                .type = object("replay_method"),
                .values = KeyValues::kMany,
                .default_text = "the points' methods",
                .help = "methods to run, written as under `method`"},
    ScenarioKey{.name = "per_step",
                .type = boolean(),
                .default_text = "true",
                .help = "keep the series over decode steps"},
    ScenarioKey{.name = "per_head",
                .type = boolean(),
                .default_text = "false",
                .help = "keep the means of every head"},
};
constexpr std::array kSweepKeys{
    ScenarioKey{.name = "mode",
                .type = name("grid, random"),
                .default_text = "grid",
                .help = "every combination of the axes' values, or samples drawn from them"},
    ScenarioKey{.name = "samples",
                .type = integer(1, kMostSweepPoints),
                .default_text = "required if random",
                .help = "number of combinations drawn"},
    ScenarioKey{.name = "seed",
                .type = kSeed,
                .default_text = "the scenario's",
                .help = "seed of the draws"},
    ScenarioKey{.name = "skip_impossible",
                .type = boolean(),
                .default_text = "false",
                .help = "true: impossible combinations (a budget for a method that takes none) are "
                        "listed with the reason; false: they are errors"},
    ScenarioKey{.name = "axes",
                .type = object("axis"),
                .values = KeyValues::kList,
                .default_text = "the keys given as lists",
                .help = "what is varied",
                .max_items = kMostAxes,
                .may_be_empty = true},
};
constexpr std::array kAxisKeys{
    ScenarioKey{.name = "key",
                .type = of(Kind::kPointer),
                .default_text = "required",
                .help = "the key that is varied, method parameters included: /method/budget"},
    ScenarioKey{.name = "values",
                .type = of(Kind::kAny),
                .values = KeyValues::kList,
                .default_text = "this or a range",
                .help = "its values; null removes the key",
                .max_items = kMostAxisValues},
    ScenarioKey{.name = "low",
                .type = kAnyNumber,
                .default_text = "with high",
                .help = "the least value of a range"},
    ScenarioKey{.name = "high",
                .type = kAnyNumber,
                .default_text = "with low",
                .help = "the greatest value of a range"},
    ScenarioKey{.name = "scale",
                .type = name("linear, log"),
                .default_text = "linear",
                .help = "how a range is divided or sampled"},
    ScenarioKey{.name = "integer",
                .type = boolean(),
                .default_text = "false",
                .help = "only whole numbers"},
    ScenarioKey{.name = "steps",
                .type = integer(2, kMostAxisValues),
                .default_text = "required in a grid",
                .help = "number of values of a range, both ends included"},
    ScenarioKey{.name = "unit",
                .type = text(),
                .default_text = "none",
                .help = "unit of the numbers: with \"GiB\", 40 is \"40 GiB\""},
};
constexpr std::array kPlanKeys{
    ScenarioKey{.name = "questions",
                .type = name("longest_context, largest_batch, highest_rate, fewest_gpus"),
                .values = KeyValues::kMany,
                .default_text = "required",
                .help =
                    "longest_context (of each batch), largest_batch (of each prompt); of services "
                    "highest_rate, fewest_gpus"},
    ScenarioKey{.name = "confidence",
                .type = number(0, 0.999),
                .default_text = "0",
                .help = "0: answers are predictions, with a 90 % range next to them; above 0: "
                        "answers are safe, at the unfavourable end of the interval that contains "
                        "this share of cases"},
    ScenarioKey{.name = "attainment",
                .type = number(0.01, 1),
                .default_text = "0.9",
                .help = "share of requests that must meet all bounds of slo; tables and figures "
                        "show the least of p50, p90, p95 and p99 that reaches it"},
    ScenarioKey{.name = "quality",
                .type = object("quality"),
                .default_text = "none",
                .help = "how much worse than the full cache a method may be"},
    ScenarioKey{.name = "prices",
                .type = of(Kind::kPrices),
                .default_text = "none",
                .help = "price of one GPU per hour, by its name, all in one currency: \"2.5 "
                        "USD/h\""},
    ScenarioKey{.name = "most_gpus",
                .type = integer(1, 4096),
                .default_text = "64",
                .help = "fewest_gpus: the largest number that is tried"},
    ScenarioKey{.name = "rate_step",
                .type = number(0.001, 1),
                .default_text = "0.01",
                .help = "highest_rate: the step between rates, as a share"},
    ScenarioKey{.name = "beyond_positions",
                .type = boolean(),
                .default_text = "false",
                .help = "true: sequences may exceed the positions that the model's configuration "
                        "declares"},
};
constexpr std::array kQualityKeys{
    ScenarioKey{.name = "trace",
                .type = path(),
                .default_text = "required",
                .help = "an attention trace (safetensors), relative to the scenario file"},
    ScenarioKey{.name = "max_rel_error",
                .type = number(0, 1e6),
                .default_text = "this or min_retained_mass",
                .help = "largest mean relative error of attention outputs"},
    ScenarioKey{.name = "min_retained_mass",
                .type = number(0, 1),
                .default_text = "this or max_rel_error",
                .help = "least mean share of attention probability that is kept; methods that "
                        "merge have none"},
    ScenarioKey{.name = "bisect_step",
                .type = number(0.001, 0.5),
                .default_text = "only the given budgets",
                .help = "distance of the budgets that are tried between the least and the greatest "
                        "given one"},
};
constexpr std::array kPublishedKeys{
    ScenarioKey{.name = "where",
                .type = object("where"),
                .default_text = "required if there are several points",
                .help = "keys and values that select one point"},
    ScenarioKey{.name = "metric",
                .type = name_of(&metric_words),
                .default_text = "required",
                .help = "the metric of the value"},
    ScenarioKey{.name = "value",
                .type = of(Kind::kQuantity),
                .default_text = "required",
                .help = "the value as published, with its unit if the metric has one"},
    ScenarioKey{.name = "source",
                .type = text(),
                .default_text = "required",
                .help = "the publication and the place in it"},
    ScenarioKey{.name = "note", .type = text(), .help = "if the value cannot be right: the reason"},
};
constexpr std::array kWhereKeys{
    ScenarioKey{.name = "model", .type = name(), .help = "the point's model"},
    ScenarioKey{.name = "gpu", .type = name(), .help = "the point's GPU"},
    ScenarioKey{.name = "stack", .type = name(), .help = "the point's stack"},
    ScenarioKey{.name = "calibration", .type = path(), .help = "the point's calibration"},
    ScenarioKey{.name = "method", .type = name(), .help = "the name of the point's method"},
    ScenarioKey{.name = "budget",
                .type = {.kind = Kind::kBudget, .low = 2},
                .help = "the method's budget as in the scenario"},
    ScenarioKey{.name = "dtype", .type = of(Kind::kWeights), .help = "the format of weights"},
    ScenarioKey{.name = "kv_dtype", .type = of(Kind::kFormat), .help = "the format of the cache"},
    ScenarioKey{.name = "batch", .type = integer(1, kMostBatch), .help = "the point's batch"},
    ScenarioKey{.name = "prompt_tokens", .type = kTokens, .help = "the point's prompt length"},
    ScenarioKey{
        .name = "output_tokens", .type = kOutputTokens, .help = "the point's output length"},
};
// traces/requests reads these; docs/requests.md explains them.
constexpr double kLargestCount = 2147483647;
constexpr KeyType kLength = of(Kind::kAnyObject);
constexpr std::array kRequestsKeys{
    ScenarioKey{.name = "file",
                .type = path(),
                .values = kPoints,
                .help = "a request trace, relative to the scenario file"},
    ScenarioKey{
        .name = "format", .type = name(), .default_text = "from its content", .help = "its layout"},
    ScenarioKey{.name = "skip_bad",
                .type = integer(0, kLargestCount),
                .default_text = "0",
                .help = "malformed records that may be skipped; they are counted"},
    ScenarioKey{.name = "sort",
                .type = boolean(),
                .default_text = "false",
                .help = "true: sort records by time; false: refuse records out of order"},
    ScenarioKey{.name = "chars_per_token",
                .type = number(0.1, 1000),
                .help = "ShareGPT without token counts: characters per token"},
    ScenarioKey{.name = "tokens_per_word",
                .type = number(0.01, 1000),
                .help = "ShareGPT without token counts: tokens per word"},
    ScenarioKey{.name = "arrivals",
                .type = object("arrivals"),
                .help = "arrivals of requests, or of the first requests of sessions"},
    ScenarioKey{.name = "count",
                .type = integer(1, kLargestCount),
                .default_text = "required of a generator",
                .help = "requests of a generator"},
    ScenarioKey{.name = "prompt_tokens",
                .type = kOutputTokens,
                .other = kLength,
                .default_text = "required of a generator",
                .help = "prompt lengths: a number, or a distribution"},
    ScenarioKey{.name = "output_tokens",
                .type = kOutputTokens,
                .other = kLength,
                .default_text = "required of a generator",
                .help = "output lengths: a number, or a distribution"},
    ScenarioKey{.name = "sessions", .type = of(Kind::kAnyObject), .help = "conversations"},
    ScenarioKey{.name = "shared_prefix",
                .type = of(Kind::kAnyObject),
                .help = "prompts that begin with one of a few texts"},
    ScenarioKey{.name = "think",
                .type = text(),
                .other = of(Kind::kAnyObject),
                .help = "closed loop: the pause before a user's next request"},
    ScenarioKey{.name = "prefix_block",
                .type = integer(1, kLargestCount),
                .default_text = "64",
                .help = "tokens per id of a shared prefix"},
    ScenarioKey{.name = "spread",
                .type = time(),
                .help = "arrivals with equal times are spread over this time"},
    ScenarioKey{.name = "from", .type = time(), .help = "only arrivals from this time on"},
    ScenarioKey{.name = "until", .type = time(), .help = "only arrivals before this time"},
    ScenarioKey{.name = "limit",
                .type = integer(1, kLargestCount),
                .values = kPoints,
                .help = "only the first requests"},
    ScenarioKey{.name = "repeat",
                .type = integer(1, 1'000'000),
                .default_text = "1",
                .help = "repetitions of the whole workload, one after another"},
    ScenarioKey{.name = "rate_scale",
                .type = kScale,
                .values = kPoints,
                .default_text = "1",
                .help = "2: twice the requests per second"},
    ScenarioKey{.name = "prompt_scale",
                .type = kScale,
                .values = kPoints,
                .default_text = "1",
                .help = "factor of prompt lengths"},
    ScenarioKey{.name = "output_scale",
                .type = kScale,
                .values = kPoints,
                .default_text = "1",
                .help = "factor of output lengths"},
    ScenarioKey{.name = "max_prompt_tokens", .type = kTokens, .help = "longer prompts are cut"},
    ScenarioKey{.name = "max_output_tokens", .type = kTokens, .help = "longer outputs are cut"},
    ScenarioKey{.name = "declared_tokens",
                .type = kTokens,
                .help = "max_tokens of every request; outputs end there"},
};
constexpr std::array kArrivalsKeys{
    ScenarioKey{.name = "kind",
                .type = name("poisson, gamma, fixed, closed"),
                .default_text = "required",
                .help = "distribution of arrivals, or a closed loop"},
    ScenarioKey{.name = "rate", .type = kScale, .values = kPoints, .help = "requests per second"},
    ScenarioKey{.name = "cv",
                .type = number(0.01, 30),
                .values = kPoints,
                .help = "gamma: coefficient of variation of the gaps"},
    ScenarioKey{.name = "users",
                .type = integer(1, kLargestCount),
                .values = kPoints,
                .help = "closed: users, each of which sends a request when its last one has ended"},
    ScenarioKey{.name = "ramp", .type = time(), .help = "closed: time over which the users start"},
};

constexpr std::array kObjects{
    ScenarioObject{"scenario", kScenarioKeys},
    ScenarioObject{"point", kPointKeys},
    ScenarioObject{.name = "model", .keys = kModelKeys, .name_instead = true},
    ScenarioObject{.name = "stack", .keys = kStackKeys, .name_instead = true},
    ScenarioObject{
        .name = "method", .keys = kMethodKeys, .name_instead = true, .has_parameters = true},
    ScenarioObject{"memory", kMemoryKeys},
    ScenarioObject{"engine", kEngineKeys},
    ScenarioObject{.name = "scheduler", .keys = kSchedulerKeys, .name_instead = true},
    ScenarioObject{"slo", kSloKeys},
    ScenarioObject{"cluster", kClusterKeys},
    ScenarioObject{"speculation", kSpeculationKeys},
    ScenarioObject{"nvme", kNvmeKeys},
    ScenarioObject{"offload", kOffloadKeys},
    ScenarioObject{"requests", kRequestsKeys},
    ScenarioObject{"arrivals", kArrivalsKeys},
    ScenarioObject{"sweep", kSweepKeys},
    ScenarioObject{"axis", kAxisKeys},
    ScenarioObject{"plan", kPlanKeys},
    ScenarioObject{"quality", kQualityKeys},
    ScenarioObject{"replay", kReplayKeys},
    ScenarioObject{.name = "replay_method",
                   .keys = kReplayMethodKeys,
                   .name_instead = true,
                   .has_parameters = true},
    ScenarioObject{"published", kPublishedKeys},
    ScenarioObject{"where", kWhereKeys},
};

constexpr std::array kMetrics{
    PublishedMetric{"kv_bytes", "bytes"},
    PublishedMetric{"kv_bytes_wanted", "bytes"},
    PublishedMetric{"peak_hbm_bytes", "bytes"},
    PublishedMetric{"reserved_hbm_bytes", "bytes"},
    PublishedMetric{"prefill_peak_bytes", "bytes"},
    PublishedMetric{"decode_peak_bytes", "bytes"},
    PublishedMetric{"throughput_tok_s", "tok/s"},
    PublishedMetric{"decode_tok_s", "tok/s"},
    PublishedMetric{"latency_s", "s"},
    PublishedMetric{"prefill_s", "s"},
    PublishedMetric{"oom_tokens", "tokens"},
    PublishedMetric{"oom", ""},
    PublishedMetric{"output_tok_s", "tok/s"},
    PublishedMetric{"total_tok_s", "tok/s"},
    PublishedMetric{"request_s", "req/s"},
    PublishedMetric{"goodput", "req/s"},
    PublishedMetric{"kv_capacity_tokens", "tokens"},
};

constexpr std::array<std::string_view, 3> kStaticOnly{"batch", "prompt_tokens", "output_tokens"};
constexpr std::array<std::string_view, 9> kServeOnly{
    "requests",    "scheduler",   "slo",  "cluster", "pipeline_parallel",
    "speculation", "host_memory", "nvme", "offload"};

constexpr std::array<std::string_view, 23> kFigures{
    "memory_vs_length",
    "throughput_vs_length",
    "peak_vs_final_length",
    "cache_size",
    "hbm_breakdown",
    "cache_per_layer",
    "error_vs_step",
    "bytes_vs_step",
    "replay_cache_per_layer",
    "error_vs_bytes",
    "error_vs_read",
    "ttft_cdf",
    "tpot_cdf",
    "itl_cdf",
    "e2e_cdf",
    "hbm_timeline",
    "running_timeline",
    "waiting_timeline",
    "throughput_ttft",
    "throughput_tpot",
    "throughput_e2e",
    "memory_vs_load",
    "goodput",
};

}  // namespace

std::span<const ScenarioObject> scenario_objects() { return kObjects; }

const ScenarioObject& scenario_object(std::string_view name) {
  const auto found =
      std::find_if(kObjects.begin(), kObjects.end(),
                   [&](const ScenarioObject& object) { return object.name == name; });
  KVSIM_CHECK(found != kObjects.end(), "no object of scenarios is called {}", name);
  return *found;
}

const ScenarioKey& scenario_key(std::string_view object, std::string_view key) {
  const std::span<const ScenarioKey> keys = scenario_object(object).keys;
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const ScenarioKey& candidate) {
    return candidate.name == key;
  });
  KVSIM_CHECK(found != keys.end(), "no key of {} is called {}", object, key);
  return *found;
}

std::vector<std::string> scenario_key_names(std::string_view object) {
  std::vector<std::string> names;
  for (const ScenarioKey& key : scenario_object(object).keys) names.emplace_back(key.name);
  return names;
}

std::vector<std::string> names_of(const KeyType& type) {
  if (type.names != nullptr) return type.names();
  std::vector<std::string> words;
  std::string_view rest = type.words;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(", "), rest.size());
    words.emplace_back(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 2, rest.size()));
  }
  return words;
}

namespace {

std::string kind_text(const KeyType& type) {
  switch (type.kind) {
    case Kind::kNone:
      return "null";
    case Kind::kText:
      return "text";
    case Kind::kPath:
      return "path";
    case Kind::kName:
      return "name";
    case Kind::kInteger:
      return "integer";
    case Kind::kNumber:
      return "number";
    case Kind::kBoolean:
      return "boolean";
    case Kind::kSize:
      return "size";
    case Kind::kTime:
      return "time";
    case Kind::kBandwidth:
      return "bandwidth";
    case Kind::kFormat:
    case Kind::kWeights:
      return "format";
    case Kind::kBudget:
      return "number or text";
    case Kind::kPointer:
      return "JSON pointer";
    case Kind::kPrices:
    case Kind::kAnyObject:
      return "object";
    case Kind::kQuantity:
      return "number, size, time or boolean";
    case Kind::kAny:
      return "any";
    case Kind::kObject:
      return scenario_object(type.words).name_instead ? "name, or object" : "object";
  }
  return "";
}

std::string kind_range(const KeyType& type) {
  switch (type.kind) {
    case Kind::kInteger:
      return type.high == static_cast<double>(kLargestSeed)
                 ? "0 to 2⁵³ − 1"
                 : fmt::format("{} to {}", with_commas(static_cast<std::int64_t>(type.low)),
                               with_commas(static_cast<std::int64_t>(type.high)));
    case Kind::kNumber:
      return type.high == kLargestNumber ? "" : fmt::format("{:g} to {:.7g}", type.low, type.high);
    case Kind::kSize:
    case Kind::kTime:
    case Kind::kBandwidth:
      return type.above ? "above 0" : "at least 0";
    case Kind::kBudget:
      return fmt::format("a share in (0, 1], or at least {:g} entries", type.low);
    case Kind::kName: {
      std::vector<std::string> words = names_of(type);
      for (std::string& word : words) word = "`" + word + "`";
      return fmt::format("{}", fmt::join(words, ", "));
    }
    default:
      return "";
  }
}

}  // namespace

std::string type_text(const ScenarioKey& key) {
  std::string text = kind_text(key.type);
  if (key.other.kind != Kind::kNone) text += ", or " + kind_text(key.other);
  switch (key.values) {
    case KeyValues::kOne:
      return text;
    case KeyValues::kPoints:
      return text + "; or list";
    case KeyValues::kMany:
      return text + ", or list";
    case KeyValues::kList:
      return "list of " + text + (text == "object" ? "s" : "");
  }
  return text;
}

std::string range_text(const ScenarioKey& key) {
  std::string text = kind_range(key.type);
  const std::string other = kind_range(key.other);
  if (!text.empty() && !other.empty()) text += ", ";
  text += other;
  if (key.max_items > 0)
    text += fmt::format("at most {}", with_commas(static_cast<std::int64_t>(key.max_items)));
  return text;
}

std::span<const std::string_view> keys_of_kind(bool serves) {
  if (serves) return kServeOnly;
  return kStaticOnly;
}

std::span<const std::string_view> figure_names() { return kFigures; }

std::span<const PublishedMetric> published_metrics() { return kMetrics; }

}  // namespace kvsim
