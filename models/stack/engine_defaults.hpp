#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/json/field.hpp"
#include "models/units/units.hpp"

namespace kvsim {

struct Gpu;
struct VisionEncoder;
struct Llm;

/// A release of an engine: major, minor, patch. Post and candidate releases count as the patch.
using EngineVersion = std::array<std::int32_t, 3>;

/// Reads "0.19", "v0.19.1" or "0.8.5.post1"; nullopt for anything else. `parts`: numbers given.
[[nodiscard]] std::optional<EngineVersion> parse_engine_version(std::string_view text,
                                                                int* parts = nullptr);

/// How the engine is started: by the HTTP server, by the offline class of its Python library, or
/// from an engine that TensorRT compiled (TensorRT-LLM, instead of its PyTorch backend).
enum class EngineUsage : std::uint8_t { kServer, kLlm, kTensorrt };
[[nodiscard]] std::string_view word_of(EngineUsage usage);
[[nodiscard]] std::string_view display_name(EngineUsage usage);
/// Nullopt: no such word.
[[nodiscard]] std::optional<EngineUsage> usage_of(std::string_view word);

/// What an engine's defaults depend on. A null GPU is one that the engine cannot query.
struct EngineSite {
  const Gpu* gpu = nullptr;
  const Llm* llm = nullptr;
  std::int32_t gpus = 1;
  bool speculates = false;   // drafts are proposed,
  bool looks_up = false;     // those that followed the last tokens earlier in the text (n-grams)
  bool draft_model = false;  // a separate model proposes them, not a head on the target's states
  std::int32_t stages = 1;   // of a pipeline
  /// Groups that `gpus` consist of, each attending for its own requests (data-parallel attention).
  std::int32_t attention_groups = 1;
  bool caches_prefixes = true;  // false: the run switches it off
};

/// Memory that an engine leaves to activations and graphs; its memory fraction is the rest.
///   base + per_prefill_token x prefill_chunk + per_graph_sequence x graph_sequences
///   + per_gpu x gpus + graphs, and at least `min`; with attention groups also
///   grouped + per_group_sequence x graph_sequences x groups, half as much again above 300;
///   with drafts also reserve_drafts, on top of `min`
struct MemoryReserve {
  Bytes base{}, per_prefill_token{}, per_graph_sequence{}, per_gpu{};
  Bytes grouped{}, per_group_sequence{};
};

/// What an engine's API server adds to a request: one process that parses HTTP, tokenizes prompts
/// and streams tokens, next to the engine.
struct FrontEndTimes {
  Seconds latency;       // of a request beyond the work below: network, queues between processes
  Seconds request;       // work per request,
  Seconds prompt_token;  // per token of its prompt,
  Seconds token;         // and per token that is streamed
  /// What a server in the engine's process takes of the engine, per sequence of an iteration.
  Seconds sequence{};
  std::int32_t servers = 1;  // processes that share the work (vLLM: --api-server-count)
  /// Turns of their event loops that a request's work takes; other work comes between them.
  std::int32_t turns = 1;

  friend constexpr bool operator==(const FrontEndTimes&, const FrontEndTimes&) = default;
};

/// What top-k and top-p take of a step's sampling, in addition to a greedy one.
struct CutoffTimes {
  Seconds step;                // of kernels and launches, whatever their size
  double bytes_per_logit = 0;  // read and written

  friend constexpr bool operator==(const CutoffTimes&, const CutoffTimes&) = default;
};

/// Values that one rule sets. The first rule that fits sets a key; later ones do not change it.
struct EngineValues {
  std::optional<std::int64_t> prefill_chunk{}, long_prefill_chunk{}, max_num_seqs{}, block_tokens{};
  std::optional<double> usable_fraction{};
  std::optional<bool> counts_graphs{};
  std::optional<MemoryReserve> reserve{};
  std::optional<Bytes> reserve_graphs{}, min_reserve{}, reserve_drafts{};
  std::optional<std::int64_t> graph_sequences{};
  // Not options of the engine, so they are not among its settings.
  std::optional<bool> schedules_ahead{}, reserves_full_prompt{}, prefix_caching{};
  // Stack's of these names.
  std::optional<bool> window_pools{}, graph_padding{}, eager_prompts{}, rescans_decodes{},
      joint_attention{};
  std::optional<std::int64_t> state_slots{}, state_sequences{};
  std::optional<Seconds> inter_step_overhead{}, inter_step_per_sequence{}, eager_per_layer{};
  std::optional<FrontEndTimes> front_end{};
  std::optional<std::int32_t> front_end_turns{};  // FrontEndTimes::turns
  std::optional<CutoffTimes> cutoff{};
  /// Stack::attention_per_clock.
  std::optional<double> attention_per_clock{};
  std::optional<double> prompt_attention_per_clock{};  // Stack's of this name
  std::optional<double> sampler_bytes{};               // Stack::sampler_bytes
};

/// Default values and the conditions under which an engine takes them. An absent condition holds.
struct DefaultsRule {
  std::optional<EngineVersion> from{}, before{};
  std::optional<Bytes> memory_from{}, memory_below{};  // the GPU's nominal memory
  std::vector<std::string> named{}, not_named{};       // parts of the GPU's name, lower case
  std::optional<EngineUsage> usage{};
  std::optional<std::int32_t> gpus_from{}, gpus_below{};  // that one replica's model spans
  std::optional<bool> experts{}, latent{};  // the model has routed experts, latent attention
  std::vector<std::string> model_types{};   // Hugging Face's words: "llama"
  /// Query heads for each KV head; a model whose first layer has one of them.
  std::vector<std::int64_t> query_groups{};
  std::optional<bool> quantized{};  // the checkpoint is published quantized
  std::optional<bool> speculates{}, looks_up{}, draft_model{}, pipeline{};
  std::optional<bool> states{};           // the model has recurrent states
  std::optional<bool> caches_prefixes{};  // the run does not switch it off
  EngineValues values{};
  std::string source{};

  [[nodiscard]] bool fits(EngineVersion version, EngineUsage usage, const EngineSite& site) const;
  /// "GPUs of at least 70 GiB, not A100; server"; empty: the rule holds for all.
  [[nodiscard]] std::string conditions() const;
};

/// The defaults of an engine by version, GPU and usage: the "defaults" of a stack profile.
struct EngineDefaults {
  std::string engine;       // "vLLM"
  std::string first, last;  // known versions
  EngineVersion first_version{}, last_version{};
  int last_parts = 2;  // "0.28" covers 0.28.1
  /// The engine's own spelling of a key: "prefill_chunk" is "--max-num-batched-tokens".
  std::vector<std::pair<std::string, std::string>> options;
  /// It does not start with a `max_num_seqs` above `max_num_batched_tokens` (vLLM's
  /// SchedulerConfig) and lowers its default of it (EngineArgs).
  bool seqs_within_batched_tokens = false;
  /// Limits of tokens and sequences are of all attention groups together, which divide them.
  bool limits_of_all_groups = false;
  std::vector<DefaultsRule> rules;
  std::string rules_json;  // as the profile has them

  [[nodiscard]] bool knows(EngineVersion version) const;
  /// Whether a rule names `usage`.
  [[nodiscard]] bool distinguishes(EngineUsage usage) const;
  [[nodiscard]] std::string_view option(std::string_view key) const;  // empty: none
};

/// {"step": "0.2 ms", "bytes_per_logit": 300}. Errors: InputError.
[[nodiscard]] CutoffTimes read_cutoff(const Field& field);

/// {"latency": "2 ms", "request": "1 ms", "prompt_token": "2 us", "token": "20 us", "sequence":
/// "26 us"}; what is absent is 0. Errors: InputError.
[[nodiscard]] FrontEndTimes read_front_end(const Field& field);

/// Errors: InputError.
[[nodiscard]] EngineDefaults read_engine_defaults(const Field& field);

/// One setting that an engine runs with, and where its value comes from.
struct EngineSetting {
  std::string key;     // of the profile: "prefill_chunk"
  std::string option;  // the engine's own: "--max-num-batched-tokens"; empty: it has none
  std::string value;   // as the option takes it
  bool by_user = false;
  std::string origin;  // "default of vLLM 0.28 for GPUs below 70 GiB; server"
  std::string source;  // of the default; empty where the user set it
};

/// The settings of one engine on one GPU.
struct EngineSettings {
  std::string engine, version, usage;
  std::vector<EngineSetting> settings;

  /// "--max-num-batched-tokens 2048 --max-num-seqs 256 --gpu-memory-utilization 0.92"
  [[nodiscard]] std::string flags() const;
};

/// The part of its default share that SGLang takes where it loads a vision encoder, by the
/// encoder's width. Its formula takes 24 layers for a configuration without num_hidden_layers, as
/// Qwen's are. Source: sglang server_args.py, adjust_mem_fraction_for_vlm (v0.5.3; arg_groups
/// since). Not distinguished: releases that size the pool after capturing graphs reserve 8 GiB
/// instead.
[[nodiscard]] double share_with_vision(const VisionEncoder& vision);

}  // namespace kvsim
