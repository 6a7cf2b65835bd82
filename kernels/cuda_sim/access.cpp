// Accesses: sites, cells and sectors. Every load and store of a simulated kernel passes through
// here.

#include <bit>

#include <fmt/format.h>

#include "kernels/cuda_sim/executor.hpp"

namespace kvsim::cuda_sim {
namespace {

std::string_view base_name(const char* path) {
  const std::string_view all{path};
  const std::size_t slash = all.find_last_of('/');
  return slash == std::string_view::npos ? all : all.substr(slash + 1);
}

const char* verb(Cell::Kind kind) {
  return kind == Cell::kRead ? "read" : kind == Cell::kWrite ? "written" : "changed by an atomic";
}

/// Describes the element at `offset`.
std::string element(const Memory& memory, std::int64_t offset) {
  return fmt::format("\"{}\" at byte {} of {}", memory.name, offset, memory.bytes);
}

}  // namespace

std::uint32_t Executor::site_of(std::source_location where) {
  // libstdc++ and libc++ store one pointer to a constant of the call site, which identifies it.
  static_assert(sizeof(std::source_location) == sizeof(const void*));
  const auto* key = std::bit_cast<const void*>(where);
  std::size_t slot =
      (reinterpret_cast<std::uintptr_t>(key) * 0x9E3779B97F4A7C15U) >> 52U;  // 4096 slots
  while (slots_[slot].key != key) {
    if (slots_[slot].key == nullptr) return add_site(where, slot);
    slot = (slot + 1) % kSlots;
  }
  return slots_[slot].site;
}

std::uint32_t Executor::add_site(std::source_location where, std::size_t slot) {
  if (sites_.size() >= kMaxSites) {
    fault(
        FaultKind::kLaunch,
        fmt::format("kernels of one device with more than {} lines that access memory", kMaxSites));
  }
  const auto id = static_cast<std::uint32_t>(sites_.size());
  sites_.push_back({.where = where, .accesses = {}, .more = {}});
  slots_[slot] = {std::bit_cast<const void*>(where), id};
  return id;
}

std::int64_t Executor::new_sectors(Site& site, const std::byte* address) {
  if (site.segment != segment_) {
    site.segment = segment_;
    site.turn = turn_;
    site.executions = 0;
    site.accesses.clear();
    site.more.clear();
  } else if (site.turn != turn_) {
    site.turn = turn_;
    site.executions = 0;
  }
  const std::uint64_t sector = reinterpret_cast<std::uintptr_t>(address) / 32;
  const std::uint64_t window = sector / 64, bit = std::uint64_t{1} << (sector % 64);
  const std::size_t k = site.executions++;
  if (k == site.accesses.size()) {
    site.accesses.push_back({window, bit, -1});
    return 1;
  }
  Window* at = &site.accesses[k];
  while (at->window != window) {
    if (at->next < 0) {
      at->next = static_cast<std::int32_t>(site.more.size());
      site.more.push_back({window, bit, -1});
      return 1;
    }
    at = &site.more[static_cast<std::size_t>(at->next)];
  }
  const std::int64_t is_new = (at->sectors & bit) == 0 ? 1 : 0;
  at->sectors |= bit;
  return is_new;
}

void Executor::access(Memory& memory, std::int64_t offset, std::uint32_t bytes, Cell::Kind kind,
                      std::source_location where) {
  const std::uint32_t site_id = site_of(where);
  threads_[thread_].site = static_cast<std::uint16_t>(site_id);
  ++counters_.steps;
  if ((offset & (bytes - 1)) != 0) [[unlikely]]
    misaligned(memory, offset, bytes, where);
  if (kind == Cell::kAtomic) {
    ++(memory.shared ? counters_.shared_atomics : counters_.atomics);
  } else if (memory.shared) {
    (kind == Cell::kRead ? counters_.shared_loaded_bytes : counters_.shared_stored_bytes) += bytes;
  } else {
    const std::int64_t sectors = new_sectors(sites_[site_id], memory.data + offset);
    if (kind == Cell::kRead) {
      counters_.loaded_bytes += bytes;
      counters_.load_sectors += sectors;
    } else {
      counters_.stored_bytes += bytes;
      counters_.store_sectors += sectors;
    }
  }
  const std::uint64_t fresh = Cell::pack(tick_, site_id, thread_, Cell::kThread, kind);
  std::uint64_t* cell = memory.cells.data() + (offset >> memory.granule_shift);
  std::uint32_t left = bytes >> memory.granule_shift;
  if (left == 0) [[unlikely]] {
    fault(FaultKind::kMisaligned,
          fmt::format("an access of {} bytes at {}, whose elements are {} bytes; line {}", bytes,
                      element(memory, offset), 1U << memory.granule_shift, place(site_id)));
  }
  for (; left > 0; --left, ++cell) {
    const std::uint64_t old = *cell;
    const std::uint32_t tick = Cell::tick(old);
    if (kind != Cell::kWrite && (!Cell::written(old) || tick < memory.valid_from)) [[unlikely]] {
      fault(FaultKind::kUninitialised,
            fmt::format("{} at {} reads {}, which nothing has written", thread_name(thread_),
                        place(site_id), element(memory, offset)));
    }
    if (tick < interval_start_) {
      *cell = fresh;
    } else {
      conflict(memory, *cell, fresh, kind, offset);
    }
  }
}

void Executor::conflict(Memory& memory, std::uint64_t& cell, std::uint64_t fresh, Cell::Kind kind,
                        std::int64_t offset) {
  const std::uint64_t old = cell;
  const Cell::Kind before = Cell::kind(old);
  const Cell::Scope scope = Cell::scope(old);
  const std::uint32_t other = Cell::thread(old);
  if (scope == Cell::kThread && other == thread_) {
    if (kind == before) {
      cell = fresh;
    } else if (kind == Cell::kRead) {
      // Keep the write on record with its time, because a __syncwarp may come in between. An atomic
      // is kept as a write, since other threads' atomics conflict with this read.
      cell = Cell::pack(Cell::tick(old), Cell::site(old), thread_, Cell::kThread, Cell::kWrite);
    } else {
      cell = Cell::pack(tick_, Cell::site(fresh), thread_, Cell::kThread, Cell::kWrite);
    }
    return;
  }
  const bool same_warp = other / kWarpSize == warp_;
  if (same_warp && scope != Cell::kBlock && Cell::tick(old) < warps_[warp_].synced_at) {
    // A __syncwarp is in between. Keep a write on record: it is not ordered for other warps.
    if (kind != Cell::kRead || before == Cell::kRead) cell = fresh;
    return;
  }
  if (kind == before && kind != Cell::kWrite) {  // reads after reads, or atomics after atomics
    const Cell::Scope wider = same_warp && scope != Cell::kBlock ? Cell::kWarp : Cell::kBlock;
    cell = Cell::pack(tick_, Cell::site(old), other, wider, kind);
    return;
  }
  const std::string owner =
      scope == Cell::kThread ? thread_name(other)
      : scope == Cell::kWarp
          ? fmt::format("threads of warp {}, {} among them,", other / kWarpSize, thread_name(other))
          : fmt::format("several threads, {} among them,", thread_name(other));
  fault(FaultKind::kRace,
        fmt::format("a race on {}: {} by {} at {}, and {} by {} at {}, with no barrier between",
                    element(memory, offset), verb(before), owner, place(Cell::site(old)),
                    verb(kind), thread_name(thread_), place(Cell::site(fresh))));
}

void Executor::out_of_bounds(const Memory* memory, std::int64_t index, std::int64_t count,
                             std::int64_t size, std::uint32_t element_bytes, Cell::Kind kind,
                             std::source_location where) {
  const std::string range =
      count == 1 ? fmt::format("{}", index) : fmt::format("{} to {}", index, index + count - 1);
  fault(FaultKind::kOutOfBounds,
        fmt::format("element {} of \"{}\", which has {} of {} bytes, is {} by {} at {}", range,
                    memory == nullptr ? "no memory" : memory->name, size, element_bytes, verb(kind),
                    thread_name(thread_), place(site_of(where))));
}

void Executor::misaligned(const Memory& memory, std::int64_t offset, std::uint32_t bytes,
                          std::source_location where) {
  fault(FaultKind::kMisaligned,
        fmt::format("an access of {} bytes at {} is not aligned to {}: {} at {}", bytes,
                    element(memory, offset), bytes, thread_name(thread_), place(site_of(where))));
}

std::string Executor::place(std::uint32_t site) const {
  const std::source_location& where = sites_[site].where;
  return fmt::format("{}:{}", base_name(where.file_name()), where.line());
}

std::string Executor::thread_name(std::uint32_t thread) const {
  const Thread& t = threads_[thread];
  return fmt::format("thread ({},{},{})", t.x, t.y, t.z);
}

}  // namespace kvsim::cuda_sim
