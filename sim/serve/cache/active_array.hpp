#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace kvsim {

/// Zero-initialized bytes. If they are many, pages that were never written or that were released
/// take no memory if the system supports it (otherwise they stay).
class ZeroPages {
 public:
  /// Smaller sizes come from the heap, which a search of many short runs reuses: each new page
  /// costs a page fault, which also interrupts the other threads.
  static constexpr std::size_t kMinBytes = std::size_t{1} << 20;

  explicit ZeroPages(std::size_t bytes);
  ~ZeroPages();
  ZeroPages(const ZeroPages&) = delete;
  ZeroPages& operator=(const ZeroPages&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  /// Whole pages in this range may become zero again.
  void release(std::size_t first, std::size_t bytes);

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool is_heap_ = true;
};

/// State of each request while it is served, by index; all bits of an element are zero until it is
/// written. Ended requests are released in groups, so that a service's memory grows with the number
/// of concurrent requests instead of its workload.
template <class T>
class ActiveArray {
 public:
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
  static constexpr std::size_t kGroup = 4096;

  explicit ActiveArray(std::size_t size) : size_{size}, pages_{size * sizeof(T)} {}

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] T* data() { return reinterpret_cast<T*>(pages_.data()); }  // NOLINT
  [[nodiscard]] const T* data() const {
    return reinterpret_cast<const T*>(pages_.data());  // NOLINT
  }
  [[nodiscard]] T& operator[](std::size_t i) { return data()[i]; }
  [[nodiscard]] const T& operator[](std::size_t i) const { return data()[i]; }

  [[nodiscard]] const T* begin() const { return data(); }
  [[nodiscard]] const T* end() const { return data() + size_; }

  /// Releases the elements of a group of kGroup, which are no longer used.
  void release_group(std::size_t group) {
    const std::size_t first = group * kGroup;
    pages_.release(first * sizeof(T), (std::min(first + kGroup, size_) - first) * sizeof(T));
  }

 private:
  std::size_t size_;
  ZeroPages pages_;
};

}  // namespace kvsim
