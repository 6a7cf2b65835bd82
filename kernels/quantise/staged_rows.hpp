#pragma once

// Codes and scales of engines' formats for the split kernel of decode attention. A block loads a
// tile of each array 16 bytes at a time, one tile ahead of the one in use, and its lanes read codes
// from shared memory. A format is a trivially copyable type with
//
//   using KeyCode, KeyScale, ValueCode, ValueScale      elements of its arrays
//   static constexpr int kKeyCodes, …                   elements per entry; 0: no such array
//   Span<const KeyCode> key_codes; …                    [rows or pages, …]
//   void key(tile, row, part, x), value(tile, row, part, x)     eight channels of a row of the tile
//   float key_factor(tile, row, is_live, x)             by all lanes of a warp

#include "kernels/decode/decode_split.hpp"

namespace kvsim::KVSIM_EXECUTOR::split_k {

/// Where a block's entries are stored.
struct Place {
  std::int64_t base = 0;  // the row's first entry, if contiguous
  std::int64_t n_kv_heads = 1, kv_head = 0;
  std::int64_t first_page = 0;
  int page_shift = -1;  // pages of 2^page_shift entries; -1: contiguous
  Span<std::int32_t> numbers{};

  KVSIM_DEVICE void begin(const DecodeShape& shape, Span<const std::int32_t> pages,
                          std::int64_t sequence, std::int64_t head, std::int64_t first,
                          std::int64_t end) {
    base = (sequence * shape.n_kv_heads + head) * shape.capacity;
    if (shape.page == 0) return;
    n_kv_heads = shape.n_kv_heads;
    kv_head = head;
    page_shift = __ffs(static_cast<std::uint32_t>(shape.page)) - 1;
    first_page = first >> page_shift;
    numbers = kv::dynamic_shared<std::int32_t>();
    for (std::int64_t p = first_page + threadIdx.x; (p << page_shift) < end; p += kDecodeThreads) {
      kv::store(numbers, p - first_page, kv::load(pages, sequence * shape.pages_per_sequence + p));
    }
    __syncthreads();
  }
  /// The stored row of an entry.
  KVSIM_DEVICE std::int64_t row(std::int64_t entry) {
    if (page_shift < 0) return base + entry;
    const std::int64_t number = kv::load(numbers, (entry >> page_shift) - first_page);
    const std::int64_t within = entry & ((std::int64_t{1} << page_shift) - 1);
    return (((number * n_kv_heads + kv_head) << page_shift) + within);
  }
};

/// A tile of an array of kCount elements per entry: each thread's part is in registers, the whole
/// tile in shared memory.
template <class E, int kCount>
struct Strip {
  static constexpr int kVector = kv::Vec16<E>::kSize;
  static constexpr int kElements = kTile * kCount;
  static constexpr int kVectors = kElements / kVector;
  static constexpr int kThreads = static_cast<int>(kDecodeThreads);
  static constexpr int kSteps = (kVectors + kThreads - 1) / kThreads;
  static_assert(kElements % kVector == 0);
  kv::Vec16<E> held[std::size_t{kSteps}];

  /// Calls act(step, element) for this thread's vectors of the tile's entries.
  template <class Act>
  KVSIM_DEVICE static void each(std::int64_t first, std::int64_t end, Act act) {
    const std::int64_t live = (end - first) * kCount;
    KVSIM_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int element = (static_cast<int>(threadIdx.x) + step * kThreads) * kVector;
      if (element < kElements && element < live) act(step, element);
    }
  }
  KVSIM_DEVICE void fetch(Span<const E> from, Place& place, std::int64_t first, std::int64_t end) {
    each(first, end, [&](int step, int element) {
      const std::int64_t row = place.row(first + element / kCount);
      held[step] = kv::load16(from, row * kCount + element % kCount);
    });
  }
  KVSIM_DEVICE void put(Span<E> to, std::int64_t first, std::int64_t end) const {
    each(first, end, [&](int step, int element) { kv::store16(to, element, held[step]); });
  }
};
template <class E>
struct Strip<E, 0> {
  KVSIM_DEVICE void fetch(Span<const E>, Place&, std::int64_t, std::int64_t) {}
  KVSIM_DEVICE void put(Span<E>, std::int64_t, std::int64_t) const {}
};

template <class E, int kCount>
using TileOf = SharedArray<E, (kCount > 0 ? kTile * kCount : 16 / static_cast<int>(sizeof(E)))>;

template <class Format>
struct FormatTile {
  static constexpr std::size_t kGranule =
      sizeof(typename Format::KeyScale) < sizeof(typename Format::ValueScale)
          ? sizeof(typename Format::KeyScale)
          : sizeof(typename Format::ValueScale);
  TileOf<typename Format::KeyCode, Format::kKeyCodes> key_codes;
  TileOf<typename Format::ValueCode, Format::kValueCodes> value_codes;
  TileOf<typename Format::KeyScale, Format::kKeyScales> key_scales;
  TileOf<typename Format::ValueScale, Format::kValueScales> value_scales;
};

template <class Format>
struct StagedRows {
  static constexpr int kPer = static_cast<int>(kernels::kQuantPerLane);
  static constexpr int kAhead = 1;  // tiles are prefetched instead
  using Row = WideRow<kPer>;
  Format format;
  Span<const std::int32_t> pages;
  Place place{};

  struct Held {
    Strip<typename Format::KeyCode, Format::kKeyCodes> key_codes;
    Strip<typename Format::ValueCode, Format::kValueCodes> value_codes;
    Strip<typename Format::KeyScale, Format::kKeyScales> key_scales;
    Strip<typename Format::ValueScale, Format::kValueScales> value_scales;
  };
  using Tile = FormatTile<Format>;

  KVSIM_DEVICE void begin(const DecodeShape& shape, std::int64_t sequence, std::int64_t kv_head,
                          std::int64_t, std::int64_t first, std::int64_t end) {
    place.begin(shape, pages, sequence, kv_head, first, end);
    format.begin();
  }
  KVSIM_DEVICE void fetch(Held& held, std::int64_t first, std::int64_t end) {
    held.key_codes.fetch(format.key_codes, place, first, end);
    held.value_codes.fetch(format.value_codes, place, first, end);
    held.key_scales.fetch(format.key_scales, place, first, end);
    held.value_scales.fetch(format.value_scales, place, first, end);
  }
  KVSIM_DEVICE void put(const Held& held, std::int64_t first, std::int64_t end) {
    auto& tile = kv::shared<Tile>();
    held.key_codes.put(tile.key_codes, first, end);
    held.value_codes.put(tile.value_codes, first, end);
    held.key_scales.put(tile.key_scales, first, end);
    held.value_scales.put(tile.value_scales, first, end);
  }
  KVSIM_DEVICE static int row(std::int64_t entry) { return static_cast<int>(entry % kTile); }
  KVSIM_DEVICE Row key(std::int64_t entry, int part) {
    Row key;
    format.key(kv::shared<Tile>(), row(entry), part, key.x);
    return key;
  }
  KVSIM_DEVICE float key_factor(std::int64_t entry, bool is_live,
                                const float (&x)[std::size_t{kPer}]) {
    return format.key_factor(kv::shared<Tile>(), row(entry), is_live, x);
  }
  KVSIM_DEVICE Row value(std::int64_t entry, int part) {
    Row value;
    format.value(kv::shared<Tile>(), row(entry), part, value.x);
    return value;
  }
};

/// Launches attention over a cache of `format`, whose arrays were checked before.
template <class T, int kHeadDim, class Format>
void launch_staged(Stream stream, const DecodeShape& shape, const Format& format,
                   const DecodeAttention<T>& a) {
  const StagedRows<Format> cache{format, a.pages};
  const std::int64_t pages = shape.page > 0 ? 4 * ceil_div(shape.entries_per_split, shape.page) : 0;
  if (shape.group() <= 4) {
    launch_split<T, kHeadDim, 4>(stream, shape, cache, a, pages);
  } else {
    launch_split<T, kHeadDim, 8>(stream, shape, cache, a, pages);
  }
  launch_combine(stream, shape, a);
}

/// Errors: ContractError unless each array has the size of the shape and is a multiple of 16 bytes.
template <class E>
void check_array(const DecodeShape& s, Span<const E> array, std::int64_t per_entry,
                 const char* what) {
  const bool is_paged = s.page > 0;  // the pages in use are unknown here: require at least one
  const std::int64_t run = (is_paged ? s.page : s.capacity) * per_entry;
  KVSIM_LAUNCH_CHECK(array.size >= s.n_kv_heads * run * (is_paged ? 1 : s.caches()), what);
  KVSIM_LAUNCH_CHECK(run * static_cast<std::int64_t>(sizeof(E)) % 16 == 0,
                     "the codes and scales of a row or page are whole 16 bytes each");
}
template <class T, class Format>
void check_format(const DecodeShape& s, const Format& format, const DecodeAttention<T>& a) {
  check_common(s, a);
  if (s.page > 0) {
    KVSIM_LAUNCH_CHECK(kDecodeTile % s.page == 0, "a page divides the tile");
    KVSIM_LAUNCH_CHECK(s.pages_per_sequence * s.page >= s.entries, "the pages hold the entries");
    KVSIM_LAUNCH_CHECK(a.pages.size >= s.caches() * s.pages_per_sequence,
                       "pages are [sequences, pages_per_sequence]");
  }
  constexpr auto kCodes = "codes are [sequences, n_kv_heads, capacity, words]";
  constexpr auto kScales = "scales are [sequences, n_kv_heads, capacity, scales]";
  check_array(s, format.key_codes, Format::kKeyCodes, kCodes);
  check_array(s, format.value_codes, Format::kValueCodes, kCodes);
  check_array(s, format.key_scales, Format::kKeyScales, kScales);
  check_array(s, format.value_scales, Format::kValueScales, kScales);
}

/// Calls launch with the format instantiated for 64 or 128 channels.
template <template <int> class Format, class T, class Cache>
void attend_format(Stream stream, const DecodeShape& shape, const Cache& cache,
                   const DecodeAttention<T>& a) {
  if (shape.head_dim == 64) {
    const auto format = Format<64>::of(cache);
    check_format(shape, format, a);
    launch_staged<T, 64>(stream, shape, format, a);
  } else {
    const auto format = Format<128>::of(cache);
    check_format(shape, format, a);
    launch_staged<T, 128>(stream, shape, format, a);
  }
}

}  // namespace kvsim::KVSIM_EXECUTOR::split_k
