#include "validation/served/served_settings.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/gpu/gpu_of_user.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/weight_format.hpp"
#include "models/methods/resolve/cache_formats.hpp"
#include "models/stack/stack.hpp"
#include "models/units/error.hpp"
#include "validation/served/served_speculation.hpp"
#include "validation/served/served_text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

const Llm* known_llm(const std::string& name) {
  try {
    return &find_llm(name);
  } catch (const InputError&) {
    return nullptr;
  }
}

bool is_in(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Whether a part of a release's name does not change the architecture; "quantized.w8a8" has two
/// parts.
bool is_variant(std::string_view part) {
  const auto dot = part.find('.');
  if (dot != std::string_view::npos) {
    return is_variant(part.substr(0, dot)) && is_variant(part.substr(dot + 1));
  }
  constexpr std::array<std::string_view, 32> kVariants{
      "instruct", "chat",    "it",    "hf",   "base",   "pt",      "thinking",  "fp8",
      "fp4",      "nvfp4",   "mxfp4", "awq",  "gptq",   "int4",    "int8",      "w8a8",
      "w4a16",    "w8a16",   "bf16",  "fp16", "static", "dynamic", "quantized", "per",
      "tensor",   "channel", "block", "kv",   "marlin", "turbo",   "preview",   "dwq"};
  const bool date = part.size() == 4 && std::all_of(part.begin(), part.end(),
                                                    [](char c) { return c >= '0' && c <= '9'; });
  return date || std::find(kVariants.begin(), kVariants.end(), part) != kVariants.end();
}

const Gpu& gpu_of(const ServedRun& run, std::vector<std::string>& assumed) {
  const std::string name = plain_cell(run.gpu);
  if (name.empty() || is_in(name, "not stated")) throw NotExpressed{"the GPU is not stated"};
  try {
    const NamedGpu named = gpu_of_user(name);
    if (!named.note.empty()) assumed.push_back(named.note);
    return *named.gpu;
  } catch (const InputError&) {
    throw NotExpressed{fmt::format("no data sheet of the GPU {}", name)};
  }
}

bool has_fp8(const Gpu& gpu) { return gpu.peak.contains(Dtype::kFp8E4m3); }
bool has_fp4(const Gpu& gpu) { return gpu.peak.contains(Dtype::kFp4); }

/// Whether checkpoints of the family are published in fp8 with a scale for each block of 128 x 128.
bool is_block_family(const Llm& llm) {
  return llm.name.starts_with("qwen3") || llm.name.starts_with("deepseek") ||
         llm.name.starts_with("glm") || llm.name.starts_with("minimax");
}

/// Returns the format of the packed layers of a quantised checkpoint in the catalogue; nullopt if
/// the checkpoint is not quantised.
std::optional<Dtype> packed_format(const Llm& llm) {
  for (const LayerSpec& layer : llm.layers) {
    if (layer.mlp.format != nullptr) return layer.mlp.format->packed;
    for (const WeightFormat* format : layer.formats) {
      if (format != nullptr) return format->packed;
    }
  }
  return std::nullopt;
}

struct Formats {
  std::string weights;  // empty: as the model is published
  std::string cache;    // empty: as the engine chooses
};

Formats formats_of(const ServedRun& run, const ServedClient& client, const ServedEngine& engine,
                   const Llm& llm, const Gpu& gpu, const std::string& quantization,
                   std::vector<std::string>& assumed) {
  const bool trt = engine.name == "TensorRT-LLM";
  const std::string stated = plain_cell(run.weight_dtype);
  std::string name;
  for (const char c : run.model)
    name += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  const std::string all = stated + " " + quantization + " " + name;
  const bool is_stated = !stated.empty() && !is_in(stated, "not stated");
  Formats out;
  if (is_in(stated, "nvfp4") || is_in(stated, "fp4")) {
    out.weights = is_in(stated, "mxfp4") ? "mxfp4" : "nvfp4";
  } else if (is_in(stated, "fp8_block")) {
    out.weights = "fp8-block";
  } else if (is_in(stated, "fp8")) {
    if (is_in(all, "dynamic")) {
      out.weights = "fp8-channel";
    } else if (trt || is_in(all, "static") || !is_block_family(llm)) {
      out.weights = "fp8-tensor";
    } else {
      out.weights = "fp8-block";
    }
  } else if (is_in(stated, "int4")) {
    out.weights = is_in(all, "w4a16") ? "w4a16" : is_in(all, "gptq") ? "gptq-int4" : "awq-int4";
  } else if (is_in(stated, "int8")) {
    out.weights = is_in(all, "w8a8") ? "w8a8-int8" : "gptq-int8";
  } else if (is_in(stated, "bf16") || is_in(stated, "bfloat16")) {
    out.weights = "bf16";
  } else if (is_in(stated, "fp16") || is_in(stated, "float16")) {
    out.weights = "fp16";
  } else if (is_stated) {
    throw NotExpressed{fmt::format("the weights' format \"{}\"", stated)};
  } else if (client.fp8_recipe && (has_fp8(gpu) || has_fp4(gpu))) {
    out.weights = has_fp4(gpu) ? "nvfp4" : "fp8-tensor";
    assumed.push_back(
        fmt::format("weights in {}: {}'s recipe on this GPU", out.weights, client.name));
  } else {
    assumed.emplace_back("weights as the model is published");
  }

  // A published quantised checkpoint defines exactly which of its parts are quantised.
  const auto packed = packed_format(llm);
  const bool is_published = packed && !out.weights.empty() && bits_of(*packed) < 16 &&
                            !parse_dtype(out.weights) &&
                            find_weight_format(out.weights).packed == *packed;

  std::string cache = plain_cell(run.kv_dtype);
  if (is_in(quantization, "kv fp8")) cache = "fp8";
  if (cache.empty() || cache == "auto") {
    // ModelOpt's fp8 and fp4 recipes, whose checkpoints TensorRT-LLM runs, store the cache in fp8.
    const bool recipe = out.weights == "fp8-tensor" || out.weights == "nvfp4";
    if (trt && recipe && has_fp8(gpu)) {
      out.cache = "fp8_e4m3";
      assumed.emplace_back("an fp8 cache, as in ModelOpt's checkpoints with fp8 or fp4 weights");
    }
  } else if (!parse_dtype(cache) && find_cache_format(cache)) {
    out.cache = cache;
  } else if (cache.starts_with("fp8")) {
    out.cache = "fp8_e4m3";
  } else if (parse_dtype(cache)) {
    out.cache = std::string{name_of(*parse_dtype(cache))};
  } else {
    throw NotExpressed{fmt::format("the cache's format \"{}\"", cache)};
  }
  if (is_published) out.weights.clear();
  return out;
}

/// Returns the engine's release: as stated, else its client's, else the newest at the run's date.
std::pair<EngineVersion, std::string> release_of(const ServedRun& run, const ServedClient& client,
                                                 const ServedEngine& engine, bool is_v1,
                                                 std::vector<std::string>& assumed) {
  const std::string text = plain_cell(run.engine_version);
  // "TensorRT 10.2" is the version of TensorRT, not of TensorRT-LLM.
  const bool of_engine = !(engine.name == "TensorRT-LLM" && text.starts_with("tensorrt "));
  if (const auto stated = parse_release(text); stated && of_engine) {
    return {*stated, fmt::format("{}", fmt::join(*stated, "."))};
  }
  const auto usual = client.engine_versions.find(engine.name);
  if (text.empty() && usual != client.engine_versions.end()) {
    const std::string name = fmt::format("{}", fmt::join(usual->second, "."));
    assumed.push_back(fmt::format("{} {} (the client's default)", engine.name, name));
    return {usual->second, fmt::format("{} (by client)", name)};
  }
  auto date = parse_date(run.engine_version);
  if (!date) date = parse_date(run.date);
  EngineVersion version = engine.releases.back().version;
  std::string why = "by date";
  if (date) {
    version = engine.releases.front().version;
    for (const EngineRelease& release : engine.releases) {
      if (release.date <= *date) version = std::max(version, release.version);
    }
  } else {
    why = "neither version nor date, newest";
  }
  if (is_v1) version = std::max(version, EngineVersion{0, 8, 0});
  assumed.push_back(
      fmt::format("{} {}.{}.{} ({})", engine.name, version[0], version[1], version[2], why));
  return {version, fmt::format("{}.{} ({})", version[0], version[1], why)};
}

/// Returns the stack's profile for the nearest known release: "vllm@0.11.1".
std::string stack_of(const ServedRun& run, const ServedClient& client, const ServedEngine& engine,
                     bool is_v1, ServedSettings& out) {
  auto [version, label] = release_of(run, client, engine, is_v1, out.assumed);
  out.version = label;
  out.release = version;
  const ServedEngine::StackOf* of = &engine.stacks.back();
  for (const auto& stack : engine.stacks) {
    if (stack.before && version >= *stack.before) continue;
    if (stack.before && is_v1) continue;
    of = &stack;
    break;
  }
  const Stack& stack = find_stack(of->stack);
  if (!stack.defaults) return of->stack;
  const EngineDefaults& defaults = *stack.defaults;
  if (!defaults.knows(version)) {
    const bool early = version < defaults.first_version;
    const std::string nearest = early ? defaults.first : defaults.last;
    out.assumed.push_back(
        fmt::format("the defaults of {} {}, the nearest known release", engine.name, nearest));
    return fmt::format("{}@{}", of->stack, nearest);
  }
  return fmt::format("{}@{}.{}.{}", of->stack, version[0], version[1], version[2]);
}

void apply(const OptionRule& rule, const EngineOption& option, ordered_json& keys) {
  const nlohmann::ordered_json::json_pointer pointer{rule.key};
  const auto bad = [&] {
    throw NotExpressed{fmt::format("the value of the option {}", option.name)};
  };
  const std::string plain = plain_cell(option.value);
  if (plain == "none" || plain == "default" || plain == "auto") return;
  switch (rule.use) {
    case OptionUse::kCount: {
      const auto n = cell_count(option.value);
      if (!n) bad();
      keys[pointer] = *n;
      return;
    }
    case OptionUse::kShare:
    case OptionUse::kNumber: {
      if (plain_cell(option.value).starts_with("default")) return;
      const auto x = option.number();
      if (!x || (rule.use == OptionUse::kShare && !(*x > 0 && *x <= 1))) bad();
      keys[pointer] = *x;
      return;
    }
    case OptionUse::kSwitch:
      keys[pointer] = option.is_on();
      return;
    case OptionUse::kNot:
      keys[pointer] = !option.is_on();
      return;
    case OptionUse::kChoice: {
      const auto word = rule.words.find(plain_cell(option.value));
      if (word == rule.words.end()) bad();
      keys[pointer] = word->second;
      return;
    }
    default:
      return;
  }
}

struct Layout {
  std::int32_t tp = 1, pp = 1, replicas = 1, ep = 1, dcp = 1;
  std::int32_t prefill_replicas = 0;
  bool shares_experts = false;  // the replicas' experts are spread over all GPUs
  bool groups_attend = false;   // data-parallel attention
};

/// Returns the bytes of the weights in the format of `formats`.
Bytes bytes_of_weights(const Llm& llm, const Formats& formats) {
  WeightStore store{.base = llm.published_dtype};
  if (const auto dtype = parse_dtype(formats.weights)) {
    store.base = *dtype;
  } else if (!formats.weights.empty()) {
    store.format = &find_weight_format(formats.weights);
  }
  return loaded_weight_bytes(llm, store);
}

/// Returns the smallest number of GPUs on which weights use at most kShare of the memory and leave
/// the rest to the cache: the usual choice for throughput.
std::int64_t gpus_for_throughput(Bytes weights, const Gpu& gpu, std::int64_t max_gpus) {
  // Of 230 MLPerf runs (v4.1, v5.1) that state their number of GPUs, including pipeline stages, 218
  // use this number.
  constexpr double kShare = 0.6;
  std::int64_t n = 1;
  while (n<max_gpus&& static_cast<double>(weights.count())> kShare *
         static_cast<double>(n * gpu.hbm.count())) {
    n *= 2;
  }
  return n;
}

Layout layout_of(const ServedRun& run, const ServedClient& client, const ServedEngine& engine,
                 const Llm& llm, const Gpu& gpu, Bytes weights,
                 const std::vector<EngineOption>& options, std::vector<std::string>& assumed) {
  Layout out;
  const std::string text = plain_cell(run.ep_dp);
  const auto gpus = cell_count(run.gpu_count);
  const auto count = [](std::optional<std::int64_t> n) {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(n.value_or(1), 1, 1024));
  };
  out.pp = count(cell_count(run.pp));
  out.dcp = count(number_behind(text, "dcp"));
  for (const EngineOption& option : options) {
    if (option.name == "pp" || option.name == "pp_size" ||
        option.name == "pipeline_parallel_size") {
      out.pp = count(cell_count(option.value));
    }
  }
  const auto replicas = number_behind(text, "replicas");
  const auto dp = number_behind(text, "dp");
  const auto attention_dp = number_behind(text, "attention_dp");
  out.replicas = count(replicas ? replicas : dp ? dp : attention_dp);
  if (const auto apart = parse_apart(text)) {
    out.prefill_replicas = apart->first;
    out.replicas = apart->second;
  }
  if (const auto tp = cell_count(run.tp)) {
    out.tp = count(tp);
  } else if (gpus) {
    // Tensor parallelism beyond the GPUs connected by NVLink is not worth its collectives.
    const std::int64_t joined = gpu.nvlink_gpus.value_or(8);
    std::int64_t share = std::max<std::int64_t>(1, *gpus / (out.pp * out.replicas));
    while (share > joined && share % 2 == 0) share /= 2;
    if (client.in_process) share = gpus_for_throughput(weights, gpu, share);
    out.tp = count(share);
    assumed.push_back(fmt::format("tensor parallelism over {} GPUs", out.tp));
  }
  const bool experts = std::any_of(llm.layers.begin(), llm.layers.end(),
                                   [](const LayerSpec& l) { return l.mlp.n_experts > 0; });
  const auto number =
      number_behind(text, "ep") ? number_behind(text, "ep") : number_behind(text, "moe_ep");
  const bool is_apart = out.prefill_replicas > 0;
  if (!is_apart && gpus && *gpus > out.tp * out.pp * out.replicas &&
      *gpus % (out.tp * out.pp) == 0) {
    const std::int64_t more = *gpus / (out.tp * out.pp * out.replicas);
    if (experts && number && *number == *gpus / out.pp) {
      // An engine whose experts are spread over all GPUs also splits its attention over them.
      out.tp = count(*number);
      assumed.push_back(fmt::format("tensor parallelism over {} GPUs", out.tp));
    } else {
      out.replicas = count(out.replicas * more);
      assumed.push_back(fmt::format("{} equal engines on {} GPUs", out.replicas, *gpus));
    }
  }
  if (!experts) return out;
  const bool switched = std::any_of(options.begin(), options.end(), [](const EngineOption& o) {
    return o.name == "enable_expert_parallel" && o.is_on();
  });
  const bool vllm = engine.name == "vLLM";
  if (number && *number > 1) out.ep = count(number);
  // vLLM spreads the experts over all GPUs of tensor and data parallelism.
  if (vllm && (switched || is_in(text, "ep=on") || is_in(text, "ep=true"))) {
    out.ep = out.tp * out.replicas;
  }
  // Data-parallel attention of one engine: each group of GPUs has separate requests, and the
  // experts are spread over all GPUs.
  const auto on = [&](std::string_view name) {
    return std::any_of(options.begin(), options.end(),
                       [&](const EngineOption& o) { return o.name == name && o.is_on(); });
  };
  out.groups_attend = on("enable_attention_dp") || on("enable_dp_attention");
  if (out.groups_attend) {
    std::int32_t groups = out.tp;
    for (const EngineOption& o : options) {
      if (o.name == "dp_size" || o.name == "dp") groups = count(cell_count(o.value));
    }
    if (out.tp % groups == 0) {
      out.ep = out.tp;
      out.tp /= groups;
      out.replicas *= groups;
    }
  }
  out.shares_experts = out.ep > out.tp;
  return out;
}

/// Whether the requests of `client` are sampled with top-k or top-p.
bool samples_cutoff(const ServedClient& client, const ServedSettings& settings) {
  ClientSampling sampling = client.sampling;
  if (client.server_samples_from && settings.release >= *client.server_samples_from) {
    sampling = ClientSampling::kServer;
  }
  if (sampling != ClientSampling::kServer) return sampling == ClientSampling::kCutoff;
  const auto& from = settings.engine->model_samples_from;
  return from && settings.release >= *from && is_published_with_cutoff(settings.llm->name);
}

/// Returns the options that a client starts an engine with. Words in values are replaced by values
/// of the run: "users" per engine, "prompt" and "output" tokens. Options with a word that the run
/// does not state are left out.
std::vector<EngineOption> client_options(std::string_view cell, const ServedRun& run) {
  const std::int64_t groups =
      std::max<std::int64_t>(1, number_behind(plain_cell(run.ep_dp), "attention_dp").value_or(1));
  std::map<std::string, std::int64_t> words;
  for (const auto& [name, value] : {std::pair{"users", cell_count(run.concurrency)},
                                    std::pair{"prompt", cell_count(run.input_tokens)},
                                    std::pair{"output", cell_count(run.output_tokens)}}) {
    if (value) words[name] = *value;
  }
  if (const auto users = words.find("users"); users != words.end()) {
    users->second = (users->second + groups - 1) / groups;
  }
  std::vector<EngineOption> out;
  for (EngineOption& option : parse_options(cell)) {
    const bool is_sum = option.value.find('+') != std::string::npos || option.value == "users";
    const auto sum = is_sum ? cell_sum(option.value, words) : std::nullopt;
    if (is_sum && !sum) continue;
    if (sum) option.value = fmt::format("{}", *sum);
    out.push_back(std::move(option));
  }
  return out;
}

}  // namespace

const Llm* find_served_llm(std::string_view cell) {
  const std::string remark = bracketed(cell);
  if (is_in(remark, "prun") || is_in(remark, "spars")) {
    throw NotExpressed{"a model whose shape or sparsity was changed"};
  }
  std::string name = plain_cell(cell);
  if (const Llm* llm = known_llm(name)) return llm;
  const auto slash = name.find('/');
  if (slash != std::string::npos) name.erase(0, slash + 1);
  if (name.starts_with("meta-")) name.erase(0, 5);
  for (;;) {
    if (const Llm* llm = known_llm(name)) return llm;
    const auto dash = name.rfind('-');
    if (dash == std::string::npos || !is_variant(std::string_view{name}.substr(dash + 1))) break;
    name.erase(dash);
  }
  // A tuned model whose name contains that of its base: "hermes-3-llama-3.1-405b".
  for (auto dash = name.find('-'); dash != std::string::npos; dash = name.find('-', dash + 1)) {
    const std::string rest = name.substr(dash + 1);
    if (rest.find('-') == std::string::npos) break;
    if (const Llm* llm = known_llm(rest)) return llm;
  }
  return nullptr;
}

ServedSettings served_settings(const ServedRun& run, const ServedClient& client) {
  ServedSettings out;
  out.engine = find_served_engine(run.engine);
  if (out.engine == nullptr) throw NotExpressed{fmt::format("the engine \"{}\"", run.engine)};
  out.gpu = &gpu_of(run, out.assumed);
  out.llm = find_served_llm(run.model);
  if (out.llm == nullptr) {
    throw NotExpressed{fmt::format("no configuration of the model {}", plain_cell(run.model))};
  }
  std::vector<EngineOption> options = parse_options(run.engine_options);
  const auto assume = [&](std::vector<EngineOption> others, std::string_view why) {
    for (EngineOption& option : others) {
      const OptionRule* rule = out.engine->find_option(option.name);
      const auto same = [&](const EngineOption& o) {
        return o.name == option.name ||
               (rule != nullptr && out.engine->find_option(o.name) == rule);
      };
      if (std::any_of(options.begin(), options.end(), same)) continue;
      out.assumed.push_back(fmt::format("{} {}, {}", option.name, option.value, why));
      options.push_back(std::move(option));
    }
  };
  // The table may contain an option from other runs of the same source, or its default.
  assume(parse_sibling_options(run.not_stated), "as in other runs of the source");
  if (const auto of = client.engine_options.find(out.engine->name);
      of != client.engine_options.end()) {
    assume(client_options(of->second, run), "the client's default");
  }
  std::string quantization;
  bool is_v1 = is_in(plain_cell(run.engine_version), "v1") || is_in(run.engine_version, "(V1)");
  for (const EngineOption& option : options) {
    if (option.name == "quantization") quantization = plain_cell(option.value);
    if (option.name == "vllm_use_v1" && option.is_on()) is_v1 = true;
  }
  out.keys["model"] = out.llm->name;
  out.keys["gpu"] = out.gpu->name;
  const Formats formats =
      formats_of(run, client, *out.engine, *out.llm, *out.gpu, quantization, out.assumed);
  const Layout layout = layout_of(run, client, *out.engine, *out.llm, *out.gpu,
                                  bytes_of_weights(*out.llm, formats), options, out.assumed);
  out.keys["gpu_count"] = layout.tp;
  std::string label = stack_of(run, client, *out.engine, is_v1, out);
  // Compiled engines have no data-parallel attention, so an engine with it uses the PyTorch
  // backend.
  if (const auto usage = client.engine_usages.find(out.engine->name);
      usage != client.engine_usages.end() && !layout.groups_attend) {
    label += ":" + usage->second;
  }
  out.keys["stack"] = label;
  if (client.in_process) {
    for (const char* key : {"front_end_latency", "front_end_request", "front_end_token"}) {
      out.keys["engine"][key] = "0 s";
    }
    // The engine returns each token of a streaming request separately.
    if (run.arrival == "offline") out.keys["engine"]["front_end_sequence"] = "0 s";
  }
  const std::int64_t further = layout.tp * std::int64_t{layout.pp} - 1;
  if (client.step_time_per_further_gpu.count() > 0 && further > 0) {
    const Stack& stack = find_stack(out.keys["stack"].get<std::string>());
    const Seconds step =
        stack.inter_step_overhead + client.step_time_per_further_gpu * static_cast<double>(further);
    out.keys["engine"]["step_overhead"] = fmt::format("{:g} s", step.count());
  }
  if (samples_cutoff(client, out)) out.keys["engine"]["cutoff_sampling"] = true;
  if (!formats.weights.empty()) out.keys["dtype"] = formats.weights;
  if (!formats.cache.empty()) out.keys["kv_dtype"] = formats.cache;
  if (layout.pp > 1) out.keys["pipeline_parallel"] = layout.pp;
  if (layout.dcp > 1) out.keys["engine"]["decode_context_parallel"] = layout.dcp;
  if (layout.ep > 1) out.keys["engine"]["expert_parallel"] = layout.ep;
  if (layout.prefill_replicas > 0) {
    out.keys["cluster"] = {{"replicas", layout.replicas},
                           {"prefill_replicas", layout.prefill_replicas}};
  } else if (layout.shares_experts) {
    out.keys["cluster"] = {{"replicas", layout.replicas}};
  } else {
    out.replicas = layout.replicas;
  }
  std::vector<EngineOption> speculation;
  for (const EngineOption& option : options) {
    const OptionRule* rule = out.engine->find_option(option.name);
    if (rule == nullptr) rule = out.engine->find_option(plain_cell(option.name));
    const bool other_release = rule != nullptr && ((rule->from && out.release < *rule->from) ||
                                                   (rule->before && out.release >= *rule->before));
    if (rule == nullptr || rule->use == OptionUse::kUnmodelled || other_release) {
      out.ignored.push_back(option.name);
    } else if (rule->use == OptionUse::kRefused) {
      if (rule->unless.empty() || rule->unless != plain_cell(option.value)) {
        throw NotExpressed{rule->reason};
      }
    } else if (rule->use == OptionUse::kSpeculation) {
      speculation.push_back(option);
    } else {
      apply(*rule, option, out.keys);
    }
  }
  if (!speculation.empty()) {
    out.keys["speculation"] = served_speculation(speculation, out.assumed);
  }
  return out;
}

}  // namespace kvsim
