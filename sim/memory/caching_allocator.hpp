#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/units/result.hpp"
#include "models/units/units.hpp"
#include "sim/memory/allocator_config.hpp"
#include "sim/memory/hbm.hpp"

namespace kvsim {

/// The memory a caching allocator may take segments from.
struct AllocatorDevice {
  Bytes total{};           // what the driver reports
  Bytes outside{};         // CUDA context, libraries: taken, but not by the allocator
  std::int32_t index = 0;  // as messages call it: "GPU 0"
};

/// Why an allocation was refused, after cached blocks were given back and it was tried again.
struct OutOfMemory {
  AllocatorDevice device;
  Bytes requested;                 // as requested
  Bytes tried;                     // the segment that the device had no room for
  Bytes free;                      // left on the device
  Bytes allocated;                 // by tensors
  Bytes reserved;                  // by the allocator's segments
  std::optional<Bytes> allowed{};  // where a memory fraction is set
  Owners owners;                   // owners of the allocated bytes

  /// PyTorch's message, then a line of owners, largest first.
  [[nodiscard]] std::string message() const;
};

struct AllocatorStats {
  Bytes allocated;       // of blocks in use, as charged
  Bytes active;          // with blocks whose release a stream still holds up
  Bytes requested;       // of blocks in use, as requested
  Bytes reserved;        // of segments
  Bytes inactive_split;  // cached parts of segments that are partly in use: cannot be released
  Bytes largest_free;    // largest cached block
  Bytes allocated_peak, active_peak, reserved_peak;
  std::int64_t blocks = 0;                           // in use
  std::int64_t segments = 0;                         // cudaMalloc's, and expandable ones
  std::int64_t device_allocs = 0, device_frees = 0;  // segments taken and given back; maps, unmaps
  std::int64_t retries = 0;  // allocations that had to give cached blocks back first
  std::int64_t refusals = 0;

  /// Share of the cached bytes that a request for the largest cached block cannot use; 0 where
  /// nothing is cached.
  [[nodiscard]] double fragmentation() const;
};

/// PyTorch's CUDA caching allocator (c10/cuda/CUDACachingAllocator.cpp), rule for rule:
///
/// * sizes are rounded to 512 B (or by roundup_power2_divisions); up to 1 MiB they come from the
///   small pool, above from the large one; blocks belong to a stream.
/// * best fit among the cached blocks, by (size, address); a large one is not split where 1 MiB or
///   less would be left, a small one not below 512 B; max_split_size keeps large blocks whole.
/// * otherwise a new segment: 2 MiB for small ones, 20 MiB below 10 MiB, else the size rounded to
///   2 MiB; or, with expandable_segments, granules of 2 MiB (small) and 20 MiB (large) mapped at a
///   segment's end.
/// * garbage collection by age above a threshold, if a memory fraction is set.
/// * if the device has no room: release enough oversize blocks (max_split_size), then all unsplit
///   cached blocks, and try again; then refuse.
/// * a freed block joins its free neighbours of the same segment.
///
/// Left out: private pools of CUDA graphs, and the driver's own granularity. Addresses are the
/// model's: segments are placed one above the other in the order of their creation, unless
/// `place_next_segment` says otherwise; they matter where equally large blocks compete.
/// Costs O(log n) an operation in the number of cached blocks.
class CachingAllocator {
 public:
  enum class BlockId : std::uint64_t {};
  enum class OwnerId : std::int32_t {};

  /// Errors: ContractError if the device's total is below what is taken outside.
  CachingAllocator(const AllocatorDevice& device, const AllocatorConfig& config);
  CachingAllocator(CachingAllocator&&) noexcept;
  CachingAllocator& operator=(CachingAllocator&&) noexcept;
  ~CachingAllocator();

  /// The number of an owner's name from now on.
  [[nodiscard]] OwnerId owner(std::string_view name);

  /// `n` at least 1 B. Errors: ContractError.
  [[nodiscard]] Result<BlockId, OutOfMemory> malloc(Bytes n, OwnerId owner,
                                                    std::int32_t stream = 0);
  /// Errors: ContractError unless the block is in use.
  void free(BlockId id);
  /// The two halves of a free: the tensor goes, the block can be reused only once the streams that
  /// used it are done (record_stream). Errors: ContractError if not in use, or not requested.
  void request_free(BlockId id);
  void complete_free(BlockId id);
  /// The block counts as `owner`'s from now on. Errors: ContractError unless it is in use.
  void hand_over(BlockId id, OwnerId owner);
  /// torch.cuda.empty_cache(): unsplit cached blocks go back to the device.
  void empty_cache();
  /// The address of the next segment taken from the device; reset after the next malloc.
  void place_next_segment(std::uint64_t address);

  [[nodiscard]] AllocatorStats stats() const;
  [[nodiscard]] Bytes allocated() const;
  [[nodiscard]] Bytes reserved() const;
  [[nodiscard]] std::int64_t segments() const;
  [[nodiscard]] Owners owners() const;       // of allocated bytes
  [[nodiscard]] Owners peak_owners() const;  // when reserved last reached its peak
  [[nodiscard]] std::uint64_t address(BlockId id) const;

  struct BlockView {
    std::uint64_t address = 0;
    std::int64_t size = 0;
    bool in_use = false;  // allocated, or its release requested
    bool mapped = true;
  };
  struct SegmentView {
    std::int32_t stream = 0;
    bool small = false;
    bool expandable = false;
    std::vector<BlockView> blocks;  // by address, without a gap
  };
  /// All segments by the address of their first block.
  [[nodiscard]] std::vector<SegmentView> snapshot() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvsim
