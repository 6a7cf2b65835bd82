// Methods that merge evicted entries into others.

#include "models/methods/resolve/presets.hpp"

namespace kvsim {

PresetRows merging_presets() {
  return {
      {.name = "keepkv",
       .summary = "evicted entries are merged into the most similar kept entry, with votes and key "
                  "chosen so that the current output does not change",
       .paper = "Tian et al., KeepKV",
       .axes = {{"select", "logit_average"}, {"budget", "cosine"}, {"merge", "zip"}},
       .size_law = "min(T, B_l), B_l falling with depth as a cosine",
       .cost_class = "SW(w + 1) at prefill, SD (raw logits) in decode",
       .defaults = {},
       .default_budget = 0.2,
       .available = {{"research", "kkvcache/KeepKV, no authors named"}}},
      {.name = "d2o",
       .summary = "heavy hitters; evicted entries are merged into similar kept entries above a "
                  "threshold; layers with even attention get larger budgets",
       .paper = "Wan et al., D2O: Dynamic Discriminative Operations",
       .axes = {{"select", "accumulated"}, {"budget", "variance"}, {"merge", "cosine_ema"}},
       .size_law = "min(T, B_l); layers 0, 1 and the last T",
       .cost_class = "SF at prefill, SD in decode",
       .defaults = {{"sinks", std::int64_t{4}}, {"first_compression", std::string{"first_step"}}},
       .default_budget = 0.2,
       .available = {{"research", "AIoT-MLSys-Lab/D2O"}}},
      {.name = "cam",
       .summary =
           "first and recent tokens; values of evicted tokens are spread over the next tokens",
       .paper = "Zhang et al., CaM: Cache Merging",
       .axes = {{"select", "recent"}, {"budget", "uniform"}, {"merge", "value_spread"}},
       .size_law = "min(T, start + recent)",
       .cost_class = "SF at prefill, SD in decode",
       .defaults = {{"start_share", 0.5}},
       .default_budget = 0.2,
       .available = {{"kvpress", "CAMPress"}, {"research", "zyxxmu/cam"}}},
      {.name = "merging",
       .summary = "accumulated attention; values of evicted entries are blended into the most "
                  "similar kept entry",
       .paper = "NVIDIA kvpress, MergingPress",
       .axes = {{"select", "accumulated"}, {"budget", "uniform"}, {"merge", "value_blend"}},
       .size_law = "min(T, heavy + recent)",
       .cost_class = "SF at prefill, SD in decode",
       .defaults = {},
       .default_budget = 0.2,
       .available = {{"kvpress", "MergingPress"}}},
      {.name = "kvmerger",
       .summary =
           "runs of similar keys in the prompt are merged into one row each, with Gaussian weights",
       .paper = "Wang et al., Model Tells You Where to Merge (KVMerger)",
       .axes = {{"select", "key_runs"}, {"budget", "uniform"}, {"merge", "gaussian"}},
       .size_law = "sets + protected + n: data-dependent",
       .cost_class = "SF at prefill",
       .defaults = {}},
      {.name = "less",
       .summary = "accumulated attention; evicted entries are added to a small state that queries "
                  "still attend to, by feature maps fitted on the prompt",
       .paper = "Dong et al., Get More with LESS",
       .axes = {{"select", "accumulated"}, {"budget", "uniform"}, {"merge", "low_rank"}},
       .size_law = "min(T, heavy + recent), and R (d + 1) numbers per head",
       .cost_class = "SF at prefill, SD in decode",
       .defaults = {},
       .default_budget = 0.05,
       .available = {{"research", "hdong920/LESS"}}},
  };
}

}  // namespace kvsim
