#include "sim/scenario/fields/keys.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/methods/resolve/choices.hpp"
#include "models/stack/stack.hpp"
#include "models/units/check.hpp"
#include "models/units/units_format.hpp"
#include "sim/batch/static_metrics.hpp"
#include "sim/replay/replay.hpp"
#include "sim/scenario/fields/key_rows.hpp"
#include "sim/scenario/fields/request_keys.hpp"
#include "sim/serve/account/service_metrics.hpp"
#include "sim/serve/schedulers/scheduler.hpp"

namespace kvsim {
namespace {

using namespace key_rows;  // NOLINT: the words of the tables below

constexpr KeyType kSeed = integer(0, kLargestSeed);
constexpr double kLargestNumber = 1e300;
constexpr KeyType kAnyNumber = number(-kLargestNumber, kLargestNumber);

std::vector<std::string> figure_words() { return {figure_names().begin(), figure_names().end()}; }
std::vector<std::string> tier_codec_names() {
  std::vector<std::string> names;
  for (const AxisChoice& choice : axis_choices()) {
    if (choice.axis == "tier" && choice.name != "none") names.emplace_back(choice.name);
  }
  return names;
}
std::vector<std::string> metric_words() {
  std::vector<std::string> words;
  for (const PublishedMetric& metric : published_metrics()) words.emplace_back(metric.name);
  return words;
}

constexpr std::array kPointKeys{
    points("model", object("model"), "required",
           "the LLM: a name of `kvsim list models`, or a Hugging Face config.json"),
    points("gpu", name(), "required", "a name of `kvsim list gpus`"),
    points("gpu_count", integer(1, kMaxGpus), "1",
           "GPUs that share the model by tensor parallelism, or that hold whole layers each where "
           "the stack splits layers; memory, work and traffic of a result are per GPU, tokens per "
           "second are of all GPUs"),
    points("stack", object("stack"), "ideal",
           "the serving software: a name of `kvsim list stacks`, with its version and usage; "
           "\"vllm@0.19:llm\" is the same in one word"),
    points("calibration", path(), "builtin",
           "the basis of times: builtin, nominal, or files of `kvsim calibrate`"),
    points("dtype", of(Kind::kWeights), "as published",
           "element format of weights and activations, or a quantization of the weights"),
    points("kv_dtype", of(Kind::kCacheFormat), "dtype; 16-bit if that is quantized",
           "element format of the cache, or an engine's format such as nvfp4"),
    points("batch", integer(1, kMaxBatch), "1", "sequences served together"),
    points("prompt_tokens", kTokens, "required",
           "prompt length of each sequence; not needed by a plan for longest_context only"),
    points("output_tokens", kOutputTokens, "required",
           "decode steps: tokens that each sequence generates after its prompt; 0 ends after "
           "prefill. All are cached: a full cache ends at prompt_tokens + output_tokens tokens"),
    points("method", object("method"), "full",
           "the cache compression, a name of `kvsim list methods`, or FILE.py:CLASS"),
    one("memory", object("memory"), "", "corrections to the GPU's memory, and how it is allocated"),
    one("engine", object("engine"), "the stack's", "settings of the stack's engine"),
    points("requests", object("requests"), "required of a service",
           "the workload: a file of requests or a generator"),
    points("scheduler", object("scheduler"), "the stack's", "how the engine forms its batches"),
    one("slo", object("slo"), "none", "latency bounds of requests that count as goodput"),
    points("cluster", object("cluster"), "one replica", "several engines behind one router"),
    points("pipeline_parallel", integer(1, 1024), "1",
           "pipeline stages, each of gpu_count GPUs; at most the model's layers"),
    points("speculation", object("speculation"), "none",
           "a draft model that proposes tokens, verified together"),
    one("host_memory", size(), "none",
        "host memory of one replica for swapped and offloaded caches"),
    one("nvme", object("nvme"), "none",
        "NVMe of one replica, for swapped caches that exceed host memory"),
    one("offload", object("offload"), "none",
        "where entries are stored that a method holds but a step does not read"),
    one("tier_codec", name_of(&tier_codec_names), "none",
        "format of pages in host memory and NVMe, a choice of the axis `tier`"),
    one("bench", object("bench"), "none",
        "corrections of times from a benchmark of this service (`kvsim calibrate --from-bench`)"),
};

constexpr std::array kFirstKeys{
    ScenarioKey{
        .name = "schema", .type = name("kvsim.scenario/1"), .help = "the version of these keys"},
    one("title", text(), "the file's name", "one line for tables and figures"),
    ScenarioKey{
        .name = "description", .type = text(), .help = "the question that the scenario answers"},
    many("extends", path(), "",
         "scenario files whose keys apply unless this file sets them; later ones win"),
    one("kind", name("static, serve"), "static",
        "static: equal sequences, prefilled together and decoded in lock step; serve: a service "
        "under a workload"),
    ScenarioKey{
        .name = "seed", .type = kSeed, .default_text = "0", .help = "seed of every random choice"},
};
constexpr std::array kLastKeys{
    list("points", object("point"), "one, of the keys above",
         "groups of points: each takes the keys above and overrides some"),
    one("replay", object("replay"), "none", "an attention trace to run through methods"),
    one("sweep", object("sweep"), "none", "many runs, each with other values of some keys"),
    one("plan", object("plan"), "none",
        "a search: the largest batch, the highest rate, the fewest GPUs, …"),
    list("published", object("published"), "none",
         "values from the literature, shown next to the predicted ones", 0, kMayBeEmpty),
    many("figures", boolean(), "all that apply", "whether each figure is drawn",
         name_of(&figure_words)),
};
/// Keys of a point are also keys of the scenario.
constexpr auto kScenarioKeys = [] {
  std::array<ScenarioKey, kFirstKeys.size() + kPointKeys.size() + kLastKeys.size()> all{};
  auto at = std::copy(kFirstKeys.begin(), kFirstKeys.end(), all.begin());
  at = std::copy(kPointKeys.begin(), kPointKeys.end(), at);
  std::copy(kLastKeys.begin(), kLastKeys.end(), at);
  return all;
}();

constexpr std::array kModelKeys{
    one("config", path(), "required", "a Hugging Face config.json, relative to the scenario file"),
    one("name", text(), "name of the file's folder", "the model's name in results"),
};
constexpr std::array kStackKeys{
    one("name", name(), "required", "a name of `kvsim list stacks`"),
    one("version", text(), "the newest known",
        "a release in quotes, such as \"0.19\": the engine's defaults are those of that version"),
    one("usage", name("server, llm, tensorrt"), "server",
        "the HTTP server; the engine's offline class (vLLM's `LLM`), whose defaults differ; or a "
        "compiled engine instead of the PyTorch backend (TensorRT-LLM)"),
};
constexpr std::string_view kBudgetHelp =
    "size of the kept cache: a share of the prompt's cache (0.2, \"20 %\"), or entries per head "
    "(256, \"64 entries\")";
constexpr std::array kMethodKeys{
    one("name", name(), "required", "a preset, or presets and single choices joined by +"),
    points("budget", budget(101), "the method's", kBudgetHelp),
    one("measured_on", path(), "",
        "an attention trace (safetensors), relative to the scenario file, that the size law is "
        "measured on if it depends on the data"),
};
constexpr std::array kReplayMethodKeys{
    kMethodKeys[0],
    points("budget", budget(2), "the method's", kBudgetHelp),
    one("measured_on", KeyType{}, "", "not used in a replay, which measures on its own trace"),
};
constexpr std::array kMemoryKeys{
    one("hbm", above_0(Kind::kSize), "the catalogue's",
        "HBM, nominal and usable, of a hypothetical GPU, for example one with more memory"),
    one("usable_hbm", above_0(Kind::kSize), "the catalogue's",
        "HBM that the driver reports to a process, at most the nominal HBM"),
    one("allocator", name("analytic, simulate"), "analytic",
        "simulate: every allocation also goes through PyTorch's caching allocator; of services "
        "only in static batches"),
    one("alloc_conf", text(), "PyTorch's defaults",
        "settings of the allocator, as PYTORCH_CUDA_ALLOC_CONF: \"expandable_segments:True\""),
};
constexpr std::array kEngineKeys{
    engine(
        "max_model_len", kTokens, "the run's length; of a service the model's context",
        "tokens of the longest sequence that the engine is configured for; workload: the longest "
        "request's",
        &StackOptions::max_model_len, name("workload")),
    engine("max_num_seqs", kTokens, "the stack's", "sequences running at once",
           &StackOptions::max_num_seqs),
    engine("prefill_chunk", kTokens, "the stack's",
           "tokens of one iteration (vLLM's max_num_batched_tokens)", &StackOptions::prefill_chunk),
    engine("block_tokens", kTokens, "the stack's", "tokens of a block of a paged cache",
           &StackOptions::block_tokens),
    engine("kv_blocks", name("across-heads, per-head"), "across-heads",
           "of a service: whether a block of a paged cache holds all heads of a layer or one",
           &StackOptions::per_head_blocks),
    engine("compaction", name("at-once, lazy"), "at-once",
           "of a service: whether entries are compacted whenever some are dropped, or only when a "
           "quarter of a layer's blocks is free space",
           &StackOptions::lazy_compaction),
    engine("memory_fraction", number(0.01, 1), "the stack's",
           "the share of the GPU's memory that the engine uses, as its stack defines it (`kvsim "
           "show stack`): gpu_memory_utilization, mem_fraction_static, free_gpu_memory_fraction, "
           "cache_max_entry_count",
           &StackOptions::memory_fraction),
    engine("host_weights", number(0, 1), "the stack's",
           "of a static batch: the share of the layers' weights that stays in host memory and is "
           "read over the link at every pass (FlexGen, ZeRO-Inference, Accelerate)",
           &StackOptions::host_weights),
    engine("cuda_graphs", boolean(), "the stack's", "false: none are captured (enforce_eager)",
           &StackOptions::cuda_graphs),
    engine("graph_sequences", kTokens, "the stack's",
           "most sequences of a decode step for which a CUDA graph is captured; the host launches "
           "the layers of larger steps (SGLang's cuda_graph_max_bs, max_batch_size of "
           "TensorRT-LLM's cuda_graph_config)",
           &StackOptions::graph_sequences),
    engine("graph_padding", boolean(), "the stack's",
           "whether steps are padded to the size of a captured graph (enable_padding of "
           "TensorRT-LLM's cuda_graph_config)",
           &StackOptions::graph_padding),
    engine("async_scheduling", boolean(), "the stack's",
           "whether the host schedules a step while the GPU computes the one before it (vLLM's "
           "async_scheduling, SGLang's and TensorRT-LLM's overlap scheduler)",
           &StackOptions::async_scheduling),
    engine("cutoff_sampling", boolean(), "false", "whether requests sample with top-k or top-p",
           &StackOptions::cutoff_sampling),
    engine("language_model_only", boolean(), "false",
           "true: the engine loads no vision encoder (`--language-model-only` of vLLM and SGLang)",
           &StackOptions::language_model_only),
    engine("state_dtype", name("fp32, bf16, fp16"), "the model's",
           "element format of recurrent states (vLLM's `--mamba-ssm-cache-dtype`, SGLang's "
           "`--mamba-ssm-dtype`)",
           &StackOptions::state_dtype),
    engine(
        "front_end_latency", time(), "the stack's",
        "of a service, measured: time from client to engine in addition to the API server's work",
        &StackOptions::front_end_latency),
    engine("front_end_request", time(), "the stack's",
           "of a service, measured: work of the API server per request",
           &StackOptions::front_end_request),
    engine("front_end_prompt_token", time(), "the stack's",
           "of a service, measured: work of the API server per prompt token",
           &StackOptions::front_end_prompt_token),
    engine("front_end_token", time(), "the stack's",
           "of a service, measured: work of the API server per token that it streams",
           &StackOptions::front_end_token),
    engine("front_end_sequence", time(), "the stack's",
           "of a service, measured: time that a server in the engine's process takes per sequence "
           "of a step",
           &StackOptions::front_end_sequence),
    engine("api_servers", integer(1, 1024), "1",
           "of a service: processes that share the API server's work (vLLM's api_server_count)",
           &StackOptions::api_servers),
    engine("step_overhead", time(), "the stack's", "measured: scheduling on the host per step",
           &StackOptions::inter_step_overhead),
    engine("step_overhead_per_sequence", time(), "the stack's",
           "measured: scheduling on the host per step and sequence",
           &StackOptions::inter_step_per_sequence),
    engine("decode_context_parallel", integer(1, 1024), "1",
           "GPUs of a tensor-parallel group that would hold equal keys and values and instead "
           "share the tokens of a sequence (vLLM's decode_context_parallel_size)",
           &StackOptions::context_parallel),
    engine("prefill_context_parallel", integer(1, 1024), "1",
           "groups of gpu_count GPUs that each compute a part of a prompt's tokens and hold all "
           "entries (vLLM's prefill_context_parallel_size)",
           &StackOptions::prefill_context),
    engine("expert_parallel", integer(1, 1024), "1",
           "GPUs that each layer's routed experts are distributed over; tokens reach them in two "
           "all-to-all exchanges",
           &StackOptions::expert_parallel),
    engine("expert_imbalance", number(1, 1024), "1",
           "tokens routed to the most loaded GPU / mean per GPU; 1: balanced",
           &StackOptions::expert_imbalance),
    engine("expert_link", above_0(Kind::kBandwidth), "none",
           "one GPU's link to the network between nodes, in one direction; required if "
           "expert_parallel spans several nodes",
           &StackOptions::expert_link),
    engine("expert_link_latency", time(), "0 s", "latency from one node to another",
           &StackOptions::expert_link_latency),
    engine("weights", size(), "from the model", "measured bytes of weights per GPU",
           &StackOptions::weights),
    engine("non_torch", size(), "the stack's",
           "measured bytes outside the framework's allocator per GPU", &StackOptions::non_torch),
    engine("activation", size(), "from the model", "measured peak of the start-up's profiling run",
           &StackOptions::activation),
    engine("graphs", size(), "the stack's", "measured bytes of CUDA graphs per GPU",
           &StackOptions::graphs),
};
/// An alias of the engine's key `of`, which is at `pointer`.
constexpr ScenarioKey engine_alias(Text name, Text of, Text pointer, Text help) {
  ScenarioKey key = *std::find_if(kEngineKeys.begin(), kEngineKeys.end(),
                                  [&](const ScenarioKey& one) { return one.name == of; });
  key.name = name;
  key.help = help;
  key.values = KeyValues::kPoints;
  key.alias_of = pointer;
  return key;
}
constexpr std::array kSchedulerKeys{
    points("name", name_of(&scheduler_names), "the stack's", "the scheduler's policy"),
    points("order", name("fcfs, priority, shortest-declared"), "fcfs",
           "which waiting request comes first"),
    engine_alias("max_num_batched_tokens", "prefill_chunk", "/engine/prefill_chunk",
                 "tokens of one iteration"),
    engine_alias("max_num_seqs", "max_num_seqs", "/engine/max_num_seqs",
                 "sequences running at once"),
    points("long_prefill_token_threshold", kTokens, "none",
           "most tokens of one prompt in an iteration"),
    points("chunked_prefill", boolean(), "the scheduler's",
           "whether a prompt may be prefilled over several iterations"),
    points(
        "reserve_full_isl", boolean(), "the stack's",
        "vllm-v1: whether a prompt is admitted only if all of it fits, not just its first chunk"),
    points("prefix_caching", boolean(), "the scheduler's",
           "whether blocks of equal prefixes are shared and kept"),
    points("batch", integer(1, kMaxBatch), "8", "static: sequences per batch"),
    points("watermark", number(0, 0.99), "the scheduler's",
           "share of blocks kept free when requests are admitted"),
    points("swap", boolean(), "false",
           "vllm-v0: preempted caches move to host memory instead of being recomputed"),
    points("policy", name("fcfs, lpm, guaranteed-no-evict, max-utilization"), "the scheduler's",
           "sglang: fcfs or lpm (longest cached prefix first); trtllm: the other two"),
    points("conservativeness", number(0, 1000), "1",
           "sglang: factor of its estimate of future output tokens (schedule_conservativeness)"),
    points("max_prefill_tokens", kTokens, "16384", "sglang: most prompt tokens of an iteration"),
    points("mixed_chunk", boolean(), "false",
           "sglang: decodes run in the iterations of prompts (enable_mixed_chunk)"),
};
constexpr std::array kSloKeys{
    one("ttft", above_0(Kind::kTime), "none", "bound of the time to the first token"),
    one("tpot", above_0(Kind::kTime), "none", "bound of the mean time per token after the first"),
    one("e2e", above_0(Kind::kTime), "none", "bound of the time to the last token"),
    one("percentile", integer(50, 99), "p99 in text, p90 in figures",
        "50, 90, 95 or 99: of the latencies that tables and figures of a run show; results and "
        "`-v` "
        "have all"),
};
constexpr std::array kClusterKeys{
    points("replicas", integer(1, 4096), "1",
           "engines that serve; with prefill_replicas, the engines that decode"),
    points("router", name("round-robin, least-loaded, prefix-aware"), "round-robin",
           "which replica a request goes to"),
    points("prefill_replicas", integer(0, 4096), "0",
           "above 0: engines that only prefill; the cache then moves to one that decodes"),
    points("prefix_margin", kOutputTokens, "32",
           "prefix-aware: number of requests by which the replica with the prefix may exceed the "
           "least loaded one"),
    points("link", above_0(Kind::kBandwidth), "the GPU's NVLink or PCIe",
           "from one replica to another, in one direction"),
    points("link_latency", time(), "0 s", "latency from one replica to another"),
    points("compress_before_transfer", boolean(), "true",
           "true: the entries that the method keeps move; false: the whole prompt's cache"),
};
constexpr std::array kSpeculationKeys{
    points("draft", name(), "required",
           "the draft model, a name of `kvsim list models`; `mtp`: the model's multi-token "
           "prediction head; `eagle`, `eagle3`: an EAGLE head of the model's width; `ngram`: "
           "earlier text, without a draft"),
    points("tokens", integer(1, 64), "4", "tokens proposed per step"),
    points("steps", integer(1, 64), "tokens",
           "passes of the draft: levels of a tree of proposals; by default a chain"),
    points("topk", integer(1, 64), "1", "tokens of each level that the next pass extends"),
    points("acceptance", number(0, 1), "0.7",
           "probability that a level has an accepted token, given that those before it had"),
};
constexpr std::array kNvmeKeys{
    one("capacity", above_0(Kind::kSize), "required", "per replica"),
    one("read", above_0(Kind::kBandwidth), "required", "per replica"),
    one("write", above_0(Kind::kBandwidth), "required", "per replica"),
};
constexpr std::array kOffloadKeys{
    one("to", name("host, nvme"), "required",
        "the memory for entries of which a step reads only a part"),
    one("prefetch", boolean(), "true",
        "true: transfers overlap with the arithmetic of their step; false: they precede it"),
    one("reuse", number(0, 1), "0",
        "share of the entries read in a step that the previous step read"),
};
constexpr std::array kReplayKeys{
    one("trace", path(), "required",
        "an attention trace (safetensors), relative to the scenario file"),
    many("methods", object("replay_method"), "the points' methods",
         "methods to run, written as under `method`"),
    one("per_step", boolean(), "true", "keep the series over decode steps"),
    one("per_head", boolean(), "false", "keep the means of every head"),
    one("split", name("recorded, question-aware, question-agnostic"), "recorded",
        "where the prompt ends: as recorded, at the trace's `answer_start`, or at its "
        "`question_start`"),
    one("layers", integer(1, kMaxSample), "all",
        "number of layers of a random sample, drawn with the scenario's seed: means have standard "
        "errors"),
    one("heads", integer(1, kMaxSample), "all", "KV heads of each layer, likewise"),
    one("steps", integer(1, kMaxSample), "all",
        "maximum number of decode steps whose errors are measured, likewise; sizes are of all "
        "steps"),
};
constexpr std::array kSweepKeys{
    one("mode", name("grid, random"), "grid",
        "every combination of the axes' values, or samples drawn from them"),
    one("samples", integer(1, kMaxSweepPoints), "required if random",
        "number of combinations drawn"),
    one("seed", kSeed, "the scenario's", "seed of the draws"),
    one("skip_impossible", boolean(), "false",
        "true: impossible combinations (a budget for a method that takes none) are listed with the "
        "reason; false: they are errors"),
    list("axes", object("axis"), "the keys given as lists", "what is varied", kMaxAxes,
         kMayBeEmpty),
};
constexpr std::array kAxisKeys{
    one("key", of(Kind::kPointer), "required",
        "the key that is varied, method parameters included: /method/budget"),
    list("values", of(Kind::kAny), "this or a range", "its values; null removes the key",
         kMaxAxisValues),
    one("low", kAnyNumber, "with high", "the least value of a range"),
    one("high", kAnyNumber, "with low", "the greatest value of a range"),
    one("scale", name("linear, log"), "linear", "how a range is divided or sampled"),
    one("integer", boolean(), "false", "only whole numbers"),
    one("steps", integer(2, kMaxAxisValues), "required in a grid",
        "number of values of a range, both ends included"),
    one("unit", text(), "none", "unit of the numbers: with \"GiB\", 40 is \"40 GiB\""),
};
constexpr std::array kPlanKeys{
    many("questions", name("longest_context, largest_batch, highest_rate, fewest_gpus"), "required",
         "longest_context (of each batch), largest_batch (of each prompt); of services "
         "highest_rate, fewest_gpus"),
    one("confidence", number(0, 0.999), "0",
        "0: answers are predictions, with a 90 % range next to them; above 0: answers are safe, at "
        "the unfavourable end of the interval that contains this share of cases"),
    one("attainment", number(0.01, 1), "0.9",
        "share of requests that must meet all bounds of slo; tables and figures show the lowest of "
        "p50, p90, p95 and p99 that reaches it"),
    one("quality", object("quality"), "none", "how much worse than the full cache a method may be"),
    one("prices", of(Kind::kPrices), "none",
        "price of one GPU per hour, by its name, all in one currency: \"2.5 USD/h\""),
    one("most_gpus", integer(1, 4096), "64", "fewest_gpus: the largest number tried"),
    one("rate_step", number(0.001, 1), "0.01", "highest_rate: the step between rates, as a share"),
    one("beyond_positions", boolean(), "false",
        "true: sequences may exceed the positions that the model's configuration declares"),
    one("layouts", integer(1, 1024), "the scenario's own",
        "of services: every layout of tensor, pipeline and expert parallelism on at most this "
        "number of GPUs is a candidate"),
    one("disaggregated", boolean(), "false",
        "with layouts: also layouts with separate engines for prefill and decode"),
};
constexpr std::array kQualityKeys{
    one("trace", path(), "required",
        "an attention trace (safetensors), relative to the scenario file"),
    one("max_rel_error", number(0, 1e6), "this or min_retained_mass",
        "largest mean relative error of attention outputs"),
    one("min_retained_mass", number(0, 1), "this or max_rel_error",
        "smallest mean share of attention probability that is kept; methods that merge entries "
        "have none"),
    one("bisect_step", number(0.001, 0.5), "only the given budgets",
        "step between the budgets tried from the smallest to the largest given one"),
};
constexpr std::array kPublishedKeys{
    one("where", object("where"), "required if there are several points",
        "keys and values that select one point"),
    one("metric", name_of(&metric_words), "required", "the metric of the value"),
    one("value", of(Kind::kQuantity), "required",
        "the value as published, with its unit if the metric has one"),
    one("source", text(), "required", "the publication and the place in it"),
    one("note", text(), "", "if the value cannot be right: the reason"),
};
constexpr std::array kWhereKeys{
    one("model", name(), "", "the point's model"),
    one("gpu", name(), "", "the point's GPU"),
    one("stack", name(), "", "the point's stack"),
    one("calibration", path(), "", "the point's calibration"),
    one("method", name(), "", "the name of the point's method"),
    one("budget", budget(2), "", "the method's budget as in the scenario"),
    one("dtype", of(Kind::kWeights), "", "the format of weights"),
    one("kv_dtype", of(Kind::kFormat), "", "the format of the cache"),
    one("batch", integer(1, kMaxBatch), "", "the point's batch"),
    one("prompt_tokens", kTokens, "", "the point's prompt length"),
    ScenarioKey{
        .name = "output_tokens", .type = kOutputTokens, .help = "the point's output length"},
};
constexpr std::array kBenchKeys{
    one("decode_factor", number(0.01, 100), "1",
        "measured / predicted time of iterations without prompt tokens"),
    one("prompt_factor", number(0.01, 100), "1", "likewise of iterations with prompt tokens"),
    one("request_s", number(-3600, 3600), "0",
        "seconds added to the time from client to engine per request; negative: less than "
        "predicted"),
    one("sequence_s", number(-1, 1), "0", "seconds added to an iteration per decoding sequence"),
    one("ttft_error", number(0, 10), "required",
        "standard deviation of log(measured / predicted) at other loads"),
    one("tpot_error", number(0, 10), "required", "likewise of TPOT and ITL"),
    one("e2e_error", number(0, 10), "required", "likewise of E2E"),
    one("throughput_error", number(0, 10), "required", "likewise of rates"),
    one("runs", integer(1, 1'000'000), "1", "load points of the benchmark"),
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
    ScenarioObject{"bench", kBenchKeys},
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

constexpr std::array<std::string_view, 3> kStaticOnly{"batch", "prompt_tokens", "output_tokens"};
constexpr std::array<std::string_view, 11> kServeOnly{
    "requests",          "scheduler",   "slo",         "cluster",
    "pipeline_parallel", "speculation", "host_memory", "nvme",
    "offload",           "tier_codec",  "bench"};

// clang-format off
constexpr std::array<std::string_view, 23> kFigures{
    "memory_vs_length", "throughput_vs_length", "peak_vs_final_length", "cache_size",
    "hbm_breakdown", "cache_per_layer", "error_vs_step", "bytes_vs_step", "replay_cache_per_layer",
    "error_vs_bytes", "error_vs_read", "ttft_cdf", "tpot_cdf", "itl_cdf", "e2e_cdf", "hbm_timeline",
    "running_timeline", "waiting_timeline", "throughput_ttft", "throughput_tpot", "throughput_e2e",
    "memory_vs_load", "goodput"};
// clang-format on

}  // namespace

std::span<const ScenarioObject> scenario_objects() { return kObjects; }

std::span<const std::string_view> keys_of_kind(bool serves) {
  if (serves) return kServeOnly;
  return kStaticOnly;
}

std::span<const std::string_view> figure_names() { return kFigures; }

const PublishedMetric& published_metric(std::string_view name) {
  for (const PublishedMetric& metric : published_metrics()) {
    if (metric.name == name) return metric;
  }
  throw ContractError{fmt::format("no published metric is called {}", name)};
}

const std::vector<PublishedMetric>& published_metrics() {
  static const std::vector<PublishedMetric> all = [] {
    std::vector<PublishedMetric> metrics;
    for (const MetricInfos& infos : {infos_of(static_metrics()), infos_of(service_metrics())}) {
      for (const MetricInfo* info : infos) {
        if (!info->is_published) continue;
        metrics.push_back({info->key, info->unit == "requests/s" ? "req/s" : info->unit});
      }
    }
    metrics.push_back({"oom_tokens", "tokens"});
    metrics.push_back({"oom", ""});
    return metrics;
  }();
  return all;
}

}  // namespace kvsim
