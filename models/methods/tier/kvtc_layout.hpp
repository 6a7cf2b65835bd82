#pragma once

// Internal to models/methods/tier: KVTC's storage of a token's coefficients.

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// In descending order of precision.
enum class KvtcType : std::uint8_t { kFp32, kBf16, kInt8, kInt4 };

struct KvtcGroup {
  std::int64_t size = 0;  // consecutive coefficients
  KvtcType type = KvtcType::kFp32;
};
/// Coefficients after the last group are dropped.
struct KvtcLayout {
  std::vector<KvtcGroup> groups;
  std::int64_t bits = 0;  // per token
  double error = 0;       // squared error on the rows of its calibration
};

/// Bits per token of a group: integer groups also have an fp16 scale and offset.
[[nodiscard]] std::int64_t kvtc_bits(const KvtcGroup& group);

/// Returns the layout of at most `budget` bits with the least squared error on rows [n, width] of
/// coefficients: groups of 1, 16, 64, 256 or 1024 (int4: 8, 16, …) with non-increasing precision.
/// Exact, by dynamic programming over (end, type, bits). Source: jfckm/sglang-kvtc, the calibration
/// scripts. Errors: ContractError if the span does not consist of whole rows.
[[nodiscard]] KvtcLayout kvtc_layout(std::span<const double> rows, std::int64_t width,
                                     std::int64_t budget);

/// Replaces a token's coefficients by their values after a round trip through the layout.
void kvtc_round(std::span<double> coefficients, const KvtcLayout& layout);

}  // namespace kvsim
