#include "models/stack/engine_defaults.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/gpu/gpu.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/llm/llm.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"

namespace kvsim {
namespace {

constexpr std::array kUsages{"server", "llm", "tensorrt"};
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;
constexpr std::int64_t kMaxGpus = 1024;

std::string lower(std::string_view text) {
  std::string out{text};
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

bool has_experts(const Llm& llm) {
  return std::any_of(llm.layers.begin(), llm.layers.end(),
                     [](const LayerSpec& layer) { return layer.mlp.n_experts > 0; });
}

bool has_latent_attention(const Llm& llm) {
  return std::any_of(llm.layers.begin(), llm.layers.end(),
                     [](const LayerSpec& layer) { return caches_latents(layer); });
}

/// Returns query heads per KV head of the first layer with a cache; 0 if no layer has one.
std::int64_t query_group(const Llm* llm) {
  if (llm == nullptr) return 0;
  for (const LayerSpec& layer : llm->layers) {
    const AttentionSpec& a = layer.attention;
    if (a.n_kv_heads > 0) return a.n_heads / a.n_kv_heads;
  }
  return 0;
}

bool has_states(const Llm& llm) {
  return std::any_of(llm.layers.begin(), llm.layers.end(),
                     [](const LayerSpec& layer) { return layer.state.kind != StateKind::kNone; });
}

bool is_quantized(const Llm& llm) { return llm.unpacked_dtype.has_value(); }

EngineVersion read_version(const Field& field) {
  const auto version = parse_engine_version(field.string());
  if (!version) field.expected("a version such as \"0.19\"");
  return *version;
}

EngineUsage read_usage(const Field& field) {
  const std::vector<std::string> known{kUsages.begin(), kUsages.end()};
  return *usage_of(field.choice(known));
}

MemoryReserve read_reserve(const Field& field) {
  field.allow_only({"base", "per_prefill_token", "per_graph_sequence", "per_gpu", "grouped",
                    "per_group_sequence"});
  const auto size = [&](std::string_view key) {
    const auto given = field.find(key);
    return given ? given->bytes() : Bytes{};
  };
  return {.base = size("base"),
          .per_prefill_token = size("per_prefill_token"),
          .per_graph_sequence = size("per_graph_sequence"),
          .per_gpu = size("per_gpu"),
          .grouped = size("grouped"),
          .per_group_sequence = size("per_group_sequence")};
}

EngineValues read_values(const Field& field) {
  field.allow_only({"prefill_chunk",
                    "long_prefill_chunk",
                    "max_num_seqs",
                    "block_tokens",
                    "usable_fraction",
                    "counts_graphs",
                    "reserve",
                    "reserve_graphs",
                    "reserve_least",
                    "graph_sequences",
                    "schedules_ahead",
                    "reserves_full_prompt",
                    "prefix_caching",
                    "window_pools",
                    "state_slots",
                    "state_sequences",
                    "graph_padding",
                    "eager_prompts",
                    "reserve_drafts",
                    "between_steps",
                    "between_per_sequence",
                    "front_end",
                    "cutoff",
                    "attention_per_clock",
                    "sampler_bytes",
                    "eager_per_layer",
                    "front_end_turns",
                    "rescans_decodes",
                    "joint_attention",
                    "prompt_attention_per_clock"});
  EngineValues out;
  const auto count = [&](std::string_view key, std::optional<std::int64_t>& value) {
    if (const auto given = field.find(key)) value = given->integer(0, kMaxTokens);
  };
  const auto size = [&](std::string_view key, std::optional<Bytes>& value) {
    if (const auto given = field.find(key)) value = given->bytes();
  };
  count("prefill_chunk", out.prefill_chunk);
  count("long_prefill_chunk", out.long_prefill_chunk);
  count("max_num_seqs", out.max_num_seqs);
  count("block_tokens", out.block_tokens);
  count("graph_sequences", out.graph_sequences);
  count("state_slots", out.state_slots);
  count("state_sequences", out.state_sequences);
  if (const auto given = field.find("usable_fraction")) {
    out.usable_fraction = given->number(0.01, 1.0);
  }
  if (const auto given = field.find("counts_graphs")) out.counts_graphs = given->boolean();
  if (const auto given = field.find("reserve")) out.reserve = read_reserve(*given);
  size("reserve_graphs", out.reserve_graphs);
  size("reserve_least", out.min_reserve);
  size("reserve_drafts", out.reserve_drafts);
  if (const auto given = field.find("schedules_ahead")) out.schedules_ahead = given->boolean();
  if (const auto given = field.find("reserves_full_prompt")) {
    out.reserves_full_prompt = given->boolean();
  }
  if (const auto given = field.find("prefix_caching")) out.prefix_caching = given->boolean();
  if (const auto given = field.find("window_pools")) out.window_pools = given->boolean();
  if (const auto given = field.find("graph_padding")) out.graph_padding = given->boolean();
  if (const auto given = field.find("eager_prompts")) out.eager_prompts = given->boolean();
  if (const auto given = field.find("rescans_decodes")) out.rescans_decodes = given->boolean();
  if (const auto given = field.find("joint_attention")) out.joint_attention = given->boolean();
  if (const auto given = field.find("between_steps")) out.inter_step_overhead = given->duration();
  if (const auto given = field.find("eager_per_layer")) out.eager_per_layer = given->duration();
  if (const auto given = field.find("between_per_sequence")) {
    out.inter_step_per_sequence = given->duration();
  }
  if (const auto given = field.find("front_end")) out.front_end = read_front_end(*given);
  if (const auto given = field.find("front_end_turns")) {
    out.front_end_turns = static_cast<std::int32_t>(given->integer(1, 100));
  }
  if (const auto given = field.find("cutoff")) out.cutoff = read_cutoff(*given);
  if (const auto given = field.find("attention_per_clock")) {
    out.attention_per_clock = given->number(0, 1e4);
  }
  if (const auto given = field.find("prompt_attention_per_clock")) {
    out.prompt_attention_per_clock = given->number(0, 1e4);
  }
  if (const auto given = field.find("sampler_bytes")) {
    out.sampler_bytes = given->number(0, 1000);
  }
  return out;
}

DefaultsRule read_rule(const Field& field) {
  field.allow_only({"from",      "before",      "memory_from",  "memory_below", "named",
                    "not_named", "usage",       "gpus_from",    "gpus_below",   "experts",
                    "latent",    "model_types", "query_groups", "quantized",    "speculates",
                    "looks_up",  "draft_model", "pipeline",     "states",       "caches_prefixes",
                    "set",       "source"});
  DefaultsRule rule;
  if (const auto given = field.find("from")) rule.from = read_version(*given);
  if (const auto given = field.find("before")) rule.before = read_version(*given);
  if (const auto given = field.find("memory_from")) rule.memory_from = given->bytes();
  if (const auto given = field.find("memory_below")) rule.memory_below = given->bytes();
  const auto names = [&](std::string_view key, std::vector<std::string>& out) {
    const auto given = field.find(key);
    if (!given) return;
    for (const Field& item : given->one_or_more()) out.push_back(lower(item.string()));
  };
  names("named", rule.named);
  names("not_named", rule.not_named);
  if (const auto given = field.find("usage")) rule.usage = read_usage(*given);
  const auto gpus = [&](std::string_view key, std::optional<std::int32_t>& out) {
    if (const auto given = field.find(key)) {
      out = static_cast<std::int32_t>(given->integer(1, kMaxGpus));
    }
  };
  gpus("gpus_from", rule.gpus_from);
  gpus("gpus_below", rule.gpus_below);
  if (const auto given = field.find("experts")) rule.experts = given->boolean();
  if (const auto given = field.find("latent")) rule.latent = given->boolean();
  names("model_types", rule.model_types);
  if (const auto given = field.find("query_groups")) {
    for (const Field& item : given->items()) rule.query_groups.push_back(item.integer(1, 1024));
  }
  if (const auto given = field.find("quantized")) rule.quantized = given->boolean();
  if (const auto given = field.find("speculates")) rule.speculates = given->boolean();
  if (const auto given = field.find("looks_up")) rule.looks_up = given->boolean();
  if (const auto given = field.find("draft_model")) rule.draft_model = given->boolean();
  if (const auto given = field.find("pipeline")) rule.pipeline = given->boolean();
  if (const auto given = field.find("states")) rule.states = given->boolean();
  if (const auto given = field.find("caches_prefixes")) rule.caches_prefixes = given->boolean();
  rule.values = read_values(field.at("set"));
  rule.source = field.at("source").string();
  return rule;
}

}  // namespace

std::string_view word_of(EngineUsage usage) { return kUsages[static_cast<std::size_t>(usage)]; }

std::string_view display_name(EngineUsage usage) {
  constexpr std::array<std::string_view, kUsages.size()> kNames{"server", "LLM class",
                                                                "compiled TensorRT engine"};
  return kNames[static_cast<std::size_t>(usage)];
}

std::optional<EngineUsage> usage_of(std::string_view word) {
  const auto* const found = std::find(kUsages.begin(), kUsages.end(), word);
  if (found == kUsages.end()) return std::nullopt;
  return static_cast<EngineUsage>(found - kUsages.begin());
}

std::optional<EngineVersion> parse_engine_version(std::string_view text, int* parts) {
  constexpr std::size_t kMaxDigits = 4;
  if (text.starts_with('v')) text.remove_prefix(1);
  EngineVersion version{};
  int read = 0;
  for (std::size_t at = 0;; ++at) {
    std::size_t digits = 0;
    std::int32_t number = 0;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
      number = number * 10 + (text[at++] - '0');
      if (++digits > kMaxDigits) return std::nullopt;
    }
    if (digits == 0 || read == 3) return std::nullopt;
    version[static_cast<std::size_t>(read++)] = number;
    if (at == text.size()) break;
    const std::string_view rest = text.substr(at);
    // Post and candidate releases have the defaults of their release.
    if (read >= 2 && (rest.starts_with(".post") || rest.starts_with("rc"))) break;
    if (text[at] != '.') return std::nullopt;
  }
  if (read < 2) return std::nullopt;
  if (parts != nullptr) *parts = read;
  return version;
}

bool DefaultsRule::fits(EngineVersion version, EngineUsage used, const EngineSite& site) const {
  if (from && version < *from) return false;
  if (before && version >= *before) return false;
  if (usage && *usage != used) return false;
  if (gpus_from && site.gpus < *gpus_from) return false;
  if (gpus_below && site.gpus >= *gpus_below) return false;
  const Bytes memory = site.gpu != nullptr ? site.gpu->hbm : Bytes{};
  if (memory_from && memory < *memory_from) return false;
  if (memory_below && memory >= *memory_below) return false;
  const std::string name = site.gpu != nullptr ? lower(site.gpu->name) : std::string{};
  const auto within = [&](const std::string& part) { return name.find(part) != std::string::npos; };
  if (!named.empty() && std::none_of(named.begin(), named.end(), within)) return false;
  if (std::any_of(not_named.begin(), not_named.end(), within)) return false;
  if (experts && (site.llm != nullptr && has_experts(*site.llm)) != *experts) return false;
  if (latent && (site.llm != nullptr && has_latent_attention(*site.llm)) != *latent) return false;
  const std::string type = site.llm != nullptr ? lower(site.llm->model_type) : std::string{};
  const auto lists = [](const auto& words, const auto& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (!model_types.empty() && !lists(model_types, type)) return false;
  if (!query_groups.empty() && !lists(query_groups, query_group(site.llm))) return false;
  if (speculates && site.speculates != *speculates) return false;
  if (looks_up && site.looks_up != *looks_up) return false;
  if (draft_model && site.draft_model != *draft_model) return false;
  if (states && (site.llm != nullptr && has_states(*site.llm)) != *states) return false;
  if (caches_prefixes && site.caches_prefixes != *caches_prefixes) return false;
  if (pipeline && (site.stages > 1) != *pipeline) return false;
  if (quantized && (site.llm != nullptr && is_quantized(*site.llm)) != *quantized) return false;
  return true;
}

std::string DefaultsRule::conditions() const {
  std::vector<std::string> parts;
  const auto upper = [](std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    return text;
  };
  const auto all_upper = [&](const std::vector<std::string>& names) {
    std::vector<std::string> out;
    for (const std::string& name : names) out.push_back(upper(name));
    return fmt::format("{}", fmt::join(out, ", "));
  };
  std::string gpus;
  if (memory_from && memory_below) {
    gpus = fmt::format("GPUs of {} to {}", *memory_from, *memory_below);
  } else if (memory_from == Bytes{}) {
    gpus = "all other GPUs";  // a profile writes "0 GiB" after rules for specific GPUs
  } else if (memory_from) {
    gpus = fmt::format("GPUs of at least {}", *memory_from);
  } else if (memory_below) {
    gpus = fmt::format("GPUs below {}", *memory_below);
  }
  if (!named.empty()) gpus += (gpus.empty() ? "GPUs named " : ", named ") + all_upper(named);
  if (!not_named.empty())
    gpus += (gpus.empty() ? "GPUs except " : ", but not ") + all_upper(not_named);
  if (!gpus.empty()) parts.push_back(gpus);
  if (gpus_from && gpus_below) {
    parts.push_back(fmt::format("{} to {} GPUs per replica", *gpus_from, *gpus_below - 1));
  } else if (gpus_from) {
    parts.push_back(fmt::format("{} or more GPUs per replica", *gpus_from));
  } else if (gpus_below) {
    parts.push_back(*gpus_below == 2 ? std::string{"one GPU per replica"}
                                     : fmt::format("fewer than {} GPUs per replica", *gpus_below));
  }
  if (experts) parts.emplace_back(*experts ? "models with routed experts" : "dense models");
  if (latent) parts.emplace_back(*latent ? "latent attention" : "attention that is not latent");
  if (!model_types.empty()) {
    parts.push_back(fmt::format("models of type {}", fmt::join(model_types, ", ")));
  }
  if (!query_groups.empty()) {
    parts.push_back(
        fmt::format("models of {} query heads for each KV head", fmt::join(query_groups, ", ")));
  }
  if (quantized) parts.emplace_back(*quantized ? "quantized checkpoints" : "not quantized");
  if (speculates) {
    parts.emplace_back(*speculates ? "with speculation" : "without speculation");
  }
  if (looks_up) parts.emplace_back(*looks_up ? "with n-grams as drafts" : "no n-grams as drafts");
  if (draft_model) {
    parts.emplace_back(*draft_model ? "a draft model" : "drafts of a head or of n-grams");
  }
  if (pipeline) parts.emplace_back(*pipeline ? "with a pipeline" : "no pipeline");
  if (states) parts.emplace_back(*states ? "recurrent states" : "no recurrent states");
  if (caches_prefixes) {
    parts.emplace_back(*caches_prefixes ? "prefix caching" : "prefix caching switched off");
  }
  if (usage) parts.emplace_back(display_name(*usage));
  return fmt::format("{}", fmt::join(parts, "; "));
}

bool EngineDefaults::distinguishes(EngineUsage usage) const {
  return std::any_of(rules.begin(), rules.end(),
                     [&](const DefaultsRule& rule) { return rule.usage == usage; });
}

bool EngineDefaults::knows(EngineVersion version) const {
  if (version < first_version) return false;
  EngineVersion known = version;
  for (std::size_t part = static_cast<std::size_t>(last_parts); part < known.size(); ++part) {
    known[part] = 0;
  }
  return known <= last_version;
}

std::string_view EngineDefaults::option(std::string_view key) const {
  for (const auto& [known, option] : options) {
    if (known == key) return option;
  }
  return {};
}

CutoffTimes read_cutoff(const Field& field) {
  field.allow_only({"step", "bytes_per_logit"});
  return {.step = field.at("step").duration(),
          .bytes_per_logit = field.at("bytes_per_logit").number(0, 1e4)};
}

FrontEndTimes read_front_end(const Field& field) {
  field.allow_only({"latency", "request", "prompt_token", "token", "sequence"});
  const auto time = [&](std::string_view key) {
    const auto given = field.find(key);
    return given ? given->duration() : Seconds{};
  };
  return {.latency = time("latency"),
          .request = time("request"),
          .prompt_token = time("prompt_token"),
          .token = time("token"),
          .sequence = time("sequence")};
}

EngineDefaults read_engine_defaults(const Field& field) {
  field.allow_only({"engine", "seqs_within_batched_tokens", "limits_of_all_groups", "first", "last",
                    "options", "rules"});
  EngineDefaults out;
  out.engine = field.at("engine").string();
  if (const auto given = field.find("limits_of_all_groups")) {
    out.limits_of_all_groups = given->boolean();
  }
  if (const auto given = field.find("seqs_within_batched_tokens")) {
    out.seqs_within_batched_tokens = given->boolean();
  }
  out.first = field.at("first").string();
  out.last = field.at("last").string();
  out.first_version = read_version(field.at("first"));
  out.last_version = read_version(field.at("last"));
  (void)parse_engine_version(out.last, &out.last_parts);
  for (const auto& [key, option] : field.at("options").members()) {
    out.options.emplace_back(key, option.string());
  }
  for (const Field& rule : field.at("rules").items()) out.rules.push_back(read_rule(rule));
  out.rules_json = field.at("rules").raw().dump();
  return out;
}

std::string EngineSettings::flags() const {
  std::vector<std::string> out;
  for (const EngineSetting& s : settings) {
    if (!s.option.starts_with("--")) continue;
    out.push_back(s.value.empty() ? s.option : s.option + " " + s.value);
  }
  return fmt::format("{}", fmt::join(out, " "));
}

double share_with_vision(const VisionEncoder& vision) {
  constexpr double kUsual = 0.95, kPerSize = 0.1, kUsualWidth = 1024;
  const double size = std::pow(vision.width / kUsualWidth, 2);
  return kUsual * std::clamp(1 - kPerSize * (size - 1), 0.8, 1.05);
}

}  // namespace kvsim
