#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// How the key of a merged entry is computed from its members (KeepKV, section 2.4 of the method
/// catalogue). With w = p s, k' = sum w k / sum w, l' = sum w ln s / sum w and l_r = ln(sum w / sum
/// p):
enum class ZipKey : std::uint8_t {
  kZip,        // l_r / l' * k' (eqs. 7, 25, 26); flips sign or blows up near l' = 0
  kGuarded,    // as kZip while its factor is in the guard's range, else as kRealVotes
  kRealVotes,  // k', votes e^(l_r - l') sum p: exact, but not whole numbers
  kAdditive,   // k' + (l_r - l') q / (scale |q|^2): exact only for this q
  kConvex,     // k' (the released code): overcounts
};

/// One entry of a merge set.
struct ZipMember {
  std::span<const float> key, value;  // [d]
  double votes = 1;                   // p
  double log_score = 0;               // ln of its estimated s = e^(scale q.k)
  // Range of the factors that earlier merges applied to its tokens.
  double scale_low = 1, scale_high = 1;
};

struct ZipMerged {
  std::vector<double> key, value;  // [d]
  double votes = 1;
  double log_score = 0;  // of the merged entry: e^log_score * votes = sum p s
  double scale_low = 1, scale_high = 1;
  bool fell_back = false;  // the guard chose kRealVotes
};

struct ZipRule {
  ZipKey key = ZipKey::kGuarded;
  bool bound_product =
      false;  // the guard also bounds the product of an entry's factors over merges
};

/// Merges the members into one entry that preserves the attention output under the estimated
/// scores. The value is sum w v / sum w, and the rule determines the key. All sums are in fp64, in
/// the log domain.
///
/// q [d], fp64: the query for which kAdditive is exact (other rules ignore it); scale: that of the
/// softmax.
/// Throws ContractError if there are no members, lengths disagree, votes <= 0, or kAdditive has no
/// q.
/// Source: KeepKV, eqs. (6), (7), (25) to (27). The guard's range [0.5, 2] and the rules other than
/// kZip and kConvex are not from the paper.
[[nodiscard]] ZipMerged zip_merge(std::span<const ZipMember> members, const ZipRule& rule,
                                  std::span<const double> q, double scale);

}  // namespace kvsim
