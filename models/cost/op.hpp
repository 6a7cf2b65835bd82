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
  kLogits,  // the output projection: a GEMM of another shape
  kPrefillAttention,
  kDecodeAttention,
  kNorm,
  kRope,
  kElementwise,
  kCacheWrite,  // new keys and values into an existing cache
  kConcatCopy,  // the cache copied into a longer tensor
  kExpandCopy,  // keys and values repeated to the query heads
  kScorePass,   // attention probabilities produced for a method
  kCompaction,  // survivors rewritten
  kMethod,      // a method's own bookkeeping
  kCollective,
  kHostCopy,
  kRecurrence,      // updates and scans of recurrent states
  kIndex,           // scores of an index, the choice of the best, compression of entries
  kSparseAttention  // attention over entries that an index or a compressor leaves
};
inline constexpr std::size_t kOpFamilies = 19;
[[nodiscard]] std::string_view name_of(OpFamily family);
/// Where no kernel's form times it, an operator of the family takes the data sheet's time.
[[nodiscard]] constexpr bool is_unmeasured(OpFamily family) {
  return family == OpFamily::kRecurrence || family == OpFamily::kIndex ||
         family == OpFamily::kSparseAttention;
}

/// Owners of HBM bytes; the names are those of results.
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

/// The kernel of an operator whose family has a timing form: the key of calibrations.
struct KernelUse {
  KernelCall call{};
  const KernelFormat* format = nullptr;  // shared_format
  /// Calls like it, one after another; 0: another operator's kernel does this one's work too.
  double times = 1;
  /// Prompt attention: tokens of the pieces that `call` is taken in, each over what came before it;
  /// 0: all at once.
  double chunk = 0;

  friend bool operator==(const KernelUse&, const KernelUse&) = default;
};

using OpIndex = std::int32_t;

/// One operator of a prefill or decode step, the whole batch at once. `name` is a literal.
struct Op {
  std::string_view name;
  OpFamily family = OpFamily::kElementwise;
  FlopCount flops{};
  double bytes_read = 0;
  double bytes_written = 0;
  std::int32_t launches = 1;
  std::int32_t stream = 0;     // operators of one stream run in order
  Dtype dtype = Dtype::kFp16;  // of the arithmetic
  double blocks = 0;      // independent thread blocks, where fewer than the GPU's processors may
                          // limit it; 0: always enough
  bool exchange = false;  // of tokens with their experts' GPUs: at the stack's rate, if it has one
  std::optional<KernelUse> kernel{};

  friend bool operator==(const Op&, const Op&) = default;
};

/// Bytes alive from operator `first` to operator `last`, both included. `name` is a literal.
struct Tensor {
  std::string_view name;
  Owner owner = Owner::kActivations;
  Bytes bytes{};  // that the allocator gives for `size`
  OpIndex first = 0;
  OpIndex last = 0;
  Product size{};
};

}  // namespace kvsim
