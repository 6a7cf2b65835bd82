#include "sim/launch/launch_parts.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "models/llm/catalogue.hpp"
#include "models/llm/weight_format.hpp"
#include "models/methods/resolve/availability.hpp"
#include "models/units/error.hpp"
#include "sim/serve/schedulers/scheduler.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

enum Engine : std::size_t { kVllm, kSglang, kTrtllm };

/// The flag of a setting in the three engines; empty: the engine does not have it.
struct Names {
  std::string_view key;
  std::array<std::string_view, 3> flags;
};
constexpr std::array kLimits{
    Names{"max_num_seqs", {"--max-num-seqs", "--max-running-requests", "--max_batch_size"}},
    Names{"prefill_chunk",
          {"--max-num-batched-tokens", "--chunked-prefill-size", "--max_num_tokens"}},
    Names{"usable_fraction",
          {"--gpu-memory-utilization", "--mem-fraction-static",
           "--kv_cache_free_gpu_memory_fraction"}},
    Names{"block_tokens", {"--block-size", "--page-size", ""}},
};
constexpr Names kTensor{"", {"--tensor-parallel-size", "--tp-size", "--tp_size"}};
constexpr Names kPipeline{"", {"--pipeline-parallel-size", "--pp-size", "--pp_size"}};
constexpr Names kLength{"", {"--max-model-len", "--context-length", "--max_seq_len"}};
constexpr Names kStateDtype{"", {"--mamba-ssm-cache-dtype", "--mamba-ssm-dtype", ""}};
constexpr Names kCacheDtype{"", {"--kv-cache-dtype", "--kv-cache-dtype", "--kv_cache_dtype"}};

std::size_t index_of(const EngineFlags& engine) {
  if (engine.stack == "vllm") return kVllm;
  return engine.stack == "sglang" ? kSglang : kTrtllm;
}

/// A format that is quantized at load time, and its flag value; empty for checkpoint formats.
struct OnlineFormat {
  std::string_view format;
  std::array<std::string_view, 3> quantization;
};
constexpr std::array kOnline{
    OnlineFormat{"fp8-tensor", {"fp8", "fp8", ""}},
    OnlineFormat{"nf4", {"bitsandbytes", "bitsandbytes", ""}},
};

/// The engine's name of a cache format; empty if it does not support the format.
std::string_view cache_word(std::size_t engine, Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp8E4m3:
      return engine == kTrtllm ? "fp8" : "fp8_e4m3";
    case Dtype::kFp8E5m2:
      return engine == kTrtllm ? "" : "fp8_e5m2";
    case Dtype::kBf16:
      return engine == kTrtllm ? "" : "bfloat16";
    case Dtype::kFp16:
      return engine == kVllm ? "float16" : "";
    default:
      return "";
  }
}

}  // namespace

LaunchWriter::LaunchWriter(const EngineFlags& engine, EngineVersion version, const LaunchInput& in,
                           std::string role)
    : engine_{engine}, version_{version}, in_{in} {
  out_.name = std::move(role);
}

std::string LaunchWriter::engine_text() const {
  return fmt::format("{} {}", engine_.engine, in_.stack.version);
}

void LaunchWriter::refuse(const std::string& what) const {
  throw InputError{fmt::format("launch command: {}", what)};
}

bool LaunchWriter::has(std::string_view flag) const {
  return !flag.empty() && engine_.find_certain(version_, flag) != nullptr;
}

void LaunchWriter::add(std::string_view flag, std::string value) {
  out_.words.emplace_back(flag);
  if (!value.empty()) out_.words.push_back(std::move(value));
}

void LaunchWriter::require(std::string_view flag, std::string value, std::string_view what) {
  if (!has(flag)) {
    const std::string versions = engine_.versions_of(flag);
    refuse(fmt::format("{}: {} has no {}{}", what, engine_text(),
                       flag.empty() ? "flag for it" : flag,
                       versions.empty() ? "" : fmt::format("; {} has it", versions)));
  }
  const EngineFlag& known = *engine_.find_certain(version_, flag);
  if (!known.values.empty() &&
      std::find(known.values.begin(), known.values.end(), value) == known.values.end()) {
    refuse(fmt::format("{}: {} of {} does not accept {}", what, flag, engine_text(), value));
  }
  add(flag, std::move(value));
}

void LaunchWriter::note(std::string text) { notes_.push_back(std::move(text)); }

void LaunchWriter::add_weights() {
  const std::size_t engine = index_of(engine_);
  const Llm& llm = *in_.llm;
  if (in_.weight_format != nullptr) {
    const std::string_view format = in_.weight_format->name;
    const auto* online = std::find_if(kOnline.begin(), kOnline.end(),
                                      [&](const OnlineFormat& o) { return o.format == format; });
    const std::string_view word = online == kOnline.end() ? "" : online->quantization[engine];
    if (!word.empty()) {
      require("--quantization", std::string{word}, fmt::format("weights in {}", format));
    } else {
      note(fmt::format("weights in {}: the model must be a checkpoint in this format", format));
    }
    return;
  }
  if (in_.weight_dtype == llm.published_dtype) return;
  if (bits_of(in_.weight_dtype) >= 16 && bits_of(llm.published_dtype) >= 16) {
    if (engine == kTrtllm) {
      yaml_["dtype"] = in_.weight_dtype == Dtype::kFp16 ? "float16" : "bfloat16";
      return;
    }
    const std::string_view word = in_.weight_dtype == Dtype::kFp16   ? "float16"
                                  : in_.weight_dtype == Dtype::kBf16 ? "bfloat16"
                                                                     : "float32";
    require("--dtype", std::string{word}, "weights' format");
  } else if (in_.weight_dtype == Dtype::kFp8E4m3 && engine != kTrtllm) {
    require("--quantization", "fp8", "weights in fp8_e4m3");
  } else {
    note(fmt::format("weights in {}: the model must be a checkpoint in this format",
                     name_of(in_.weight_dtype)));
  }
}

void LaunchWriter::add_cache() {
  const std::size_t engine = index_of(engine_);
  if (const auto& dtype = in_.options.state_dtype) {
    const std::string_view word = *dtype == Dtype::kFp32   ? "float32"
                                  : *dtype == Dtype::kFp16 ? "float16"
                                                           : "bfloat16";
    if (engine == kTrtllm) {
      yaml_["kv_cache_config"]["mamba_ssm_cache_dtype"] = word;
    } else {
      require(kStateDtype.flags[engine], std::string{word}, "format of recurrent states");
    }
  }
  if (in_.kv_dtype == default_kv_dtype(*in_.llm, in_.weight_dtype)) return;
  const std::string_view word = cache_word(engine, in_.kv_dtype);
  const std::string what = fmt::format("cache in {}", name_of(in_.kv_dtype));
  if (word.empty()) refuse(fmt::format("{}: {} has no such format", what, engine_text()));
  const std::string_view flag = kCacheDtype.flags[engine];
  if (engine == kTrtllm && !has(flag)) {
    yaml_["kv_cache_config"]["dtype"] = word;
    return;
  }
  require(flag, std::string{word}, what);
}

void LaunchWriter::add_method_flag(const std::string& option) {
  // "--kv-cache-dtype fp8_e4m3", or a key of a file: "kv_cache_config.dtype fp8".
  const std::size_t blank = option.find(' ');
  const std::string name = option.substr(0, blank);
  const std::string value = blank == std::string::npos ? "" : option.substr(blank + 1);
  const std::string what = fmt::format("method {}", in_.method.name);
  if (name.starts_with("--")) {
    require(name, value, what);
    return;
  }
  const std::size_t dot = name.find('.');
  const bool is_key = index_of(engine_) == kTrtllm && dot != std::string::npos && !value.empty() &&
                      value.find(' ') == std::string::npos;
  if (!is_key) {
    refuse(fmt::format("{}: {} has it as \"{}\", which is not a flag of its server", what,
                       engine_.engine, option));
  }
  yaml_[name.substr(0, dot)][name.substr(dot + 1)] = value;
}

void LaunchWriter::add_method() {
  if (in_.method.name == "full") return;
  const std::vector<Availability> available = availability_of(in_.method.name);
  const auto here = std::find_if(available.begin(), available.end(), [&](const Availability& one) {
    return one.software == engine_.stack;
  });
  if (here == available.end()) {
    refuse(fmt::format("method {}: {} has no such method; software that has it: {}",
                       in_.method.name, engine_.engine, availability_text(available)));
  }
  if (here->as.empty()) return;  // no setting needed
  const AvailabilityParts parts = parts_of(*here);
  if (!parts.is_released()) {
    refuse(fmt::format("method {}: no release of {} has it, only {}", in_.method.name,
                       engine_.engine,
                       parts.version == "main" ? "its main branch" : "a pull request"));
  }
  if (const auto since = parse_engine_version(parts.version); since && version_ < *since) {
    refuse(fmt::format("method {}: {} has it since {}, and the stack is {}", in_.method.name,
                       engine_.engine, parts.version, engine_text()));
  }
  add_method_flag(parts.option);
}

void LaunchWriter::add_experts() {
  const std::int64_t experts = in_.options.expert_parallel.value_or(1);
  if (experts == 1) return;
  const std::size_t engine = index_of(engine_);
  // Number of GPUs of an engine that share its experts.
  const std::int64_t tensor =
      std::int64_t{in_.tensor_parallel} * in_.options.prefill_context.value_or(1);
  const std::int64_t engines = in_.cluster.replicas * in_.copies;
  const std::string what = fmt::format("experts on {} GPUs", experts);
  if (engine == kVllm) {
    // Experts are distributed over tensor-parallel times data-parallel ranks.
    if (experts != tensor) {
      if (experts % tensor != 0 || engines % (experts / tensor) != 0 || in_.pipeline_parallel > 1) {
        refuse(
            fmt::format("{}: vLLM distributes them over tensor-parallel times data-parallel GPUs, "
                        "and {} engines of {} GPUs do not make groups of {}",
                        what, engines, tensor, experts));
      }
      out_.replicas = experts / tensor;
      out_.gpus = experts / tensor;
      require("--data-parallel-size", fmt::format("{}", experts / tensor), what);
    }
    require("--enable-expert-parallel", "", what);
    return;
  }
  if (engine == kSglang && in_.stack.attention_groups > 1) {
    // Its --tp-size counts the GPUs of all groups (data-parallel attention).
    if (in_.pipeline_parallel > 1)
      refuse(what + ": groups of attention cannot be combined with a pipeline here");
    const std::int64_t groups = in_.stack.attention_groups;
    out_.replicas = groups;
    out_.gpus = groups;
    require("--dp-size", fmt::format("{}", groups), what);
    require("--enable-dp-attention", "", what);
  } else if (experts != tensor) {
    refuse(fmt::format("{}: {} requires the number of tensor-parallel GPUs here, which is {}", what,
                       engine_.engine, tensor));
  }
  require(engine == kSglang ? "--ep-size" : "--ep_size", fmt::format("{}", experts), what);
  if (engine == kSglang && has("--enable-ep-moe")) add("--enable-ep-moe");
}

void LaunchWriter::add_limits() {
  const std::size_t engine = index_of(engine_);
  if (in_.max_model_len) {
    require(kLength.flags[engine], fmt::format("{}", *in_.max_model_len), "longest sequence");
  }
  if (!in_.stack.settings) return;
  for (const EngineSetting& setting : in_.stack.settings->settings) {
    const auto* limit = std::find_if(kLimits.begin(), kLimits.end(),
                                     [&](const Names& names) { return names.key == setting.key; });
    if (limit == kLimits.end()) continue;
    const std::string_view flag = limit->flags[engine];
    // SGLang's value for unchunked prompts.
    const bool is_whole = engine == kSglang && std::string_view{setting.key} == "prefill_chunk" &&
                          !in_.scheduler.chunked_prefill.value_or(true);
    if (!flag.empty()) {
      require(flag, is_whole ? "-1" : setting.value, setting.key);
    } else if (setting.by_user) {
      yaml_["kv_cache_config"]["tokens_per_block"] = std::stoll(setting.value);
    }
  }
}

void LaunchWriter::add_scheduler() {
  const std::size_t engine = index_of(engine_);
  const SchedulerSpec& scheduler = in_.scheduler;
  const bool eager = in_.options.cuda_graphs && !*in_.options.cuda_graphs;
  if (in_.options.language_model_only.value_or(false) && in_.llm->vision && engine != kTrtllm) {
    if (engine == kVllm && !has("--language-model-only")) {
      require("--limit-mm-per-prompt", R"({"image": 0, "video": 0})", "no vision encoder");
    } else {
      require("--language-model-only", "", "no vision encoder");
    }
  }
  if (in_.options.graph_sequences && engine != kTrtllm) {
    require(engine == kVllm                     ? "--max-cudagraph-capture-size"
            : has("--cuda-graph-max-bs-decode") ? "--cuda-graph-max-bs-decode"
                                                : "--cuda-graph-max-bs",
            fmt::format("{}", *in_.options.graph_sequences), "graph_sequences");
  }
  if (engine != kTrtllm && !in_.options.graph_padding.value_or(true)) {
    refuse(fmt::format("graph_padding: {} always pads steps to captured sizes", engine_.engine));
  }
  if (engine == kVllm) {
    if (eager) require("--enforce-eager", "", "no CUDA graphs");
    if (scheduler.prefix_caching) {
      require("--enable-prefix-caching", "", "prefix caching");
      if (!*scheduler.prefix_caching) out_.words.back() = "--no-enable-prefix-caching";
    }
    if (scheduler.chunked_prefill) {
      const EngineFlag* flag = engine_.find_certain(version_, "--enable-chunked-prefill");
      if (flag == nullptr || flag->type != FlagType::kSwitch) {
        require("--enable-chunked-prefill", *scheduler.chunked_prefill ? "True" : "False",
                "chunked prefill");
      } else {
        add(*scheduler.chunked_prefill ? "--enable-chunked-prefill"
                                       : "--no-enable-chunked-prefill");
      }
    }
    if (in_.options.async_scheduling) {
      require("--async-scheduling", "", "asynchronous scheduling");
      if (!*in_.options.async_scheduling) out_.words.back() = "--no-async-scheduling";
    }
    if (const std::int32_t context = in_.options.context_parallel.value_or(1); context > 1) {
      require("--decode-context-parallel-size", fmt::format("{}", context),
              "decode context parallelism");
    }
    if (const std::int32_t parts = in_.options.prefill_context.value_or(1); parts > 1) {
      require("--prefill-context-parallel-size", fmt::format("{}", parts),
              "prefill context parallelism");
    }
    if (in_.options.api_servers) {
      require("--api-server-count", fmt::format("{}", *in_.options.api_servers), "API servers");
    }
    if (scheduler.order == QueueOrder::kPriority) {
      require("--scheduling-policy", "priority", "order by priority");
    }
    if (scheduler.long_prefill_token_threshold) {
      require("--long-prefill-token-threshold",
              fmt::format("{}", *scheduler.long_prefill_token_threshold), "long prompts");
    }
    if (scheduler.reserve_full_isl) {
      require("--scheduler-reserve-full-isl", "", "prompts that fit as a whole");
      if (!*scheduler.reserve_full_isl) out_.words.back() = "--no-scheduler-reserve-full-isl";
    }
  } else if (engine == kSglang) {
    if (eager) require("--disable-cuda-graph", "", "no CUDA graphs");
    if (scheduler.prefix_caching && !*scheduler.prefix_caching) {
      require("--disable-radix-cache", "", "no prefix caching");
    }
    if (in_.options.async_scheduling && !*in_.options.async_scheduling) {
      require("--disable-overlap-schedule", "", "no overlap scheduler");
    }
    if (scheduler.policy) require("--schedule-policy", *scheduler.policy, "scheduler's policy");
    if (scheduler.conservativeness) {
      require("--schedule-conservativeness", fmt::format("{:g}", *scheduler.conservativeness),
              "scheduler's conservativeness");
    }
    if (scheduler.max_prefill_tokens) {
      require("--max-prefill-tokens", fmt::format("{}", *scheduler.max_prefill_tokens),
              "prompt tokens of an iteration");
    }
    if (scheduler.mixed_chunk.value_or(false)) require("--enable-mixed-chunk", "", "mixed chunks");
  } else {
    if (eager) {
      yaml_["cuda_graph_config"] = nullptr;
    } else if (in_.options.graph_sequences || in_.options.graph_padding) {
      ordered_json& graphs = yaml_["cuda_graph_config"];
      if (in_.options.graph_sequences) graphs["max_batch_size"] = *in_.options.graph_sequences;
      if (in_.options.graph_padding) graphs["enable_padding"] = *in_.options.graph_padding;
    }
    if (scheduler.prefix_caching) {
      yaml_["kv_cache_config"]["enable_block_reuse"] = *scheduler.prefix_caching;
    }
    if (in_.options.async_scheduling && !*in_.options.async_scheduling) {
      yaml_["disable_overlap_scheduler"] = true;
    }
    // TensorRT-LLM does not chunk prompts by default, and rejects prompts above max_num_tokens.
    if (scheduler.chunked_prefill.value_or(in_.longest_prompt > in_.stack.prefill_chunk)) {
      if (engine_.find_certain(version_, "--enable_chunked_prefill") != nullptr) {
        add("--enable_chunked_prefill");
      } else {
        yaml_["enable_chunked_prefill"] = true;
      }
    }
    if (scheduler.policy) {
      yaml_["scheduler_config"]["capacity_scheduler_policy"] =
          *scheduler.policy == "max-utilization" ? "MAX_UTILIZATION" : "GUARANTEED_NO_EVICT";
    }
  }
  if (in_.options.api_servers.value_or(1) > 1 && engine != kVllm) {
    note(fmt::format("api_servers {}: not part of this command of {}", *in_.options.api_servers,
                     engine_.engine));
  }
  if (in_.options.per_head_blocks.value_or(false)) {
    note(fmt::format("kv_blocks per-head: {} has no such blocks", engine_.engine));
  }
  if (scheduler.order == QueueOrder::kShortestDeclared) {
    refuse(fmt::format("order shortest-declared: {} has no such order", engine_.engine));
  }
  if (scheduler.order == QueueOrder::kPriority && engine != kVllm) {
    refuse(fmt::format("order priority: not known for {}", engine_.engine));
  }
}

void LaunchWriter::add_speculation() {
  if (!in_.speculation.is_on()) return;
  const std::size_t engine = index_of(engine_);
  const Proposer proposer = in_.speculation.proposer;
  const bool is_mtp = proposer == Proposer::kMtp, is_ngram = proposer == Proposer::kNgram;
  const bool is_model = proposer == Proposer::kModel;
  std::string draft;
  if (is_model) {
    draft = in_.speculation.draft->name;
    for (const std::string& alias : llm_aliases(draft)) {
      if (alias.find('/') == std::string::npos) continue;
      draft = alias;
      break;
    }
  }
  if (!is_model && !is_mtp && !is_ngram) {
    draft = "PATH_OF_THE_HEAD";
    note(fmt::format("{} is a placeholder for the checkpoint of an {} head of {}", draft,
                     word_of(proposer), in_.model));
  }
  const std::int32_t tokens = in_.speculation.tokens, levels = in_.speculation.levels();
  const bool is_tree = levels < tokens || in_.speculation.topk > 1;
  if (is_tree && engine != kSglang) {
    refuse(
        fmt::format("speculative decoding: {} has no trees of proposals of {} levels for {} "
                    "tokens",
                    engine_text(), levels, tokens));
  }
  if (engine == kVllm) {
    ordered_json config;
    if (!is_model) config["method"] = word_of(proposer);
    if (!draft.empty()) config["model"] = draft;
    config["num_speculative_tokens"] = tokens;
    require("--speculative-config", config.dump(), "speculative decoding");
  } else if (engine == kSglang) {
    require("--speculative-algorithm",
            is_model                        ? "STANDALONE"
            : is_ngram                      ? "NGRAM"
            : proposer == Proposer::kEagle3 ? "EAGLE3"
                                            : "EAGLE",
            "speculative decoding");
    if (!draft.empty()) require("--speculative-draft-model-path", draft, "speculative decoding");
    if (!is_ngram) {
      require("--speculative-num-steps", fmt::format("{}", levels), "speculative decoding");
      require("--speculative-eagle-topk", fmt::format("{}", in_.speculation.topk),
              "speculative decoding");
    }
    require("--speculative-num-draft-tokens", fmt::format("{}", tokens + 1),
            "speculative decoding");
  } else {
    ordered_json& config = yaml_["speculative_config"];
    config["decoding_type"] = is_mtp                          ? "MTP"
                              : is_ngram                      ? "NGram"
                              : is_model                      ? "DraftTarget"
                              : proposer == Proposer::kEagle3 ? "Eagle3"
                                                              : "Eagle";
    if (is_mtp) {
      config["num_nextn_predict_layers"] = tokens;
    } else {
      config["max_draft_len"] = tokens;
      if (!draft.empty()) config["speculative_model_dir"] = draft;
    }
  }
}

void LaunchWriter::add_split() {
  if (out_.name == "server") return;
  const std::size_t engine = index_of(engine_);
  if (engine == kVllm) {
    // Both sides can send and receive; the request determines the direction.
    require("--kv-transfer-config",
            ordered_json{{"kv_connector", "NixlConnector"}, {"kv_role", "kv_both"}}.dump(),
            "separate prefill and decode");
  } else if (engine == kSglang) {
    require("--disaggregation-mode", out_.name, "separate prefill and decode");
  } else {
    yaml_["cache_transceiver_config"]["backend"] = "DEFAULT";
    if (out_.name == "prefill") yaml_["disable_overlap_scheduler"] = true;
  }
  note("prefill and decode engines need a router that sends a request to one of each");
}

void LaunchWriter::finish_files() {
  if (yaml_.is_null()) return;
  const std::string file = fmt::format("{}.yaml", out_.name);
  require("--extra_llm_api_options", file, "options in a file");
  out_.files.push_back({file, yaml_text(yaml_)});
}

LaunchRole LaunchWriter::role() {
  const std::size_t engine = index_of(engine_);
  out_.words = engine_.program;
  if (engine_.model_is_positional) {
    out_.words.push_back(in_.model);
  } else {
    add(engine_.model_flag, in_.model);
  }
  if (in_.stack.usage == EngineUsage::kTensorrt) {
    refuse("usage tensorrt: the command of a compiled engine names its folder, not a model");
  }
  if (engine == kTrtllm && has("--backend")) add("--backend", "pytorch");
  const std::int64_t groups = engine == kSglang ? in_.stack.attention_groups : 1;
  require(kTensor.flags[engine], fmt::format("{}", in_.tensor_parallel * groups),
          "tensor parallelism");
  if (in_.pipeline_parallel > 1) {
    require(kPipeline.flags[engine], fmt::format("{}", in_.pipeline_parallel),
            "pipeline parallelism");
  }
  add_experts();
  add_weights();
  add_cache();
  add_method();
  add_limits();
  add_scheduler();
  add_speculation();
  add_split();
  if (in_.host_memory > Bytes{}) {
    note("host memory for caches: set it in the engine's offloading options");
  }
  finish_files();
  return std::move(out_);
}

}  // namespace kvsim
