#include "kernels/basic/copies.hpp"
#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::AppendShape;
using kernels::ceil_div;
using kernels::ConcatShape;
using kernels::MoveShape;

constexpr std::int64_t kThreads = 256;
constexpr Dim3 kBlock{static_cast<std::uint32_t>(kThreads)};

/// Each thread copies 16 bytes of an entry.
template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    append_kernel(AppendShape shape, Span<const T> fresh, Span<const std::int64_t> slots,
                  Span<T> to) {
  constexpr std::int64_t kPer = kv::Vec16<T>::kSize;
  const std::int64_t parts = shape.entry_bytes / 16;
  const std::int64_t row = grid_thread() / parts;
  if (row >= shape.rows) return;
  const std::int64_t slot = kv::load(slots, row);
  const auto moved = kv::load16(fresh, grid_thread() * kPer);
  kv::store16(to, (slot * parts + grid_thread() % parts) * kPer, moved);
}

/// Like append_kernel, but within the cache.
template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    move_kernel(MoveShape shape, Span<const std::int64_t> from, Span<const std::int64_t> to,
                Span<T> cache) {
  constexpr std::int64_t kPer = kv::Vec16<T>::kSize;
  const std::int64_t parts = shape.entry_bytes / 16;
  const std::int64_t n = grid_thread() / parts;
  const std::int64_t part = grid_thread() % parts;
  if (n >= shape.moves) return;
  const std::int64_t source = kv::load(from, n);
  const std::int64_t target = kv::load(to, n);
  const auto moved = kv::load16(cache, (source * parts + part) * kPer);
  kv::store16(cache, (target * parts + part) * kPer, moved);
}

template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    concat_kernel(ConcatShape shape, Span<const T> old, Span<const T> fresh, Span<T> longer) {
  constexpr std::int64_t kPer = kv::Vec16<T>::kSize;
  const std::int64_t parts = shape.entry_bytes / 16;
  const std::int64_t row = blockIdx.y;
  const std::int64_t i = grid_thread();
  const std::int64_t copied = shape.before * parts;
  if (i >= copied + parts) return;
  const auto moved = i < copied ? kv::load16(old, (row * copied + i) * kPer)
                                : kv::load16(fresh, (row * parts + i - copied) * kPer);
  kv::store16(longer, (row * (copied + parts) + i) * kPer, moved);
}

void check_entry(std::int64_t rows, std::int64_t entry_bytes) {
  KVSIM_LAUNCH_CHECK(rows >= 1, "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(entry_bytes >= 16 && entry_bytes % 16 == 0, "entries of whole 16 bytes");
}

}  // namespace

template <class T>
void append_entries(Stream stream, const AppendShape& shape, Span<const T> fresh,
                    Span<const std::int64_t> slots, Span<T> to) {
  check_entry(shape.rows, shape.entry_bytes);
  const std::int64_t elements = shape.entry_bytes / static_cast<std::int64_t>(sizeof(T));
  KVSIM_LAUNCH_CHECK(fresh.size >= shape.rows * elements && slots.size >= shape.rows,
                     "fresh is [rows, entry], slots are [rows]");
  KVSIM_LAUNCH_CHECK(to.size >= shape.slots * elements, "to is [slots, entry]");
  launch(stream, "append_entries",
         {static_cast<std::uint32_t>(ceil_div(shape.rows * (shape.entry_bytes / 16), kThreads))},
         kBlock, 0, append_kernel<T>, shape, fresh, slots, to);
}

template <class T>
void move_entries(Stream stream, const MoveShape& shape, Span<const std::int64_t> from,
                  Span<const std::int64_t> to, Span<T> cache) {
  check_entry(shape.moves, shape.entry_bytes);
  const std::int64_t elements = shape.entry_bytes / static_cast<std::int64_t>(sizeof(T));
  KVSIM_LAUNCH_CHECK(from.size >= shape.moves && to.size >= shape.moves, "slots are [moves]");
  KVSIM_LAUNCH_CHECK(cache.size >= shape.slots * elements, "the cache is [slots, entry]");
  launch(stream, "move_entries",
         {static_cast<std::uint32_t>(ceil_div(shape.moves * (shape.entry_bytes / 16), kThreads))},
         kBlock, 0, move_kernel<T>, shape, from, to, cache);
}

template <class T>
void concat_entries(Stream stream, const ConcatShape& shape, Span<const T> old, Span<const T> fresh,
                    Span<T> longer) {
  check_entry(shape.rows, shape.entry_bytes);
  const std::int64_t elements = shape.entry_bytes / static_cast<std::int64_t>(sizeof(T));
  KVSIM_LAUNCH_CHECK(shape.before >= 0 && old.size >= shape.rows * shape.before * elements,
                     "old is [rows, before, entry]");
  KVSIM_LAUNCH_CHECK(fresh.size >= shape.rows * elements, "fresh is [rows, entry]");
  KVSIM_LAUNCH_CHECK(longer.size >= shape.rows * (shape.before + 1) * elements,
                     "longer is [rows, before + 1, entry]");
  const std::int64_t threads = (shape.before + 1) * (shape.entry_bytes / 16);
  launch(stream, "concat_entries",
         {static_cast<std::uint32_t>(ceil_div(threads, kThreads)),
          static_cast<std::uint32_t>(shape.rows)},
         kBlock, 0, concat_kernel<T>, shape, old, fresh, longer);
}

#define KVSIM_INSTANTIATE(T)                                                     \
  template void append_entries(Stream, const AppendShape&, Span<const T>,        \
                               Span<const std::int64_t>, Span<T>);               \
  template void move_entries(Stream, const MoveShape&, Span<const std::int64_t>, \
                             Span<const std::int64_t>, Span<T>);                 \
  template void concat_entries(Stream, const ConcatShape&, Span<const T>, Span<const T>, Span<T>);
KVSIM_INSTANTIATE(float)
KVSIM_INSTANTIATE(kv::Half)
KVSIM_INSTANTIATE(kv::BFloat16)
#undef KVSIM_INSTANTIATE

}  // namespace kvsim::KVSIM_EXECUTOR
