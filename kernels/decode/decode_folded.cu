#include "kernels/decode/decode_folded.hpp"
#include "kernels/decode/decode_split.hpp"

namespace kvsim::KVSIM_EXECUTOR {

using namespace split_k;  // NOLINT: this file is one of its parts

namespace {

template <class T, int kHeadDim>
struct FoldedCache {
  static constexpr int kPer = kv::Vec16<T>::kSize;
  static constexpr int kAhead = 4;
  using Row = WideRow<kPer>;
  FoldedRows<T> keys, values;
  std::int64_t base = 0;

  KVSIM_DEVICE void begin(const DecodeShape& shape, std::int64_t sequence, std::int64_t kv_head,
                          std::int64_t, std::int64_t, std::int64_t) {
    base = (sequence * shape.n_kv_heads + kv_head) * shape.capacity;
  }
  KVSIM_DEVICE static Row read(const FoldedRows<T>& rows, std::int64_t entry, int part) {
    const std::int64_t own = kv::load(rows.retained_at, entry);
    const float norm = own < 0 ? kv::load(rows.norms, entry) : 1.0F;
    const auto raw = own < 0 ? kv::load16(rows.directions, entry * kHeadDim + part * kPer)
                             : kv::load16(rows.retained, own * kHeadDim + part * kPer);
    Row row;
    KVSIM_UNROLL
    for (int j = 0; j < kPer; ++j) row.x[j] = norm * kv::to_float(raw.v[j]);
    return row;
  }
  KVSIM_DEVICE Row key(std::int64_t entry, int part) { return read(keys, base + entry, part); }
  KVSIM_DEVICE Row value(std::int64_t entry, int part) { return read(values, base + entry, part); }
};

template <class T, int kHeadDim>
void launch_folded(Stream stream, const DecodeShape& shape, const FoldedRows<T>& keys,
                   const FoldedRows<T>& values, const DecodeAttention<T>& a) {
  const FoldedCache<T, kHeadDim> cache{keys, values};
  if (shape.group() == 1) {
    launch_split<T, kHeadDim, 1>(stream, shape, cache, a, 0);
  } else {
    launch_split<T, kHeadDim, 8>(stream, shape, cache, a, 0);
  }
}

}  // namespace

template <class T>
void decode_attention_folded(Stream stream, const DecodeShape& shape, const FoldedRows<T>& keys,
                             const FoldedRows<T>& values, const DecodeAttention<T>& a) {
  check_common(shape, a);
  KVSIM_LAUNCH_CHECK(shape.page == 0, "a folded cache is contiguous");
  const std::int64_t entries = shape.caches() * shape.n_kv_heads * shape.capacity;
  for (const FoldedRows<T>* rows : {&keys, &values}) {
    KVSIM_LAUNCH_CHECK(rows->directions.size >= entries * shape.head_dim,
                       "directions are [batch, n_kv_heads, capacity, head_dim]");
    KVSIM_LAUNCH_CHECK(rows->norms.size >= entries && rows->retained_at.size >= entries,
                       "norms and retained_at are [batch, n_kv_heads, capacity]");
  }
  if (shape.head_dim == 64) {
    launch_folded<T, 64>(stream, shape, keys, values, a);
  } else {
    launch_folded<T, 128>(stream, shape, keys, values, a);
  }
  launch_combine(stream, shape, a);
}

template void decode_attention_folded(Stream, const DecodeShape&, const FoldedRows<float>&,
                                      const FoldedRows<float>&, const DecodeAttention<float>&);
template void decode_attention_folded(Stream, const DecodeShape&, const FoldedRows<kv::Half>&,
                                      const FoldedRows<kv::Half>&,
                                      const DecodeAttention<kv::Half>&);
template void decode_attention_folded(Stream, const DecodeShape&, const FoldedRows<kv::BFloat16>&,
                                      const FoldedRows<kv::BFloat16>&,
                                      const DecodeAttention<kv::BFloat16>&);

}  // namespace kvsim::KVSIM_EXECUTOR
