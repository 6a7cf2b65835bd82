#include "kernels/decode/decode_split.hpp"

namespace kvsim::KVSIM_EXECUTOR {

using namespace split_k;  // NOLINT: this file is one of its two parts

namespace {

/// Entries as rows of T, 16 bytes per lane.
template <class T, int kHeadDim>
struct PlainRows {
  static constexpr int kPer = kv::Vec16<T>::kSize;
  static constexpr int kAhead = 4;
  using Row = kv::Vec16<T>;
  Span<const T> keys, values;
  std::int64_t base = 0;

  KVSIM_DEVICE void begin(const DecodeShape& shape, std::int64_t sequence, std::int64_t kv_head,
                          std::int64_t, std::int64_t, std::int64_t) {
    base = (sequence * shape.n_kv_heads + kv_head) * shape.capacity;
  }
  KVSIM_DEVICE Row key(std::int64_t entry, int part) {
    return kv::load16(keys, (base + entry) * kHeadDim + part * kPer);
  }
  KVSIM_DEVICE Row value(std::int64_t entry, int part) {
    return kv::load16(values, (base + entry) * kHeadDim + part * kPer);
  }
};

/// The same in pages of [n_kv_heads, page, head_dim]. A block keeps its split's page numbers in
/// shared memory.
template <class T, int kHeadDim>
struct PagedRows {
  static constexpr int kPer = kv::Vec16<T>::kSize;
  static constexpr int kAhead = 4;
  using Row = kv::Vec16<T>;
  Span<const T> keys, values;
  Span<const std::int32_t> pages;
  std::int64_t n_kv_heads = 1, kv_head = 0, first_page = 0;
  int page_shift = 0;  // pages of 2^page_shift entries
  Span<std::int32_t> numbers{};

  KVSIM_DEVICE void begin(const DecodeShape& shape, std::int64_t sequence, std::int64_t head,
                          std::int64_t, std::int64_t first, std::int64_t end) {
    page_shift = __ffs(static_cast<std::uint32_t>(shape.page)) - 1;
    n_kv_heads = shape.n_kv_heads;
    kv_head = head;
    first_page = first >> page_shift;
    numbers = kv::dynamic_shared<std::int32_t>();
    for (std::int64_t p = first_page + threadIdx.x; (p << page_shift) < end; p += kDecodeThreads) {
      kv::store(numbers, p - first_page, kv::load(pages, sequence * shape.pages_per_sequence + p));
    }
    __syncthreads();
  }
  KVSIM_DEVICE std::int64_t row(std::int64_t entry) {
    const std::int64_t number = kv::load(numbers, (entry >> page_shift) - first_page);
    const std::int64_t within = entry & ((std::int64_t{1} << page_shift) - 1);
    return ((number * n_kv_heads + kv_head) << page_shift) + within;
  }
  KVSIM_DEVICE Row key(std::int64_t entry, int part) {
    return kv::load16(keys, row(entry) * kHeadDim + part * kPer);
  }
  KVSIM_DEVICE Row value(std::int64_t entry, int part) {
    return kv::load16(values, row(entry) * kHeadDim + part * kPer);
  }
};

KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(256)
    normalise_kernel(std::int64_t entries, std::int64_t stride, Span<const float> log_sum,
                     Span<float> rows) {
  const std::int64_t row = blockIdx.y;
  const std::int64_t whole = entries / 4;
  const std::int64_t i = grid_thread();
  if (i < whole) {
    const float subtract = kv::load(log_sum, row);
    auto x = kv::load16(rows, row * stride + 4 * i);
    for (int j = 0; j < 4; ++j) x.v[j] = expf(x.v[j] - subtract);
    kv::store16(rows, row * stride + 4 * i, x);
  } else if (const std::int64_t e = 4 * whole + (i - whole); e < entries) {
    const float subtract = kv::load(log_sum, row);
    kv::store(rows, row * stride + e, expf(kv::load(rows, row * stride + e) - subtract));
  }
}

template <class T, int kHeadDim, class Cache>
void launch_split_by_group(Stream stream, const DecodeShape& shape, const Cache& cache,
                           const DecodeAttention<T>& a, std::int64_t shared_bytes) {
  const std::int64_t group = shape.group();
  if (group == 1) {
    launch_split<T, kHeadDim, 1>(stream, shape, cache, a, shared_bytes);
  } else if (group == 2) {
    launch_split<T, kHeadDim, 2>(stream, shape, cache, a, shared_bytes);
  } else if (group <= 4) {
    launch_split<T, kHeadDim, 4>(stream, shape, cache, a, shared_bytes);
  } else {
    launch_split<T, kHeadDim, 8>(stream, shape, cache, a, shared_bytes);
  }
}

template <class T, int kHeadDim>
void launch_split_by_cache(Stream stream, const DecodeShape& shape, const DecodeAttention<T>& a) {
  if (shape.page == 0) {
    launch_split_by_group<T, kHeadDim>(stream, shape, PlainRows<T, kHeadDim>{a.keys, a.values}, a,
                                       0);
  } else {
    launch_split_by_group<T, kHeadDim>(stream, shape,
                                       PagedRows<T, kHeadDim>{a.keys, a.values, a.pages}, a,
                                       4 * ceil_div(shape.entries_per_split, shape.page));
  }
}

template <class T>
void check(const DecodeShape& s, const DecodeAttention<T>& a) {
  check_common(s, a);
  if (s.page == 0) {
    const std::int64_t elements = s.caches() * s.n_kv_heads * s.capacity * s.head_dim;
    KVSIM_LAUNCH_CHECK(a.keys.size >= elements && a.values.size >= elements,
                       "keys and values are [sequences, n_kv_heads, capacity, head_dim]");
    return;
  }
  KVSIM_LAUNCH_CHECK(s.page >= 1 && kDecodeTile % s.page == 0, "a page divides the tile");
  KVSIM_LAUNCH_CHECK(s.pages_per_sequence * s.page >= s.entries, "the pages hold the entries");
  KVSIM_LAUNCH_CHECK(a.pages.size >= s.caches() * s.pages_per_sequence,
                     "pages are [sequences, pages_per_sequence]");
}

}  // namespace

template <class T>
void decode_attention(Stream stream, const DecodeShape& shape, const DecodeAttention<T>& a) {
  check(shape, a);
  if (shape.head_dim == 64) {
    launch_split_by_cache<T, 64>(stream, shape, a);
  } else {
    launch_split_by_cache<T, 128>(stream, shape, a);
  }
  launch_combine(stream, shape, a);
}

template void decode_attention(Stream, const DecodeShape&, const DecodeAttention<float>&);
template void decode_attention(Stream, const DecodeShape&, const DecodeAttention<kv::Half>&);
template void decode_attention(Stream, const DecodeShape&, const DecodeAttention<kv::BFloat16>&);

void normalise_rows(Stream stream, std::int64_t n_rows, std::int64_t entries, std::int64_t stride,
                    Span<const float> log_sum, Span<float> rows) {
  KVSIM_LAUNCH_CHECK(n_rows >= 1 && entries >= 1 && stride >= entries && stride % 4 == 0,
                     "rows of whole 16 bytes");
  KVSIM_LAUNCH_CHECK(log_sum.size >= n_rows && rows.size >= n_rows * stride,
                     "a span is shorter than its rows");
  const std::int64_t threads = entries / 4 + entries % 4;
  launch(stream, "normalise_rows",
         {static_cast<std::uint32_t>(ceil_div(threads, 256)), static_cast<std::uint32_t>(n_rows)},
         {256}, 0, normalise_kernel, entries, stride, log_sum, rows);
}

}  // namespace kvsim::KVSIM_EXECUTOR
