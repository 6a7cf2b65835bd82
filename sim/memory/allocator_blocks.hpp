#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>

#include <boost/intrusive/set.hpp>

/// Blocks and pools of the caching allocator, and its size classes. Internal: include
/// sim/memory/caching_allocator.hpp instead.
namespace kvsim::caching {

namespace bi = boost::intrusive;

// Constants of c10/cuda/CUDACachingAllocator.cpp, with their names there.
inline constexpr std::int64_t kMinBlockSize = 512;
inline constexpr std::int64_t kSmallSize = 1 << 20;
inline constexpr std::int64_t kSmallBuffer = 2 << 20;
inline constexpr std::int64_t kLargeBuffer = 20 << 20;
inline constexpr std::int64_t kMinLargeAlloc = 10 << 20;
inline constexpr std::int64_t kRoundLarge = 2 << 20;

inline constexpr std::uint64_t kFirstAddress = std::uint64_t{1} << 44;  // arbitrary, but above 0

inline std::int64_t segment_size(std::int64_t size) {
  if (size <= kSmallSize) return kSmallBuffer;
  if (size < kMinLargeAlloc) return kLargeBuffer;
  return (size + kRoundLarge - 1) / kRoundLarge * kRoundLarge;
}

enum class State : std::uint8_t {
  kNone,      // the slot has no block
  kFree,      // cached
  kUnmapped,  // address space of an expandable segment without memory behind it
  kInUse,
  kPending  // its release is requested, but streams still use it
};

struct Expandable {
  std::uint64_t base = 0;
  std::int64_t granule = 0;
  std::int64_t size = 0;  // address space
};

struct Block : bi::set_base_hook<> {
  std::uint64_t address = 0;
  std::int64_t size = 0;
  std::int64_t requested = 0;
  std::int64_t age_base = 0;  // searches of the pool before the block entered it
  Block* prev = nullptr;
  Block* next = nullptr;
  Expandable* expandable = nullptr;
  std::int32_t stream = 0;
  std::int32_t owner = 0;
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;
  State state = State::kNone;
  bool small = false;

  [[nodiscard]] bool split() const { return prev != nullptr || next != nullptr; }
  [[nodiscard]] bool idle() const { return state == State::kFree || state == State::kUnmapped; }
};

struct BySize {
  static auto key(const Block& b) { return std::tuple{b.stream, b.size, b.address}; }
  bool operator()(const Block& a, const Block& b) const { return key(a) < key(b); }
};
struct ByAddress {
  static auto key(const Block& b) { return std::tuple{b.stream, b.address}; }
  bool operator()(const Block& a, const Block& b) const { return key(a) < key(b); }
};

struct Pool {
  bool small = false;
  bi::set<Block, bi::compare<BySize>> blocks;
  bi::set<Block, bi::compare<ByAddress>> unmapped;
  std::int64_t searches = 0;  // counted only if garbage may be collected
};

}  // namespace kvsim::caching
