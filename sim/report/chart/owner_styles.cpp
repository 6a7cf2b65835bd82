#include "sim/report/chart/owner_styles.hpp"

#include <algorithm>
#include <array>

namespace kvsim {
namespace {

// The six owners that fill most bars are solid, in colours with distinct greys (0.20, 0.34, 0.47,
// 0.62, 0.73 and 0.84 of white). The small owners are hatched, each differently. Hues are those of
// Okabe and Ito ("Color Universal Design", 2008) and two greys.
constexpr std::array<OwnerStyle, 11> kStyles{{
    {"context", {"CUDA context", {"#333333", 0, true}}},
    {"weights", {"weights", {"#BBBBBB", 0, false}}},
    {"kv_cache", {"KV cache", {"#0072B2", 0, true}}},
    {"side_data", {"method side data", {"#56B4E9", 0, false}}},
    {"kv_expansion", {"repeated KV heads", {"#0072B2", 5, false}}},
    {"concat_copy", {"concat copies", {"#009E73", 4, false}}},
    {"compaction", {"compaction copies", {"#D55E00", 7, false}}},
    {"scores", {"attention scores", {"#D55E00", 0, true}}},
    {"mask", {"attention mask", {"#000000", 6, false}}},
    {"activations", {"activations", {"#F0E442", 0, false}}},
    {"logits", {"logits", {"#CC79A7", 1, false}}},
}};
constexpr PartStyle kOther{"other", {"#777777", 2, false}};
constexpr PartStyle kRefused{"requested", {"#FFFFFF", 0, false}};

}  // namespace

std::span<const OwnerStyle> owner_styles() { return kStyles; }

const PartStyle& style_of_owner(std::string_view owner) {
  const auto* const found =
      std::find_if(kStyles.begin(), kStyles.end(),
                   [owner](const OwnerStyle& style) { return style.owner == owner; });
  return found == kStyles.end() ? kOther : found->style;
}

const PartStyle& style_of_refusal() { return kRefused; }

std::vector<PartStyle> breakdown_styles() {
  std::vector<PartStyle> styles;
  for (const OwnerStyle& row : kStyles) styles.push_back(row.style);
  styles.insert(styles.end(), {kOther, kRefused});
  return styles;
}

}  // namespace kvsim
