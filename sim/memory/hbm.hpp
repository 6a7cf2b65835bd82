#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "models/units/result.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// Bytes on the GPU by owner ("weights", "context", "kv_cache", "side_data", "concat_copy",
/// "scores", "logits", "activations", …), sorted by name.
using Owners = std::map<std::string, Bytes>;

/// Reason why an allocation was refused; the attempt changed nothing.
struct Refusal {
  std::string owner;  // the requester
  Bytes requested;    // as charged
  Bytes free;
  Owners owners;  // owners of the used bytes
};

/// A GPU's memory as labelled allocations: used() + free() == capacity() at any time.
///
/// Every allocation is charged whole blocks of `block` bytes (512 for PyTorch's allocator, 1 for
/// none). Segments, caching and fragmentation are not modelled here: an allocator that has them
/// requests its segments from this class.
class Hbm {
 public:
  using Id = std::int64_t;

  /// Errors: ContractError if capacity is negative or the block below 1 B.
  explicit Hbm(Bytes capacity, Bytes block = Bytes{1});

  /// Allocates only if it fits. Errors: ContractError on a negative size.
  [[nodiscard]] Result<Id, Refusal> allocate(std::string_view owner, Bytes n);
  /// Errors: ContractError if `id` is not allocated.
  void release(Id id);

  [[nodiscard]] Bytes capacity() const { return capacity_; }
  [[nodiscard]] Bytes used() const { return used_; }
  [[nodiscard]] Bytes free() const { return capacity_ - used_; }
  [[nodiscard]] Bytes peak() const { return peak_; }                    // high-water mark
  [[nodiscard]] const Owners& owners() const { return owners_; }        // without owners of 0 bytes
  [[nodiscard]] const Owners& peak_owners() const { return at_peak_; }  // when peak() was reached

 private:
  struct Block {
    std::string owner;
    Bytes size;
  };
  Bytes capacity_;
  Bytes block_;
  Bytes used_;
  Bytes peak_;
  Owners owners_;
  Owners at_peak_;
  std::map<Id, Block> blocks_;
  Id next_ = 0;
};

}  // namespace kvsim
