#pragma once

// Memory of the suite's cases for kernels, poisoned until written, on either executor. A GPU cannot
// detect unwritten memory; there it reads as NaN, or -1 for integers.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda_sim/kernel.hpp"

namespace kvsim::KVSIM_EXECUTOR {

#ifdef __CUDACC__

struct Machine {};
inline Stream stream_of(Machine&) { return {}; }

template <class T>
class Array {
 public:
  Array(Machine&, const char*, std::int64_t size) : size_{size} {
    if (size_ == 0) return;
    check_cuda(cudaMalloc(&data_, bytes()), "cudaMalloc", __FILE__, __LINE__);
    check_cuda(cudaMemset(data_, 0xFF, bytes()), "cudaMemset", __FILE__, __LINE__);
  }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  [[nodiscard]] Span<T> span() { return {data_, size_}; }
  void upload(const std::vector<T>& values) {
    check_cuda(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
               "cudaMemcpy", __FILE__, __LINE__);
  }
  [[nodiscard]] std::vector<T> download(std::int64_t first, std::int64_t count) const {
    std::vector<T> values(static_cast<std::size_t>(count));
    check_cuda(
        cudaMemcpy(values.data(), data_ + first, values.size() * sizeof(T), cudaMemcpyDeviceToHost),
        "cudaMemcpy", __FILE__, __LINE__);
    return values;
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }
  T* data_ = nullptr;
  std::int64_t size_;
};

/// Pinned host memory that kernels access directly.
template <class T>
class HostArray {
 public:
  HostArray(Machine&, const char*, std::int64_t size) : size_{size} {
    check_cuda(
        cudaHostAlloc(&data_, static_cast<std::size_t>(size) * sizeof(T), cudaHostAllocMapped),
        "cudaHostAlloc", __FILE__, __LINE__);
  }
  ~HostArray() { cudaFreeHost(data_); }
  HostArray(const HostArray&) = delete;
  HostArray& operator=(const HostArray&) = delete;

  [[nodiscard]] Span<T> span() {
    T* on_device = nullptr;
    check_cuda(cudaHostGetDevicePointer(&on_device, data_, 0), "cudaHostGetDevicePointer", __FILE__,
               __LINE__);
    return {on_device, size_};
  }
  void upload(const std::vector<T>& values) { std::copy(values.begin(), values.end(), data_); }
  [[nodiscard]] std::vector<T> download(std::int64_t first, std::int64_t count) const {
    check_cuda(cudaDeviceSynchronize(), "a kernel", __FILE__, __LINE__);
    return {data_ + first, data_ + first + count};
  }

 private:
  T* data_ = nullptr;
  std::int64_t size_;
};

#else

using Machine = cuda_sim::Device;
inline Stream stream_of(Machine& machine) { return {&machine}; }

template <class T>
class Array {
 public:
  Array(Machine& machine, const char* name, std::int64_t size) : buffer_{machine, name, size} {}

  [[nodiscard]] Span<T> span() { return span_of(buffer_); }
  void upload(const std::vector<T>& values) { buffer_.upload(values); }
  [[nodiscard]] std::vector<T> download(std::int64_t first, std::int64_t count) const {
    return buffer_.download(first, count);
  }

 private:
  cuda_sim::Buffer<T> buffer_;
};

/// The simulator has one kind of memory: all bytes are counted in the same way.
template <class T>
using HostArray = Array<T>;

#endif

}  // namespace kvsim::KVSIM_EXECUTOR
