#include "sim/plan/knobs.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace kvsim {

std::string times_text(double ratio) { return fmt::format("x {:g}", ratio); }

std::vector<double> knob_ratios() { return {1.1, 1.25, 1.5, 2, 3, 4, 6, 8}; }

std::vector<KnobEffect> try_knobs(double need, const std::vector<Knob>& knobs) {
  constexpr double kNothing = 1e-3;
  constexpr std::size_t kMaxMovedFurther = 4;
  struct Tried {
    KnobEffect effect;
    const Knob* knob;
  };
  std::vector<Tried> all;
  for (const Knob& knob : knobs) {
    if (knob.steps.empty()) continue;
    const KnobStep& first = knob.steps.front();
    KnobEffect effect{.knob = knob.name,
                      .change = first.change,
                      .need = first.need(),
                      .elasticity = 0,
                      .enough = {}};
    if (need > 0 && effect.need > 0 && std::isfinite(need) && std::isfinite(effect.need)) {
      effect.elasticity = first.ratio > 0
                              ? std::log(need / effect.need) / std::abs(std::log(first.ratio))
                              : 1 - effect.need / need;
    } else if (std::isfinite(effect.need)) {
      effect.elasticity = 1;  // from nothing to something
    }
    if (effect.need <= 1) effect.enough = first.change;
    if (effect.elasticity > kNothing || effect.need <= 1) all.push_back({effect, &knob});
  }
  std::stable_sort(all.begin(), all.end(), [](const Tried& a, const Tried& b) {
    return a.effect.elasticity > b.effect.elasticity;
  });
  std::vector<KnobEffect> out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    Tried& tried = all[i];
    for (std::size_t s = 1; i < kMaxMovedFurther && s < tried.knob->steps.size(); ++s) {
      if (!tried.effect.enough.empty()) break;
      if (tried.knob->steps[s].need() <= 1) tried.effect.enough = tried.knob->steps[s].change;
    }
    out.push_back(tried.effect);
  }
  return out;
}

}  // namespace kvsim
