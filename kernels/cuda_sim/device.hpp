#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/cuda_sim/executor.hpp"
#include "kernels/cuda_sim/memory.hpp"

namespace kvsim::cuda_sim {

/// A simulated GPU: an executor and the counts of all its kernels. Not thread-safe; separate
/// devices share no state.
class Device {
 public:
  [[nodiscard]] Executor& executor() { return executor_; }
  [[nodiscard]] const Counters& counters() const { return executor_.counters(); }

 private:
  Executor executor_;
};

/// Bytes of a buffer, without its type.
class Storage {
 public:
  /// Errors: ContractError if `bytes` < 0.
  Storage(std::string name, std::int64_t bytes, std::int64_t element_bytes);

  [[nodiscard]] Memory& memory() const { return memory_; }
  /// Sets every byte to 0xFF, a NaN in each float format, and marks it as never written.
  void poison();
  void write(const void* from, std::int64_t first_byte, std::int64_t bytes, std::uint32_t tick);
  /// Errors: KernelFault if one of the bytes was never written.
  void read(void* to, std::int64_t first_byte, std::int64_t bytes) const;

 private:
  std::vector<std::byte> storage_;
  mutable Memory memory_;
};

/// `size` elements of device memory, poisoned until written. Messages refer to it by name.
template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer(Device& device, std::string name, std::int64_t size)
      : device_{&device},
        size_{size},
        storage_{std::move(name), size * static_cast<std::int64_t>(sizeof(T)), sizeof(T)} {}
  Buffer(Device& device, std::string name, std::span<const T> values)
      : Buffer{device, std::move(name), std::ssize(values)} {
    upload(values);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(storage_.memory().data); }
  [[nodiscard]] Memory& memory() const { return storage_.memory(); }

  /// Elements [first, first + values.size()). Errors: ContractError beyond the end.
  void upload(std::span<const T> values, std::int64_t first = 0) {
    storage_.write(values.data(), first * kElement, std::ssize(values) * kElement,
                   device_->executor().next_tick());
  }
  /// Errors: KernelFault if an element was never written; ContractError beyond the end.
  [[nodiscard]] std::vector<T> download(std::int64_t first, std::int64_t count) const {
    std::vector<T> values(static_cast<std::size_t>(count));
    storage_.read(values.data(), first * kElement, count * kElement);
    return values;
  }
  [[nodiscard]] std::vector<T> download() const { return download(0, size_); }
  void poison() { storage_.poison(); }

 private:
  static constexpr auto kElement = static_cast<std::int64_t>(sizeof(T));
  Device* device_;
  std::int64_t size_;
  Storage storage_;
};

}  // namespace kvsim::cuda_sim
