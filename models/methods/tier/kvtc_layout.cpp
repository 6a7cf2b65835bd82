#include "models/methods/tier/kvtc_layout.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "models/math/half.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::array<std::int64_t, 6> kSizes{1, 8, 16, 64, 256, 1024};
constexpr std::array kTypes{KvtcType::kFp32, KvtcType::kBf16, KvtcType::kInt8, KvtcType::kInt4};
constexpr std::int64_t kStep = 8;  // every group's bits are a multiple of this

double as_half(double x) {
  return static_cast<double>(fp16_to_float(float_to_fp16(static_cast<float>(x))));
}

bool allows(KvtcType type, std::int64_t size) {
  return type == KvtcType::kInt4 ? size >= 8 : size != 8;
}

/// scale = range / (2^b - 1), offset = least code - low / scale, code = round(x / scale + offset);
/// scale and offset are stored per token in fp16.
void round_integers(std::span<double> group, std::int32_t bits) {
  const auto [low, high] = std::minmax_element(group.begin(), group.end());
  const double min = -std::ldexp(1.0, bits - 1), max = -min - 1;
  const double scale = (*high - *low) / (max - min);
  if (!(scale > 0)) {
    // All elements are equal, so offset and least code cannot represent the value; it is stored in
    // fp16.
    const double only = as_half(*low);
    std::fill(group.begin(), group.end(), only);
    return;
  }
  const double offset = min - *low / scale;
  const double stored_scale = as_half(scale), stored_offset = as_half(offset);
  for (double& x : group) {
    const double code = std::clamp(std::nearbyint(x / scale + offset), min, max);
    x = (code - stored_offset) * stored_scale;
  }
}

void round_group(std::span<double> group, KvtcType type) {
  switch (type) {
    case KvtcType::kFp32:
      for (double& x : group) x = static_cast<double>(static_cast<float>(x));
      return;
    case KvtcType::kBf16:
      for (double& x : group) {
        x = static_cast<double>(bf16_to_float(float_to_bf16(static_cast<float>(x))));
      }
      return;
    case KvtcType::kInt8:
      return round_integers(group, 8);
    case KvtcType::kInt4:
      return round_integers(group, 4);
  }
}

}  // namespace

std::int64_t kvtc_bits(const KvtcGroup& group) {
  constexpr std::int64_t kScaleBits = 32;
  switch (group.type) {
    case KvtcType::kFp32:
      return 32 * group.size;
    case KvtcType::kBf16:
      return 16 * group.size;
    case KvtcType::kInt8:
      return 8 * group.size + kScaleBits;
    case KvtcType::kInt4:
      break;
  }
  return 4 * group.size + kScaleBits;
}

void kvtc_round(std::span<double> coefficients, const KvtcLayout& layout) {
  std::size_t at = 0;
  for (const KvtcGroup& group : layout.groups) {
    round_group(coefficients.subspan(at, static_cast<std::size_t>(group.size)), group.type);
    at += static_cast<std::size_t>(group.size);
  }
  std::fill(coefficients.begin() + static_cast<std::ptrdiff_t>(at), coefficients.end(), 0.0);
}

KvtcLayout kvtc_layout(std::span<const double> rows, std::int64_t width, std::int64_t budget) {
  const auto n = static_cast<std::size_t>(width);
  KVSIM_CHECK(width >= 1 && rows.size() % n == 0, "{} coefficients in rows of {}", rows.size(),
              width);
  const std::size_t tokens = rows.size() / n;
  const std::int64_t steps = std::max<std::int64_t>(0, budget) / kStep;
  // No group has fewer than 4 bits per coefficient.
  const std::int64_t max = std::min(width, std::max<std::int64_t>(0, budget) / 4);
  std::vector<double> tail(n + 1);  // energy of each coefficient and all later ones
  for (std::size_t i = n; i > 0; --i) {
    tail[i - 1] = tail[i];
    for (std::size_t t = 0; t < tokens; ++t) {
      const double x = rows[t * n + i - 1];
      tail[i - 1] += x * x;
    }
  }
  struct Choice {
    double error = std::numeric_limits<double>::infinity();
    std::int64_t size = 0;
    KvtcType type = KvtcType::kFp32;
    std::uint8_t from = 0;  // type of the previous group
  };
  const auto index = [&](std::int64_t end, std::size_t type, std::int64_t used) {
    return (static_cast<std::size_t>(end) * kTypes.size() + type) *
               static_cast<std::size_t>(steps + 1) +
           static_cast<std::size_t>(used);
  };
  std::vector<Choice> best(index(max + 1, 0, 0));
  best[index(0, 0, 0)].error = 0;
  std::vector<double> group;
  for (std::int64_t start = 0; start < max; ++start) {
    for (std::size_t type = 0; type < kTypes.size(); ++type) {
      for (const std::int64_t size : kSizes) {
        if (start + size > max || !allows(kTypes[type], size)) continue;
        const std::int64_t cost = kvtc_bits({.size = size, .type = kTypes[type]}) / kStep;
        if (cost > steps) continue;
        double error = -1;  // computed if some layout ends here
        for (std::size_t before = 0; before <= type; ++before) {
          for (std::int64_t used = 0; used + cost <= steps; ++used) {
            const Choice& from = best[index(start, before, used)];
            if (!std::isfinite(from.error)) continue;
            if (error < 0) {
              error = 0;
              for (std::size_t t = 0; t < tokens; ++t) {
                const auto whole = rows.subspan(t * n + static_cast<std::size_t>(start),
                                                static_cast<std::size_t>(size));
                group.assign(whole.begin(), whole.end());
                round_group(group, kTypes[type]);
                for (std::size_t i = 0; i < group.size(); ++i) {
                  error += (group[i] - whole[i]) * (group[i] - whole[i]);
                }
              }
            }
            Choice& to = best[index(start + size, type, used + cost)];
            if (from.error + error < to.error) {
              to = {.error = from.error + error,
                    .size = size,
                    .type = kTypes[type],
                    .from = static_cast<std::uint8_t>(before)};
            }
          }
        }
      }
    }
  }
  KvtcLayout out;
  out.error = tail[0];
  std::int64_t end = 0, used = 0;
  std::size_t type = 0;
  for (std::int64_t e = 1; e <= max; ++e) {
    for (std::size_t t = 0; t < kTypes.size(); ++t) {
      for (std::int64_t u = 0; u <= steps; ++u) {
        const double error = best[index(e, t, u)].error + tail[static_cast<std::size_t>(e)];
        if (error < out.error) {
          out.error = error;
          end = e;
          type = t;
          used = u;
        }
      }
    }
  }
  out.bits = used * kStep;
  while (end > 0) {
    const Choice& at = best[index(end, type, used)];
    out.groups.push_back({.size = at.size, .type = at.type});
    used -= kvtc_bits(out.groups.back()) / kStep;
    end -= at.size;
    type = at.from;
  }
  std::reverse(out.groups.begin(), out.groups.end());
  return out;
}

}  // namespace kvsim
