#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "models/cost/kernels/call.hpp"
#include "models/cost/product.hpp"
#include "models/units/dtype.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// Kinds of operators that share an efficiency curve.
enum class OpFamily : std::uint8_t {
  kEmbedding,
  kGemm,
  kLogits,  // the output projection: a GEMM with a different shape
  kPrefillAttention,
  kDecodeAttention,
  kNorm,
  kRope,
  kElementwise,
  kCacheWrite,  // new keys and values are written into an existing cache
  kConcatCopy,  // the cache is copied into a longer tensor
  kExpandCopy,  // keys and values are repeated to all query heads
  kScorePass,   // attention probabilities computed for a method
  kCompaction,  // kept entries are rewritten
  kMethod,      // a method's own bookkeeping
  kCollective,
  kHostCopy,
  kRecurrence,      // updates and scans of recurrent states
  kIndex,           // scores of an index, top-k selection, compression of entries
  kSparseAttention  // attention over entries selected by an index or a compressor
};
inline constexpr std::size_t kOpFamilies = 19;
[[nodiscard]] std::string_view name_of(OpFamily family);
/// Whether operators of the family take the data sheet's time unless a kernel's form times them.
[[nodiscard]] constexpr bool is_unmeasured(OpFamily family) {
  return family == OpFamily::kRecurrence || family == OpFamily::kIndex ||
         family == OpFamily::kSparseAttention;
}

/// Owners of HBM bytes, with the names used in results.
enum class Owner : std::uint8_t {
  kActivations,
  kCompaction,
  kConcatCopy,
  kContext,
  kKvCache,
  kKvExpansion,
  kLogits,
  kMask,
  kScores,
  kSideData,
  kWeights
};
inline constexpr std::size_t kOwners = 11;
[[nodiscard]] std::string_view name_of(Owner owner);

/// The kernel of an operator whose family has a timing form: the lookup key of calibrations.
struct KernelUse {
  KernelCall call{};
  const KernelFormat* format = nullptr;  // shared_format
  /// Number of equal consecutive calls; 0: another operator's kernel includes this work.
  double times = 1;
  /// Prompt attention: tokens per piece of `call`, each of which attends to the pieces before it;
  /// 0: not split.
  double chunk = 0;

  friend bool operator==(const KernelUse&, const KernelUse&) = default;
};

using OpIndex = std::int32_t;

/// One operator of a prefill or decode step, for the whole batch. `name` is a literal.
struct Op {
  std::string_view name;
  OpFamily family = OpFamily::kElementwise;
  FlopCount flops{};
  double bytes_read = 0;
  double bytes_written = 0;
  std::int32_t launches = 1;
  std::int32_t stream = 0;     // operators of one stream run in order
  Dtype dtype = Dtype::kFp16;  // of the arithmetic
  double blocks = 0;      // independent thread blocks, if fewer than the GPU's processors may limit
                          // it; 0: always enough
  bool exchange = false;  // of tokens with expert GPUs, at the stack's exchange rate if set
  std::optional<KernelUse> kernel{};

  friend bool operator==(const Op&, const Op&) = default;
};

/// Bytes alive from operator `first` to operator `last`, both inclusive. `name` is a literal.
struct Tensor {
  std::string_view name;
  Owner owner = Owner::kActivations;
  Bytes bytes{};  // reserved by the allocator for `size`
  OpIndex first = 0;
  OpIndex last = 0;
  Product size{};
};

}  // namespace kvsim
