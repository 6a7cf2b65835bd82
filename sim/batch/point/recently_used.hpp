#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvsim {

/// The values of the N most recently used keys. A new key replaces the least recently used one.
template <class Key, class Value, std::size_t N>
class RecentlyUsed {
 public:
  /// The value of `key`; calls `make()` if it is not stored. The reference is valid until the next
  /// call. If make() throws, nothing changes.
  template <class Make>
  [[nodiscard]] Value& at(const Key& key, Make&& make) {
    Entry* oldest = &entries_[0];
    for (Entry& entry : entries_) {
      if (entry.used > 0 && entry.key == key) {
        entry.used = ++uses_;
        return entry.value;
      }
      if (entry.used < oldest->used) oldest = &entry;
    }
    oldest->value = make();
    oldest->key = key;
    oldest->used = ++uses_;
    return oldest->value;
  }

  void clear() {
    for (Entry& entry : entries_) entry.used = 0;
  }

 private:
  struct Entry {
    Key key{};
    Value value{};
    std::uint64_t used = 0;  // number of the last use; 0: empty
  };
  std::array<Entry, N> entries_{};
  std::uint64_t uses_ = 0;
};

}  // namespace kvsim
