#include "models/stack/stack.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <span>

#include <fmt/format.h>

#include "models/gpu/gpu.hpp"
#include "models/json/embedded.hpp"
#include "models/llm/llm.hpp"
#include "models/stack/context_parallel.hpp"
#include "models/stack/stack_defaults.hpp"
#include "models/units/error.hpp"
#include "models/units/names.hpp"
#include "models/units/units_format.hpp"

namespace kvsim::embedded {
std::span<const EmbeddedFile> stack_profiles();
}  // namespace kvsim::embedded

namespace kvsim {
namespace {

constexpr std::array kFractionWords{"all", "before_weights", "after_weights", "free"};
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;

/// Returns the enumerator named by `field`; words are in the order of the enumeration.
template <class Enum, std::size_t N>
Enum read_enum(const Field& field, const std::array<const char*, N>& words) {
  const std::vector<std::string> known{words.begin(), words.end()};
  const std::string word = field.choice(known);
  return static_cast<Enum>(std::find(known.begin(), known.end(), word) - known.begin());
}

const Stack& find_among(std::span<const Stack> stacks, std::string_view name) {
  KnownNames known{.kind = "stack", .list_command = "kvsim list stacks"};
  const std::string key = folded_name(name);
  for (const Stack& stack : stacks) {
    if (stack.name == name || folded_name(stack.name) == key) return stack;
    known.names.push_back(stack.name);
  }
  throw InputError{unknown_entry(known, name)};
}

std::vector<Stack> read_profiles() {
  std::vector<Stack> stacks;
  for (const auto& file : embedded::stack_profiles()) {
    const std::string name{file.name};
    stacks.push_back(read_stack(Field::parse(file.text, "stacks/" + name + ".json"), name, stacks));
  }
  return stacks;
}

/// Returns a suggestion instead of a version unknown to `stack`: a stack that has the version, or
/// the newest known version.
std::string version_hint(const Stack& stack, std::optional<EngineVersion> version,
                         std::span<const Stack> stacks) {
  std::string others;
  const Stack* newest = &stack;
  for (const Stack& other : stacks) {
    if (!other.defaults || other.defaults->engine != stack.defaults->engine) continue;
    if (other.defaults->last_version > newest->defaults->last_version) newest = &other;
    if (other.name == stack.name) continue;
    others += fmt::format("; versions {} to {} are stack \"{}\"", other.defaults->first,
                          other.defaults->last, other.name);
  }
  if (!version || *version <= newest->defaults->last_version) return others;
  return fmt::format(
      "; its defaults are not known yet: use \"{}@{}\" and set the options that your release "
      "changed",
      newest->name, newest->defaults->last);
}

/// Returns `base` in the version and usage given by a label.
Stack variant_of(const Stack& base, std::string_view version, std::string_view usage) {
  if (!base.defaults) {
    throw InputError{fmt::format("stack \"{}\" has no versions and no usage: expected \"{}\"",
                                 base.name, base.name)};
  }
  Stack out = base;
  if (!version.empty()) {
    const auto parsed = parse_engine_version(version);
    if (!parsed || !base.defaults->knows(*parsed)) {
      throw InputError{fmt::format("expected a version of {} from {} to {}, got \"{}\"{}",
                                   base.defaults->engine, base.defaults->first, base.defaults->last,
                                   version, version_hint(base, parsed, builtin_stacks()))};
    }
    out.version = version.starts_with('v') ? version.substr(1) : version;
  }
  if (!usage.empty()) {
    const auto word = usage_of(usage);
    const bool compiles = base.defaults->distinguishes(EngineUsage::kTensorrt);
    if (!word || (*word == EngineUsage::kTensorrt && !compiles)) {
      throw InputError{fmt::format("stack \"{}\": expected usage server{}, got \"{}\"", base.name,
                                   compiles ? ", llm or tensorrt" : " or llm", usage)};
    }
    out.usage = *word;
  }
  take_defaults(out, {}, {});
  out.settings.reset();
  return out;
}

}  // namespace

std::string_view word_of(FractionOf what) { return kFractionWords[static_cast<std::size_t>(what)]; }

bool is_captured(const Stack& stack, std::int64_t sequences) {
  if (stack.graph_sequences == 0 || sequences == stack.graph_sequences) return true;
  if (sequences > stack.graph_sequences) return false;
  if (stack.graph_padding) return true;
  // TensorRT-LLM 1.0 to 1.2 llmapi/llm_args.py, CudaGraphConfig._generate_cuda_graph_batch_sizes:
  // without padding 1 to 32, 64, 128, and powers of two from 256 on.
  constexpr std::int64_t kEach = 32, kPowersFrom = 64;
  if (sequences <= kEach) return true;
  return sequences >= kPowersFrom && (sequences & (sequences - 1)) == 0;
}

Bytes fraction_bytes(const Stack& stack, Bytes total) {
  return truncated<Bytes>(std::floor(static_cast<double>(total.count()) * stack.usable_fraction));
}

Stack with_options(const Stack& stack, const StackOptions& options, const EngineSite& site) {
  if (stack.needs_cuda && site.gpu != nullptr && !is_nvidia(*site.gpu)) {
    throw InputError{
        fmt::format("stack {} runs on NVIDIA's GPUs, not on {}", stack.name, site.gpu->name)};
  }
  Stack out = stack;
  if (stack.defaults) take_defaults(out, options, site);
  if (options.max_model_len) out.max_model_len = *options.max_model_len;
  if (options.max_num_seqs) out.max_num_seqs = *options.max_num_seqs;
  if (options.prefill_chunk) out.prefill_chunk = *options.prefill_chunk;
  if (site.attention_groups > 1 && out.defaults && out.defaults->limits_of_all_groups) {
    out.attention_groups = site.attention_groups;
    const auto share = [&](std::int64_t& limit) {
      if (limit > 0) limit = std::max<std::int64_t>(1, limit / out.attention_groups);
    };
    share(out.prefill_chunk);
    // sglang model_runner.py: limits derived from the pool are per group.
    if (options.max_num_seqs || site.speculates) share(out.max_num_seqs);
  }
  if (options.block_tokens) out.block_tokens = *options.block_tokens;
  if (options.per_head_blocks) out.per_head_blocks = *options.per_head_blocks;
  if (options.lazy_compaction) out.lazy_compaction = *options.lazy_compaction;
  if (options.memory_fraction) out.usable_fraction = *options.memory_fraction;
  if (options.host_weights) out.host_weights = *options.host_weights;
  if (options.cuda_graphs && !*options.cuda_graphs) {
    out.graphs = Bytes{};
    out.host_per_layer = std::max(out.host_per_layer, out.eager_per_layer);
  }
  if (options.graph_sequences) out.graph_sequences = *options.graph_sequences;
  if (options.graph_padding) out.graph_padding = *options.graph_padding;
  if (options.async_scheduling) out.schedules_ahead = *options.async_scheduling;
  take_state_slots(out, options);
  if (options.cutoff_sampling) out.samples_cutoff = *options.cutoff_sampling;
  if (options.language_model_only.value_or(false)) out.loads_vision = false;
  const auto replace = [](Seconds& value, const std::optional<Seconds>& measured) {
    value = measured.value_or(value);
  };
  replace(out.front_end.latency, options.front_end_latency);
  replace(out.front_end.request, options.front_end_request);
  replace(out.front_end.prompt_token, options.front_end_prompt_token);
  replace(out.front_end.token, options.front_end_token);
  replace(out.front_end.sequence, options.front_end_sequence);
  if (options.api_servers) out.front_end.servers = *options.api_servers;
  replace(out.inter_step_overhead, options.inter_step_overhead);
  replace(out.inter_step_per_sequence, options.inter_step_per_sequence);
  if (options.non_torch) {
    out.context = *options.non_torch;
    out.communication = Bytes{};
  }
  if (options.graphs) out.graphs = *options.graphs;
  take_context_parallel(out, options);
  if (options.expert_parallel) out.expert_parallel = *options.expert_parallel;
  if (options.expert_imbalance) out.expert_imbalance = *options.expert_imbalance;
  if (options.expert_link) out.expert_link = *options.expert_link;
  if (options.expert_link_latency) out.expert_link_latency = *options.expert_link_latency;
  return out;
}

Stack with_cut_prompts(Stack stack, std::int64_t otherwise) {
  constexpr const char* kKey = "long_prefill_chunk";
  stack.prefill_chunk = stack.long_prefill_chunk > 0 ? stack.long_prefill_chunk : otherwise;
  if (!stack.settings || stack.long_prefill_chunk == 0) return stack;
  EngineSettings settings = *stack.settings;
  settings.settings.insert(
      settings.settings.begin(),
      {.key = kKey,
       .option = std::string{stack.defaults->option(kKey)},
       .value = fmt::format("{}", stack.prefill_chunk),
       .by_user = false,
       .origin = fmt::format("default of {} {} for models beyond 32,768 positions", settings.engine,
                             settings.version),
       .source = stack.sources.contains(kKey) ? stack.sources.at(kKey) : std::string{}});
  stack.settings = std::make_shared<const EngineSettings>(std::move(settings));
  return stack;
}

std::string label_of(const Stack& stack) {
  std::string out = stack.name;
  if (stack.defaults && stack.version != stack.defaults->last) out += "@" + stack.version;
  if (stack.usage != EngineUsage::kServer) out += fmt::format(":{}", word_of(stack.usage));
  return out;
}

Stack read_stack(const Field& profile, std::string name, std::span<const Stack> known) {
  constexpr std::array kKeys{"summary",
                             "growth",
                             "attention",
                             "logits",
                             "logits_fp32",
                             "keeps_inputs",
                             "expands_kv_heads",
                             "rounds_allocations",
                             "needs_cuda",
                             "splits_keys",
                             "rescans_states",
                             "attends_short_densely",
                             "splits_layers",
                             "host_weights",
                             "overlaps_weights",
                             "norm_launches",
                             "rope_launches",
                             "context",
                             "host_per_step",
                             "sources",
                             "usable_fraction",
                             "fraction_of",
                             "launch_overhead",
                             "host_per_layer",
                             "host_per_launch",
                             "extends",
                             "block_tokens",
                             "prefill_chunk",
                             "max_num_seqs",
                             "fused_projections",
                             "full_causal_mask",
                             "masks_evicted",
                             "sampler_bytes",
                             "loads_vision",
                             "graphs",
                             "communication",
                             "collective_latency",
                             "attends_allocated",
                             "softmax_fp32",
                             "score_passes",
                             "eager_per_layer",
                             "between_steps",
                             "between_per_sequence",
                             "schedules_ahead",
                             "front_end",
                             "cutoff",
                             "attention_per_clock",
                             "overlap",
                             "reached",
                             "kernels",
                             "defaults"};
  const std::vector<std::string> keys{kKeys.begin(), kKeys.end()};
  profile.allow_only(keys);

  Stack stack;
  const auto base = profile.find("extends");
  if (base) {
    stack = find_among(known, base->string());
    // The profile's own values, not those of the rules of its newest version.
    const Stack::VersionedValues& own = stack.profile_values;
    stack.inter_step_overhead = own.inter_step_overhead;
    stack.inter_step_per_sequence = own.inter_step_per_sequence;
    stack.schedules_ahead = own.schedules_ahead;
    stack.front_end = own.front_end;
    stack.cutoff = own.cutoff;
    stack.attention_per_clock = own.attention_per_clock;
    stack.sampler_bytes = own.sampler_bytes;
  }
  stack.name = std::move(name);
  // Overriding a value discards the source of the original.
  const auto read = [&](std::string_view key, auto&& take) {
    if (base && !profile.has(key)) return;
    stack.sources.erase(std::string{key});
    take(profile.at(key));
  };
  const auto read_flag = [&](std::string_view key, bool& flag) {
    read(key, [&](const Field& f) { flag = f.boolean(); });
  };
  const auto read_launches = [&](std::string_view key, std::int32_t& launches) {
    read(key, [&](const Field& f) { launches = static_cast<std::int32_t>(f.integer(1, 100)); });
  };
  const auto read_duration = [&](std::string_view key, Seconds& duration) {
    read(key, [&](const Field& f) { duration = f.duration(); });
  };
  stack.summary = profile.at("summary").string();
  read("growth", [&](const Field& f) {
    stack.growth = read_enum<CacheGrowth>(
        f, std::array{"static", "exact", "concat_layer", "concat_all", "paged"});
  });
  read("attention", [&](const Field& f) {
    stack.attention = read_enum<AttentionExec>(f, std::array{"fused", "eager", "math"});
  });
  read("logits", [&](const Field& f) {
    stack.logits = read_enum<LogitPositions>(f, std::array{"last", "all"});
  });
  read_flag("logits_fp32", stack.logits_fp32);
  read_flag("expands_kv_heads", stack.expands_kv_heads);
  read_flag("rounds_allocations", stack.rounds_allocations);
  read_flag("keeps_inputs", stack.keeps_inputs);
  read_flag("splits_keys", stack.splits_keys);
  read_launches("norm_launches", stack.norm_launches);
  read_launches("rope_launches", stack.rope_launches);
  read("context", [&](const Field& f) { stack.context = f.bytes(); });
  if (profile.has("usable_fraction") || !profile.has("defaults")) {
    read("usable_fraction", [&](const Field& f) { stack.usable_fraction = f.number(0.01, 1.0); });
  }
  read_duration("launch_overhead", stack.launch_overhead);
  read_duration("host_per_layer", stack.host_per_layer);
  read_duration("host_per_step", stack.host_per_step);
  read_duration("host_per_launch", stack.host_per_launch);
  if (const auto kernels = profile.find("kernels")) {
    stack.sources.erase("kernels");
    stack.kernels.clear();
    for (const auto& [family, whose] : kernels->members()) stack.kernels[family] = whose.string();
  }
  // Keys that were added later: a profile without them uses 0.
  const auto read_later = [&](std::string_view key, auto&& take) {
    const auto field = profile.find(key);
    if (!field) return;
    stack.sources.erase(std::string{key});
    take(*field);
  };
  const auto read_tokens = [&](std::string_view key, std::int64_t min, std::int64_t& tokens) {
    read_later(key, [&](const Field& f) { tokens = f.integer(min, kMaxTokens); });
  };
  const auto read_later_flag = [&](std::string_view key, bool& flag) {
    read_later(key, [&](const Field& f) { flag = f.boolean(); });
  };
  read_tokens("block_tokens", 1, stack.block_tokens);
  read_tokens("prefill_chunk", 0, stack.prefill_chunk);
  read_tokens("max_num_seqs", 0, stack.max_num_seqs);
  read_later_flag("fused_projections", stack.fused_projections);
  read_later_flag("needs_cuda", stack.needs_cuda);
  read_later_flag("loads_vision", stack.loads_vision);
  read_later_flag("rescans_states", stack.rescans_states);
  read_later_flag("attends_short_densely", stack.attends_short_densely);
  read_later_flag("full_causal_mask", stack.full_causal_mask);
  read_later_flag("masks_evicted", stack.masks_evicted);
  read_later_flag("attends_allocated", stack.attends_allocated);
  read_later_flag("softmax_fp32", stack.softmax_fp32);
  read_later("score_passes", [&](const Field& f) {
    stack.score_passes = static_cast<std::int32_t>(f.integer(0, 10));
  });
  read_later("between_per_sequence",
             [&](const Field& f) { stack.inter_step_per_sequence = f.duration(); });
  read_later("eager_per_layer", [&](const Field& f) { stack.eager_per_layer = f.duration(); });
  read_later("between_steps", [&](const Field& f) { stack.inter_step_overhead = f.duration(); });
  read_later_flag("splits_layers", stack.splits_layers);
  read_later("host_weights", [&](const Field& f) { stack.host_weights = f.number(0, 1); });
  read_later_flag("overlaps_weights", stack.overlaps_weights);
  read_later_flag("schedules_ahead", stack.schedules_ahead);
  read_later("front_end", [&](const Field& f) { stack.front_end = read_front_end(f); });
  read_later("cutoff", [&](const Field& f) { stack.cutoff = read_cutoff(f); });
  read_later("attention_per_clock",
             [&](const Field& f) { stack.attention_per_clock = f.number(0, 1e4); });
  read_later("fraction_of",
             [&](const Field& f) { stack.fraction_of = read_enum<FractionOf>(f, kFractionWords); });
  read_later("sampler_bytes", [&](const Field& f) { stack.sampler_bytes = f.number(0, 1000); });
  read_later("graphs", [&](const Field& f) { stack.graphs = f.bytes(); });
  read_later("communication", [&](const Field& f) { stack.communication = f.bytes(); });
  read_later("collective_latency",
             [&](const Field& f) { stack.collective_latency = f.duration(); });
  read_later("overlap", [&](const Field& f) {
    stack.overlap = read_enum<Overlap>(f, std::array{"max", "add"});
  });
  read_later("reached", [&](const Field& f) {
    stack.reached.clear();
    for (const auto& [family, rates] : f.members()) {
      rates.allow_only({"flops", "bandwidth", "elements_per_clock"});
      ReachedRates reached;
      if (const auto share = rates.find("flops")) reached.flops = share->number(1e-3, 1);
      if (const auto share = rates.find("bandwidth")) reached.bandwidth = share->number(1e-3, 1);
      if (const auto rate = rates.find("elements_per_clock")) {
        reached.elements_per_clock = rate->number(1e-3, 1e3);
      }
      stack.reached[family] = reached;
    }
  });
  if (stack.growth != CacheGrowth::kPaged && stack.fraction_of != FractionOf::kAll) {
    if (const auto given = profile.find("fraction_of")) {
      given->fail("expected \"all\": other shares require the pool of a paged cache");
    }
    stack.fraction_of = FractionOf::kAll;  // overrides the paged base profile
    stack.sources.erase("fraction_of");
  }
  stack.profile_values = {.inter_step_overhead = stack.inter_step_overhead,
                          .inter_step_per_sequence = stack.inter_step_per_sequence,
                          .eager_per_layer = stack.eager_per_layer,
                          .schedules_ahead = stack.schedules_ahead,
                          .front_end = stack.front_end,
                          .cutoff = stack.cutoff,
                          .attention_per_clock = stack.attention_per_clock,
                          .sampler_bytes = stack.sampler_bytes};
  if (const auto defaults = profile.find("defaults")) {
    stack.defaults = std::make_shared<const EngineDefaults>(read_engine_defaults(*defaults));
    stack.version = stack.defaults->last;
    take_defaults(stack, {}, {});
    stack.settings.reset();
  }
  for (const auto& [key, source] : profile.at("sources").members()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      source.fail(unknown_name("key", key, keys));
    }
    stack.sources[key] = source.string();
  }
  return stack;
}

const std::vector<Stack>& builtin_stacks() {
  static const std::vector<Stack> stacks = read_profiles();
  return stacks;
}

const Stack& find_stack(std::string_view label) {
  const auto usage_at = label.find(':');
  const std::string_view usage =
      usage_at == std::string_view::npos ? std::string_view{} : label.substr(usage_at + 1);
  const std::string_view named = label.substr(0, usage_at);
  const auto version_at = named.find('@');
  const std::string_view version =
      version_at == std::string_view::npos ? std::string_view{} : named.substr(version_at + 1);
  const Stack& base = find_among(builtin_stacks(), named.substr(0, version_at));
  if (usage_at == std::string_view::npos && version_at == std::string_view::npos) return base;
  if (usage_at != std::string_view::npos && usage.empty()) {
    throw InputError{fmt::format("stack \"{}\": expected server or llm after \":\"", label)};
  }
  if (version_at != std::string_view::npos && version.empty()) {
    throw InputError{fmt::format("stack \"{}\": expected a version after \"@\"", label)};
  }
  static std::mutex mutex;
  static std::map<std::string, Stack, std::less<>> variants;  // references stay valid
  Stack made = variant_of(base, version, usage);
  const std::lock_guard lock{mutex};
  return variants.try_emplace(label_of(made), std::move(made)).first->second;
}

}  // namespace kvsim
