#pragma once

// Shared by tests of an engine's iteration: models of many kinds, methods of every compaction,
// random steps.

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "models/cost/iteration/mixed.hpp"
#include "models/cost/rates/roofline.hpp"
#include "tests/support/check.hpp"
#include "tests/support/machines.hpp"

namespace kvsim::test {

/// A latent layer, a layer of experts, a layer with a window and a plain layer.
inline Llm many_kinds() {
  Llm llm = small_llm();
  llm.layers[1].attention = {.n_heads = 8,
                             .n_kv_heads = 8,
                             .head_dim = 48,
                             .v_head_dim = 32,
                             .kv_lora_rank = 64,
                             .q_lora_rank = 0,
                             .rope_head_dim = 16};
  llm.layers[2].mlp.n_experts = 8;
  llm.layers[2].mlp.top_k = 2;
  llm.layers[3].attention.window = 100;
  return llm;
}

/// Traffic in pages of 64 entries: not linear.
class PagedMethod : public FullMethod {
 public:
  [[nodiscard]] StepTraffic decode_traffic(std::int32_t layer, const LayerShape& shape,
                                           Dtype recorded, double attended,
                                           bool evicts) const override {
    return FullMethod::decode_traffic(layer, shape, recorded, std::ceil(attended / 64) * 64,
                                      evicts);
  }
};

inline MixedCost graphs_cost(const Step& step, const Roofline& roofline) {
  const StepCost cost = evaluate(step, roofline);
  return {.time = cost.time, .flops = cost.flops, .bytes = cost.bytes, .at_peak = cost.at_peak};
}

inline void check_equal(const MixedCost& got, const MixedCost& expected, double epsilon = 1e-9) {
  CHECK(got.time.count() == rel(expected.time.count(), epsilon));
  CHECK(got.flops == rel(expected.flops, epsilon));
  CHECK(got.bytes == rel(expected.bytes, epsilon));
  CHECK(got.at_peak.count() == rel(expected.at_peak.count(), epsilon));
}

/// Load per layer class for `in.batch` sequences of one length at their step from `prompt` to
/// `tokens`.
inline std::vector<DecodeLoad> equal_loads(const CostInput& in, const MixedStepCost& cost,
                                           std::int64_t prompt, std::int64_t tokens) {
  std::vector<DecodeLoad> loads;
  for (const MixedStepCost::LayerClass& one : cost.layer_classes()) {
    const DecodeState m = decode_moment(in, one.layer, prompt, tokens,
                                        held_entries(in, one.layer, prompt, tokens - 1));
    loads.push_back({.attended = static_cast<double>(in.batch * m.attended),
                     .held = static_cast<double>(in.batch * m.after),
                     .evicting = m.evicts ? in.batch : 0,
                     .rewriting = m.change == CacheChange::kRewrite ? in.batch : 0,
                     .sliding = m.change == CacheChange::kOverwrite && !m.evicts ? in.batch : 0});
  }
  return loads;
}

/// Random decodes and chunks: no two sequences are equal.
struct Drawn {
  std::vector<DecodeLoad> loads;
  std::vector<PrefillChunk> chunks;
  MixedStep step;
};
inline Drawn draw(std::mt19937_64& dice, std::span<const std::int64_t> windows,
                  std::int64_t max_chunks, std::int64_t tokens = 1) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(dice() % static_cast<std::uint64_t>(n));
  };
  Drawn out;
  const std::int64_t n_chunks = below(max_chunks + 1);
  for (std::int64_t i = 0; i < n_chunks; ++i) {
    out.chunks.push_back(
        {.tokens = 1 + below(700), .before = below(3) * below(900), .last = below(2) == 1});
  }
  out.step.decodes = n_chunks == 0 ? 1 + below(40) : below(40);
  out.step.decode_tokens = tokens;
  out.loads.resize(windows.size());
  for (std::int64_t i = 0; i < out.step.decodes; ++i) {
    const std::int64_t held = tokens + below(5000);
    const bool evicts = below(4) == 0;
    const bool rewrites = evicts && below(2) == 0;
    const bool leaves_hole = evicts && !rewrites && below(2) == 0;
    const bool closes = leaves_hole && below(3) == 0;
    for (std::size_t layer_class = 0; layer_class < windows.size(); ++layer_class) {
      const std::int64_t seen =
          windows[layer_class] > 0 ? std::min(held, windows[layer_class]) : held;
      DecodeLoad& load = out.loads[layer_class];
      load.attended += static_cast<double>(seen);
      load.held += static_cast<double>(seen);
      load.evicting += evicts ? 1 : 0;
      load.rewriting += rewrites ? 1 : 0;
      load.longest += 1.5 * static_cast<double>(seen);
      load.holes += leaves_hole ? 1 : 0;
      load.compacted += closes ? static_cast<double>(seen) : 0;
    }
  }
  out.step.loads = out.loads;
  out.step.chunks = out.chunks;
  return out;
}

inline std::vector<std::int64_t> windows_of(const Llm& llm, const MixedStepCost& cost) {
  std::vector<std::int64_t> windows;
  for (const MixedStepCost::LayerClass& one : cost.layer_classes()) {
    windows.push_back(llm.layers[static_cast<std::size_t>(one.layer)].attention.window);
  }
  return windows;
}

/// Methods of every compaction, some with scores at prefill, side data and budgets by layer.
struct Methods {
  FullMethod full;
  PagedMethod paged;
  BoundedMethod ring{{.budget = 333, .side_per_entry = 8, .extra_launches = 4}};
  BoundedMethod gather{
      {.budget = 333,
       .compaction = Compaction::kGather,
       .needs = {.prompt_scores = PromptScoreClass::kLastWindow, .prompt_window = 32},
       .budget_step = 10}};
  BoundedMethod late{{.budget = 333,
                      .needs = {.prompt_scores = PromptScoreClass::kColumnSums,
                                .score_exec = ScoreExec::kFusedTwoPass},
                      .prefill_peak = PrefillPeak::kAllLayers,
                      .has_equal_layers = true}};
  std::vector<const Method*> all{&full, &paged, &ring, &gather, &late};
};

}  // namespace kvsim::test
