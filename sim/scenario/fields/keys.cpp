#include "sim/scenario/fields/keys.hpp"

#include <array>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::array kPointKeys{
    ScenarioKey{"model", "name, or {config, name}; or list", "", "required",
                "the LLM: a name of `kvsim list models`, or a Hugging Face config.json"},
    ScenarioKey{"gpu", "name; or list", "", "required", "a name of `kvsim list gpus`"},
    ScenarioKey{"gpu_count", "integer; or list", "1 to 65536", "1",
                "GPUs that share the model by tensor parallelism; results are of one GPU"},
    ScenarioKey{"stack", "name, or {name, version, usage}; or list", "", "ideal",
                "the software that serves: a name of `kvsim list stacks`, with its version and how "
                "it is started; \"vllm@0.19:llm\" says the same in one word"},
    ScenarioKey{"calibration", "word or path; or list", "", "builtin",
                "what times rest on: builtin, nominal, or files of `kvsim calibrate --measured`"},
    ScenarioKey{"dtype", "format; or list", "", "as published",
                "element format of weights and activations, or a quantisation of the weights"},
    ScenarioKey{"kv_dtype", "format; or list", "", "dtype; 16-bit where that is quantised",
                "element format of the cache"},
    ScenarioKey{"batch", "integer; or list", "1 to 1048576", "1", "sequences served together"},
    ScenarioKey{"prompt_tokens", "integer; or list", "1 to 16777216", "required",
                "prompt length of each sequence, tokens"},
    ScenarioKey{"output_tokens", "integer; or list", "0 to 16777216", "required",
                "decode steps: tokens each sequence generates after its prompt"},
    ScenarioKey{"method", "name, or {name, budget, …}; or list", "", "full",
                "the cache compression, a name of `kvsim list methods`"},
    ScenarioKey{"memory", "object", "", "",
                "corrections to the GPU's memory, and how it is allocated"},
    ScenarioKey{"engine", "object", "", "the stack's own", "what the run sets of its stack"},
    ScenarioKey{"requests", "object; or list", "", "required of a service",
                "the workload: a file of requests or a generator"},
    ScenarioKey{"scheduler", "name, or object; or list", "", "the stack's own",
                "how the engine forms its batches"},
    ScenarioKey{"slo", "object", "", "none", "bounds that a request has to keep to count as good"},
    ScenarioKey{"cluster", "object; or list", "", "one replica", "several engines behind one door"},
    ScenarioKey{"pipeline_parallel", "integer; or list", "1 to 1024", "1",
                "stages that the layers are cut into, each of gpu_count GPUs"},
    ScenarioKey{"speculation", "object; or list", "", "none",
                "a draft model that proposes tokens, verified together"},
    ScenarioKey{"host_memory", "size", "", "none",
                "host memory for swapped and offloaded caches, of one replica"},
    ScenarioKey{"nvme", "object", "", "none",
                "NVMe for swapped caches that host memory has no room for, of one replica"},
    ScenarioKey{"offload", "object", "", "none",
                "where entries stand that a method keeps but a step does not read"},
};

constexpr std::array kScenarioKeys{
    ScenarioKey{"schema", "\"kvsim.scenario/1\"", "", "", "the version of these keys"},
    ScenarioKey{"title", "text", "", "the file's name", "one line for tables and figures"},
    ScenarioKey{"description", "text", "", "", "the question that the scenario answers"},
    ScenarioKey{"extends", "path; or list", "", "",
                "scenario files whose keys hold where this one is silent; later ones win"},
    ScenarioKey{"kind", "\"static\" or \"serve\"", "", "static",
                "what is simulated: equal sequences in lock step, or a service under a workload"},
    ScenarioKey{"seed", "integer", "0 to 9007199254740991", "0", "seed of every random choice"},
    kPointKeys[0],
    kPointKeys[1],
    kPointKeys[2],
    kPointKeys[3],
    kPointKeys[4],
    kPointKeys[5],
    kPointKeys[6],
    kPointKeys[7],
    kPointKeys[8],
    kPointKeys[9],
    kPointKeys[10],
    kPointKeys[11],
    kPointKeys[12],
    kPointKeys[13],
    kPointKeys[14],
    kPointKeys[15],
    kPointKeys[16],
    kPointKeys[17],
    kPointKeys[18],
    kPointKeys[19],
    kPointKeys[20],
    kPointKeys[21],
    ScenarioKey{"points", "list of objects", "", "one, of the keys above",
                "groups of points: each takes the keys above and overrides some"},
    ScenarioKey{"replay", "object", "", "none", "an attention trace to run through methods"},
    ScenarioKey{"sweep", "object", "", "none", "many runs, each with other values of some keys"},
    ScenarioKey{"plan", "object", "", "none",
                "how far methods and GPUs go: the largest batch, the highest rate, …"},
    ScenarioKey{"published", "list of objects", "", "none",
                "figures from the literature to stand beside the predicted ones"},
    ScenarioKey{"figures", "false, or list of names", "", "all that apply",
                "which figures are drawn"},
};

constexpr std::array kModelKeys{
    ScenarioKey{"config", "path", "", "required",
                "a Hugging Face config.json, relative to the scenario file"},
    ScenarioKey{"name", "text", "", "name of the file's folder", "what results call the model"},
};
constexpr std::array kStackKeys{
    ScenarioKey{"name", "name", "", "required", "a name of `kvsim list stacks`"},
    ScenarioKey{"version", "text", "", "the newest known",
                "a release such as \"0.19\": the engine's defaults are those of that version"},
    ScenarioKey{"usage", "name", "server or llm", "server",
                "the HTTP server, or the engine's offline class, whose defaults differ"},
};
constexpr std::array kMethodKeys{
    ScenarioKey{"name", "name", "", "required",
                "a preset, or presets and single choices joined by +"},
    ScenarioKey{"budget", "number; or list", "fraction in (0, 1], or entries above 100",
                "the method's own",
                "what is kept: a share of the prompt's cache (0.2, \"20 %\"), or entries per head "
                "(256, \"64 entries\")"},
    ScenarioKey{
        "measured_on", "path", "", "",
        "an attention trace that the size law is measured on, where it depends on the data; "
        "relative to the scenario file"},
};
constexpr std::array kMemoryKeys{
    ScenarioKey{"hbm", "size", "", "the catalogue's",
                "HBM of a GPU that does not exist, nominal and usable alike: what if it had more?"},
    ScenarioKey{"usable_hbm", "size", "", "the catalogue's",
                "HBM the driver reports to a process, instead of the catalogue's"},
    ScenarioKey{"allocator", "name", "analytic or simulate", "analytic",
                "simulate: every allocation through PyTorch's caching allocator, too; "
                "of services, of those in static batches"},
    ScenarioKey{"alloc_conf", "text", "", "PyTorch's defaults",
                "its settings, as PYTORCH_CUDA_ALLOC_CONF; with allocator: simulate"},
};
constexpr std::array kEngineKeys{
    ScenarioKey{"max_model_len", "integer or \"workload\"", "1 to 16777216",
                "the run's length; of a service the model's context",
                "tokens of the longest sequence the engine is set up for; workload: the longest "
                "request's"},
    ScenarioKey{"max_num_seqs", "integer", "1 to 16777216", "the stack's",
                "sequences served at once"},
    ScenarioKey{"prefill_chunk", "integer", "1 to 16777216", "the stack's",
                "prompt tokens of the whole batch that one pass takes (max_num_batched_tokens)"},
    ScenarioKey{"block_tokens", "integer", "1 to 16777216", "the stack's",
                "tokens of a block of a paged cache"},
    ScenarioKey{"kv_blocks", "name", "across-heads, per-head", "across-heads",
                "of a service: whether a block of a paged cache holds all heads of a layer or one"},
    ScenarioKey{"compaction", "name", "at-once, lazy", "at-once",
                "of a service: whether survivors are written together as entries are dropped, or "
                "once a quarter of a layer's blocks is holes"},
    ScenarioKey{"memory_fraction", "number", "0.01 to 1", "the stack's",
                "share of the GPU's memory the engine takes, of what its stack counts by "
                "(`kvsim show stack`): gpu_memory_utilization, mem_fraction_static, "
                "free_gpu_memory_fraction, cache_max_entry_count"},
    ScenarioKey{"cuda_graphs", "boolean", "", "the stack's",
                "false: none are captured (enforce_eager)"},
    ScenarioKey{"expert_parallel", "integer", "1 to 1024", "1",
                "GPUs that each layer's routed experts are shared out over; tokens go to them and "
                "come back in two all-to-all exchanges"},
    ScenarioKey{"expert_imbalance", "number", "1 to 1024", "1",
                "tokens routed to the GPU with most of them, over the mean; 1: balanced"},
    ScenarioKey{"expert_link", "bandwidth", "above 0", "none",
                "one GPU's link to the network between nodes, one direction, where experts are "
                "shared out over several nodes"},
    ScenarioKey{"expert_link_latency", "time", "at least 0", "0 s",
                "of the way from one node to another"},
    ScenarioKey{"weights", "size", "", "from the model", "measured bytes of weights on a GPU"},
    ScenarioKey{"non_torch", "size", "", "the stack's",
                "measured bytes outside the framework's allocator on a GPU"},
    ScenarioKey{"activation", "size", "", "from the model",
                "measured peak of the start-up's profiling run"},
    ScenarioKey{"graphs", "size", "", "the stack's", "measured bytes of CUDA graphs on a GPU"},
};
constexpr std::array kSchedulerKeys{
    ScenarioKey{"name", "name", "static, vllm-v1, vllm-v0, sglang, trtllm", "the stack's own",
                "whose rules form the batches"},
    ScenarioKey{"order", "name", "fcfs, priority, shortest-declared", "fcfs",
                "which waiting request comes first"},
    ScenarioKey{"max_num_batched_tokens", "integer", "1 to 16777216", "the stack's",
                "tokens of one iteration; the same as engine's prefill_chunk"},
    ScenarioKey{"max_num_seqs", "integer", "1 to 16777216", "the stack's",
                "sequences running at once; the same as engine's"},
    ScenarioKey{"long_prefill_token_threshold", "integer", "1 to 16777216", "the scheduler's",
                "most tokens of one prompt in an iteration"},
    ScenarioKey{"chunked_prefill", "boolean", "", "the scheduler's",
                "whether a prompt may be prefilled over several iterations"},
    ScenarioKey{"prefix_caching", "boolean", "", "the scheduler's",
                "whether blocks of equal prefixes are shared and kept"},
    ScenarioKey{"batch", "integer", "1 to 1048576", "the scheduler's",
                "static: sequences of a batch"},
    ScenarioKey{"watermark", "number", "0 to 0.99", "the scheduler's",
                "share of blocks kept free when requests are admitted"},
    ScenarioKey{"swap", "boolean", "", "false",
                "vllm-v0: preempted caches go to host memory instead of being computed again"},
    ScenarioKey{"policy", "name", "fcfs, lpm, guaranteed-no-evict, max-utilization",
                "the scheduler's",
                "sglang: fcfs or lpm (longest cached prefix first); trtllm: the other two"},
    ScenarioKey{"conservativeness", "number", "0 to 1000", "1",
                "sglang: of its estimate of outputs to come (schedule_conservativeness)"},
};
constexpr std::array kSloKeys{
    ScenarioKey{"ttft", "time", "above 0", "none", "to the first token"},
    ScenarioKey{"tpot", "time", "above 0", "none", "mean time of a token after the first"},
    ScenarioKey{"e2e", "time", "above 0", "none", "to the last token"},
};
constexpr std::array kClusterKeys{
    ScenarioKey{"replicas", "integer", "1 to 4096", "1",
                "engines that serve; with prefill_replicas, those that decode"},
    ScenarioKey{"router", "name", "round-robin, least-loaded, prefix-aware", "round-robin",
                "which replica a request goes to"},
    ScenarioKey{"prefill_replicas", "integer", "0 to 4096", "0",
                "above 0: engines that only prefill; the cache then moves to one that decodes"},
    ScenarioKey{"prefix_margin", "integer", "0 to 16777216", "32",
                "prefix-aware: requests that the replica with the prefix may have more than the "
                "least loaded"},
    ScenarioKey{"link", "bandwidth", "above 0", "the GPU's NVLink or PCIe",
                "from one replica to another, one direction"},
    ScenarioKey{"link_latency", "time", "at least 0", "0 s",
                "of the way from one replica to another"},
    ScenarioKey{"compress_before_transfer", "boolean", "", "true",
                "whether the method's survivors move, or the whole prompt's cache"},
};
constexpr std::array kSpeculationKeys{
    ScenarioKey{"draft", "name", "", "required", "the draft model, a name of `kvsim list models`"},
    ScenarioKey{"tokens", "integer", "1 to 64", "4", "proposed a step"},
    ScenarioKey{"acceptance", "number", "0 to 1", "0.7",
                "of each proposed token, given that those before it were accepted"},
};
constexpr std::array kNvmeKeys{
    ScenarioKey{"capacity", "size", "above 0", "required", "of one replica"},
    ScenarioKey{"read", "bandwidth", "above 0", "required", "of one replica"},
    ScenarioKey{"write", "bandwidth", "above 0", "required", "of one replica"},
};
constexpr std::array kOffloadKeys{
    ScenarioKey{"to", "name", "host, nvme", "required",
                "the memory that holds what a step reads part of"},
    ScenarioKey{"prefetch", "boolean", "", "true",
                "whether transfers go on beside the arithmetic of their step, or before it"},
    ScenarioKey{"reuse", "number", "0 to 1", "0",
                "share of what a step reads that the step before had read"},
};
constexpr std::array kReplayKeys{
    ScenarioKey{"trace", "path", "", "required",
                "an attention trace (safetensors), relative to the scenario file"},
    ScenarioKey{"methods", "list of methods", "", "the points' methods",
                "methods to run, written as under `method`"},
    ScenarioKey{"per_step", "boolean", "", "true", "keep the series over decode steps"},
    ScenarioKey{"per_head", "boolean", "", "false", "keep the means of every head"},
};
constexpr std::array kSweepKeys{
    ScenarioKey{"mode", "grid or random", "", "grid",
                "every combination of the axes' values, or samples drawn from them"},
    ScenarioKey{"samples", "integer", "1 to 250000", "required where random",
                "how many combinations are drawn"},
    ScenarioKey{"seed", "integer", "0 to 9007199254740991", "the scenario's", "seed of the draws"},
    ScenarioKey{"skip_impossible", "boolean", "", "false",
                "list combinations that cannot be, with the reason, instead of refusing the sweep"},
    ScenarioKey{"axes", "list of objects", "", "the keys given as lists", "what is varied"},
};
constexpr std::array kAxisKeys{
    ScenarioKey{"key", "JSON pointer", "", "required", "the key that is varied: /method/budget"},
    ScenarioKey{"values", "list", "", "this or a range", "its values"},
    ScenarioKey{"low", "number", "", "with high", "the least value of a range"},
    ScenarioKey{"high", "number", "", "with low", "the greatest"},
    ScenarioKey{"scale", "linear or log", "", "linear", "how a range is divided or drawn from"},
    ScenarioKey{"integer", "boolean", "", "false", "whole numbers alone"},
    ScenarioKey{"steps", "integer", "2 to 100000", "required in a grid",
                "values of a range, both ends among them"},
    ScenarioKey{"unit", "text", "", "none", "what stands behind each number of a range: GiB"},
};
constexpr std::array kPlanKeys{
    ScenarioKey{"questions", "name, or list", "", "required",
                "longest_context, largest_batch; of services highest_rate, fewest_gpus"},
    ScenarioKey{"confidence", "number", "0 to 0.999", "0",
                "0: answers are predictions, with a 90 % range next to them; above 0: answers are "
                "safe, at the worse end of the interval that holds this share of cases"},
    ScenarioKey{"attainment", "number", "0.01 to 1", "0.9",
                "share of requests that keep all bounds of slo"},
    ScenarioKey{"quality", "object", "", "none",
                "how much worse than the full cache a method may be"},
    ScenarioKey{"prices", "object", "", "none", "what a GPU costs an hour, by its name"},
    ScenarioKey{"most_gpus", "integer", "1 to 4096", "64", "fewest_gpus: no more are tried"},
    ScenarioKey{"rate_step", "number", "0.001 to 1", "0.01",
                "highest_rate: the step between rates, as a share"},
    ScenarioKey{"beyond_positions", "boolean", "", "false",
                "true: sequences may exceed the positions that the model's configuration declares"},
};
constexpr std::array kQualityKeys{
    ScenarioKey{"trace", "path", "", "required",
                "an attention trace (safetensors), relative to the scenario file"},
    ScenarioKey{"max_rel_error", "number", "0 to 1000000", "this or min_retained_mass",
                "most mean relative error of attention outputs"},
    ScenarioKey{"min_retained_mass", "number", "0 to 1", "this or max_rel_error",
                "least mean share of attention probability that is kept"},
    ScenarioKey{"bisect_step", "number", "0.001 to 0.5", "only budgets that are given",
                "budgets between the least and the greatest given one are tried, so far apart"},
};
constexpr std::array kPublishedKeys{
    ScenarioKey{"where", "object", "", "required where there are several points",
                "keys and values that pick one point"},
    ScenarioKey{"metric", "name", "", "required", "what the figure is of"},
    ScenarioKey{"value", "number, size or time", "", "required", "the figure as published"},
    ScenarioKey{"source", "text", "", "required", "who says so, and where"},
    ScenarioKey{"note", "text", "", "", "where the figure cannot be right, why"},
};
constexpr std::array kWhereKeys{
    ScenarioKey{"model", "name", "", "", "the point's model"},
    ScenarioKey{"gpu", "name", "", "", "the point's GPU"},
    ScenarioKey{"stack", "name", "", "", "the point's stack"},
    ScenarioKey{"calibration", "word or path", "", "", "the point's calibration"},
    ScenarioKey{"method", "name", "", "", "the point's method"},
    ScenarioKey{"budget", "number", "", "", "the method's budget as the scenario gives it"},
    ScenarioKey{"dtype", "format", "", "", "the point's format of weights"},
    ScenarioKey{"kv_dtype", "format", "", "", "the point's format of the cache"},
    ScenarioKey{"batch", "integer", "", "", "the point's batch"},
    ScenarioKey{"prompt_tokens", "integer", "", "", "the point's prompt length"},
    ScenarioKey{"output_tokens", "integer", "", "", "the point's output length"},
};

constexpr std::array kObjects{
    ScenarioObject{"scenario", kScenarioKeys},
    ScenarioObject{"point", kPointKeys},
    ScenarioObject{"model", kModelKeys},
    ScenarioObject{"stack", kStackKeys},
    ScenarioObject{"method", kMethodKeys},
    ScenarioObject{"memory", kMemoryKeys},
    ScenarioObject{"engine", kEngineKeys},
    ScenarioObject{"scheduler", kSchedulerKeys},
    ScenarioObject{"slo", kSloKeys},
    ScenarioObject{"cluster", kClusterKeys},
    ScenarioObject{"speculation", kSpeculationKeys},
    ScenarioObject{"nvme", kNvmeKeys},
    ScenarioObject{"offload", kOffloadKeys},
    ScenarioObject{"sweep", kSweepKeys},
    ScenarioObject{"axis", kAxisKeys},
    ScenarioObject{"plan", kPlanKeys},
    ScenarioObject{"quality", kQualityKeys},
    ScenarioObject{"replay", kReplayKeys},
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

std::vector<std::string> scenario_key_names(std::string_view object) {
  for (const ScenarioObject& candidate : kObjects) {
    if (candidate.name != object) continue;
    std::vector<std::string> names;
    for (const ScenarioKey& key : candidate.keys) names.emplace_back(key.name);
    return names;
  }
  KVSIM_CHECK(false, "no object of scenarios is called {}", object);
  return {};
}

std::span<const std::string_view> keys_of_kind(bool serves) {
  if (serves) return kServeOnly;
  return kStaticOnly;
}

std::span<const std::string_view> figure_names() { return kFigures; }

std::span<const PublishedMetric> published_metrics() { return kMetrics; }

}  // namespace kvsim
