#include "sim/serve/account/mean_iteration.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "models/cost/cache_rows.hpp"
#include "models/cost/iteration/mixed.hpp"
#include "sim/serve/service/serve_context.hpp"

namespace kvsim {

std::optional<MeanIteration> mean_iteration(const ServeSpec& spec, const ServeResult& result) {
  if (!result.startup || result.iterations == 0 || result.iteration_samples.empty()) {
    return std::nullopt;
  }
  MeanIteration out;
  out.iterations = result.iterations;
  double decodes = 0, prefill = 0;
  for (const ServeIteration& i : result.iteration_samples) {
    decodes += i.decodes;
    prefill += i.prefill_tokens;
  }
  const auto samples = static_cast<double>(result.iteration_samples.size());
  out.decodes = std::llround(decodes / samples);
  out.prefill_tokens = std::llround(prefill / samples);
  if (out.decodes + out.prefill_tokens == 0) return std::nullopt;
  constexpr double kPicosecond = 1e-12;
  out.mean = Seconds{result.busy * static_cast<double>(result.makespan.count()) * kPicosecond *
                     static_cast<double>(std::max<std::size_t>(1, result.timeline.size())) /
                     static_cast<double>(result.iterations)};
  // A decoding sequence has, on average over its tokens, generated half of its output.
  double tokens = 0, context = 0;
  for (const RequestOutcome& o : result.outcomes) {
    if (o.status != RequestStatus::kCompleted) continue;
    tokens += o.output_tokens;
    context += o.output_tokens * (o.prompt_tokens + 0.5 * o.output_tokens);
  }

  const ServeHooks hooks;
  const ServeContext site{spec, hooks};
  CostInput in = site.cost_input();
  const Roofline roofline{*spec.gpu, *in.stack, site.calibration()};
  out.prompt = in.prompt;
  out.context =
      std::max<std::int64_t>(in.prompt + 1, tokens > 0 ? std::llround(context / tokens) : 0);
  const MixedStepCost cost{in, roofline};
  std::vector<DecodeLoad> loads;
  for (const MixedStepCost::LayerClass& one : cost.layer_classes()) {
    const auto held = in.method->entries_held(one.layer, out.prompt, out.context);
    const auto attended = in.method->entries_attended(one.layer, out.prompt, out.context);
    if (!held || !attended) return std::nullopt;
    const auto all = static_cast<double>(out.decodes);
    DecodeLoad& load = loads.emplace_back();
    load.attended = all * static_cast<double>(*attended);
    load.held = all * static_cast<double>(*held);
    if (!in.method->ragged()) continue;
    // As SequenceFootprint::attended.
    std::vector<std::int64_t> heads(
        static_cast<std::size_t>(CacheRows{in, one.layer}.stored_heads()));
    in.method->heads_held(one.layer, out.prompt, out.context - 1, heads);
    const double longest = all * static_cast<double>(heads.front() + 1);
    if (!in.stack->per_head_blocks) {
      load.attended = longest;
      continue;
    }
    const auto sum = std::accumulate(heads.begin(), heads.end(), std::int64_t{0});
    load.attended = all * (static_cast<double>(sum) / static_cast<double>(heads.size()) + 1);
    load.longest = longest;
  }
  std::vector<PrefillChunk> chunks;
  if (out.prefill_tokens > 0) {
    chunks.push_back({.tokens = out.prefill_tokens, .before = out.prompt / 2});
  }
  const MixedStep mixed{.decodes = out.decodes, .loads = loads, .chunks = chunks};
  const Step step = mixed_step(in, mixed);
  in.batch = std::max<std::int64_t>(1, mixed.sampled());
  out.step =
      explain_step({.cost = &in, .gpu = spec.gpu, .roofline = &roofline}, out.decodes > 0 ? 1 : 0,
                   out.context, evaluate(step, roofline).time, step);
  return out;
}

}  // namespace kvsim
