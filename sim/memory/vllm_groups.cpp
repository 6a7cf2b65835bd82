#include "sim/memory/vllm_groups.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "models/llm/layer/layer_kind.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

// vLLM's block sizes where neither the user nor a kernel sets one.
constexpr std::int64_t kBlock = 16;
constexpr std::int64_t kLatentBlock = 64;
constexpr std::int64_t kBlockSparseBlock = 128;
/// Attention blocks next to recurrent states are multiples of this.
constexpr std::int64_t kStateAlignment = 16;

std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

enum class Growth : std::uint8_t { kFull, kWindow, kChunk, kState };

/// Layers with equal pages and lifetimes.
struct LayerCacheClass {
  std::string kind;
  Growth growth = Growth::kFull;
  std::int64_t limit = 0;        // of a window or chunk
  std::int64_t token_bytes = 0;  // of a state the whole of it
  std::int32_t layers = 0;
  std::int64_t block = 0;

  [[nodiscard]] std::int64_t page() const {
    return growth == Growth::kState ? token_bytes : token_bytes * block;
  }
};

Growth growth_of(const LayerSpec& layer, const CacheItem& item) {
  if (item.role == CacheRole::kState) return Growth::kState;
  if (item.most == 0) return Growth::kFull;
  return layer.attention.chunk > 0 ? Growth::kChunk : Growth::kWindow;
}

std::string word_of(const LayerSpec& layer, const CacheItem& item) {
  if (item.role == CacheRole::kState) return std::string{state_kind(layer.state).name()};
  if (item.role == CacheRole::kIndex) return "index";
  return std::string{attention_kind(layer.attention).name()};
}

std::vector<LayerCacheClass> classes_of(const Llm& shard, const VllmGroupSettings& settings) {
  std::vector<LayerCacheClass> out;
  for (LayerSpec layer : shard.layers) {
    // A convolution keeps a column for each token that may be rejected.
    layer.state.conv_kernel += static_cast<std::int32_t>(settings.draft_tokens);
    for (const CacheItem& item : cache_items(layer, settings.kv_dtype)) {
      if (!item.is_held) continue;
      if (item.ratio > 1) {
        throw InputError{
            fmt::format("{}: the packed groups of layers with compressed entries are not modelled",
                        shard.name)};
      }
      LayerCacheClass one{.kind = word_of(layer, item),
                          .growth = growth_of(layer, item),
                          .limit = item.most,
                          .token_bytes = std::llround(std::ceil(item.entry_bytes)),
                          .layers = 1};
      const auto same = std::find_if(out.begin(), out.end(), [&](const LayerCacheClass& other) {
        return other.kind == one.kind && other.growth == one.growth && other.limit == one.limit &&
               other.token_bytes == one.token_bytes;
      });
      if (same == out.end()) {
        out.push_back(std::move(one));
      } else {
        ++same->layers;
      }
    }
  }
  const auto full = std::find_if(out.begin(), out.end(), [](const LayerCacheClass& one) {
    return one.growth == Growth::kFull && one.kind != "index";
  });
  if (full != out.end()) full->layers += settings.draft_layers;
  return out;
}

std::int64_t base_block(const Llm& shard, const VllmGroupSettings& settings) {
  if (settings.block_tokens > 0) return settings.block_tokens;
  std::int64_t block = kBlock;
  for (const LayerSpec& layer : shard.layers) {
    if (caches_latents(layer)) block = std::max(block, kLatentBlock);
    if (!caches_latents(layer) && layer.attention.index.n_heads > 0) {
      block = std::max(block, kBlockSparseBlock);
    }
  }
  return block;
}

/// Gives all classes pages of one size.
void make_pages_equal(const Llm& shard, const VllmGroupSettings& settings,
                      std::vector<LayerCacheClass>& classes) {
  std::int64_t state = 0, token = 0;
  for (const LayerCacheClass& one : classes) {
    if (one.growth == Growth::kState) {
      state = std::max(state, one.page());
    } else {
      token = std::max(token, one.token_bytes);
    }
  }
  std::int64_t block = base_block(shard, settings);
  if (state > 0 && token > 0) {
    const std::int64_t needed = kStateAlignment * divide_up(state, kStateAlignment * token);
    block = std::max(settings.block_tokens, needed);
  }
  for (LayerCacheClass& one : classes) one.block = block;
  std::int64_t page = state;
  for (const LayerCacheClass& one : classes) page = std::max(page, one.page());
  for (LayerCacheClass& one : classes) {
    if (one.growth == Growth::kState) {
      one.token_bytes = page;  // padded
    } else if (page % one.page() == 0) {
      one.block *= page / one.page();
    } else {
      throw InputError{fmt::format(
          "{}: pages of {} and {} bytes cannot be made equal, so that vLLM refuses the model",
          shard.name, one.page(), page)};
    }
  }
}

/// Blocks that one request takes of a class.
std::int64_t request_blocks(const LayerCacheClass& one, const VllmGroupSettings& settings) {
  const std::int64_t tokens = settings.max_model_len;
  const std::int64_t step = settings.max_num_batched_tokens;
  switch (one.growth) {
    case Growth::kFull:
      return divide_up(divide_up(tokens, settings.context_parallel), one.block);
    case Growth::kWindow:
      // A step adds its tokens before the window lets go; it may start within a block.
      return divide_up(std::min(one.limit - 1 + step, tokens), one.block) + 1;
    case Growth::kChunk:
      return divide_up(std::min(one.limit + step, tokens), one.block);
    case Growth::kState:
      // The state that is written, with prefix caching the one that is kept, and those of drafts.
      return 1 + (settings.keeps_states ? 1 : 0) + settings.draft_tokens;
  }
  return 0;
}

}  // namespace

VllmGroups vllm_groups(const Llm& shard, const VllmGroupSettings& settings) {
  KVSIM_CHECK(settings.max_model_len >= 1 && settings.max_num_batched_tokens >= 1 &&
                  settings.context_parallel >= 1,
              "groups for {} tokens in steps of {}", settings.max_model_len,
              settings.max_num_batched_tokens);
  std::vector<LayerCacheClass> classes = classes_of(shard, settings);
  if (classes.empty()) throw InputError{fmt::format("{} has no layers with a cache", shard.name)};
  VllmGroups out;
  const auto add = [&](const LayerCacheClass& one, std::int32_t layers, std::int32_t padding) {
    out.groups.push_back({.kind = one.kind,
                          .layers = layers,
                          .padding = padding,
                          .block_tokens = one.block,
                          .request_blocks = request_blocks(one, settings)});
    out.request_blocks += out.groups.back().request_blocks;
  };
  const bool all_full = std::all_of(classes.begin(), classes.end(), [](const LayerCacheClass& one) {
    return one.growth == Growth::kFull;
  });
  if (all_full) {
    LayerCacheClass sum = classes.front();
    sum.block = base_block(shard, settings);
    std::int64_t bytes = 0;
    sum.layers = 0;
    for (const LayerCacheClass& one : classes) {
      bytes += one.token_bytes * one.layers;
      if (one.kind != "index") sum.layers += one.layers;
    }
    add(sum, sum.layers, 0);
    out.block_tokens = sum.block;
    out.block_id = Bytes{bytes * sum.block};
    return out;
  }
  make_pages_equal(shard, settings, classes);
  const auto [least, most] = std::minmax_element(
      classes.begin(), classes.end(),
      [](const LayerCacheClass& a, const LayerCacheClass& b) { return a.layers < b.layers; });
  // vLLM pads the smaller class where it is nearly as large.
  constexpr double kNearlyAsLarge = 1.5;
  const std::int32_t size =
      most->layers < kNearlyAsLarge * least->layers ? most->layers : least->layers;
  for (const LayerCacheClass& one : classes) {
    for (std::int32_t left = one.layers; left > 0; left -= size) {
      const std::int32_t layers = std::min(left, size);
      add(one, layers, size - layers);
    }
    if (one.growth == Growth::kFull && out.block_tokens == 0) out.block_tokens = one.block;
  }
  if (out.block_tokens == 0) out.block_tokens = classes.front().block;
  out.block_id = Bytes{classes.front().page() * size};
  return out;
}

VllmCapacity vllm_capacity(const VllmGroups& groups, Bytes available, std::int64_t max_model_len,
                           std::int32_t context_parallel) {
  VllmCapacity out;
  out.blocks = available.count() / groups.block_id.count();
  out.concurrency = static_cast<double>(out.blocks) / static_cast<double>(groups.request_blocks);
  // In whole numbers: as the engine rounds down.
  out.tokens = out.blocks * max_model_len / groups.request_blocks;
  std::int64_t least = groups.block_tokens;
  for (const VllmGroup& group : groups.groups) least = std::min(least, group.block_tokens);
  out.tokens_before = out.blocks / std::ssize(groups.groups) * least * context_parallel;
  return out;
}

}  // namespace kvsim
