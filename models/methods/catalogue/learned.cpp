// Oracles, surrogates and recorded decisions.

#include "models/methods/presets.hpp"

namespace kvsim {

PresetRows learned_presets() {
  const std::string repeat = "S0 after a repeat of the prompt (2-3 times the prefill)";
  return {
      {.name = "kvzip",
       .summary = "prompt entries ranked over all heads by how much repeating the prompt needs them",
       .paper = "Kim et al., KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction",
       .axes = {{"select", "kvzip"}, {"budget", "global"}},
       .size_law = "(1 - ratio) s on average over heads, and n",
       .cost_class = repeat},
      {.name = "kvzip-plus",
       .summary = "KVzip, each entry weighted by its effect on the residual stream",
       .paper = "KVzip+ of kvpress, targets of KVzap's surrogates",
       .axes = {{"select", "kvzip-plus"}, {"budget", "global"}},
       .size_law = "(1 - ratio) s on average over heads, and n",
       .cost_class = repeat},
  };
}

}  // namespace kvsim
