#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <boost/context/detail/fcontext.hpp>
#include <boost/context/stack_context.hpp>

// g++ indicates the sanitizer by a macro, clang by a feature.
#if defined(__SANITIZE_ADDRESS__)
#define KVSIM_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#define KVSIM_ADDRESS_SANITIZER __has_feature(address_sanitizer)
#else
#define KVSIM_ADDRESS_SANITIZER 0
#endif

namespace kvsim::cuda_sim {

#if KVSIM_ADDRESS_SANITIZER
inline constexpr bool kTellSanitizer = true;  // AddressSanitizer must be notified of each switch
#else
inline constexpr bool kTellSanitizer = false;
#endif

class FiberPool;

/// A stack and its execution state. Switching uses boost::context's jump_fcontext directly: the
/// wrapper boost::context::fiber must be moved to be resumed, and kernels with shuffles spend most
/// of their time in switches.
struct Fiber {
  boost::context::detail::fcontext_t at = nullptr;
  boost::context::stack_context stack;
  FiberPool* pool = nullptr;
  std::size_t colour = 0;  // offset in bytes of the first frame
  // Data that AddressSanitizer requires for a switch.
  const void* bottom = nullptr;
  std::size_t usable = 0;
  void* fake_stack = nullptr;
};

/// A pool of reusable stacks. A fiber runs `body`, which must never return, and is discarded by
/// abandon() without destroying objects on its stack, which may therefore hold trivial objects
/// only.
class FiberPool {
 public:
  using Body = void (*)(void* context);

  FiberPool(Body body, void* context);
  ~FiberPool();
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;

  /// Returns a fiber at the start of `body`, or a parked fiber.
  [[nodiscard]] Fiber* take();
  /// Makes a fiber available to take(); the caller switches away from it next.
  void park(Fiber* fiber) { idle_.push_back(fiber); }
  /// Discards all fibers except the caller's, regardless of their state.
  void abandon();

  /// The thread's own stack.
  [[nodiscard]] Fiber* home() { return &home_; }
  [[nodiscard]] Fiber* running() { return running_; }
  /// Resumes `to`; returns when something switches back. Inline, like all its callers: the
  /// processor mispredicts returns after a switch, so each call level costs a stall.
  [[gnu::always_inline]] void switch_to(Fiber* to);

 private:
  static void enter(boost::context::detail::transfer_t from);
  void start(Fiber& fiber);
  [[gnu::always_inline]] void arrived(boost::context::detail::transfer_t from);
  void leaving(Fiber* from, Fiber* to);
  void entered(Fiber* left);

  Body body_;
  void* context_;
  Fiber home_;
  Fiber* running_ = &home_;
  std::vector<std::unique_ptr<Fiber>> all_;
  std::vector<Fiber*> idle_;
};

inline void FiberPool::arrived(boost::context::detail::transfer_t from) {
  auto* left = static_cast<Fiber*>(from.data);
  left->at = from.fctx;
  if constexpr (kTellSanitizer) entered(left);
}

inline void FiberPool::switch_to(Fiber* to) {
  Fiber* from = running_;
  running_ = to;
  if constexpr (kTellSanitizer) leaving(from, to);
  arrived(boost::context::detail::jump_fcontext(to->at, from));
}

}  // namespace kvsim::cuda_sim
