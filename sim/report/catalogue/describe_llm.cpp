#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/llm/cache_summary.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/llm/weight_format.hpp"
#include "models/units/units_format.hpp"
#include "sim/report/catalogue/describe.hpp"
#include "sim/report/catalogue/describe_text.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

constexpr std::array kWeightFormats{Dtype::kFp32, Dtype::kBf16, Dtype::kFp8E4m3, Dtype::kInt4};
constexpr std::array kCacheFormats{Dtype::kFp32, Dtype::kBf16, Dtype::kFp8E4m3};
constexpr std::array<std::int64_t, 3> kCacheLengths{8192, 131072, 1048576};

std::string mlp_sentence(const MlpSpec& mlp) {
  const char* kind = mlp.gated ? "gated" : "plain";
  if (mlp.n_experts == 0) {
    return mlp.d_ff == 0 ? "none" : fmt::format("{}, {} wide", kind, with_commas(mlp.d_ff));
  }
  std::string out = fmt::format("{} of {} {} experts, {} wide each", mlp.top_k, mlp.n_experts, kind,
                                with_commas(mlp.d_ff));
  if (mlp.shared_d_ff > 0) out += fmt::format(", and {} shared", with_commas(mlp.shared_d_ff));
  return out;
}

/// Sentences about layers, each with the number of layers it applies to, in order of first use.
template <class Say>
std::vector<std::string> by_layer(const Llm& llm, Say say) {
  std::vector<std::pair<std::string, int>> counted;
  for (const LayerSpec& layer : llm.layers) {
    const std::string sentence = say(layer);
    auto found = counted.begin();
    while (found != counted.end() && found->first != sentence) ++found;
    if (found == counted.end()) {
      counted.emplace_back(sentence, 1);
    } else {
      ++found->second;
    }
  }
  std::vector<std::string> out;
  for (const auto& [sentence, n] : counted) {
    out.push_back(counted.size() == 1 ? sentence : fmt::format("{} layers: {}", n, sentence));
  }
  return out;
}

/// Aliases of a catalogue model; a user's own configuration has none.
std::vector<std::string> aliases_of(const Llm& llm) {
  const auto& known = builtin_llms();
  const bool listed = std::any_of(known.begin(), known.end(), [&](const Llm& entry) {
    return entry.name == llm.name && entry.source == llm.source;
  });
  return listed ? llm_aliases(llm.name) : std::vector<std::string>{};
}

Bytes whole_bytes(double n) { return Bytes{static_cast<std::int64_t>(std::ceil(n))}; }

/// As an integer if it is one: entries that compress several tokens have fractional bytes per
/// token.
ordered_json json_number(double n) {
  const auto whole = static_cast<std::int64_t>(n);
  return static_cast<double>(whole) == n ? ordered_json(whole) : ordered_json(n);
}

ordered_json group_json(const CacheGroup& group) {
  return {{"kind", group.kind},
          {"layers", group.layers},
          {"first_layer", group.first_layer},
          {"description", group.description},
          {"index_bytes_per_token", json_number(group.terms.index_per_token)},
          {"state_bytes_per_sequence", json_number(group.terms.state)}};
}

/// Adds the terms of a model's cache, and the bytes that a sequence holds and a decode step reads.
void add_cache_json(const Llm& llm, ordered_json& out) {
  for (const Dtype dtype : kCacheFormats) {
    const std::string name{name_of(dtype)};
    const TokenBytes bytes = cache_bytes_per_token(llm, dtype);
    const CacheTerms terms = cache_terms(llm, dtype);
    out["kv_bytes_per_token"][name] = json_number(terms.per_token);
    out["kv_bytes_per_token_within_windows"][name] = bytes.all_layers.count();
    out["window_bytes_per_sequence"][name] = json_number(terms.window);
  }
  const CacheTerms terms = cache_terms(llm, Dtype::kBf16);
  out["index_bytes_per_token"] = json_number(terms.index_per_token);
  out["state_bytes_per_sequence"] = json_number(terms.state);
  out["groups"] = ordered_json::array();
  for (const CacheGroup& group : cache_groups(llm, Dtype::kBf16)) {
    out["groups"].push_back(group_json(group));
  }
  for (const Dtype dtype : kCacheFormats) {
    const std::string name{name_of(dtype)};
    std::size_t i = 0;
    for (const CacheGroup& group : cache_groups(llm, dtype)) {
      out["groups"][i]["kv_bytes_per_token"][name] = json_number(group.terms.per_token);
      out["groups"][i++]["window_bytes_per_sequence"][name] = json_number(group.terms.window);
    }
  }
  for (const Dtype dtype : kCacheFormats) {
    const std::string name{name_of(dtype)};
    for (const std::int64_t tokens : kCacheLengths) {
      const std::string length = std::to_string(tokens);
      out["held_bytes"][name][length] = json_number(held_bytes(llm, tokens, dtype));
      out["read_bytes"][name][length] = json_number(read_bytes(llm, tokens, dtype));
    }
  }
}

/// "48 layers, gated-delta: 146.8 MiB per sequence": a group's fixed term and its term per token.
std::string group_sentence(const CacheGroup& group, const Llm& llm) {
  const CacheTerms& t = group.terms;
  std::vector<std::string> terms;
  if (t.state > 0) terms.push_back(fmt::format("{} per sequence", whole_bytes(t.state)));
  if (t.window > 0)
    terms.push_back(fmt::format("{} per sequence once full", whole_bytes(t.window)));
  if (t.per_token > 0) terms.push_back(fmt::format("{} per token", whole_bytes(t.per_token)));
  if (t.index_per_token > 0) {
    terms.push_back(fmt::format("{} of index per token", whole_bytes(t.index_per_token)));
  }
  const std::string layers =
      group.layers == llm.n_layers() ? "" : fmt::format("{} layers: ", group.layers);
  return fmt::format("{}{}; {}", layers, group.description,
                     terms.empty() ? "nothing held" : fmt::format("{}", fmt::join(terms, " + ")));
}

std::string billions(std::int64_t n) {
  return fmt::format("{:.3f} B ({})", static_cast<double>(n) / 1e9, with_commas(n));
}

}  // namespace

TokenBytes cache_bytes_per_token(const Llm& llm, Dtype kv_dtype) {
  double within = 0;
  for (const LayerSpec& layer : llm.layers) {
    for (const CacheItem& item : cache_items(layer, kv_dtype)) {
      if (item.role != CacheRole::kEntries || !item.is_held) continue;
      within += item.entry_bytes / static_cast<double>(item.ratio);
    }
  }
  return {.all_layers = whole_bytes(within),
          .past_windows = whole_bytes(cache_terms(llm, kv_dtype).per_token)};
}

ordered_json llm_json(const Llm& llm) {
  ordered_json out;
  out["name"] = llm.name;
  out["aliases"] = aliases_of(llm);
  out["model_type"] = llm.model_type;
  out["source"] = llm.source;
  out["parameters"] = parameters(llm);
  out["active_parameters"] = active_parameters(llm);
  out["published_dtype"] = name_of(llm.published_dtype);
  out["published_formats"] = published_formats(llm);
  out["published_weight_bytes"] = published_weight_bytes(llm).count();
  out["vision_parameters"] = llm.vision ? vision_parameters(*llm.vision) : 0;
  out["default_kv_dtype"] = name_of(default_kv_dtype(llm, llm.published_dtype));
  out["n_layers"] = llm.n_layers();
  out["d_model"] = llm.d_model;
  out["vocab_size"] = llm.vocab_size;
  out["max_positions"] = llm.max_positions;
  out["tied_embeddings"] = llm.tied_embeddings;
  out["rope_theta"] = llm.rope_theta;
  for (const Dtype dtype : kWeightFormats) {
    out["weight_bytes"][std::string{name_of(dtype)}] = weight_bytes(llm, dtype).count();
  }
  add_cache_json(llm, out);
  out["notes"] = llm.notes;
  out["layers"] = ordered_json::array();
  for (const LayerSpec& layer : llm.layers) {
    const AttentionSpec& a = layer.attention;
    ordered_json one{{"kind", kind_name(layer)},
                     {"attention", attention_kind(a).word(layer)},
                     {"n_heads", a.n_heads},
                     {"n_kv_heads", a.n_kv_heads},
                     {"head_dim", a.head_dim},
                     {"v_head_dim", a.v_head_dim},
                     {"window", a.window},
                     {"kv_lora_rank", a.kv_lora_rank},
                     {"rope_head_dim", a.rope_head_dim},
                     {"d_ff", layer.mlp.d_ff},
                     {"n_experts", layer.mlp.n_experts},
                     {"top_k", layer.mlp.top_k},
                     {"shared_d_ff", layer.mlp.shared_d_ff}};
    out["layers"].push_back(std::move(one));
  }
  return out;
}

std::string published_weights_words(const Llm& llm) {
  const std::string_view dtype = name_of(llm.published_dtype);
  if (llm.unpacked_dtype) {
    return fmt::format("{}: {}, the rest {}", dtype, published_formats(llm),
                       name_of(*llm.unpacked_dtype));
  }
  if (llm.outside_experts_dtype) {
    return fmt::format("{} experts, the rest {}", dtype, name_of(*llm.outside_experts_dtype));
  }
  return std::string{dtype};
}

std::string llm_text(const Llm& llm, std::size_t width) {
  Facts facts;
  if (const auto aliases = aliases_of(llm); !aliases.empty()) {
    facts.add("also called", fmt::format("{}", fmt::join(aliases, ", ")));
  }
  facts.add("source", llm.source.empty() ? "the given file" : llm.source);
  facts.add("parameters", billions(parameters(llm)));
  if (const auto active = active_parameters(llm); active * 10 < parameters(llm) * 9) {
    facts.add("of them active", billions(active) + " for each token");
  }
  facts.add("layers", fmt::format("{}, {} wide, vocabulary {}{}", llm.n_layers(),
                                  with_commas(llm.d_model), with_commas(llm.vocab_size),
                                  llm.tied_embeddings ? ", embeddings tied" : ""));
  const Dtype kv_dtype = default_kv_dtype(llm, llm.published_dtype);
  for (const CacheGroup& group : cache_groups(llm, kv_dtype)) {
    facts.add("cache", group_sentence(group, llm));
  }
  for (const std::string& s :
       by_layer(llm, [](const LayerSpec& l) { return mlp_sentence(l.mlp); })) {
    facts.add("feed-forward", s);
  }
  facts.add("context", fmt::format("{} tokens", with_commas(llm.max_positions)));
  std::string weights;
  for (const Dtype dtype : kWeightFormats) {
    weights += fmt::format("{}{} {}", weights.empty() ? "" : ", ", name_of(dtype),
                           weight_bytes(llm, dtype));
  }
  facts.add("weights", weights + fmt::format("; as published {} ({})", published_weight_bytes(llm),
                                             published_weights_words(llm)));
  if (llm.vision) {
    facts.add("vision encoder", fmt::format("{} parameters in 16 bits, if an engine loads it",
                                            with_commas(vision_parameters(*llm.vision))));
  }
  std::string cache;
  for (const Dtype dtype : kCacheFormats) {
    const TokenBytes bytes = cache_bytes_per_token(llm, dtype);
    cache += fmt::format("{}{} {}", cache.empty() ? "" : ", ", name_of(dtype), bytes.all_layers);
    if (bytes.past_windows != bytes.all_layers) {
      cache += fmt::format(" ({} past the windows)", bytes.past_windows);
    }
  }
  facts.add("cache/token",
            cache + fmt::format("; {} unless a scenario says otherwise", name_of(kv_dtype)));
  for (const std::int64_t tokens : kCacheLengths) {
    facts.add("a sequence",
              fmt::format("of {} tokens holds {} in {}; a decode step reads {}",
                          with_commas(tokens), whole_bytes(held_bytes(llm, tokens, kv_dtype)),
                          name_of(kv_dtype), whole_bytes(read_bytes(llm, tokens, kv_dtype))));
  }
  for (const std::string& note : llm.notes) facts.add("note", note);
  return llm.name + "\n" + facts.str(width);
}

}  // namespace kvsim
