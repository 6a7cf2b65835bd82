#include "sim/memory/groups/engine_pools.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/llm/layer/layer_kind.hpp"

namespace kvsim {
namespace {

/// Pools of a model without sizes: one for states, one per window if windows have pools, one for
/// layers that hold every token.
std::vector<EnginePool> pools_of(const Llm& shard, Dtype kv_dtype, bool window_pools) {
  std::vector<EnginePool> out;
  for (const LayerSpec& layer : shard.layers) {
    std::vector<EnginePool*> counted;
    for (const CacheItem& item : cache_items(layer, kv_dtype)) {
      if (!item.is_held) continue;
      const bool state = item.role == CacheRole::kState;
      const std::int64_t window = window_pools ? item.max : 0;
      auto pool = std::find_if(out.begin(), out.end(), [&](const EnginePool& one) {
        return one.holds_states == state && (state || one.window == window);
      });
      if (pool == out.end()) {
        const LayerKind& kind = state && layer.state.kind != StateKind::kNone
                                    ? state_kind(layer.state)
                                    : attention_kind(layer.attention);
        out.push_back({.kind = std::string{kind.name()}, .window = window, .holds_states = state});
        pool = out.end() - 1;
      }
      const double bytes = item.entry_bytes / static_cast<double>(item.ratio);
      pool->unit += Bytes{std::llround(std::ceil(bytes))};
      EnginePool* const place = &*pool;
      if (std::find(counted.begin(), counted.end(), place) == counted.end()) ++pool->layers;
      counted.push_back(place);
    }
  }
  return out;
}

std::int64_t whole_units(double bytes, Bytes unit, std::int64_t multiple) {
  const auto units = static_cast<std::int64_t>(bytes / static_cast<double>(unit.count()));
  return std::max<std::int64_t>(0, units / multiple * multiple);
}

}  // namespace

std::int64_t EnginePool::request(std::int64_t tokens, std::int64_t slots) const {
  if (holds_states) return slots;
  return window > 0 ? std::min(window, tokens) : tokens;
}

std::int64_t EnginePools::tokens() const {
  for (const EnginePool& pool : pools) {
    if (!pool.holds_states && pool.window == 0) return pool.capacity;
  }
  return pools.empty() ? 0 : pools.front().capacity;
}

double EnginePools::concurrency(std::int64_t tokens) const {
  double min = std::numeric_limits<double>::infinity();
  for (const EnginePool& pool : pools) {
    min = std::min(
        min, static_cast<double>(pool.capacity) / static_cast<double>(pool.request(tokens, slots)));
  }
  return pools.empty() ? 0 : min;
}

Bytes EnginePools::request_bytes(std::int64_t tokens) const {
  Bytes sum;
  for (const EnginePool& pool : pools) sum += pool.unit * pool.request(tokens, slots);
  return sum;
}

std::int64_t EnginePools::max_states() const {
  for (const EnginePool& pool : pools) {
    if (pool.holds_states) return std::max<std::int64_t>(1, pool.capacity / slots);
  }
  return 0;
}

EnginePools sglang_pools(const Llm& shard, const SglangPoolSettings& settings, Bytes available) {
  constexpr double kStateRatio = 0.9, kWindowTokens = 0.8;
  constexpr std::int64_t kSpareSlots = 1;
  EnginePools out{.pools = pools_of(shard, settings.kv_dtype, settings.window_pools)};
  auto left = static_cast<double>(available.count());
  double token = 0;
  for (EnginePool& pool : out.pools) {
    if (!pool.holds_states) {
      const double share = pool.window > 0 ? kWindowTokens : 1;
      token += share * static_cast<double>(pool.unit.count());
      continue;
    }
    const double budget = left * kStateRatio / (1 + kStateRatio);
    const std::int64_t by_memory =
        static_cast<std::int64_t>(budget / static_cast<double>(pool.unit.count())) - kSpareSlots;
    pool.capacity = std::max<std::int64_t>(
        0, settings.state_sequences > 0 ? settings.state_sequences : by_memory);
    left -= static_cast<double>((pool.unit * pool.capacity).count());
    out.slots = std::max<std::int64_t>(1, settings.state_slots);
  }
  if (token <= 0) return out;
  const auto page = static_cast<double>(settings.page_tokens);
  // States that exceed the memory leave no tokens.
  const double full = std::floor(std::max(0.0, left) / token / page) * page;
  for (EnginePool& pool : out.pools) {
    if (pool.holds_states) continue;
    const double tokens = pool.window > 0 ? full * kWindowTokens : full;
    pool.capacity = static_cast<std::int64_t>(std::floor(tokens / page) * page);
  }
  return out;
}

EnginePools trtllm_pools(const Llm& shard, const TrtllmPoolSettings& settings, Bytes available) {
  EnginePools out{.pools = pools_of(shard, settings.kv_dtype, true)};
  auto left = static_cast<double>(available.count());
  double weight = 0;
  const auto weight_of = [&](const EnginePool& pool) {
    const std::int64_t seen = pool.request(settings.max_model_len, 1);
    return static_cast<double>(seen) * static_cast<double>(pool.unit.count());
  };
  for (EnginePool& pool : out.pools) {
    if (!pool.holds_states) {
      weight += weight_of(pool);
      continue;
    }
    pool.capacity = std::min(settings.max_num_seqs, whole_units(left, pool.unit, 1));
    left -= static_cast<double>(pool.bytes().count());
  }
  for (EnginePool& pool : out.pools) {
    if (pool.holds_states || weight <= 0) continue;
    pool.capacity = whole_units(left * weight_of(pool) / weight, pool.unit, settings.block_tokens);
  }
  return out;
}

}  // namespace kvsim
