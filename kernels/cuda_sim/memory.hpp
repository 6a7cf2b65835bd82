#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvsim::cuda_sim {

/// The executor's record of one granule of memory, in one word: the last access that may still
/// conflict with another, and whether the granule was ever written.
///
///   tick 32 | site 16 | thread 10 | scope 2 | kind 2 | written 1
///
/// `tick` counts barriers and warp barriers; a record older than the block's last barrier conflicts
/// with nothing. One record is enough: a later access only depends on whether earlier reads came
/// from one thread, one warp or more.
struct Cell {
  enum Kind : std::uint64_t { kRead = 0, kWrite = 1, kAtomic = 2 };
  enum Scope : std::uint64_t { kThread = 0, kWarp = 1, kBlock = 2 };

  static constexpr std::uint64_t kWritten = 1;
  static constexpr unsigned kKindShift = 1, kScopeShift = 3, kThreadShift = 5, kSiteShift = 15,
                            kTickShift = 32;

  static constexpr std::uint64_t pack(std::uint32_t tick, std::uint32_t site, std::uint32_t thread,
                                      Scope scope, Kind kind) {
    return (std::uint64_t{tick} << kTickShift) | (std::uint64_t{site} << kSiteShift) |
           (std::uint64_t{thread} << kThreadShift) |
           (static_cast<std::uint64_t>(scope) << kScopeShift) |
           (static_cast<std::uint64_t>(kind) << kKindShift) | kWritten;
  }
  static constexpr std::uint32_t tick(std::uint64_t c) {
    return static_cast<std::uint32_t>(c >> kTickShift);
  }
  static constexpr std::uint32_t site(std::uint64_t c) {
    return static_cast<std::uint32_t>(c >> kSiteShift) & 0xFFFFU;
  }
  static constexpr std::uint32_t thread(std::uint64_t c) {
    return static_cast<std::uint32_t>(c >> kThreadShift) & 0x3FFU;
  }
  static constexpr Scope scope(std::uint64_t c) {
    return static_cast<Scope>(c >> kScopeShift & 3U);
  }
  static constexpr Kind kind(std::uint64_t c) { return static_cast<Kind>(c >> kKindShift & 3U); }
  static constexpr bool written(std::uint64_t c) { return (c & kWritten) != 0; }
};

/// An allocation of the simulated device: bytes, and a cell for each granule. The granule is the
/// element size, at most four bytes; no access may be smaller.
struct Memory {
  std::string name;
  std::byte* data = nullptr;  // aligned to 256 bytes, as cudaMalloc aligns
  std::int64_t bytes = 0;
  unsigned granule_shift = 2;
  std::uint32_t valid_from = 0;  // cells older than this tick are as if never written
  bool shared = false;
  std::vector<std::uint64_t> cells;
};

}  // namespace kvsim::cuda_sim
