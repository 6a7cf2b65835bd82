#include "sim/launch/from_command.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/methods/method.hpp"
#include "models/methods/resolve/availability.hpp"
#include "models/units/dtype.hpp"
#include "models/units/error.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {
namespace {

using nlohmann::json;

/// A flag with the same values as an option.
struct Same {
  std::string_view flag, option;
  bool of_services = false;
};
constexpr std::array kSame{
    Same{"--tensor-parallel-size", "tp"},
    Same{"--tp-size", "tp"},
    Same{"--tp_size", "tp"},
    Same{"--pipeline-parallel-size", "pp", true},
    Same{"--pp-size", "pp", true},
    Same{"--pp_size", "pp", true},
    Same{"--max-num-seqs", "max-num-seqs"},
    Same{"--max-running-requests", "max-num-seqs"},
    Same{"--max_batch_size", "max-num-seqs"},
    Same{"--max-num-batched-tokens", "max-num-batched-tokens"},
    Same{"--max_num_tokens", "max-num-batched-tokens"},
    Same{"--gpu-memory-utilization", "gpu-memory-utilization"},
    Same{"--mem-fraction-static", "gpu-memory-utilization"},
    Same{"--kv_cache_free_gpu_memory_fraction", "gpu-memory-utilization"},
    Same{"--block-size", "block-size"},
    Same{"--page-size", "block-size"},
    Same{"--max-model-len", "max-model-len"},
    Same{"--context-length", "max-model-len"},
    Same{"--max_seq_len", "max-model-len"},
};
/// Flags with the same values as a key of a service.
constexpr std::array kKeys{
    Same{"--scheduling-policy", "/scheduler/order"},
    Same{"--long-prefill-token-threshold", "/scheduler/long_prefill_token_threshold"},
    Same{"--api-server-count", "/engine/api_servers"},
    Same{"--schedule-policy", "/scheduler/policy"},
    Same{"--schedule-conservativeness", "/scheduler/conservativeness"},
    Same{"--max-prefill-tokens", "/scheduler/max_prefill_tokens"},
};
/// vLLM's quantizations that kvsim supports under the same name.
constexpr std::array<std::string_view, 7> kQuantizations{
    "awq", "awq_marlin", "gptq", "gptq_marlin", "fp8", "bitsandbytes", "mxfp4"};

class Translator {
 public:
  Translator(const EngineCommand& command, bool services, const std::string& place)
      : command_{command}, services_{services}, place_{place} {}

  CommandOptions options() {
    option("model", command_.model);
    for (const GivenFlag& given : command_.flags) {
      // The last occurrence is used, as in the engine.
      if (command_.find(given.flag->name) == &given && !take(given)) {
        left_out_.push_back(given.typed);
      }
    }
    take_parallelism();
    take_speculation();
    take_prompts();
    if (!left_out_.empty()) {
      out_.notes.push_back(
          fmt::format("not part of the simulation: {}", fmt::join(left_out_, ", ")));
    }
    for (const auto& [name, value] : command_.environment) {
      out_.notes.push_back(fmt::format("not part of the simulation: variable {}", name));
    }
    return std::move(out_);
  }

 private:
  void option(std::string_view name, std::string value) {
    out_.options.emplace_back(name, std::move(value));
  }
  void set(std::string_view pointer, const std::string& value) {
    out_.options.emplace_back("set", fmt::format("{}={}", pointer, value));
  }
  [[nodiscard]] bool is(const GivenFlag& given,
                        std::initializer_list<std::string_view> names) const {
    return std::find(names.begin(), names.end(), given.flag->name) != names.end();
  }
  [[nodiscard]] std::int64_t number(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      const GivenFlag* given = command_.find(name);
      if (given == nullptr) continue;
      const std::int64_t value = std::stoll(given->values.front());
      if (value >= 1) return value;
      // TensorRT-LLM's -1: the engine chooses.
      if (name == "--ep_size") return 1;
      throw InputError{fmt::format("{}: {}", place_, given->typed), "at least 1",
                       fmt::format("{}", value)};
    }
    return 1;
  }

  /// Translates a flag. Returns false if it is not simulated; flags read elsewhere return true.
  bool take(const GivenFlag& given) {
    const std::string value = given.values.empty() ? "" : given.values.front();
    if (is(given, {"--model", "--model-path"})) return true;
    for (const Same& same : kSame) {
      if (given.flag->name != same.flag) continue;
      if (same.of_services && !services_) return value == "1";
      if (same.option == "tp" && attention_groups() > 1) return true;  // see take_parallelism
      return take_number(same.option, value, given);
    }
    for (const Same& same : kKeys) {
      if (given.flag->name != same.flag) continue;
      if (!services_ || value == "0") return value == "0";
      set(same.option, value);
      return true;
    }
    if (given.flag->name == "--chunked-prefill-size") {
      // -1: prompts are not chunked.
      if (value == "-1") return false;
      option("max-num-batched-tokens", value);
      return true;
    }
    if (is(given, {"--dtype"})) return take_dtype(value);
    if (is(given, {"--quantization"})) return take_quantization(value);
    if (is(given, {"--kv-cache-dtype", "--kv_cache_dtype"})) return take_cache(value, given);
    if (is(given, {"--mamba-ssm-cache-dtype", "--mamba-ssm-dtype"})) {
      const auto dtype = parse_dtype(value);
      if (dtype) set("/engine/state_dtype", std::string{name_of(*dtype)});
      return dtype.has_value() || value == "auto";
    }
    if (is(given, {"--enforce-eager", "--disable-cuda-graph"})) {
      if (given.is_on) option("enforce-eager", "");
      return true;
    }
    if (is(given,
           {"--cuda-graph-max-bs", "--cuda-graph-max-bs-decode", "--max-cudagraph-capture-size"})) {
      set("/engine/graph_sequences", value);
      return true;
    }
    if (is(given, {"--enable-prefix-caching"})) {
      return of_service(given.is_on ? "enable-prefix-caching" : "no-enable-prefix-caching");
    }
    if (is(given, {"--disable-radix-cache"})) return of_service("no-enable-prefix-caching");
    if (is(given, {"--enable-mixed-chunk"})) {
      if (services_) set("/scheduler/mixed_chunk", "true");
      return services_;
    }
    if (is(given, {"--async-scheduling"})) {
      set("/engine/async_scheduling", given.is_on ? "true" : "false");
      return true;
    }
    if (is(given, {"--scheduler-reserve-full-isl"})) {
      if (services_) set("/scheduler/reserve_full_isl", given.is_on ? "true" : "false");
      return services_;
    }
    if (is(given, {"--language-model-only"})) {
      if (given.is_on) leave_vision_out();
      return true;
    }
    if (is(given, {"--limit-mm-per-prompt"})) return take_media();
    if (is(given, {"--disable-overlap-schedule"})) {
      set("/engine/async_scheduling", "false");
      return true;
    }
    if (is(given, {"--enable-chunked-prefill", "--enable_chunked_prefill"})) {
      const bool is_on = given.is_on && value != "False" && value != "false";
      if (is_on || !services_) return is_on;
      set("/scheduler/chunked_prefill", "false");
      return true;
    }
    return is(given, {"--enable-expert-parallel", "--data-parallel-size", "--ep-size", "--ep_size",
                      "--enable-ep-moe", "--decode-context-parallel-size",
                      "--prefill-context-parallel-size", "--dp-size", "--enable-dp-attention",
                      "--enable_attention_dp", "--speculative-config", "--speculative-algorithm",
                      "--speculative-draft-model-path", "--speculative-num-steps",
                      "--speculative-eagle-topk", "--speculative-num-draft-tokens", "--backend"});
  }

  bool of_service(std::string_view name) {
    if (services_) option(name, "");
    return services_;
  }

  bool take_number(std::string_view name, const std::string& value, const GivenFlag& given) {
    if (given.flag->type != FlagType::kCount) {
      option(name, value);
      return true;
    }
    const auto count = count_of_flag(value);
    // "auto" and -1: the engine chooses.
    if (!count || *count < 1) return false;
    option(name, fmt::format("{}", *count));
    return true;
  }

  /// An engine that accepts neither images nor videos does not load a vision encoder.
  bool take_media() {
    json limits = json::object();
    for (const GivenFlag& given : command_.flags) {
      if (given.flag->name != "--limit-mm-per-prompt") continue;
      const json value = json::parse(given.values.front(), nullptr, false);
      if (!given.key.empty()) {
        limits[given.key] = value;
      } else if (value.is_object()) {
        limits.update(value);
      }
    }
    if (limits.value("image", json(1)) != 0 || limits.value("video", json(1)) != 0) return false;
    leave_vision_out();
    return true;
  }
  void leave_vision_out() {
    if (!std::exchange(leaves_vision_out_, true)) set("/engine/language_model_only", "true");
  }

  bool take_dtype(const std::string& value) {
    if (value == "auto") return true;
    const auto dtype = parse_dtype(value);
    if (!dtype) return false;
    option("dtype", std::string{name_of(*dtype)});
    return true;
  }

  bool take_quantization(const std::string& value) {
    const bool known =
        std::find(kQuantizations.begin(), kQuantizations.end(), value) != kQuantizations.end();
    if (known) option("quantization", value);
    return known;
  }

  bool take_cache(const std::string& value, const GivenFlag& given) {
    if (value == "auto") return true;
    if (const auto dtype = parse_dtype(value == "bf16" ? "bfloat16" : value)) {
      option("kv-dtype", std::string{name_of(*dtype)});
      return true;
    }
    // Formats that are methods of the catalogue.
    const std::string wanted = fmt::format("{} {}", given.flag->name, value);
    for (const MethodInfo& method : builtin_methods()) {
      for (const Availability& where : availability_of(method.name)) {
        if (where.software != command_.engine->stack || !where.as.ends_with(wanted)) continue;
        option("method", method.name);
        return true;
      }
    }
    throw InputError{fmt::format("{}: {} {}: this format of the cache is not simulated", place_,
                                 given.typed, value)};
  }

  /// Number of groups of tensor-parallel GPUs that compute attention for separate requests and
  /// share the experts (data-parallel attention); 1: no such groups.
  [[nodiscard]] std::int64_t attention_groups() const {
    const auto is_on = [&](std::string_view name) {
      const GivenFlag* given = command_.find(name);
      return given != nullptr && given->is_on;
    };
    const std::int64_t tensor = number({"--tp-size", "--tp_size"});
    const std::int64_t groups = is_on("--enable_attention_dp")   ? tensor
                                : is_on("--enable-dp-attention") ? number({"--dp-size"})
                                                                 : 1;
    return services_ && groups > 1 && tensor % groups == 0 ? groups : 1;
  }

  void take_attention_groups(std::int64_t groups) {
    const std::int64_t gpus = number({"--tp-size", "--tp_size"});
    if (gpus > groups) option("tp", fmt::format("{}", gpus / groups));
    option("replicas", fmt::format("{}", groups));
    set("/engine/expert_parallel", fmt::format("{}", gpus));
  }

  /// TensorRT-LLM chunks contexts only with a flag, or with an entry of its options file.
  void take_prompts() {
    if (!services_ || command_.engine->stack != "trtllm") return;
    if (command_.find("--enable_chunked_prefill") != nullptr ||
        command_.find("--extra_llm_api_options") != nullptr) {
      return;
    }
    set("/scheduler/chunked_prefill", "false");
  }

  void take_parallelism() {
    if (const std::int64_t groups = attention_groups(); groups > 1) {
      take_attention_groups(groups);
      return;
    }
    const std::int64_t tensor = number({"--tensor-parallel-size", "--tp-size", "--tp_size"});
    const std::int64_t data = number({"--data-parallel-size", "--dp-size"});
    const bool shares = command_.find("--enable-expert-parallel") != nullptr &&
                        command_.find("--enable-expert-parallel")->is_on;
    const std::int64_t parts = number({"--prefill-context-parallel-size"});
    const std::int64_t experts =
        shares ? tensor * parts * data : number({"--ep-size", "--ep_size"});
    if (data > 1) {
      if (services_) {
        option("replicas", fmt::format("{}", data));
      } else {
        left_out_.emplace_back("--data-parallel-size");
      }
    }
    const std::int64_t context = number({"--decode-context-parallel-size"});
    if (context > 1) set("/engine/decode_context_parallel", fmt::format("{}", context));
    if (parts > 1) set("/engine/prefill_context_parallel", fmt::format("{}", parts));
    if (experts > 1) set("/engine/expert_parallel", fmt::format("{}", experts));
  }

  /// The key "speculation"; null if there is none or it is not simulated.
  json speculation() {
    if (const GivenFlag* algorithm = command_.find("--speculative-algorithm")) {
      return sglang_speculation(*algorithm);
    }
    json config = json::object();
    for (const GivenFlag& given : command_.flags) {
      if (given.flag->name != "--speculative-config") continue;
      const json value = json::parse(given.values.front(), nullptr, false);
      if (given.key.empty()) {
        if (!value.is_object()) {
          throw InputError{fmt::format("{}: {}", place_, given.typed), "a JSON object",
                           given.values.front()};
        }
        config.update(value);
      } else {
        config[given.key] = value.is_discarded() ? json(given.values.front()) : value;
      }
    }
    if (config.empty()) return nullptr;
    const std::string method = config.value("method", json("")).is_string()
                                   ? config.value("method", std::string{})
                                   : std::string{};
    const bool counts = config.contains("num_speculative_tokens") &&
                        config.at("num_speculative_tokens").is_number_integer();
    const std::int64_t tokens =
        counts ? config.at("num_speculative_tokens").get<std::int64_t>() : 1;
    const bool has_model = config.contains("model") && config.at("model").is_string();
    std::string draft;
    if (method.ends_with("mtp")) {
      draft = word_of(Proposer::kMtp);
    } else if (find_proposer(method)) {
      draft = method;
    } else if (has_model && (method.empty() || method == "draft_model")) {
      draft = config.at("model").get<std::string>();
    } else {
      left_out_.push_back(fmt::format("speculation by {}", method.empty() ? "this file" : method));
      return nullptr;
    }
    return {{"draft", draft}, {"tokens", tokens}};
  }

  /// SGLang's algorithms: draft heads, a draft model, or n-grams of earlier text; proposal trees.
  json sglang_speculation(const GivenFlag& algorithm) {
    const GivenFlag* model = command_.find("--speculative-draft-model-path");
    const std::string& name = algorithm.values.front();
    const std::int64_t steps = number({"--speculative-num-steps"});
    std::string draft;
    if (name == "STANDALONE" && model != nullptr) {
      draft = model->values.front();
    } else if (name == "NGRAM") {
      draft = word_of(Proposer::kNgram);
    } else if (name == "EAGLE3") {
      draft = word_of(Proposer::kEagle3);
    } else if (name == "NEXTN" || (name == "EAGLE" && model == nullptr)) {
      draft = word_of(Proposer::kMtp);
    } else if (name == "EAGLE") {
      draft = word_of(Proposer::kEagle);
    } else {
      left_out_.push_back(algorithm.typed);
      return nullptr;
    }
    json out{{"draft", draft}, {"tokens", steps}};
    if (command_.find("--speculative-num-draft-tokens") != nullptr) {
      // One of the verified rows is the last accepted token.
      const std::int64_t rows = number({"--speculative-num-draft-tokens"});
      out["tokens"] = std::max<std::int64_t>(1, rows - 1);
      if (steps < rows - 1) out["steps"] = steps;
    }
    if (command_.find("--speculative-eagle-topk") != nullptr) {
      if (const auto topk = number({"--speculative-eagle-topk"}); topk > 1) out["topk"] = topk;
    }
    return out;
  }

  void take_speculation() {
    const json found = speculation();
    if (found.is_null()) return;
    if (!services_) {
      left_out_.emplace_back("speculation");
      return;
    }
    set("/speculation", found.dump());
  }

  const EngineCommand& command_;
  bool services_;
  const std::string& place_;
  CommandOptions out_;
  std::vector<std::string> left_out_;
  bool leaves_vision_out_ = false;
};

}  // namespace

CommandOptions options_of_command(const EngineCommand& command, bool services,
                                  const std::string& place) {
  return Translator{command, services, place}.options();
}

}  // namespace kvsim
