#include "traces/synthetic/synthetic_mixture.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "traces/synthetic/synthetic_draw.hpp"
#include "traces/synthetic/synthetic_latents.hpp"

namespace kvsim::synthetic {
namespace {

/// The shares of a query head's attention mass by kind of target.
struct Profile {
  double sink = 0, local = 0, heavy = 0, induction = 0, flat = 0;
};

Profile draw_profile(const GenerateOptions& o, std::int64_t layer, std::int64_t head) {
  const Draw draw{o.seed, Stream::kProfile, layer, head, 0};
  constexpr std::array kKinds{
      Profile{0.55, 0.15, 0.10, 0.08, 0.12},  // sink
      Profile{0.10, 0.65, 0.07, 0.06, 0.12},  // local
      Profile{0.15, 0.12, 0.50, 0.08, 0.15},  // heavy hitters
      Profile{0.15, 0.15, 0.10, 0.48, 0.12},  // induction
      Profile{0.10, 0.20, 0.15, 0.10, 0.45},  // broad
  };
  constexpr std::array kUpTo{0.38, 0.64, 0.80, 0.94, 1.0};
  // Kinds are assigned in turn from a random start, so that even a few heads include several.
  constexpr double kStep = 0.6180339887498949;
  const double start = Draw{o.seed, Stream::kProfile, layer, -1, 0}.uniform(0);
  const double x = start + kStep * static_cast<double>(head);
  const double pick = x - std::floor(x);
  std::size_t kind = 0;
  while (kind + 1 < kKinds.size() && pick >= kUpTo[kind]) ++kind;
  Profile p = kKinds[kind];
  std::int64_t i = 0;
  double sum = 0;
  for (double Profile::*share :
       {&Profile::sink, &Profile::local, &Profile::heavy, &Profile::induction, &Profile::flat}) {
    p.*share *= std::exp(0.3 * static_cast<double>(draw.normal(i++)));
    sum += p.*share;
  }
  for (double Profile::*share :
       {&Profile::sink, &Profile::local, &Profile::heavy, &Profile::induction, &Profile::flat}) {
    p.*share /= sum;
  }
  // First layers attend broadly before sinks have formed (Xiao et al. 2023, fig. 2).
  if (layer == 0 && o.layers > 1) p.sink *= 0.1;
  return p;
}

/// Returns the logit that assigns `share` of the mass to `count` tokens if `flat` is spread over
/// all.
double logit_for(double share, double count, double flat, double tokens) {
  return std::max(0.0, std::log(share * tokens / (flat * count)));
}

}  // namespace

Gains gains_of(const GenerateOptions& o, std::int64_t layer, std::int64_t head) {
  const Profile p = draw_profile(o, layer, head);
  const auto tokens = static_cast<double>(o.tokens);
  constexpr double kLocalTokens = 4;  // near neighbours that share a query's context
  return {.sink = logit_for(p.sink, 1, p.flat, tokens),
          .local = logit_for(p.local, std::min(kLocalTokens, tokens), p.flat, tokens),
          .heavy = logit_for(p.heavy, std::max(1.0, 2 * kHeavyShare * tokens), p.flat, tokens),
          .induction = logit_for(p.induction, 1, p.flat, tokens)};
}

}  // namespace kvsim::synthetic
