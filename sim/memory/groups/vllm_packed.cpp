#include "sim/memory/groups/vllm_packed.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "models/llm/layer/layer_kind.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kEntryBlock = 256;  // tokens
constexpr std::int64_t kWindowBlock = 64;
/// Pages of a compressor's states before alignment: a block has the number of tokens that fill one.
constexpr std::int64_t kStatePage = 32768;
constexpr EngineVersion kSlots{0, 24, 0}, kDense{0, 27, 0};

std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }
std::int64_t rounded_up(std::int64_t n, std::int64_t to) { return divide_up(n, to) * to; }

using Pages = std::map<std::int64_t, std::int32_t>;  // bytes of a page -> layers

std::int64_t bytes_of_pages(const Pages& pages) {
  std::int64_t sum = 0;
  for (const auto& [page, layers] : pages) sum += page * layers;
  return sum;
}
std::int32_t layers_of(const Pages& pages) {
  std::int32_t sum = 0;
  for (const auto& [page, layers] : pages) sum += layers;
  return sum;
}
/// Tuples of a class: layers of its most common page size.
std::int32_t tuples_of(const Pages& pages) {
  std::int32_t max = 0;
  for (const auto& [page, layers] : pages) max = std::max(max, layers);
  return max;
}

/// Layers with equal blocks and lifetimes.
struct PackedClass {
  std::string kind;
  GroupGrowth growth = GroupGrowth::kFull;
  std::int64_t block = 0, window = 0;
  Pages pages{};
};

PackedClass& class_of(std::vector<PackedClass>& classes, std::string kind, GroupGrowth growth,
                      std::int64_t block, std::int64_t window) {
  for (PackedClass& one : classes) {
    if (one.block == block && one.window == window) return one;
  }
  classes.push_back({.kind = std::move(kind), .growth = growth, .block = block, .window = window});
  return classes.back();
}

/// The full class first.
std::vector<PackedClass> packed_classes(const Llm& shard, const VllmGroupSettings& settings) {
  // The 8-bit format is read in units of 576 bytes.
  const std::int64_t alignment = bits_of(settings.kv_dtype) == 8 ? 576 : 512;
  const auto page = [&](std::int64_t slots, double bytes) {
    return rounded_up(slots * static_cast<std::int64_t>(bytes), alignment);
  };
  const std::int64_t block = settings.block_tokens > 0 ? settings.block_tokens : kEntryBlock;
  std::vector<PackedClass> out;
  class_of(out, "compressed", GroupGrowth::kFull, block, 0);
  const auto add_states = [&](std::int64_t ratio, std::int64_t width, std::int64_t tokens) {
    // A window of the tokens that are compressed together; ratio 4 overlaps two of them.
    const std::int64_t window = ratio == 4 ? 2 * ratio : ratio;
    PackedClass& states = class_of(out, "compressor state", GroupGrowth::kWindow, tokens, window);
    ++states.pages[page(tokens, static_cast<double>(width) * 4)];  // fp32
  };
  for (const LayerSpec& layer : shard.layers) {
    const AttentionSpec& a = layer.attention;
    for (const CacheItem& item : cache_items(layer, settings.kv_dtype)) {
      if (item.max > 0) {
        PackedClass& windows =
            class_of(out, "window", GroupGrowth::kWindow, kWindowBlock, item.max);
        ++windows.pages[page(kWindowBlock, item.entry_bytes)];
      } else if (item.role != CacheRole::kState) {
        ++out.front().pages[page(block / item.ratio, item.entry_bytes)];
      }
    }
    if (a.ratio == 0) continue;
    const std::int64_t sets = a.ratio == 4 ? 2 : 1;
    const std::int64_t width = 2 * sets * a.head_dim;  // inputs and gates
    const std::int64_t tokens = std::max<std::int64_t>(1, kStatePage / (width * 4));
    add_states(a.ratio, width, tokens);
    if (a.index.n_heads > 0) add_states(a.ratio, 2 * sets * a.index.head_dim, tokens);
  }
  for (PackedClass& one : out) {
    if (one.kind == "window") one.pages.begin()->second += settings.draft_layers;
  }
  return out;
}

/// Tuples of a group: the number that leaves the fewest empty; among equal ones, the largest.
std::int32_t tuples_per_group(const std::vector<PackedClass>& classes) {
  std::int32_t max = 0;
  for (const PackedClass& one : classes) max = std::max(max, tuples_of(one.pages));
  std::int32_t best = 0;
  std::int64_t min = std::numeric_limits<std::int64_t>::max();
  for (std::int32_t n = tuples_of(classes.front().pages); n <= max; ++n) {
    std::int64_t empty = 0;
    for (const PackedClass& one : classes) {
      const std::int64_t tuples = tuples_of(one.pages);
      empty += rounded_up(tuples, n) - tuples;
    }
    if (empty <= min) {
      min = empty;
      best = n;
    }
  }
  return best;
}

struct PackedGroup {
  PackedClass of;  // with the group's own pages
  std::int32_t tuples = 0;
};

std::vector<PackedGroup> cut(const std::vector<PackedClass>& classes, std::int32_t tuples) {
  std::vector<PackedGroup> out;
  for (const PackedClass& one : classes) {
    const auto parts = static_cast<std::int32_t>(
        std::max<std::int64_t>(1, divide_up(tuples_of(one.pages), tuples)));
    for (std::int32_t part = 0; part < parts; ++part) {
      PackedGroup group{.of = one, .tuples = tuples};
      for (auto& [page, layers] : group.of.pages) layers = (layers - part + parts - 1) / parts;
      out.push_back(std::move(group));
    }
  }
  return out;
}

/// Bytes of a block id.
std::int64_t slab_bytes(const std::vector<PackedGroup>& groups, EngineVersion release) {
  if (release >= kDense) {
    std::int64_t largest = 0;
    for (const PackedGroup& group : groups) {
      largest = std::max(largest, bytes_of_pages(group.of.pages));
    }
    return largest;
  }
  Pages max;
  for (const PackedGroup& group : groups) {
    for (const auto& [page, layers] : group.of.pages) max[page] = std::max(max[page], layers);
  }
  if (release >= kSlots) return bytes_of_pages(max);
  for (auto& [page, layers] : max) layers = groups.front().tuples;
  return bytes_of_pages(max);
}

}  // namespace

bool has_compressed_layers(const Llm& shard) {
  return std::any_of(shard.layers.begin(), shard.layers.end(),
                     [](const LayerSpec& layer) { return layer.attention.o_groups > 0; });
}

VllmGroups packed_groups(const Llm& shard, const VllmGroupSettings& settings) {
  std::vector<PackedClass> classes = packed_classes(shard, settings);
  const Pages& entries = classes.front().pages;
  KVSIM_CHECK(!entries.empty(), "compressed layers of {} without entries", shard.name);
  if (settings.release < kDense) {
    for (PackedClass& one : classes) {
      Pages raised;
      for (const auto& [page, layers] : one.pages) {
        const auto next = entries.lower_bound(page);
        raised[next == entries.end() ? page : next->first] += layers;
      }
      one.pages = std::move(raised);
    }
  }
  const std::vector<PackedGroup> groups = cut(classes, tuples_per_group(classes));
  VllmGroups out;
  out.context_parallel = settings.context_parallel;
  out.block_tokens = classes.front().block;
  out.block_id = Bytes{slab_bytes(groups, settings.release)};
  std::int64_t bytes = 0;
  for (const PackedGroup& group : groups) {
    const PackedClass& of = group.of;
    const std::int64_t blocks =
        group_blocks(of.growth, of.window, of.block, settings.max_model_len, settings);
    out.groups.push_back({.kind = of.kind,
                          .growth = of.growth,
                          .limit = of.window,
                          .layers = layers_of(of.pages),
                          .padding = group.tuples - tuples_of(of.pages),
                          .block_tokens = of.block,
                          .request_blocks = blocks});
    out.request_blocks += blocks;
    bytes += blocks * bytes_of_pages(of.pages);
  }
  if (settings.release < kDense) {
    out.request_blocks = divide_up(bytes, bytes_of_pages(groups.front().of.pages));
  }
  return out;
}

}  // namespace kvsim
