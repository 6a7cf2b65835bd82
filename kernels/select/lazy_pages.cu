#include "kernels/select/lazy_pages.hpp"
#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

constexpr std::int64_t kThreads = 128;

/// One thread per dropped entry.
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads) lazy_kernel(kernels::LazyPageShape shape, LazyPages a) {
  if (grid_thread() >= shape.rows * shape.max_leaving) return;
  const std::int64_t row = grid_thread() / shape.max_leaving;
  const std::int64_t entry = kv::load(a.leaving, grid_thread());
  if (entry < 0) return;
  const std::int32_t page = kv::load(a.pages, row * shape.pages_per_sequence + entry / shape.page);
  kv::store(a.bias, row * shape.pages_per_sequence * shape.page + entry,
            __uint_as_float(0xFF800000U));
  if (kv::atomic_add(a.live, page, -1) == 1) {  // the last entry of the page
    kv::store(a.freed, kv::atomic_add(a.n_freed, 0, 1), page);
  }
}

}  // namespace

void evict_lazily(Stream stream, const kernels::LazyPageShape& s, const LazyPages& a) {
  KVSIM_LAUNCH_CHECK(s.rows >= 1 && s.max_leaving >= 1 && s.page >= 1 && s.n_pages >= 1,
                     "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(
      a.leaving.size >= s.rows * s.max_leaving && a.pages.size >= s.rows * s.pages_per_sequence,
      "leaving is [rows, max_leaving], pages [rows, pages_per_sequence]");
  KVSIM_LAUNCH_CHECK(a.live.size >= s.n_pages && a.freed.size >= s.n_pages && a.n_freed.size >= 1,
                     "live and freed are [n_pages]");
  KVSIM_LAUNCH_CHECK(a.bias.size >= s.rows * s.pages_per_sequence * s.page,
                     "bias is [rows, pages_per_sequence * page]");
  launch(stream, "evict_lazily",
         {static_cast<std::uint32_t>(kernels::ceil_div(s.rows * s.max_leaving, kThreads))},
         {static_cast<std::uint32_t>(kThreads)}, 0, lazy_kernel, s, a);
}

}  // namespace kvsim::KVSIM_EXECUTOR
