#include "models/stack/stack_defaults.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "models/gpu/gpu.hpp"
#include "models/llm/llm.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"

namespace kvsim {
namespace {

/// Sets each value from the first matching rule, and records its origin.
class DefaultsTaker {
 public:
  DefaultsTaker(const Stack& stack, const EngineSite& site)
      : stack_{stack},
        site_{site},
        version_{parse_engine_version(stack.version).value_or(EngineVersion{})} {}

  /// Returns the value of `member` and the rule that sets it; nullopt if there is no such rule.
  template <class T>
  std::optional<T> find(std::optional<T> EngineValues::*member, const DefaultsRule** rule) const {
    for (const DefaultsRule& candidate : stack_.defaults->rules) {
      if (!(candidate.values.*member) || !candidate.fits(version_, stack_.usage, site_)) continue;
      *rule = &candidate;
      return candidate.values.*member;
    }
    return std::nullopt;
  }
  template <class T>
  std::optional<T> find(std::optional<T> EngineValues::*member) const {
    const DefaultsRule* rule = nullptr;
    return find(member, &rule);
  }

 private:
  const Stack& stack_;
  const EngineSite& site_;
  EngineVersion version_;
};

/// Returns the fraction of the GPU's memory left after `reserve`, rounded to three decimals as in
/// SGLang.
double fraction_after_reserve(const MemoryReserve& reserve, const DefaultsTaker& taker,
                              const Stack& stack, const StackOptions& options,
                              const EngineSite& site) {
  constexpr double kDecimals = 1000;
  constexpr std::int64_t kMinTokens = 2048;  // sglang server_args.py: max(chunk, 2048)
  const std::int64_t sequences =
      options.graph_sequences.value_or(taker.find(&EngineValues::graph_sequences).value_or(0));
  Bytes kept = reserve.base +
               reserve.per_prefill_token * std::max(stack.prefill_chunk, kMinTokens) +
               reserve.per_graph_sequence * sequences + reserve.per_gpu * std::int64_t{site.gpus} +
               taker.find(&EngineValues::reserve_graphs).value_or(Bytes{});
  if (site.attention_groups > 1) {
    constexpr std::int64_t kManySequences = 300;
    const Bytes padding = reserve.per_group_sequence * sequences * site.attention_groups;
    kept +=
        reserve.grouped + (sequences > kManySequences ? Bytes{padding.count() * 3 / 2} : padding);
  }
  kept = std::max(kept, taker.find(&EngineValues::min_reserve).value_or(Bytes{})) +
         taker.find(&EngineValues::reserve_drafts).value_or(Bytes{});
  const Bytes memory = site.gpu->hbm;
  if (kept >= memory) {
    throw InputError{fmt::format(
        "stack {}: {} {} reserves {} for activations and CUDA graphs, but GPU {} has "
        "{}; set the memory fraction or use a larger GPU",
        stack.name, stack.defaults->engine, stack.version, kept, site.gpu->name, memory)};
  }
  const double share = 1 - static_cast<double>(kept.count()) / static_cast<double>(memory.count());
  return std::round(share * kDecimals) / kDecimals;
}

}  // namespace

void take_defaults(Stack& out, const StackOptions& options, const EngineSite& site) {
  const EngineDefaults& defaults = *out.defaults;
  const DefaultsTaker taker{out, site};
  EngineSettings settings{.engine = defaults.engine,
                          .version = out.version,
                          .usage = std::string{word_of(out.usage)},
                          .settings = {}};
  const auto note = [&](const char* key, std::string value, bool by_user,
                        const DefaultsRule* rule) {
    EngineSetting setting{.key = key,
                          .option = std::string{defaults.option(key)},
                          .value = std::move(value),
                          .by_user = by_user,
                          .origin = "set by the user",
                          .source = {}};
    if (!by_user) {
      if (rule == nullptr) return;
      const std::string where = rule->conditions();
      setting.origin = fmt::format("default of {} {}{}{}", defaults.engine, out.version,
                                   where.empty() ? "" : " for ", where);
      setting.source = rule->source;
      out.sources[key] = rule->source;
    }
    settings.settings.push_back(std::move(setting));
  };
  const auto count = [&](const char* key, std::optional<std::int64_t> EngineValues::*member,
                         std::int64_t& value, const std::optional<std::int64_t>& given) {
    const DefaultsRule* rule = nullptr;
    value = taker.find(member, &rule).value_or(value);
    if (given) value = *given;
    note(key, fmt::format("{}", value), given.has_value(), rule);
  };
  count("prefill_chunk", &EngineValues::prefill_chunk, out.prefill_chunk, options.prefill_chunk);
  if (out.prefill_chunk == 0) {
    // Prompts are not chunked: the engine's option does not have a single value, so none is
    // printed.
    settings.settings.clear();
    const DefaultsRule* rule = nullptr;
    if (const auto tokens = taker.find(&EngineValues::long_prefill_chunk, &rule)) {
      out.long_prefill_chunk = *tokens;
      out.sources["long_prefill_chunk"] = rule->source;
    }
  }
  count("max_num_seqs", &EngineValues::max_num_seqs, out.max_num_seqs, options.max_num_seqs);
  if (defaults.seqs_within_batched_tokens && out.prefill_chunk > 0 &&
      out.max_num_seqs > out.prefill_chunk) {
    if (options.max_num_seqs) {
      throw InputError{fmt::format(
          "engine: max_num_seqs: expected at most max_num_batched_tokens, {} (else {} does not "
          "start), got {}",
          out.prefill_chunk, defaults.engine, out.max_num_seqs)};
    }
    out.max_num_seqs = out.prefill_chunk;
    if (!settings.settings.empty() && settings.settings.back().key == "max_num_seqs") {
      settings.settings.back().value = fmt::format("{}", out.max_num_seqs);
      settings.settings.back().origin += ", at most max_num_batched_tokens";
    }
  }

  const DefaultsRule* rule = nullptr;
  bool has_vision = false;
  if (const auto share = taker.find(&EngineValues::usable_fraction, &rule)) {
    out.usable_fraction = *share;
  } else if (const auto reserve = taker.find(&EngineValues::reserve, &rule);
             reserve && site.gpu != nullptr && !options.memory_fraction) {
    out.usable_fraction = fraction_after_reserve(*reserve, taker, out, options, site);
    has_vision = out.loads_vision && !options.language_model_only.value_or(false) &&
                 site.llm != nullptr && site.llm->vision;
    if (has_vision) out.usable_fraction *= share_with_vision(*site.llm->vision);
  }
  note("usable_fraction",
       fmt::format("{:g}", options.memory_fraction.value_or(out.usable_fraction)),
       options.memory_fraction.has_value(), rule);
  if (rule != nullptr && rule->values.reserve && !options.memory_fraction) {
    settings.settings.back().origin += ", from GPU memory, number of GPUs and tokens per pass";
    if (has_vision) settings.settings.back().origin += ", reduced for a vision encoder";
  }
  count("block_tokens", &EngineValues::block_tokens, out.block_tokens, options.block_tokens);

  const auto versioned = [&](const char* key, auto EngineValues::*member, auto& value,
                             auto otherwise) {
    const DefaultsRule* by = nullptr;
    const auto given = taker.find(member, &by);
    value = given.value_or(otherwise);
    if (given) out.sources[key] = by->source;
  };
  const Stack::VersionedValues& own = out.profile_values;
  versioned("schedules_ahead", &EngineValues::schedules_ahead, out.schedules_ahead,
            own.schedules_ahead);
  versioned("reserves_full_prompt", &EngineValues::reserves_full_prompt, out.reserves_full_prompt,
            false);
  if (const auto caches = taker.find(&EngineValues::prefix_caching, &rule)) {
    out.prefix_caching = *caches;
    out.sources["prefix_caching"] = rule->source;
  }
  versioned("window_pools", &EngineValues::window_pools, out.window_pools, true);
  versioned("state_slots", &EngineValues::state_slots, out.state_slots, std::int64_t{0});
  versioned("state_sequences", &EngineValues::state_sequences, out.state_sequences,
            std::int64_t{0});
  versioned("eager_prompts", &EngineValues::eager_prompts, out.eager_prompts, false);
  versioned("rescans_decodes", &EngineValues::rescans_decodes, out.rescans_decodes, false);
  versioned("joint_attention", &EngineValues::joint_attention, out.joint_attention, false);
  if (site.gpu != nullptr) {
    versioned("graph_sequences", &EngineValues::graph_sequences, out.graph_sequences,
              std::int64_t{0});
    versioned("graph_padding", &EngineValues::graph_padding, out.graph_padding, true);
  }
  versioned("between_steps", &EngineValues::inter_step_overhead, out.inter_step_overhead,
            own.inter_step_overhead);
  versioned("between_per_sequence", &EngineValues::inter_step_per_sequence,
            out.inter_step_per_sequence, own.inter_step_per_sequence);
  versioned("eager_per_layer", &EngineValues::eager_per_layer, out.eager_per_layer,
            own.eager_per_layer);
  versioned("front_end", &EngineValues::front_end, out.front_end, own.front_end);
  versioned("front_end_turns", &EngineValues::front_end_turns, out.front_end.turns, 1);
  versioned("cutoff", &EngineValues::cutoff, out.cutoff, own.cutoff);
  versioned("attention_per_clock", &EngineValues::attention_per_clock, out.attention_per_clock,
            own.attention_per_clock);
  versioned("prompt_attention_per_clock", &EngineValues::prompt_attention_per_clock,
            out.prompt_attention_per_clock, 0.0);
  versioned("sampler_bytes", &EngineValues::sampler_bytes, out.sampler_bytes, own.sampler_bytes);

  rule = nullptr;
  const bool eager = options.cuda_graphs && !*options.cuda_graphs;
  if (const auto counts = taker.find(&EngineValues::counts_graphs, &rule)) {
    out.counts_graphs = *counts && !eager;
    if (!eager) note("counts_graphs", *counts ? "1" : "0", false, rule);
  }
  if (eager) note("eager", "", true, nullptr);
  out.settings = std::make_shared<const EngineSettings>(std::move(settings));
}

void take_state_slots(Stack& out, const StackOptions& options) {
  if (out.state_slots == 0) return;
  // sglang server_args.py since v0.5.14, _handle_mamba_radix_cache: without the overlap scheduler
  // the strategy is no_buffer, with 3 slots (MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO).
  constexpr std::int64_t kNoBuffer = 3;
  if (!out.schedules_ahead) out.state_slots = std::min(out.state_slots, kNoBuffer);
  // sglang model_runner.py, handle_max_mamba_cache: without the radix cache the pool has one slot
  // per running request (max_running_requests), if that is set.
  if (out.state_slots > 1) {
    out.state_sequences = 0;
  } else if (options.max_num_seqs) {
    out.state_sequences = *options.max_num_seqs;
  }
}

}  // namespace kvsim
