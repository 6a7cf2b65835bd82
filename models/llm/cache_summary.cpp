#include "models/llm/cache_summary.hpp"

#include <algorithm>

#include "models/llm/layer/layer_kind.hpp"

namespace kvsim {
namespace {

CacheTerms terms_of(const LayerSpec& layer, Dtype kv_dtype) {
  CacheTerms out;
  for (const CacheItem& item : cache_items(layer, kv_dtype)) {
    if (!item.is_held) continue;
    if (item.role == CacheRole::kState) {
      out.state += item.entry_bytes;
    } else if (item.role == CacheRole::kIndex) {
      out.index_per_token += item.per_token();
    } else if (item.max > 0) {
      out.window += item.entry_bytes * static_cast<double>(item.max);
    } else {
      out.per_token += item.per_token();
    }
  }
  return out;
}

/// Returns the kind and description of a layer, which are equal within a group.
CacheGroup group_of(const LayerSpec& layer) {
  CacheGroup out;
  out.kind = kind_name(layer);
  if (layer.attention.shares_cache) out.kind = "shared " + out.kind;
  for (const LayerKind* kind : mixer_kinds(layer)) {
    if (!out.description.empty()) out.description += "; ";
    out.description += kind->describe(layer);
  }
  if (out.description.empty()) out.description = "only a feed-forward block";
  return out;
}

}  // namespace

CacheTerms& CacheTerms::operator+=(const CacheTerms& other) {
  per_token += other.per_token;
  index_per_token += other.index_per_token;
  state += other.state;
  window += other.window;
  return *this;
}

std::vector<CacheGroup> cache_groups(const Llm& llm, Dtype kv_dtype) {
  std::vector<CacheGroup> out;
  for (std::int32_t l = 0; l < llm.n_layers(); ++l) {
    const LayerSpec& layer = llm.layers[static_cast<std::size_t>(l)];
    CacheGroup group = group_of(layer);
    auto same = std::find_if(out.begin(), out.end(), [&](const CacheGroup& other) {
      return other.kind == group.kind && other.description == group.description;
    });
    if (same == out.end()) {
      group.first_layer = l;
      same = out.insert(out.end(), std::move(group));
    }
    ++same->layers;
    same->terms += terms_of(layer, kv_dtype);
  }
  return out;
}

CacheTerms cache_terms(const Llm& llm, Dtype kv_dtype) {
  CacheTerms out;
  for (const LayerSpec& layer : llm.layers) out += terms_of(layer, kv_dtype);
  return out;
}

double held_bytes(const Llm& llm, std::int64_t tokens, Dtype kv_dtype) {
  double out = 0;
  for (const LayerSpec& layer : llm.layers) {
    for (const CacheItem& item : cache_items(layer, kv_dtype)) out += item.held(tokens);
  }
  return out;
}

double read_bytes(const Llm& llm, std::int64_t tokens, Dtype kv_dtype) {
  double out = 0;
  for (const LayerSpec& layer : llm.layers) {
    for (const CacheItem& item : cache_items(layer, kv_dtype)) out += item.read(tokens);
  }
  return out;
}

}  // namespace kvsim
