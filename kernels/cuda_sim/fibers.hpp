#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <boost/context/detail/fcontext.hpp>
#include <boost/context/stack_context.hpp>

// g++ says that it is on by a macro, clang by a feature.
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

/// A stack and its execution state. Switching is boost::context's jump_fcontext, which
/// boost::context::fiber wraps: a fiber of the wrapper can only be resumed by moving it, and a
/// kernel with shuffles mostly switches.
struct Fiber {
  boost::context::detail::fcontext_t at = nullptr;
  boost::context::stack_context stack;
  FiberPool* pool = nullptr;
  std::size_t colour = 0;  // bytes by which the first frame is lower
  // The data that AddressSanitizer needs for a switch.
  const void* bottom = nullptr;
  std::size_t usable = 0;
  void* fake_stack = nullptr;
};

/// Stacks that are made once and used again. A fiber runs `body`, which must never return, and is
/// given up with abandon(): nothing on its stack is destroyed, so it may hold trivial objects only.
class FiberPool {
 public:
  using Body = void (*)(void* context);

  FiberPool(Body body, void* context);
  ~FiberPool();
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;

  /// A fiber at the start of `body`, or one that was parked.
  [[nodiscard]] Fiber* take();
  /// The running fiber will be switched away from and may be taken again.
  void park(Fiber* fiber) { idle_.push_back(fiber); }
  /// Discards all fibers except the caller's, whatever their state.
  void abandon();

  /// The thread's own stack.
  [[nodiscard]] Fiber* home() { return &home_; }
  [[nodiscard]] Fiber* running() { return running_; }
  /// Resumes `to`; returns when something switches back. Inline, as all callers: after a switch the
  /// processor mispredicts returns, so each call costs a stall.
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
