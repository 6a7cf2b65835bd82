#include "kernels/cuda_sim/fibers.hpp"

#include <boost/context/protected_fixedsize_stack.hpp>

#if KVSIM_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace kvsim::cuda_sim {
namespace {

#if KVSIM_ADDRESS_SANITIZER
constexpr std::size_t kStackBytes = 512 * 1024;  // frames are several times as large
#else
constexpr std::size_t kStackBytes = 128 * 1024;  // committed page by page on first use
#endif

/// Stack addresses differ by whole pages, so the hot ends of all stacks would map to the same few
/// sets of the L1 cache. Each stack therefore starts a few cache lines lower.
constexpr std::size_t kColours = 32;
constexpr std::size_t kColourBytes = 128;

boost::context::protected_fixedsize_stack stacks() {
  return boost::context::protected_fixedsize_stack{kStackBytes};
}

}  // namespace

FiberPool::FiberPool(Body body, void* context) : body_{body}, context_{context} {
  home_.pool = this;
}

FiberPool::~FiberPool() {
  auto allocator = stacks();
  for (const auto& fiber : all_) {
#if KVSIM_ADDRESS_SANITIZER
    __asan_unpoison_memory_region(fiber->bottom, fiber->usable);
#endif
    allocator.deallocate(fiber->stack);
  }
}

void FiberPool::start(Fiber& fiber) {
  auto* top = static_cast<std::byte*>(fiber.stack.sp) - fiber.colour;
  fiber.at = boost::context::detail::make_fcontext(top, fiber.stack.size - fiber.colour, &enter);
  fiber.fake_stack = nullptr;
}

Fiber* FiberPool::take() {
  if (!idle_.empty()) {
    Fiber* fiber = idle_.back();
    idle_.pop_back();
    return fiber;
  }
  all_.push_back(std::make_unique<Fiber>());
  Fiber& fiber = *all_.back();
  fiber.pool = this;
  fiber.colour = (all_.size() - 1) % kColours * kColourBytes;
  auto allocator = stacks();
  fiber.stack = allocator.allocate();
  // The lowest page of a protected stack is its guard.
  const std::size_t page = boost::context::stack_traits::page_size();
  fiber.usable = fiber.stack.size - page;
  fiber.bottom = static_cast<std::byte*>(fiber.stack.sp) - fiber.usable;
  start(fiber);
  return &fiber;
}

void FiberPool::abandon() {
  idle_.clear();
  // In reverse order, so that take() returns the first fiber again.
  for (auto fiber = all_.rbegin(); fiber != all_.rend(); ++fiber) {
#if KVSIM_ADDRESS_SANITIZER
    __asan_unpoison_memory_region((*fiber)->bottom, (*fiber)->usable);
#endif
    start(**fiber);
    idle_.push_back(fiber->get());
  }
}

void FiberPool::enter(boost::context::detail::transfer_t from) {
  // The fiber that switched here belongs to the same pool.
  FiberPool* pool = static_cast<Fiber*>(from.data)->pool;
  pool->arrived(from);
  pool->body_(pool->context_);
}

#if KVSIM_ADDRESS_SANITIZER

void FiberPool::leaving(Fiber* from, Fiber* to) {
  __sanitizer_start_switch_fiber(&from->fake_stack, to->bottom, to->usable);
}

void FiberPool::entered(Fiber* left) {
  const void* bottom = nullptr;
  std::size_t usable = 0;
  __sanitizer_finish_switch_fiber(running_->fake_stack, &bottom, &usable);
  if (left == &home_) {  // known only after the first switch away from it
    home_.bottom = bottom;
    home_.usable = usable;
  }
}

#else

void FiberPool::leaving(Fiber*, Fiber*) {}
void FiberPool::entered(Fiber*) {}

#endif

}  // namespace kvsim::cuda_sim
