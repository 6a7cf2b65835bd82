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

/// The memory from which a caching allocator may take segments.
struct AllocatorDevice {
  Bytes total{};           // as reported by the driver
  Bytes outside{};         // CUDA context, libraries: used, but not by the allocator
  std::int32_t index = 0;  // as in messages: "GPU 0"
};

/// Reason why an allocation was refused, after releasing cached blocks and a second attempt.
struct OutOfMemory {
  AllocatorDevice device;
  Bytes requested;                 // as requested
  Bytes tried;                     // the segment that did not fit on the device
  Bytes free;                      // left on the device
  Bytes allocated;                 // by tensors
  Bytes reserved;                  // by the allocator's segments
  std::optional<Bytes> allowed{};  // if a memory fraction is set
  Owners owners;                   // owners of the allocated bytes

  /// PyTorch's message, then a line of owners, largest first.
  [[nodiscard]] std::string message() const;
};

struct AllocatorStats {
  Bytes allocated;       // of blocks in use, as charged
  Bytes active;          // including blocks whose release waits for a stream
  Bytes requested;       // of blocks in use, as requested
  Bytes reserved;        // of segments
  Bytes inactive_split;  // cached parts of segments that are partly in use; cannot be released
  Bytes largest_free;    // largest cached block
  Bytes allocated_peak, active_peak, reserved_peak;
  std::int64_t blocks = 0;                           // in use
  std::int64_t segments = 0;                         // cudaMalloc's, and expandable ones
  std::int64_t device_allocs = 0, device_frees = 0;  // segments allocated and released; maps,
                                                     // unmaps
  std::int64_t retries = 0;  // allocations that first had to release cached blocks
  std::int64_t refusals = 0;

  /// Share of the cached bytes that a request for the largest cached block cannot use; 0 if nothing
  /// is cached.
  [[nodiscard]] double fragmentation() const;
};

/// Reimplements the rules of PyTorch's CUDA caching allocator (c10/cuda/CUDACachingAllocator.cpp):
///
/// * Sizes are rounded to 512 B (or by roundup_power2_divisions). Up to 1 MiB they come from the
///   small pool, above from the large one; blocks belong to a stream.
/// * Best fit among the cached blocks, by (size, address). A large block is not split if 1 MiB or
///   less would be left, a small one not below 512 B; max_split_size keeps large blocks whole.
/// * Otherwise a new segment: 2 MiB for small ones, 20 MiB below 10 MiB, else the size rounded to
///   2 MiB; or, with expandable_segments, granules of 2 MiB (small) and 20 MiB (large) mapped at a
///   segment's end.
/// * Garbage collection by age above a threshold, if a memory fraction is set.
/// * If the device has no room: release enough oversize blocks (max_split_size), then all unsplit
///   cached blocks, and try again; then refuse.
/// * A freed block is merged with its free neighbours of the same segment.
///
/// Not modelled: private pools of CUDA graphs, and the driver's granularity. Addresses are those of
/// the model: segments are placed consecutively in the order of their creation, unless
/// `place_next_segment` sets an address. They matter if equally large blocks compete.
/// Costs O(log n) per operation in the number of cached blocks.
class CachingAllocator {
 public:
  enum class BlockId : std::uint64_t {};
  enum class OwnerId : std::int32_t {};

  /// Errors: ContractError if the device's total is below the bytes used outside.
  CachingAllocator(const AllocatorDevice& device, const AllocatorConfig& config);
  CachingAllocator(CachingAllocator&&) noexcept;
  CachingAllocator& operator=(CachingAllocator&&) noexcept;
  ~CachingAllocator();

  /// Returns the id of an owner's name, which stays valid.
  [[nodiscard]] OwnerId owner(std::string_view name);

  /// Allocates `n` >= 1 bytes. Errors: ContractError.
  [[nodiscard]] Result<BlockId, OutOfMemory> malloc(Bytes n, OwnerId owner,
                                                    std::int32_t stream = 0);
  /// Errors: ContractError unless the block is in use.
  void free(BlockId id);
  /// The two halves of a free: request_free when the tensor is freed, complete_free when the
  /// streams that used the block are done (record_stream) and it can be reused. Errors:
  /// ContractError if the block is not in use, or its release was not requested.
  void request_free(BlockId id);
  void complete_free(BlockId id);
  /// Transfers the block to `owner`. Errors: ContractError unless it is in use.
  void hand_over(BlockId id, OwnerId owner);
  /// torch.cuda.empty_cache(): releases unsplit cached blocks to the device.
  void empty_cache();
  /// Sets the address of the next segment taken from the device; reset after the next malloc.
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
    bool in_use = false;  // allocated, or release requested
    bool mapped = true;
  };
  struct SegmentView {
    std::int32_t stream = 0;
    bool small = false;
    bool expandable = false;
    std::vector<BlockView> blocks;  // by address, without gaps
  };
  /// All segments, ordered by the address of their first block.
  [[nodiscard]] std::vector<SegmentView> snapshot() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvsim
