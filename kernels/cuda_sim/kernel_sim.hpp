#pragma once

// kernels/cuda_sim/kernel.hpp for the simulator: CUDA's names as functions that call the executor.

#include <bit>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include <math.h>  // NOLINT: CUDA has expf in the global namespace

#include "kernels/cuda_sim/contract.hpp"
#include "kernels/cuda_sim/device.hpp"
#include "kernels/cuda_sim/executor.hpp"
#include "models/math/half.hpp"

#define KVSIM_EXECUTOR on_sim
#define KVSIM_KERNEL [[maybe_unused]] static void
#define KVSIM_DEVICE inline
#define KVSIM_LAUNCH_BOUNDS(...)
#define KVSIM_UNROLL
#define KVSIM_SITE std::source_location where = std::source_location::current()

namespace kvsim::on_sim {

using cuda_sim::Dim3;

// --- CUDA's own names ----------------------------------------------------------------------------

/// threadIdx and similar: members that convert to the values of the running thread.
template <Dim3 cuda_sim::Running::*kWhich>
struct RunningIndex {
  template <std::uint32_t Dim3::*kAxis>
  struct Axis {
    operator std::uint32_t() const { return (cuda_sim::running.*kWhich).*kAxis; }  // NOLINT
  };
  Axis<&Dim3::x> x;
  Axis<&Dim3::y> y;
  Axis<&Dim3::z> z;
};
inline constexpr RunningIndex<&cuda_sim::Running::thread> threadIdx{};
inline constexpr RunningIndex<&cuda_sim::Running::block> blockIdx{};
inline constexpr RunningIndex<&cuda_sim::Running::block_dim> blockDim{};
inline constexpr RunningIndex<&cuda_sim::Running::grid_dim> gridDim{};

inline void __syncthreads(KVSIM_SITE) { cuda_sim::running.executor->barrier(where); }

namespace detail {

template <class T>
std::uint64_t to_bits(T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8, "8 bytes at most");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class T>
T from_bits(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline std::uint64_t warp_op(cuda_sim::WarpOp op, std::uint32_t mask, std::uint64_t value,
                             std::uint32_t parameter, std::source_location where) {
  return cuda_sim::running.executor->warp_op(op, mask, value, parameter, where);
}
template <class T>
T shuffle(cuda_sim::WarpOp op, std::uint32_t mask, T value, std::uint32_t operand, int width,
          std::source_location where) {
  const std::uint32_t parameter = (static_cast<std::uint32_t>(width) << 16U) | (operand & 0xFFFFU);
  return from_bits<T>(warp_op(op, mask, to_bits(value), parameter, where));
}

}  // namespace detail

template <class T>
T __shfl_sync(std::uint32_t mask, T value, int lane, int width = 32, KVSIM_SITE) {
  return detail::shuffle(cuda_sim::WarpOp::kShuffle, mask, value, static_cast<std::uint32_t>(lane),
                         width, where);
}
template <class T>
T __shfl_up_sync(std::uint32_t mask, T value, unsigned delta, int width = 32, KVSIM_SITE) {
  return detail::shuffle(cuda_sim::WarpOp::kShuffleUp, mask, value, delta, width, where);
}
template <class T>
T __shfl_down_sync(std::uint32_t mask, T value, unsigned delta, int width = 32, KVSIM_SITE) {
  return detail::shuffle(cuda_sim::WarpOp::kShuffleDown, mask, value, delta, width, where);
}
template <class T>
T __shfl_xor_sync(std::uint32_t mask, T value, int lanes, int width = 32, KVSIM_SITE) {
  return detail::shuffle(cuda_sim::WarpOp::kShuffleXor, mask, value,
                         static_cast<std::uint32_t>(lanes), width, where);
}
inline void __syncwarp(std::uint32_t mask = cuda_sim::kAllLanes, KVSIM_SITE) {
  detail::warp_op(cuda_sim::WarpOp::kSync, mask, 0, 0, where);
}
inline std::uint32_t __ballot_sync(std::uint32_t mask, bool vote, KVSIM_SITE) {
  return static_cast<std::uint32_t>(
      detail::warp_op(cuda_sim::WarpOp::kBallot, mask, vote ? 1 : 0, 0, where));
}
inline bool __any_sync(std::uint32_t mask, bool vote, KVSIM_SITE) {
  return detail::warp_op(cuda_sim::WarpOp::kAny, mask, vote ? 1 : 0, 0, where) != 0;
}
inline bool __all_sync(std::uint32_t mask, bool vote, KVSIM_SITE) {
  return detail::warp_op(cuda_sim::WarpOp::kAll, mask, vote ? 1 : 0, 0, where) != 0;
}

#define KVSIM_WARP_REDUCTION(NAME, SIGNED, UNSIGNED)                                          \
  inline std::int32_t NAME(std::uint32_t mask, std::int32_t value, KVSIM_SITE) {              \
    return detail::from_bits<std::int32_t>(                                                   \
        detail::warp_op(cuda_sim::WarpOp::SIGNED, mask, detail::to_bits(value), 0, where));   \
  }                                                                                           \
  inline std::uint32_t NAME(std::uint32_t mask, std::uint32_t value, KVSIM_SITE) {            \
    return detail::from_bits<std::uint32_t>(                                                  \
        detail::warp_op(cuda_sim::WarpOp::UNSIGNED, mask, detail::to_bits(value), 0, where)); \
  }
KVSIM_WARP_REDUCTION(__reduce_add_sync, kAddSigned, kAddUnsigned)
KVSIM_WARP_REDUCTION(__reduce_min_sync, kMinSigned, kMinUnsigned)
KVSIM_WARP_REDUCTION(__reduce_max_sync, kMaxSigned, kMaxUnsigned)
KVSIM_WARP_REDUCTION(__reduce_and_sync, kAnd, kAnd)
KVSIM_WARP_REDUCTION(__reduce_or_sync, kOr, kOr)
KVSIM_WARP_REDUCTION(__reduce_xor_sync, kXor, kXor)
#undef KVSIM_WARP_REDUCTION

inline int __popc(std::uint32_t x) { return std::popcount(x); }
inline int __ffs(std::uint32_t x) { return x == 0 ? 0 : std::countr_zero(x) + 1; }
inline int __clz(std::uint32_t x) { return std::countl_zero(x); }
inline std::uint32_t __float_as_uint(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float __uint_as_float(std::uint32_t x) { return std::bit_cast<float>(x); }
using ::expf;
using ::fmaxf;
using ::fminf;
using ::logf;
using ::roundf;
using ::sqrtf;

// --- ours ----------------------------------------------------------------------------------------

/// Device memory with bounds: `size` elements starting at `data`, within one allocation.
template <class T>
struct Span {
  T* data = nullptr;
  std::int64_t size = 0;
  cuda_sim::Memory* memory = nullptr;

  operator Span<const T>() const requires(!std::is_const_v<T>) {  // NOLINT: as std::span
    return {data, size, memory};
  }
};

/// N elements in shared memory: a member of a struct returned by kv::shared. Aligned for load16.
template <class T, int N>
struct alignas(16) SharedArray {
  T elements[static_cast<std::size_t>(N)];  // NOLINT: same layout as in CUDA

  operator Span<T>() {  // NOLINT: arrays convert to spans
    return {elements, N, &cuda_sim::running.executor->shared_at(elements)};
  }
};

namespace kv {

#include "kernels/cuda_sim/values.inc"

inline float to_float(Half x) { return fp16_to_float(x.bits); }
inline float to_float(BFloat16 x) { return bf16_to_float(x.bits); }
inline float to_float(float x) { return x; }
template <class T>
T from_float(float x) {
  if constexpr (std::is_same_v<T, Half>) {
    return {float_to_fp16(x)};
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return {float_to_bf16(x)};
  } else {
    static_assert(std::is_same_v<T, float>);
    return x;
  }
}

namespace detail {

/// Checked access to `count` elements starting at `i`.
template <class T>
T* checked(Span<T> span, std::int64_t i, std::int64_t count, cuda_sim::Cell::Kind kind,
           std::source_location where) {
  auto& executor = *cuda_sim::running.executor;
  if (i < 0 || i > span.size - count) [[unlikely]] {
    executor.out_of_bounds(span.memory, i, count, span.size, sizeof(T), kind, where);
  }
  T* at = span.data + i;
  executor.access(*span.memory, reinterpret_cast<const std::byte*>(at) - span.memory->data,
                  static_cast<std::uint32_t>(count * static_cast<std::int64_t>(sizeof(T))), kind,
                  where);
  return at;
}

}  // namespace detail

template <class T>
std::remove_const_t<T> load(Span<T> from, std::int64_t i, KVSIM_SITE) {
  return *detail::checked(from, i, 1, cuda_sim::Cell::kRead, where);
}
template <class T, int N>
T load(SharedArray<T, N>& from, std::int64_t i, KVSIM_SITE) {
  return load(static_cast<Span<T>>(from), i, where);
}
template <class T>
void store(Span<T> to, std::int64_t i, std::type_identity_t<T> value, KVSIM_SITE) {
  *detail::checked(to, i, 1, cuda_sim::Cell::kWrite, where) = value;
}
template <class T, int N>
void store(SharedArray<T, N>& to, std::int64_t i, std::type_identity_t<T> value, KVSIM_SITE) {
  store(static_cast<Span<T>>(to), i, value, where);
}

/// Loads the 16 bytes that start at element `i`, which must be aligned to 16 bytes.
template <class T>
Vec16<std::remove_const_t<T>> load16(Span<T> from, std::int64_t i, KVSIM_SITE) {
  using Vector = Vec16<std::remove_const_t<T>>;
  Vector value;
  std::memcpy(&value, detail::checked(from, i, Vector::kSize, cuda_sim::Cell::kRead, where),
              sizeof value);
  return value;
}
template <class T>
void store16(Span<T> to, std::int64_t i, const Vec16<std::type_identity_t<T>>& value, KVSIM_SITE) {
  std::memcpy(detail::checked(to, i, Vec16<T>::kSize, cuda_sim::Cell::kWrite, where), &value,
              sizeof value);
}

#define KVSIM_ATOMIC(NAME, EXPRESSION)                                                       \
  template <class T>                                                                         \
  T NAME(Span<T> at, std::int64_t i, std::type_identity_t<T> value, KVSIM_SITE) {            \
    T& place = *detail::checked(at, i, 1, cuda_sim::Cell::kAtomic, where);                   \
    const T old = place;                                                                     \
    place = static_cast<T>(EXPRESSION);                                                      \
    return old;                                                                              \
  }                                                                                          \
  template <class T, int N>                                                                  \
  T NAME(SharedArray<T, N>& at, std::int64_t i, std::type_identity_t<T> value, KVSIM_SITE) { \
    return NAME(static_cast<Span<T>>(at), i, value, where);                                  \
  }
KVSIM_ATOMIC(atomic_add, old + value)
KVSIM_ATOMIC(atomic_max, old < value ? value : old)
KVSIM_ATOMIC(atomic_min, value < old ? value : old)
KVSIM_ATOMIC(atomic_exchange, value)
#undef KVSIM_ATOMIC

/// CUDA's atomicCAS: stores `value` if the element equals `expected`; returns the old value.
template <class T>
T atomic_cas(Span<T> at, std::int64_t i, std::type_identity_t<T> expected,
             std::type_identity_t<T> value, KVSIM_SITE) {
  T& place = *detail::checked(at, i, 1, cuda_sim::Cell::kAtomic, where);
  const T old = place;
  if (old == expected) place = value;
  return old;
}
template <class T, int N>
T atomic_cas(SharedArray<T, N>& at, std::int64_t i, std::type_identity_t<T> expected,
             std::type_identity_t<T> value, KVSIM_SITE) {
  return atomic_cas(static_cast<Span<T>>(at), i, expected, value, where);
}

/// The block's shared memory of type S, a struct of SharedArrays whose elements have at least
/// `S::kGranule` bytes, 4 by default.
template <class S>
S& shared() {
  static_assert(std::is_trivially_default_constructible_v<S> && std::is_standard_layout_v<S>);
  unsigned granule = 4;
  if constexpr (requires { S::kGranule; }) granule = static_cast<unsigned>(S::kGranule);
  static const char key = 0;  // one address per type
  return *reinterpret_cast<S*>(cuda_sim::running.executor->static_shared(
      &key, sizeof(S), static_cast<unsigned>(std::countr_zero(granule)), "shared memory"));
}
/// The launch's dynamic shared memory as elements of one type.
template <class T>
Span<T> dynamic_shared() {
  constexpr std::size_t kGranule = sizeof(T) < 4 ? sizeof(T) : 4;
  auto& memory =
      cuda_sim::running.executor->dynamic_shared(static_cast<unsigned>(std::countr_zero(kGranule)));
  return {reinterpret_cast<T*>(memory.data), memory.bytes / static_cast<std::int64_t>(sizeof(T)),
          &memory};
}

/// a * b, rounded; never fused into a multiply-add.
inline float product(float a, float b) { return a * b; }
/// Counts `n` floating-point operations of the running thread.
inline void flops(std::int64_t n) { cuda_sim::running.executor->count_flops(n); }

}  // namespace kv

// --- launches ------------------------------------------------------------------------------------

/// The device of a launch.
struct Stream {
  cuda_sim::Device* device = nullptr;
};

/// The device memory of a buffer, for kernels.
template <class T>
Span<T> span_of(cuda_sim::Buffer<T>& buffer) {
  return {buffer.data(), buffer.size(), &buffer.memory()};
}
template <class T>
Span<const T> span_of(const cuda_sim::Buffer<T>& buffer) {
  return {buffer.data(), buffer.size(), &buffer.memory()};
}

/// Runs kernel(arguments…) on every thread of the grid, as kernel<<<grid, block, shared>>>(…).
/// Errors: KernelFault.
template <class... P>
void launch(Stream stream, const char* name, Dim3 grid, Dim3 block, std::int64_t shared_bytes,
            void (*kernel)(P...), std::type_identity_t<P>... arguments) {
  auto thread = [&] { kernel(arguments...); };
  stream.device->executor().run(
      {.name = name, .grid = grid, .block = block, .dynamic_shared_bytes = shared_bytes},
      [](const void* context) { (*static_cast<const decltype(thread)*>(context))(); }, &thread);
}

}  // namespace kvsim::on_sim
