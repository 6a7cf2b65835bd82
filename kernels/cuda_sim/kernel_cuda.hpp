#pragma once

// kernels/cuda_sim/kernel.hpp for nvcc: the same names implemented with CUDA. Nothing is checked.

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda_sim/contract.hpp"

#define KVSIM_EXECUTOR on_gpu
#define KVSIM_KERNEL __global__ static void
#define KVSIM_DEVICE __device__ __forceinline__
#define KVSIM_LAUNCH_BOUNDS(...) __launch_bounds__(__VA_ARGS__)  // threads, minimum blocks per SM
#define KVSIM_UNROLL _Pragma("unroll")

namespace kvsim::on_gpu {

struct Dim3 {
  std::uint32_t x = 1, y = 1, z = 1;
};

template <class T>
struct Span {
  T* data = nullptr;
  std::int64_t size = 0;

  template <class U>  // nvcc warns that a plain operator Span<const T> is never called if T is
                      // const
  __host__ __device__ operator Span<U>() const
      requires(std::is_same_v<U, const T> && !std::is_const_v<T>) {
    return {data, size};
  }
};

template <class T, int N>
struct alignas(16) SharedArray {
  T elements[N];

  __device__ operator Span<T>() { return {elements, N}; }
};

namespace kv {

#include "kernels/cuda_sim/values.inc"

KVSIM_DEVICE float to_float(Half x) { return __half2float(__ushort_as_half(x.bits)); }
KVSIM_DEVICE float to_float(BFloat16 x) { return __bfloat162float(__ushort_as_bfloat16(x.bits)); }
KVSIM_DEVICE float to_float(float x) { return x; }
template <class T>
KVSIM_DEVICE T from_float(float x) {
  if constexpr (std::is_same_v<T, Half>) {
    return {__half_as_ushort(__float2half_rn(x))};
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
  } else {
    static_assert(std::is_same_v<T, float>);
    return x;
  }
}

template <class T>
KVSIM_DEVICE std::remove_const_t<T> load(Span<T> from, std::int64_t i) {
  return from.data[i];
}
template <class T, int N>
KVSIM_DEVICE T load(SharedArray<T, N>& from, std::int64_t i) {
  return from.elements[i];
}
template <class T>
KVSIM_DEVICE void store(Span<T> to, std::int64_t i, std::type_identity_t<T> value) {
  to.data[i] = value;
}
template <class T, int N>
KVSIM_DEVICE void store(SharedArray<T, N>& to, std::int64_t i, std::type_identity_t<T> value) {
  to.elements[i] = value;
}
template <class T>
KVSIM_DEVICE Vec16<std::remove_const_t<T>> load16(Span<T> from, std::int64_t i) {
  const uint4 raw = *reinterpret_cast<const uint4*>(from.data + i);
  Vec16<std::remove_const_t<T>> value;
  memcpy(&value, &raw, sizeof raw);
  return value;
}
template <class T>
KVSIM_DEVICE void store16(Span<T> to, std::int64_t i, const Vec16<std::type_identity_t<T>>& value) {
  uint4 raw;
  memcpy(&raw, &value, sizeof raw);
  *reinterpret_cast<uint4*>(to.data + i) = raw;
}

#define KVSIM_ATOMIC(NAME, CUDA)                                                              \
  template <class T>                                                                          \
  KVSIM_DEVICE T NAME(Span<T> at, std::int64_t i, std::type_identity_t<T> value) {            \
    return CUDA(at.data + i, value);                                                          \
  }                                                                                           \
  template <class T, int N>                                                                   \
  KVSIM_DEVICE T NAME(SharedArray<T, N>& at, std::int64_t i, std::type_identity_t<T> value) { \
    return CUDA(at.elements + i, value);                                                      \
  }
KVSIM_ATOMIC(atomic_add, atomicAdd)
KVSIM_ATOMIC(atomic_max, atomicMax)
KVSIM_ATOMIC(atomic_min, atomicMin)
KVSIM_ATOMIC(atomic_exchange, atomicExch)
#undef KVSIM_ATOMIC

template <class T>
KVSIM_DEVICE T atomic_cas(Span<T> at, std::int64_t i, std::type_identity_t<T> expected,
                          std::type_identity_t<T> value) {
  return atomicCAS(at.data + i, expected, value);
}
template <class T, int N>
KVSIM_DEVICE T atomic_cas(SharedArray<T, N>& at, std::int64_t i, std::type_identity_t<T> expected,
                          std::type_identity_t<T> value) {
  return atomicCAS(at.elements + i, expected, value);
}

template <class S>
KVSIM_DEVICE S& shared() {
  __shared__ alignas(16) S block_memory;
  return block_memory;
}
extern __shared__ __align__(16) unsigned char kvsim_dynamic_shared[];
template <class T>
KVSIM_DEVICE Span<T> dynamic_shared() {
  std::uint32_t bytes = 0;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return {reinterpret_cast<T*>(kvsim_dynamic_shared), static_cast<std::int64_t>(bytes / sizeof(T))};
}

/// a * b, rounded; never fused into a multiply-add.
KVSIM_DEVICE float product(float a, float b) { return __fmul_rn(a, b); }
KVSIM_DEVICE void flops(std::int64_t) {}

}  // namespace kv

struct Stream {
  cudaStream_t stream = nullptr;
};

/// Throws std::runtime_error with the call, the error's name, file and line if a CUDA call failed.
inline void check_cuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  throw std::runtime_error{std::string{file} + ":" + std::to_string(line) + ": " + call + ": " +
                           cudaGetErrorName(status) + ", " + cudaGetErrorString(status)};
}

template <class... P>
void launch(Stream stream, const char* name, Dim3 grid, Dim3 block, std::int64_t shared_bytes,
            void (*kernel)(P...), std::type_identity_t<P>... arguments) {
  const auto bytes = static_cast<std::size_t>(shared_bytes);
  if (bytes > 48U * 1024U) {
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               "cudaFuncSetAttribute", __FILE__, __LINE__);
  }
  kernel<<<dim3(grid.x, grid.y, grid.z), dim3(block.x, block.y, block.z), bytes, stream.stream>>>(
      arguments...);
  check_cuda(cudaGetLastError(), name, __FILE__, __LINE__);
}

}  // namespace kvsim::on_gpu
