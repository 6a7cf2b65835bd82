// Bounds of a service's times for searches: part of ServeContext.

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "sim/serve/schedulers/limits.hpp"
#include "sim/serve/service/serve_context.hpp"

namespace kvsim {
namespace {

// Bounds of min_times if no limit is configured; no engine has higher defaults.
constexpr std::int64_t kMaxBatchedTokens = 32768;
constexpr std::int64_t kMaxRunningSequences = 4096;

}  // namespace

std::optional<MinTimes> ServeContext::min_times(std::int64_t context, std::int64_t max) {
  if (scheduler_ == "static" || !cannot_start_.empty()) return std::nullopt;
  std::vector<IterationCost*> stages;
  if (pipeline_) {
    for (const auto& cost : pipeline_->costs) stages.push_back(cost.get());
  } else {
    stages.push_back(cost_.get());
  }
  struct StageTimes {
    Seconds fastest{std::numeric_limits<double>::infinity()}, slowest{}, sum{};
  };
  const auto times = [&](const MixedStep& step) {
    StageTimes out;
    for (IterationCost* stage : stages) {
      const Seconds time = stage->cost(step).time;
      out.fastest = std::min(out.fastest, time);
      out.slowest = std::max(out.slowest, time);
      out.sum += time;
    }
    return out;
  };
  const Seconds sequence = stack_.front_end.sequence;
  // The part of a context that a method holds is not known here.
  const auto attended = full_law_ ? static_cast<double>(std::max<std::int64_t>(1, context)) : 1.0;
  std::vector<DecodeLoad> loads(static_cast<std::size_t>(sizes_->layer_classes()));
  Seconds fastest{std::numeric_limits<double>::infinity()};  // stage of any step
  MinTimes out{.stages = static_cast<std::int32_t>(stages.size()), .front_end = stack_.front_end};
  if (spec_.speculation.is_on()) out.step_tokens = 1.0 + spec_.speculation.levels();
  const ConfiguredLimits limits = resolve_limits(stack_, spec_.scheduler);
  std::int64_t rows = limits.tokens.value_or(kMaxBatchedTokens);
  max = std::min(max, limits.seqs.value_or(kMaxRunningSequences));
  if (scheduler_ != "sglang") max = std::min(max, rows);  // there the limit is on prompts only
  const auto& requests = spec_.requests->requests;
  // Without chunks, an iteration can take the longest prompt.
  if (!spec_.scheduler.chunked_prefill.value_or(scheduler_ != "vllm-v0")) {
    for (const Request& r : requests) rows = std::max<std::int64_t>(rows, r.prompt_tokens);
  }
  // Sequences may share blocks of equal prefixes.
  if (full_law_ && context > 0 && spec_.requests->prefix_block == 0) {
    max = std::min(max, pool_units_ * sizes_->block_tokens() / context);
  }
  out.sequences = std::max<std::int64_t>(1, max);
  constexpr double kGrowth = 1.12;  // between the evaluated numbers
  const auto after = [](std::int64_t n) {
    return std::max(n + 1, static_cast<std::int64_t>(static_cast<double>(n) * kGrowth));
  };
  // Kernels may be faster with more rows.
  const auto rise = [](auto& entries, auto time) {
    for (std::size_t i = entries.size(); i-- > 1;) {
      entries[i - 1].*time = std::min(entries[i - 1].*time, entries[i].*time);
    }
  };
  for (std::int64_t n = 1; n <= out.sequences; n = after(n)) {
    const double entries = static_cast<double>(n) * attended;
    for (std::size_t l = 0; l < loads.size(); ++l) {
      const std::int64_t sees = sizes_->layer_class(l).sees;
      const double seen =
          sees > 0 ? std::min(entries, static_cast<double>(n) * static_cast<double>(sees))
                   : entries;
      loads[l] = {.attended = seen, .held = entries};
    }
    const StageTimes step = times({.decodes = n, .loads = loads, .chunks = {}});
    out.token = n == 1 ? step.sum + sequence : std::min(out.token, step.sum + sequence);
    fastest = std::min(fastest, step.fastest);
    out.decodes.push_back(
        {.max = after(n) - 1, .interval = step.slowest + sequence * static_cast<double>(n)});
  }
  rise(out.decodes, &MinTimes::Decodes::interval);
  for (std::int64_t n = 1; n <= rows; n = after(n)) {
    const PrefillChunk chunk{.tokens = n, .before = 0, .last = false};
    const StageTimes step = times({.decodes = 0, .loads = {}, .chunks = {&chunk, 1}});
    fastest = std::min(fastest, step.fastest);
    out.prompts.push_back(
        {.max = std::min(rows, after(n) - 1), .interval = step.slowest, .latency = step.sum});
  }
  rise(out.prompts, &MinTimes::Prompts::interval);
  rise(out.prompts, &MinTimes::Prompts::latency);
  out.interval = fastest;
  return out;
}

}  // namespace kvsim
