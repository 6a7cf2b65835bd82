#pragma once

// Inside of models/methods/tier: how KVTC stores the coefficients of a token.

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// By falling precision.
enum class KvtcType : std::uint8_t { kFp32, kBf16, kInt8, kInt4 };

struct KvtcGroup {
  std::int64_t size = 0;  // consecutive coefficients
  KvtcType type = KvtcType::kFp32;
};
/// What follows the last group is dropped.
struct KvtcLayout {
  std::vector<KvtcGroup> groups;
  std::int64_t bits = 0;  // of a token
  double error = 0;       // squared, over the rows that it was made for
};

/// Bits of a group of a token: integers have an fp16 scale and offset in addition.
[[nodiscard]] std::int64_t kvtc_bits(const KvtcGroup& group);

/// The layout of at most `budget` bits with the least squared error on rows [n, width] of
/// coefficients: groups of 1, 16, 64, 256 or 1024 (int4: 8, 16, …), whose precision never rises.
/// Exact, by dynamic programming over (end, type, bits). Source: jfckm/sglang-kvtc, the calibration
/// scripts. Errors: ContractError if the span is not whole rows.
[[nodiscard]] KvtcLayout kvtc_layout(std::span<const double> rows, std::int64_t width,
                                     std::int64_t budget);

/// Replaces a token's coefficients by what the layout returns.
void kvtc_round(std::span<double> coefficients, const KvtcLayout& layout);

}  // namespace kvsim
