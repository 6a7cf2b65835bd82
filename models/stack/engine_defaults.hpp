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

/// Parses "0.19", "v0.19.1" or "0.8.5.post1"; nullopt for anything else. `parts`: numbers given.
[[nodiscard]] std::optional<EngineVersion> parse_engine_version(std::string_view text,
                                                                int* parts = nullptr);

/// How the engine is started: by the HTTP server, by the offline class of its Python library, or
/// from an engine that TensorRT compiled (TensorRT-LLM, instead of its PyTorch backend).
enum class EngineUsage : std::uint8_t { kServer, kLlm, kTensorrt };
[[nodiscard]] std::string_view word_of(EngineUsage usage);
[[nodiscard]] std::string_view display_name(EngineUsage usage);
/// Returns nullopt if `word` is unknown.
[[nodiscard]] std::optional<EngineUsage> usage_of(std::string_view word);

/// The properties that an engine's defaults depend on. A null GPU is one the engine cannot query.
struct EngineSite {
  const Gpu* gpu = nullptr;
  const Llm* llm = nullptr;
  std::int32_t gpus = 1;
  bool speculates = false;  // the engine uses speculative decoding
  bool looks_up = false;    // drafts are n-grams found earlier in the text
  /// Drafts come from a separate model, not from a head on the target's states.
  bool draft_model = false;
  std::int32_t stages = 1;  // pipeline stages
  /// Number of groups in `gpus`, each attending for its own requests (data-parallel attention).
  std::int32_t attention_groups = 1;
  bool caches_prefixes = true;  // false: the run disables it
};

/// Memory that an engine leaves for activations and graphs; its memory fraction is the rest.
///   base + per_prefill_token x prefill_chunk + per_graph_sequence x graph_sequences
///   + per_gpu x gpus + graphs, and at least `min`; with attention groups also
///   grouped + per_group_sequence x graph_sequences x groups, 1.5 times that above 300;
///   with drafts also reserve_drafts, on top of `min`
struct MemoryReserve {
  Bytes base{}, per_prefill_token{}, per_graph_sequence{}, per_gpu{};
  Bytes grouped{}, per_group_sequence{};
};

/// Time that an engine's API server adds to a request. The server is one process next to the engine
/// that parses HTTP, tokenizes prompts and streams tokens.
struct FrontEndTimes {
  Seconds latency;       // per request beyond the work below: network, queues between processes
  Seconds request;       // work per request
  Seconds prompt_token;  // work per prompt token
  Seconds token;         // work per streamed token
  /// Engine time per sequence of an iteration that a server in the engine's process takes.
  Seconds sequence{};
  std::int32_t servers = 1;  // processes that share the work (vLLM: --api-server-count)
  /// Event-loop turns that a request's work needs; other work runs between them.
  std::int32_t turns = 1;

  friend constexpr bool operator==(const FrontEndTimes&, const FrontEndTimes&) = default;
};

/// Cost of top-k and top-p per step, in addition to greedy sampling.
struct CutoffTimes {
  Seconds step;                // kernels and launches, regardless of their size
  double bytes_per_logit = 0;  // read and written

  friend constexpr bool operator==(const CutoffTimes&, const CutoffTimes&) = default;
};

/// Values that one rule sets. The first matching rule sets a key; later ones do not change it.
struct EngineValues {
  std::optional<std::int64_t> prefill_chunk{}, long_prefill_chunk{}, max_num_seqs{}, block_tokens{};
  std::optional<double> usable_fraction{};
  std::optional<bool> counts_graphs{};
  std::optional<MemoryReserve> reserve{};
  std::optional<Bytes> reserve_graphs{}, min_reserve{}, reserve_drafts{};
  std::optional<std::int64_t> graph_sequences{};
  // Not options of the engine and therefore not among its settings.
  std::optional<bool> schedules_ahead{}, reserves_full_prompt{}, prefix_caching{};
  // The members of Stack with these names.
  std::optional<bool> window_pools{}, graph_padding{}, eager_prompts{}, rescans_decodes{},
      joint_attention{};
  std::optional<std::int64_t> state_slots{}, state_sequences{};
  std::optional<Seconds> inter_step_overhead{}, inter_step_per_sequence{}, eager_per_layer{};
  std::optional<FrontEndTimes> front_end{};
  std::optional<std::int32_t> front_end_turns{};  // FrontEndTimes::turns
  std::optional<CutoffTimes> cutoff{};
  /// Stack::attention_per_clock.
  std::optional<double> attention_per_clock{};
  std::optional<double> prompt_attention_per_clock{};  // Stack's member
  std::optional<double> sampler_bytes{};               // Stack::sampler_bytes
};

/// Default values and the conditions under which an engine takes them. An absent condition holds.
struct DefaultsRule {
  std::optional<EngineVersion> from{}, before{};
  std::optional<Bytes> memory_from{}, memory_below{};  // the GPU's nominal memory
  std::vector<std::string> named{}, not_named{};       // parts of the GPU's name, lower case
  std::optional<EngineUsage> usage{};
  std::optional<std::int32_t> gpus_from{}, gpus_below{};  // GPUs that one replica's model spans
  std::optional<bool> experts{}, latent{};  // the model has routed experts, latent attention
  std::vector<std::string> model_types{};   // Hugging Face names: "llama"
  /// Query heads per KV head; the rule holds if the model's first layer has one of these ratios.
  std::vector<std::int64_t> query_groups{};
  std::optional<bool> quantized{};  // the checkpoint is published quantized
  std::optional<bool> speculates{}, looks_up{}, draft_model{}, pipeline{};
  std::optional<bool> states{};           // the model has recurrent states
  std::optional<bool> caches_prefixes{};  // the run does not disable it
  EngineValues values{};
  std::string source{};

  [[nodiscard]] bool fits(EngineVersion version, EngineUsage usage, const EngineSite& site) const;
  /// "GPUs of at least 70 GiB, not A100; server"; empty if the rule always holds.
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
  /// The engine rejects a `max_num_seqs` above `max_num_batched_tokens` (vLLM's SchedulerConfig)
  /// and lowers its default accordingly (EngineArgs).
  bool seqs_within_batched_tokens = false;
  /// Limits of tokens and sequences apply to all attention groups together and are divided among
  /// them.
  bool limits_of_all_groups = false;
  std::vector<DefaultsRule> rules;
  std::string rules_json;  // as written in the profile

  [[nodiscard]] bool knows(EngineVersion version) const;
  /// Whether a rule names `usage`.
  [[nodiscard]] bool distinguishes(EngineUsage usage) const;
  [[nodiscard]] std::string_view option(std::string_view key) const;  // empty: none
};

/// {"step": "0.2 ms", "bytes_per_logit": 300}. Throws InputError.
[[nodiscard]] CutoffTimes read_cutoff(const Field& field);

/// {"latency": "2 ms", "request": "1 ms", "prompt_token": "2 us", "token": "20 us", "sequence": "26
/// us"}; absent keys are 0. Throws InputError.
[[nodiscard]] FrontEndTimes read_front_end(const Field& field);

/// Throws InputError.
[[nodiscard]] EngineDefaults read_engine_defaults(const Field& field);

/// One setting of a running engine, and the origin of its value.
struct EngineSetting {
  std::string key;     // of the profile: "prefill_chunk"
  std::string option;  // the engine's: "--max-num-batched-tokens"; empty if there is none
  std::string value;   // in the format of the option
  bool by_user = false;
  std::string origin;  // "default of vLLM 0.28 for GPUs below 70 GiB; server"
  std::string source;  // of the default; empty if the user set it
};

/// The settings of one engine on one GPU.
struct EngineSettings {
  std::string engine, version, usage;
  std::vector<EngineSetting> settings;

  /// "--max-num-batched-tokens 2048 --max-num-seqs 256 --gpu-memory-utilization 0.92"
  [[nodiscard]] std::string flags() const;
};

/// Factor by which SGLang scales its default memory fraction when it loads a vision encoder, by the
/// encoder's width. Its formula assumes 24 layers for a configuration without num_hidden_layers,
/// such as Qwen's. Source: sglang server_args.py, adjust_mem_fraction_for_vlm (v0.5.3; arg_groups
/// since). Not modelled: releases that size the pool after capturing graphs reserve 8 GiB instead.
[[nodiscard]] double share_with_vision(const VisionEncoder& vision);

}  // namespace kvsim
