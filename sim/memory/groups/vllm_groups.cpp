#include "sim/memory/groups/vllm_groups.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "models/llm/layer/layer_kind.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/memory/groups/vllm_packed.hpp"

namespace kvsim {
namespace {

// vLLM's block sizes if neither the user nor a kernel sets one.
constexpr std::int64_t kBlock = 16;
constexpr std::int64_t kLatentBlock = 64;
constexpr std::int64_t kBlockSparseBlock = 128;
/// With recurrent states, attention blocks are multiples of these: kernels' blocks.
constexpr std::int64_t kStateAlignment = 16;
constexpr std::int64_t kLatentStateAlignment = 64;

std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

/// Layers with equal pages and lifetimes.
struct LayerCacheClass {
  std::string kind;
  GroupGrowth growth = GroupGrowth::kFull;
  std::int64_t limit = 0;        // of a window or chunk
  std::int64_t token_bytes = 0;  // for a state, all of its bytes
  std::int32_t layers = 0;
  std::int64_t block = 0;
  std::vector<std::int32_t> of_model{};  // layers of the model, without those of a draft

  [[nodiscard]] std::int64_t page() const {
    return holds_states(growth) ? token_bytes : token_bytes * block;
  }
  /// Adds the pages of every `parts`-th of the model's layers, starting with the one at `part`.
  void add_pages(std::int32_t part, std::int32_t parts, std::int64_t bytes,
                 std::vector<VllmGroup::Page>& out) const {
    for (auto i = static_cast<std::size_t>(part); i < of_model.size();
         i += static_cast<std::size_t>(parts)) {
      out.push_back({.layer = of_model[i], .bytes = bytes});
    }
  }
};

GroupGrowth growth_of(const LayerSpec& layer, const CacheItem& item,
                      const VllmGroupSettings& settings) {
  if (item.role == CacheRole::kState) {
    const bool mamba =
        layer.state.kind == StateKind::kMamba1 || layer.state.kind == StateKind::kMamba2;
    return mamba && settings.keeps_states && settings.draft_tokens == 0 ? GroupGrowth::kStates
                                                                        : GroupGrowth::kState;
  }
  if (item.max == 0) return GroupGrowth::kFull;
  return layer.attention.chunk > 0 ? GroupGrowth::kChunk : GroupGrowth::kWindow;
}

std::string word_of(const LayerSpec& layer, const CacheItem& item) {
  if (item.role == CacheRole::kState) return std::string{state_kind(layer.state).name()};
  if (item.role == CacheRole::kIndex) return "index";
  return std::string{attention_kind(layer.attention).name()};
}

/// Bytes of one token's keys and values in a layer, in the settings' format; 0 if it does not apply
/// there.
double format_bytes(const VllmGroupSettings& settings, std::int32_t layer,
                    const AttentionSpec& attention) {
  if (settings.format == nullptr || attention.kv_lora_rank > 0) return 0;
  const LayerShape shape{.n_heads = attention.n_heads,
                         .n_kv_heads = attention.n_kv_heads,
                         .head_dim = (attention.head_dim + attention.v_head_dim) / 2};
  return static_cast<double>(
      settings.format->rows_bytes(layer, shape, settings.kv_dtype, 1, 1).kv.count());
}

std::vector<LayerCacheClass> classes_of(const Llm& shard, const VllmGroupSettings& settings) {
  std::vector<LayerCacheClass> out;
  for (std::int32_t l = 0; l < shard.n_layers(); ++l) {
    LayerSpec layer = shard.layers[static_cast<std::size_t>(l)];
    layer.attention.context_ranks = 1;  // blocks hold one rank's entries
    // A convolution keeps a column for each token that may be rejected.
    layer.state.conv_kernel += static_cast<std::int32_t>(settings.draft_tokens);
    if (settings.state_dtype) layer.state.dtype = *settings.state_dtype;
    const double in_format = format_bytes(settings, l, layer.attention);
    for (const CacheItem& item : cache_items(layer, settings.kv_dtype)) {
      if (!item.is_held) continue;
      const double bytes =
          in_format > 0 && item.role == CacheRole::kEntries ? in_format : item.entry_bytes;
      LayerCacheClass one{.kind = word_of(layer, item),
                          .growth = growth_of(layer, item, settings),
                          .limit = item.max,
                          .token_bytes = std::llround(std::ceil(bytes)),
                          .layers = 1,
                          .of_model = {l}};
      const auto same = std::find_if(out.begin(), out.end(), [&](const LayerCacheClass& other) {
        return other.kind == one.kind && other.growth == one.growth && other.limit == one.limit &&
               other.token_bytes == one.token_bytes;
      });
      if (same == out.end()) {
        out.push_back(std::move(one));
      } else {
        ++same->layers;
        same->of_model.push_back(l);
      }
    }
  }
  const auto full = std::find_if(out.begin(), out.end(), [](const LayerCacheClass& one) {
    return one.growth == GroupGrowth::kFull && one.kind != "index";
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

/// Makes the pages of all classes equal.
void make_pages_equal(const Llm& shard, const VllmGroupSettings& settings,
                      std::vector<LayerCacheClass>& classes) {
  std::int64_t state = 0, token = 0;
  for (const LayerCacheClass& one : classes) {
    if (holds_states(one.growth)) {
      state = std::max(state, one.page());
    } else {
      token = std::max(token, one.token_bytes);
    }
  }
  std::int64_t block = base_block(shard, settings);
  if (state > 0 && token > 0) {
    const bool latent = std::any_of(shard.layers.begin(), shard.layers.end(),
                                    [](const auto& l) { return caches_latents(l); });
    const std::int64_t aligned = latent ? kLatentStateAlignment : kStateAlignment;
    const std::int64_t needed = aligned * divide_up(state, aligned * token);
    block = std::max(settings.block_tokens, needed);
  }
  for (LayerCacheClass& one : classes) one.block = block;
  std::int64_t page = state;
  for (const LayerCacheClass& one : classes) page = std::max(page, one.page());
  for (LayerCacheClass& one : classes) {
    if (holds_states(one.growth)) {
      one.token_bytes = page;  // padded
    } else if (page % one.page() == 0) {
      one.block *= page / one.page();
    } else {
      throw InputError{fmt::format(
          "{}: pages of {} and {} bytes cannot be made equal: vLLM refuses the model{}", shard.name,
          one.page(), page,
          settings.format != nullptr ? fmt::format(" under {}", settings.format->name()) : "")};
    }
  }
}

}  // namespace

std::int64_t VllmGroupSettings::tokens_in_flight() const {
  constexpr EngineVersion kCountsComputed{0, 26, 0};
  return max_num_batched_tokens * (schedules_ahead && release >= kCountsComputed ? 2 : 1);
}

bool VllmGroups::has_states() const {
  return std::any_of(groups.begin(), groups.end(),
                     [](const VllmGroup& group) { return holds_states(group.growth); });
}

Bytes VllmGroups::id_of_layers(std::int32_t first, std::int32_t last) const {
  std::int64_t max = 0;
  for (const VllmGroup& group : groups) {
    std::int64_t bytes = 0;
    for (const VllmGroup::Page& page : group.pages) {
      if (page.layer >= first && page.layer < last) bytes += page.bytes;
    }
    max = std::max(max, bytes);
  }
  return Bytes{max};
}

std::int64_t group_blocks(GroupGrowth growth, std::int64_t limit, std::int64_t block,
                          std::int64_t tokens, const VllmGroupSettings& settings) {
  const std::int64_t ahead = settings.tokens_in_flight();
  switch (growth) {
    case GroupGrowth::kFull:
      return divide_up(divide_up(tokens, settings.context_parallel), block);
    case GroupGrowth::kWindow:
      // A step adds its tokens before the window releases blocks; it may start within a block.
      return divide_up(std::min(limit - 1 + ahead, tokens), block) + 1;
    case GroupGrowth::kChunk:
      return divide_up(std::min(limit + ahead, tokens), block);
    case GroupGrowth::kStates:
      return divide_up(tokens, block);
    case GroupGrowth::kState:
      // The state that is written, with prefix caching the state that is kept, and those of drafts.
      return 1 + (settings.keeps_states ? 1 : 0) + settings.draft_tokens;
  }
  return 0;
}

VllmGroups vllm_groups(const Llm& shard, const VllmGroupSettings& settings) {
  KVSIM_CHECK(settings.max_model_len >= 1 && settings.max_num_batched_tokens >= 1 &&
                  settings.context_parallel >= 1,
              "groups for {} tokens in steps of {}", settings.max_model_len,
              settings.max_num_batched_tokens);
  if (has_compressed_layers(shard)) return packed_groups(shard, settings);
  std::vector<LayerCacheClass> classes = classes_of(shard, settings);
  if (classes.empty()) throw InputError{fmt::format("{} has no layers with a cache", shard.name)};
  VllmGroups out;
  out.context_parallel = settings.context_parallel;
  const auto add = [&](const LayerCacheClass& one, std::int32_t layers, std::int32_t padding) {
    out.groups.push_back({.kind = one.kind,
                          .growth = one.growth,
                          .limit = one.limit,
                          .layers = layers,
                          .padding = padding,
                          .block_tokens = one.block,
                          .request_blocks = group_blocks(one.growth, one.limit, one.block,
                                                         settings.max_model_len, settings)});
    out.request_blocks += out.groups.back().request_blocks;
  };
  const bool all_full = std::all_of(classes.begin(), classes.end(), [](const LayerCacheClass& one) {
    return one.growth == GroupGrowth::kFull;
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
    for (const LayerCacheClass& one : classes) {
      one.add_pages(0, 1, one.token_bytes * sum.block, out.groups.back().pages);
    }
    out.block_tokens = sum.block;
    out.block_id = Bytes{bytes * sum.block};
    return out;
  }
  make_pages_equal(shard, settings, classes);
  const auto [min, max] = std::minmax_element(
      classes.begin(), classes.end(),
      [](const LayerCacheClass& a, const LayerCacheClass& b) { return a.layers < b.layers; });
  // vLLM pads the smaller class if it is nearly as large.
  constexpr double kNearlyAsLarge = 1.5;
  const std::int32_t size = max->layers < kNearlyAsLarge * min->layers ? max->layers : min->layers;
  for (const LayerCacheClass& one : classes) {
    // Layers are assigned round-robin.
    const std::int32_t parts = (one.layers + size - 1) / size;
    for (std::int32_t part = 0; part < parts; ++part) {
      const std::int32_t layers = (one.layers - part + parts - 1) / parts;
      add(one, layers, size - layers);
      one.add_pages(part, parts, one.page(), out.groups.back().pages);
    }
    if (one.growth == GroupGrowth::kFull && out.block_tokens == 0) out.block_tokens = one.block;
  }
  if (out.block_tokens == 0) out.block_tokens = classes.front().block;
  out.block_id = Bytes{classes.front().page() * size};
  return out;
}

std::int64_t longest_request(const Llm& shard, VllmGroupSettings settings, std::int64_t blocks) {
  std::int64_t good = 0, bad = settings.max_model_len + 1;
  while (bad - good > 1) {
    settings.max_model_len = good + (bad - good) / 2;
    const bool fits = vllm_groups(shard, settings).request_blocks <= blocks;
    (fits ? good : bad) = settings.max_model_len;
  }
  return good;
}

VllmCapacity vllm_capacity(const VllmGroups& groups, Bytes available, std::int64_t max_model_len) {
  return capacity_of_blocks(groups, available.count() / groups.block_id.count(), max_model_len);
}

VllmCapacity capacity_of_blocks(const VllmGroups& groups, std::int64_t blocks,
                                std::int64_t max_model_len) {
  VllmCapacity out{.blocks = blocks};
  out.concurrency = static_cast<double>(out.blocks) / static_cast<double>(groups.request_blocks);
  // In integers, because the engine rounds down.
  out.tokens = out.blocks * max_model_len / groups.request_blocks;
  std::int64_t min = groups.block_tokens;
  for (const VllmGroup& group : groups.groups) min = std::min(min, group.block_tokens);
  out.tokens_before = out.blocks / std::ssize(groups.groups) * min * groups.context_parallel;
  return out;
}

}  // namespace kvsim
