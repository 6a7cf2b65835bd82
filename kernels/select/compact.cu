#include "kernels/select/compact.hpp"
#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

constexpr std::int64_t kThreads = 256;

/// Each thread copies 16 bytes of an entry.
template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    gather_kernel(kernels::GatherShape shape, Span<const T> from, Span<const std::int32_t> kept,
                  Span<T> to) {
  constexpr std::int64_t kPer = kv::Vec16<T>::kSize;
  const std::int64_t parts = shape.entry_bytes / 16;
  const std::int64_t row = blockIdx.y;
  const std::int64_t i = grid_thread() / parts;
  const std::int64_t part = grid_thread() % parts;
  if (i >= shape.kept) return;
  const std::int64_t source = kv::load(kept, row * shape.kept + i);
  const auto moved = kv::load16(from, ((row * shape.capacity_from + source) * parts + part) * kPer);
  kv::store16(to, ((row * shape.capacity_to + i) * parts + part) * kPer, moved);
}

}  // namespace

template <class T>
void gather_entries(Stream stream, const kernels::GatherShape& shape, Span<const T> from,
                    Span<const std::int32_t> kept, Span<T> to) {
  const std::int64_t elements = shape.entry_bytes / static_cast<std::int64_t>(sizeof(T));
  KVSIM_LAUNCH_CHECK(shape.rows >= 1 && shape.kept >= 1, "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(shape.entry_bytes >= 16 && shape.entry_bytes % 16 == 0,
                     "entries of whole 16 bytes");
  KVSIM_LAUNCH_CHECK(shape.capacity_to >= shape.kept, "the kept fit");
  KVSIM_LAUNCH_CHECK(from.size >= shape.rows * shape.capacity_from * elements,
                     "from is [rows, capacity_from, entry]");
  KVSIM_LAUNCH_CHECK(to.size >= shape.rows * shape.capacity_to * elements,
                     "to is [rows, capacity_to, entry]");
  KVSIM_LAUNCH_CHECK(kept.size >= shape.rows * shape.kept, "kept is [rows, kept]");
  const std::int64_t threads = shape.kept * (shape.entry_bytes / 16);
  launch(stream, "gather_entries",
         {static_cast<std::uint32_t>(kernels::ceil_div(threads, kThreads)),
          static_cast<std::uint32_t>(shape.rows)},
         {static_cast<std::uint32_t>(kThreads)}, 0, gather_kernel<T>, shape, from, kept, to);
}

template void gather_entries(Stream, const kernels::GatherShape&, Span<const float>,
                             Span<const std::int32_t>, Span<float>);
template void gather_entries(Stream, const kernels::GatherShape&, Span<const kv::Half>,
                             Span<const std::int32_t>, Span<kv::Half>);
template void gather_entries(Stream, const kernels::GatherShape&, Span<const kv::BFloat16>,
                             Span<const std::int32_t>, Span<kv::BFloat16>);

}  // namespace kvsim::KVSIM_EXECUTOR
