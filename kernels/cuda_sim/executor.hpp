#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda_sim/counters.hpp"
#include "kernels/cuda_sim/fault.hpp"
#include "kernels/cuda_sim/fibers.hpp"
#include "kernels/cuda_sim/memory.hpp"

namespace kvsim::cuda_sim {

/// CUDA's dim3.
struct Dim3 {
  std::uint32_t x = 1, y = 1, z = 1;
  [[nodiscard]] constexpr std::uint64_t count() const {
    return std::uint64_t{x} * std::uint64_t{y} * std::uint64_t{z};
  }
};

inline constexpr std::uint32_t kWarpSize = 32;
inline constexpr std::uint32_t kMaxThreads = 1024;           // of a block
inline constexpr std::int64_t kMaxStaticShared = 48 * 1024;  // of a block
inline constexpr std::int64_t kMaxSharedBytes = 227 * 1024;  // sm_90; static and dynamic
inline constexpr std::uint32_t kAllLanes = 0xFFFFFFFFU;

enum class WarpOp : std::uint8_t {
  kShuffle,
  kShuffleUp,
  kShuffleDown,
  kShuffleXor,
  kBallot,
  kAny,
  kAll,
  kSync,
  kAddSigned,
  kAddUnsigned,
  kMinSigned,
  kMinUnsigned,
  kMaxSigned,
  kMaxUnsigned,
  kAnd,
  kOr,
  kXor
};

struct LaunchShape {
  std::string_view name;
  Dim3 grid, block;
  std::int64_t dynamic_shared_bytes = 0;
};

/// Runs kernels, one block after another, one thread of a block at a time.
///
/// The threads of a warp run in lane order, each up to a warp operation, a barrier or its end. When
/// all have stopped, operations whose lanes have all arrived are performed and these lanes
/// continue. When a whole warp waits at a barrier, the next warp runs. A thread that never waits
/// needs no switch: its fiber continues with the next thread. The order of execution is thus
/// defined, and counts and results are the same in every run.
class Executor {
 public:
  Executor();
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Calls `thread(context)` for every thread of the launch. Errors: KernelFault; exceptions of the
  /// kernel itself. In both cases the device's memory holds the kernel's writes up to that point.
  void run(const LaunchShape& shape, void (*thread)(const void*), const void* context);

  [[nodiscard]] const Counters& counters() const { return counters_; }
  /// Returns a tick that no cell has; later writes are newer.
  [[nodiscard]] std::uint32_t next_tick();

  // For the running thread; kernels call these through kernels/cuda_sim/kernel.hpp.

  /// Records one access of `bytes` bytes at `offset` in `memory`, inside its bounds: detects reads
  /// of unwritten memory and races, and counts.
  void access(Memory& memory, std::int64_t offset, std::uint32_t bytes, Cell::Kind kind,
              std::source_location where);
  void barrier(std::source_location where);
  std::uint64_t warp_op(WarpOp op, std::uint32_t mask, std::uint64_t value, std::uint32_t parameter,
                        std::source_location where);
  void count_flops(std::int64_t n) { counters_.flops += n; }
  /// The block's static shared memory of the type that `key` identifies.
  std::byte* static_shared(const void* key, std::int64_t bytes, unsigned granule_shift,
                           std::string_view name);
  Memory& dynamic_shared(unsigned granule_shift);
  /// The shared memory that contains `address`.
  Memory& shared_at(const void* address);

  [[noreturn]] void out_of_bounds(const Memory* memory, std::int64_t index, std::int64_t count,
                                  std::int64_t size, std::uint32_t element_bytes, Cell::Kind kind,
                                  std::source_location where);
  [[noreturn]] void misaligned(const Memory& memory, std::int64_t offset, std::uint32_t bytes,
                               std::source_location where);

 private:
  enum class State : std::uint8_t { kUnstarted, kRunning, kAtWarpOp, kAtBarrier, kDone };

  struct Thread {
    Fiber* fiber = nullptr;
    std::uint32_t x = 0, y = 0, z = 0;
    State state = State::kUnstarted;
    std::uint16_t site = 0;  // site of the last access
  };
  struct Warp {
    std::uint32_t exists = 0, runnable = 0, waiting = 0, at_barrier = 0, done = 0;
    std::uint32_t synced_at = 0;  // tick of its last __syncwarp of all lanes
    bool is_uniform = true;       // all waiting lanes requested the same operation
    std::array<WarpOp, kWarpSize> op{};
    std::array<std::uint32_t, kWarpSize> mask{}, parameter{};
    std::array<std::uint16_t, kWarpSize> site{};
    std::array<std::uint64_t, kWarpSize> value{}, result{};
  };
  /// Sectors of one warp access, by windows of 64 sectors.
  struct Window {
    std::uint64_t window = 0, sectors = 0;
    std::int32_t next = -1;  // further windows, in Site::more
  };
  struct Site {
    std::source_location where;
    std::uint64_t segment = 0, turn = 0;  // that `executions` refers to
    std::size_t executions = 0;
    std::vector<Window> accesses;  // by execution
    std::vector<Window> more;
  };
  struct SiteSlot {
    const void* key = nullptr;
    std::uint32_t site = 0;
  };

  static void work(void* self);
  void work_forever();
  void run_block(std::uint64_t block);
  // Inline: see FiberPool::switch_to.
  [[gnu::always_inline]] void enter(std::uint32_t thread);
  [[gnu::always_inline]] void resume(std::uint32_t thread);
  [[gnu::always_inline]] void suspend();
  /// The next thread to run; kNone when the block is done.
  [[gnu::always_inline]] std::uint32_t pick_next();
  std::uint32_t pick_from_next_pass();
  void resolve(Warp& warp);
  void complete(Warp& warp, std::uint32_t lanes);
  void release_barrier();
  void prepare(const LaunchShape& shape);

  std::uint32_t site_of(std::source_location where);
  std::uint32_t add_site(std::source_location where, std::size_t slot);
  void conflict(Memory& memory, std::uint64_t& cell, std::uint64_t fresh, Cell::Kind kind,
                std::int64_t offset);
  std::int64_t new_sectors(Site& site, const std::byte* address);

  [[noreturn]] void fault(FaultKind kind, const std::string& what);
  [[noreturn]] void fault_divergent(const Warp& warp);
  [[nodiscard]] std::string place(std::uint32_t site) const;
  [[nodiscard]] std::string thread_name(std::uint32_t thread) const;
  [[nodiscard]] std::string whereabouts(std::uint32_t thread) const;

  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;
  static constexpr std::size_t kSlots = 4096;
  static constexpr std::uint32_t kMaxSites = 3000;

  FiberPool fibers_;
  Counters counters_;
  LaunchShape shape_;
  std::string name_;
  void (*kernel_)(const void*) = nullptr;
  const void* context_ = nullptr;

  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::uint32_t n_threads_ = 0;
  std::uint32_t thread_ = 0;  // running
  std::uint32_t warp_ = 0;
  std::uint32_t barrier_site_ = 0;  // of the first thread that arrived
  std::uint32_t at_barrier_ = 0;
  bool one_barrier_ = true;  // all arrived at the same line
  std::uint64_t segment_ = 1, turn_ = 1;

  std::uint32_t tick_ = 1;
  std::uint32_t interval_start_ = 1;  // tick of the last barrier

  std::vector<SiteSlot> slots_;
  std::vector<Site> sites_;

  struct SharedArena {
    const void* key = nullptr;
    Memory memory;
    std::vector<std::byte> storage;
  };
  std::vector<std::unique_ptr<SharedArena>> shared_;  // of the running launch
  std::vector<std::unique_ptr<SharedArena>> spare_;
  Memory* last_shared_ = nullptr;
  std::int64_t static_bytes_ = 0;

  std::exception_ptr failure_;
};

/// State of the running thread's kernel, on the host thread that runs it. It is read at every
/// access, so it uses the thread-local storage model without a call.
struct Running {
  Executor* executor = nullptr;
  Dim3 thread, block, block_dim, grid_dim;
};
#if defined(__GNUC__)
#define KVSIM_DIRECT_TLS __attribute__((tls_model("initial-exec")))
#else
#define KVSIM_DIRECT_TLS
#endif
extern constinit thread_local Running running KVSIM_DIRECT_TLS;

}  // namespace kvsim::cuda_sim
