#include "kernels/cuda_sim/device.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "models/units/check.hpp"

namespace kvsim::cuda_sim {

Storage::Storage(std::string name, std::int64_t bytes, std::int64_t element_bytes) {
  KVSIM_CHECK(bytes >= 0, "\"{}\" of {} bytes", name, bytes);
  constexpr std::int64_t kAlignment = 256;
  storage_.resize(static_cast<std::size_t>(bytes + kAlignment));
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
  const std::uintptr_t aligned = (address + kAlignment - 1) / kAlignment * kAlignment;
  // The largest power of two that divides an element's size, four bytes at most.
  const auto granule =
      static_cast<std::uint64_t>(std::min<std::int64_t>(element_bytes & -element_bytes, 4));
  memory_.name = std::move(name);
  memory_.data = storage_.data() + (aligned - address);
  memory_.bytes = bytes;
  memory_.granule_shift = static_cast<unsigned>(std::countr_zero(granule));
  memory_.cells.resize(static_cast<std::size_t>(bytes >> memory_.granule_shift));
  poison();
}

void Storage::poison() {
  std::fill_n(memory_.data, memory_.bytes, std::byte{0xFF});
  std::fill(memory_.cells.begin(), memory_.cells.end(), 0);
}

void Storage::write(const void* from, std::int64_t first_byte, std::int64_t bytes,
                    std::uint32_t tick) {
  KVSIM_CHECK(first_byte >= 0 && bytes >= 0 && first_byte <= memory_.bytes - bytes,
              "\"{}\" has {} bytes; {} from {} on were to be written", memory_.name, memory_.bytes,
              bytes, first_byte);
  if (bytes > 0) std::memcpy(memory_.data + first_byte, from, static_cast<std::size_t>(bytes));
  const auto first = static_cast<std::size_t>(first_byte >> memory_.granule_shift);
  const auto count = static_cast<std::size_t>(bytes >> memory_.granule_shift);
  std::fill_n(memory_.cells.begin() + static_cast<std::ptrdiff_t>(first), count,
              Cell::pack(tick, 0, 0, Cell::kThread, Cell::kWrite));
}

void Storage::read(void* to, std::int64_t first_byte, std::int64_t bytes) const {
  KVSIM_CHECK(first_byte >= 0 && bytes >= 0 && first_byte <= memory_.bytes - bytes,
              "\"{}\" has {} bytes; {} from {} on were to be read", memory_.name, memory_.bytes,
              bytes, first_byte);
  const std::int64_t granule = std::int64_t{1} << memory_.granule_shift;
  for (std::int64_t at = first_byte; at < first_byte + bytes; at += granule) {
    if (!Cell::written(memory_.cells[static_cast<std::size_t>(at >> memory_.granule_shift)])) {
      throw KernelFault{FaultKind::kUninitialised,
                        fmt::format("the host reads \"{}\" at byte {} of {}, which nothing has "
                                    "written",
                                    memory_.name, at, memory_.bytes)};
    }
  }
  if (bytes > 0) std::memcpy(to, memory_.data + first_byte, static_cast<std::size_t>(bytes));
}

}  // namespace kvsim::cuda_sim
