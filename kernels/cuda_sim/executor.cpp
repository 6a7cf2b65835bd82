#include "kernels/cuda_sim/executor.hpp"

#include <bit>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "models/units/check.hpp"

namespace kvsim::cuda_sim {

constinit thread_local Running running KVSIM_DIRECT_TLS;

namespace {

constexpr std::uint32_t lane_bit(std::uint32_t lane) { return std::uint32_t{1} << lane; }

const char* name_of(WarpOp op) {
  switch (op) {
    case WarpOp::kShuffle:
    case WarpOp::kShuffleUp:
    case WarpOp::kShuffleDown:
    case WarpOp::kShuffleXor:
      return "shuffle";
    case WarpOp::kBallot:
    case WarpOp::kAny:
    case WarpOp::kAll:
      return "vote";
    case WarpOp::kSync:
      return "__syncwarp";
    default:
      return "reduction";
  }
}

}  // namespace

// --- threads and fibers --------------------------------------------------------------------------

inline void Executor::enter(std::uint32_t thread) {
  thread_ = thread;
  const Thread& t = threads_[thread];
  running.thread = {t.x, t.y, t.z};
  ++turn_;
}

inline std::uint32_t Executor::pick_next() {
  Warp& warp = warps_[warp_];
  if (warp.runnable == 0) return pick_from_next_pass();
  const auto lane = static_cast<std::uint32_t>(std::countr_zero(warp.runnable));
  warp.runnable &= warp.runnable - 1;
  return warp_ * kWarpSize + lane;
}

inline void Executor::resume(std::uint32_t thread) {
  enter(thread);
  Thread& t = threads_[thread];
  fibers_.switch_to(t.state == State::kUnstarted ? fibers_.take() : t.fiber);
}

inline void Executor::suspend() {
  const std::uint32_t me = thread_;
  threads_[me].fiber = fibers_.running();
  const std::uint32_t next = pick_next();
  if (next == me) {
    enter(me);
  } else {
    resume(next);
  }
  threads_[me].state = State::kRunning;
}

std::uint32_t Executor::pick_from_next_pass() {
  for (;;) {
    ++segment_;
    Warp& warp = warps_[warp_];
    if (warp.waiting != 0) {
      resolve(warp);
    } else if (warp_ + 1 < warps_.size()) {
      ++warp_;
    } else if (at_barrier_ == 0) {
      return kNone;
    } else {
      release_barrier();
      warp_ = 0;
    }
    if (warps_[warp_].runnable != 0) return pick_next();
  }
}

void Executor::work(void* self) { static_cast<Executor*>(self)->work_forever(); }

void Executor::work_forever() {
  for (;;) {
    threads_[thread_].state = State::kRunning;
    std::uint32_t next = kNone;
    try {
      kernel_(context_);
      threads_[thread_].state = State::kDone;
      Warp& warp = warps_[warp_];
      warp.done |= lane_bit(thread_ % kWarpSize);
      next = pick_next();
    } catch (...) {
      failure_ = std::current_exception();
    }
    // Outside the handler: switching away inside it would leave the exception active on this fiber.
    if (failure_ != nullptr) fibers_.switch_to(fibers_.home());
    if (next != kNone && threads_[next].state == State::kUnstarted) {
      enter(next);
      continue;
    }
    fibers_.park(fibers_.running());
    if (next == kNone) {
      fibers_.switch_to(fibers_.home());
    } else {
      resume(next);
    }
  }
}

// --- launches ------------------------------------------------------------------------------------

Executor::Executor() : fibers_{&Executor::work, this}, slots_(kSlots) {
  sites_.push_back({.where = {}, .accesses = {}, .more = {}});  // 0: a thread without an access so
                                                                // far
}

Executor::~Executor() = default;

std::uint32_t Executor::next_tick() {
  KVSIM_CHECK(tick_ < std::numeric_limits<std::uint32_t>::max(),
              "a device has run 2^32 barriers; use a new one");
  return ++tick_;
}

void Executor::prepare(const LaunchShape& shape) {
  name_ = shape.name;
  shape_ = shape;
  shape_.name = name_;
  const auto refuse = [&](const std::string& why) {
    throw KernelFault{FaultKind::kLaunch, fmt::format("kernel \"{}\": {}", name_, why)};
  };
  const std::uint64_t n = shape.block.count();
  if (n < 1 || n > kMaxThreads || shape.block.z > 64) {
    refuse(fmt::format("a block of {} x {} x {} threads; CUDA allows 1 to {}, 64 in z",
                       shape.block.x, shape.block.y, shape.block.z, kMaxThreads));
  }
  if (shape.grid.count() < 1 || shape.grid.x > 0x7FFFFFFFU || shape.grid.y > 65535 ||
      shape.grid.z > 65535) {
    refuse(fmt::format("a grid of {} x {} x {} blocks; CUDA allows 2^31 - 1, 65535 and 65535",
                       shape.grid.x, shape.grid.y, shape.grid.z));
  }
  if (shape.dynamic_shared_bytes < 0 || shape.dynamic_shared_bytes > kMaxSharedBytes) {
    refuse(fmt::format("{} bytes of shared memory; a block has {} at most",
                       shape.dynamic_shared_bytes, kMaxSharedBytes));
  }
  n_threads_ = static_cast<std::uint32_t>(n);
  threads_.assign(n_threads_, {});
  for (std::uint32_t t = 0; t < n_threads_; ++t) {
    threads_[t].x = t % shape.block.x;
    threads_[t].y = t / shape.block.x % shape.block.y;
    threads_[t].z = t / shape.block.x / shape.block.y;
  }
  warps_.assign((n_threads_ + kWarpSize - 1) / kWarpSize, {});
  for (auto& arena : shared_) spare_.push_back(std::move(arena));
  shared_.clear();
  last_shared_ = nullptr;
  static_bytes_ = 0;
  failure_ = nullptr;
}

void Executor::run(const LaunchShape& shape, void (*thread)(const void*), const void* context) {
  KVSIM_CHECK(running.executor == nullptr, "a kernel launches a kernel");
  prepare(shape);
  kernel_ = thread;
  context_ = context;
  ++counters_.launches;
  running = {.executor = this,
             .thread = {},
             .block = {},
             .block_dim = shape.block,
             .grid_dim = shape.grid};
  const std::uint64_t blocks = shape.grid.count();
  for (std::uint64_t block = 0; block < blocks && failure_ == nullptr; ++block) run_block(block);
  running.executor = nullptr;
  if (failure_ != nullptr) {
    fibers_.abandon();
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void Executor::run_block(std::uint64_t block) {
  interval_start_ = next_tick();
  running.block = {static_cast<std::uint32_t>(block % shape_.grid.x),
                   static_cast<std::uint32_t>(block / shape_.grid.x % shape_.grid.y),
                   static_cast<std::uint32_t>(block / shape_.grid.x / shape_.grid.y)};
  for (const auto& arena : shared_) arena->memory.valid_from = tick_;
  for (Thread& thread : threads_) {
    thread.state = State::kUnstarted;
    thread.site = 0;
  }
  for (std::uint32_t w = 0; w < warps_.size(); ++w) {
    const std::uint32_t lanes = n_threads_ - w * kWarpSize;
    Warp& warp = warps_[w];
    warp.exists = lanes >= kWarpSize ? kAllLanes : lane_bit(lanes) - 1;
    warp.runnable = warp.exists;
    warp.waiting = warp.at_barrier = warp.done = 0;
    warp.synced_at = 0;
    warp.is_uniform = true;
  }
  at_barrier_ = 0;
  one_barrier_ = true;
  warp_ = 0;
  ++segment_;
  counters_.threads += n_threads_;
  ++counters_.blocks;
  resume(pick_next());
}

// --- barriers ------------------------------------------------------------------------------------

void Executor::barrier(std::source_location where) {
  const std::uint32_t site = site_of(where);
  Thread& thread = threads_[thread_];
  thread.site = static_cast<std::uint16_t>(site);
  thread.state = State::kAtBarrier;
  ++counters_.steps;
  if (at_barrier_++ == 0) {
    barrier_site_ = site;
  } else if (site != barrier_site_) {
    one_barrier_ = false;
  }
  warps_[warp_].at_barrier |= lane_bit(thread_ % kWarpSize);
  suspend();
}

void Executor::release_barrier() {
  if (at_barrier_ != n_threads_ || !one_barrier_) {
    std::uint32_t waits = 0;
    while (threads_[waits].state != State::kAtBarrier) ++waits;
    std::uint32_t other = 0;
    while (threads_[other].state == State::kAtBarrier &&
           threads_[other].site == threads_[waits].site) {
      ++other;
    }
    fault(FaultKind::kBarrier,
          fmt::format("a barrier that some threads do not reach: {} {}, {} {}; {} of {} threads "
                      "wait at barriers",
                      thread_name(waits), whereabouts(waits), thread_name(other),
                      whereabouts(other), at_barrier_, n_threads_));
  }
  ++counters_.barriers;
  interval_start_ = next_tick();
  at_barrier_ = 0;
  one_barrier_ = true;
  for (Warp& warp : warps_) {
    warp.runnable = warp.exists;
    warp.at_barrier = 0;
  }
}

// --- warps ---------------------------------------------------------------------------------------

std::uint64_t Executor::warp_op(WarpOp op, std::uint32_t mask, std::uint64_t value,
                                std::uint32_t parameter, std::source_location where) {
  const std::uint32_t site = site_of(where);
  const std::uint32_t lane = thread_ % kWarpSize;
  Warp& warp = warps_[warp_];
  Thread& thread = threads_[thread_];
  thread.site = static_cast<std::uint16_t>(site);
  ++counters_.steps;
  if ((mask & lane_bit(lane)) == 0) [[unlikely]] {
    fault(FaultKind::kDivergentWarp,
          fmt::format("{} at {} executes a {} whose mask {:#010x} excludes its lane {}",
                      thread_name(thread_), place(site), name_of(op), mask, lane));
  }
  thread.state = State::kAtWarpOp;
  if (warp.waiting == 0) {
    warp.is_uniform = true;
  } else {
    const auto first = static_cast<std::uint32_t>(std::countr_zero(warp.waiting));
    warp.is_uniform = warp.is_uniform && warp.op[first] == op && warp.mask[first] == mask &&
                      warp.site[first] == site;
  }
  warp.waiting |= lane_bit(lane);
  warp.op[lane] = op;
  warp.mask[lane] = mask;
  warp.parameter[lane] = parameter;
  warp.site[lane] = static_cast<std::uint16_t>(site);
  warp.value[lane] = value;
  suspend();
  return warp.result[lane];
}

void Executor::resolve(Warp& warp) {
  const auto first = static_cast<std::uint32_t>(std::countr_zero(warp.waiting));
  if (warp.is_uniform && warp.waiting == warp.mask[first]) {
    complete(warp, warp.waiting);
    return;
  }
  // Lanes wait for different operations: run those whose lanes have all arrived.
  std::uint32_t left = warp.waiting;
  while (left != 0) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(left));
    std::uint32_t partners = 0;
    for (std::uint32_t l = 0; l < kWarpSize; ++l) {
      const bool waits = (warp.waiting & lane_bit(l)) != 0;
      if (waits && warp.op[l] == warp.op[lane] && warp.mask[l] == warp.mask[lane] &&
          warp.site[l] == warp.site[lane]) {
        partners |= lane_bit(l);
      }
    }
    left &= ~partners;
    if (partners == warp.mask[lane]) complete(warp, partners);
  }
  if (warp.runnable == 0) fault_divergent(warp);
}

void Executor::complete(Warp& warp, std::uint32_t lanes) {
  const auto first = static_cast<std::uint32_t>(std::countr_zero(lanes));
  const WarpOp op = warp.op[first];
  ++counters_.warp_ops;
  const auto each = [&](auto act) {
    for (std::uint32_t left = lanes; left != 0; left &= left - 1) {
      act(static_cast<std::uint32_t>(std::countr_zero(left)));
    }
  };
  const auto reduce = [&](auto start, auto fold) {
    using T = decltype(start);
    T sum = start;
    each([&](std::uint32_t lane) { sum = fold(sum, static_cast<T>(warp.value[lane])); });
    each([&](std::uint32_t lane) {
      warp.result[lane] = static_cast<std::uint64_t>(static_cast<std::uint32_t>(sum));
    });
  };
  using Signed = std::int32_t;
  using Unsigned = std::uint32_t;
  switch (op) {
    case WarpOp::kShuffle:
    case WarpOp::kShuffleUp:
    case WarpOp::kShuffleDown:
    case WarpOp::kShuffleXor:
      // parameter: width in the high half, the lane operand in the low.
      each([&](std::uint32_t lane) {
        const std::uint32_t width = warp.parameter[lane] >> 16U;
        const std::uint32_t operand = warp.parameter[lane] & 0xFFFFU;
        const std::uint32_t segment = lane & ~(width - 1);
        std::uint32_t from = lane;
        if (op == WarpOp::kShuffle) {
          from = segment + (operand & (width - 1));
        } else if (op == WarpOp::kShuffleUp) {
          if (lane - segment >= operand) from = lane - operand;
        } else if (op == WarpOp::kShuffleDown) {
          if (lane - segment + operand < width) from = lane + operand;
        } else if ((lane ^ operand) < segment + width) {
          from = lane ^ operand;
        }
        if ((lanes & lane_bit(from)) == 0) [[unlikely]] {
          const std::uint32_t base = warp_ * kWarpSize;
          fault(FaultKind::kDivergentWarp,
                fmt::format("{} at {} reads lane {}, which does not participate (mask {:#010x})",
                            thread_name(base + lane), place(warp.site[lane]), from, lanes));
        }
        warp.result[lane] = warp.value[from];
      });
      break;
    case WarpOp::kBallot:
    case WarpOp::kAny:
    case WarpOp::kAll: {
      std::uint32_t votes = 0;
      each([&](std::uint32_t lane) {
        if (warp.value[lane] != 0) votes |= lane_bit(lane);
      });
      const std::uint64_t result = op == WarpOp::kBallot ? std::uint64_t{votes}
                                   : op == WarpOp::kAny  ? std::uint64_t{votes != 0}
                                                         : std::uint64_t{votes == lanes};
      each([&](std::uint32_t lane) { warp.result[lane] = result; });
      break;
    }
    case WarpOp::kSync:
      if (lanes == warp.exists) warp.synced_at = next_tick();
      break;
    case WarpOp::kAddSigned:
    case WarpOp::kAddUnsigned:
      reduce(Unsigned{0}, [](Unsigned a, Unsigned b) { return a + b; });
      break;
    case WarpOp::kMinSigned:
      reduce(std::numeric_limits<Signed>::max(), [](Signed a, Signed b) { return b < a ? b : a; });
      break;
    case WarpOp::kMaxSigned:
      reduce(std::numeric_limits<Signed>::min(), [](Signed a, Signed b) { return b > a ? b : a; });
      break;
    case WarpOp::kMinUnsigned:
      reduce(kAllLanes, [](Unsigned a, Unsigned b) { return b < a ? b : a; });
      break;
    case WarpOp::kMaxUnsigned:
      reduce(Unsigned{0}, [](Unsigned a, Unsigned b) { return b > a ? b : a; });
      break;
    case WarpOp::kAnd:
      reduce(kAllLanes, [](Unsigned a, Unsigned b) { return a & b; });
      break;
    case WarpOp::kOr:
      reduce(Unsigned{0}, [](Unsigned a, Unsigned b) { return a | b; });
      break;
    case WarpOp::kXor:
      reduce(Unsigned{0}, [](Unsigned a, Unsigned b) { return a ^ b; });
      break;
  }
  warp.waiting &= ~lanes;
  warp.runnable |= lanes;
}

void Executor::fault_divergent(const Warp& warp) {
  const std::uint32_t base = warp_ * kWarpSize;
  const auto lane = static_cast<std::uint32_t>(std::countr_zero(warp.waiting));
  const std::string asks =
      fmt::format("{} waits at {} for a {} of the lanes {:#010x}", thread_name(base + lane),
                  place(warp.site[lane]), name_of(warp.op[lane]), warp.mask[lane]);
  for (std::uint32_t l = 0; l < kWarpSize; ++l) {
    if ((warp.mask[lane] & lane_bit(l)) == 0) continue;
    if ((warp.exists & lane_bit(l)) == 0) {
      fault(FaultKind::kDivergentWarp,
            fmt::format("{}, but the warp has no lane {}: the block has {} threads", asks, l,
                        n_threads_));
    }
    const bool waits = (warp.waiting & lane_bit(l)) != 0;
    if (waits && warp.op[l] == warp.op[lane] && warp.mask[l] == warp.mask[lane] &&
        warp.site[l] == warp.site[lane]) {
      continue;
    }
    fault(FaultKind::kDivergentWarp, fmt::format("{}, but lane {}, {}, {}", asks, l,
                                                 thread_name(base + l), whereabouts(base + l)));
  }
  fault(FaultKind::kDivergentWarp, asks);
}

// --- faults --------------------------------------------------------------------------------------

std::string Executor::whereabouts(std::uint32_t thread) const {
  const Thread& t = threads_[thread];
  const std::string at = t.site == 0 ? std::string{"before any access"} : place(t.site);
  switch (t.state) {
    case State::kAtBarrier:
      return fmt::format("waits at the barrier of {}", at);
    case State::kAtWarpOp: {
      const Warp& warp = warps_[thread / kWarpSize];
      const std::uint32_t lane = thread % kWarpSize;
      return fmt::format("waits at {} for a {} of the lanes {:#010x}", at, name_of(warp.op[lane]),
                         warp.mask[lane]);
    }
    case State::kDone:
      return fmt::format("left the kernel, last seen at {}", at);
    default:
      return fmt::format("is at {}", at);
  }
}

void Executor::fault(FaultKind kind, const std::string& what) {
  const Dim3& b = running.block;
  const std::string message =
      fmt::format("kernel \"{}\", block ({},{},{}): {}", name_, b.x, b.y, b.z, what);
  throw KernelFault{kind, message};
}

// --- shared memory -------------------------------------------------------------------------------

std::byte* Executor::static_shared(const void* key, std::int64_t bytes, unsigned granule_shift,
                                   std::string_view name) {
  for (const auto& arena : shared_) {
    if (arena->key == key) return arena->memory.data;
  }
  std::unique_ptr<SharedArena> arena;
  if (spare_.empty()) {
    arena = std::make_unique<SharedArena>();
  } else {
    arena = std::move(spare_.back());
    spare_.pop_back();
  }
  constexpr std::int64_t kAlignment = 256;
  arena->key = key;
  arena->storage.resize(static_cast<std::size_t>(bytes + kAlignment));
  const auto address = reinterpret_cast<std::uintptr_t>(arena->storage.data());
  const std::uintptr_t aligned = (address + kAlignment - 1) / kAlignment * kAlignment;
  Memory& memory = arena->memory;
  memory.name = name;
  memory.data = arena->storage.data() + (aligned - address);
  memory.bytes = bytes;
  memory.granule_shift = granule_shift;
  memory.shared = true;
  // Valid from the start of the block: another thread may have requested it first.
  memory.valid_from = interval_start_;
  memory.cells.assign(static_cast<std::size_t>((bytes >> granule_shift) + 1), 0);
  shared_.push_back(std::move(arena));
  std::int64_t total = 0;
  for (const auto& each : shared_) total += each->memory.bytes;
  if (key != &shape_) static_bytes_ += bytes;
  if (static_bytes_ > kMaxStaticShared || total > kMaxSharedBytes) {
    fault(FaultKind::kLaunch,
          fmt::format("{} bytes of shared memory, {} of them static; a block has {}, static {}",
                      total, static_bytes_, kMaxSharedBytes, kMaxStaticShared));
  }
  counters_.shared_bytes = counters_.shared_bytes > total ? counters_.shared_bytes : total;
  return memory.data;
}

Memory& Executor::dynamic_shared(unsigned granule_shift) {
  // The key, a member's address, differs from the keys of all types.
  return shared_at(static_shared(&shape_, shape_.dynamic_shared_bytes, granule_shift, "dynamic"));
}

Memory& Executor::shared_at(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  const auto inside = [at](const Memory& m) { return at >= m.data && at < m.data + m.bytes; };
  if (last_shared_ != nullptr && inside(*last_shared_)) return *last_shared_;
  for (const auto& arena : shared_) {
    if (inside(arena->memory)) {
      last_shared_ = &arena->memory;
      return arena->memory;
    }
  }
  fault(FaultKind::kOutOfBounds, "an address outside the block's shared memory");
}

}  // namespace kvsim::cuda_sim
