#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "models/units/units.hpp"

namespace kvsim {

/// Settings of PyTorch's CUDA caching allocator, as PYTORCH_CUDA_ALLOC_CONF gives them (c10/core/
/// AllocatorConfig.h). The defaults are PyTorch's.
struct AllocatorConfig {
  static constexpr std::size_t kIntervals = 16;  // 1 MiB to 64 GiB by powers of two

  std::optional<Bytes> max_split_size{};  // blocks from here on are never split; none: no limit
  Bytes max_non_split_rounding = 20_MiB;  // room an unsplit large block may leave unused
  bool expandable_segments = false;
  double garbage_collection_threshold = 0;  // of the allowed memory; 0: none. PyTorch heeds it only
                                            // where a memory fraction is set
  std::optional<double> memory_fraction{};  // of the device, set_per_process_memory_fraction
  /// Divisions between two powers of two that sizes are rounded up to, by interval; up to 1: none.
  std::array<std::int64_t, kIntervals> roundup_power2_divisions{};

  friend bool operator==(const AllocatorConfig&, const AllocatorConfig&) = default;
};

/// Reads "max_split_size_mb:128,expandable_segments:True,roundup_power2_divisions:[256:1,>:4]".
/// Keys that change no size (backend:native, pinned_…, release_lock_on_cudamalloc) are read and
/// have no effect. Errors: InputError "PLACE: column N: expected …" for a key that does not exist
/// (with the nearest), a value PyTorch refuses, and backend:cudaMallocAsync, another allocator.
[[nodiscard]] AllocatorConfig parse_alloc_conf(std::string_view text, std::string_view place);

/// The size an allocation is charged: whole 512 B blocks, or the next division of a power of two.
[[nodiscard]] std::int64_t rounded_size(const AllocatorConfig& config, std::int64_t size);

}  // namespace kvsim
