// Methods in which what leaves lives on in another entry.

#include "models/methods/presets.hpp"

namespace kvsim {

PresetRows merging_presets() {
  return {
      {.name = "keepkv",
       .summary = "entries that leave join the most similar kept one, votes and key chosen so that "
                  "the present output does not change",
       .paper = "Tian et al., KeepKV",
       .axes = {{"select", "logit_average"}, {"budget", "uniform"}, {"merge", "zip"}},
       .size_law = "min(T, B_l)",
       .cost_class = "SW(w + 1) at prefill, SD (raw logits) in decode",
       .defaults = {},
       .default_budget = 0.2},
  };
}

}  // namespace kvsim
