#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "models/units/units.hpp"

namespace kvsim {

/// Settings of PyTorch's CUDA caching allocator, as in PYTORCH_CUDA_ALLOC_CONF
/// (c10/core/AllocatorConfig.h). The defaults are PyTorch's.
struct AllocatorConfig {
  static constexpr std::size_t kIntervals = 16;  // 1 MiB to 64 GiB by powers of two

  std::optional<Bytes> max_split_size{};  // blocks of this size or more are never split; none: no
                                          // limit
  Bytes max_non_split_rounding = 20_MiB;  // most bytes that an unsplit large block may leave unused
  bool expandable_segments = false;
  double garbage_collection_threshold = 0;  // of the allowed memory; 0: none. PyTorch applies it
                                            // only if a memory fraction is set
  std::optional<double> memory_fraction{};  // of the device, set_per_process_memory_fraction
  /// Number of divisions between two powers of two that sizes are rounded up to, by interval;
  /// values up to 1: no rounding.
  std::array<std::int64_t, kIntervals> roundup_power2_divisions{};

  friend bool operator==(const AllocatorConfig&, const AllocatorConfig&) = default;
};

/// Parses "max_split_size_mb:128,expandable_segments:True,roundup_power2_divisions:[256:1,>:4]".
/// Keys that do not affect sizes (backend:native, pinned_…, release_lock_on_cudamalloc) are
/// accepted without effect. Errors: InputError "PLACE: column N: expected …" for an unknown key
/// (with the nearest), a value that PyTorch refuses, and backend:cudaMallocAsync, which is another
/// allocator.
[[nodiscard]] AllocatorConfig parse_alloc_conf(std::string_view text, std::string_view place);

/// Returns the size that an allocation is charged: whole 512 B blocks, or the next division of a
/// power of two.
[[nodiscard]] std::int64_t rounded_size(const AllocatorConfig& config, std::int64_t size);

}  // namespace kvsim
