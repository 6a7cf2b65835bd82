#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvsim {

/// Why an entry is in the cache of a stored head.
enum class KeptRole : std::uint8_t {
  kWhole,      // no entry has left the head
  kSink,       // protected: one of the first tokens
  kRecent,     // protected, or ranked by position: one of the last candidate tokens
  kProtected,  // protected elsewhere, or by a rule without scores
  kScore,      // its score was high enough
  kDecoded,    // generated, and decode steps do not evict
  kMerged      // represents several tokens
};
inline constexpr int kKeptRoles = 7;
/// "whole", "sink", "recent", "protected", "score", "decoded", "merged": the name used in files.
[[nodiscard]] std::string_view name_of(KeptRole role);

/// One entry of a stored head with the reason why it is kept.
struct KeptEntry {
  std::int32_t position = 0;  // of its first token
  std::int32_t members = 1;   // tokens that it represents
  KeptRole role = KeptRole::kWhole;
  std::optional<double> score{};  // only for kScore: the selector's score
};

}  // namespace kvsim
