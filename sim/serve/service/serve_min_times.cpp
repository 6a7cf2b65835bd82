// Bounds of a service's times for searches: part of ServeContext.

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "sim/serve/schedulers/limits.hpp"
#include "sim/serve/service/serve_context.hpp"

namespace kvsim {
namespace {

// Bounds of min_times where no limit is configured; no engine's defaults are higher.
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
  // The slowest stage's, and the sum of all.
  const auto times = [&](const MixedStep& step) {
    std::pair<Seconds, Seconds> out{};
    for (IterationCost* stage : stages) {
      const Seconds time = stage->cost(step).time;
      out.first = std::max(out.first, time);
      out.second += time;
    }
    return out;
  };
  const Seconds sequence = stack_.front_end.sequence;
  // What a method holds of a context is not known here.
  const auto attended = full_law_ ? static_cast<double>(std::max<std::int64_t>(1, context)) : 1.0;
  std::vector<DecodeLoad> loads(static_cast<std::size_t>(sizes_->layer_classes()));
  MinTimes out;
  if (spec_.speculation.is_on()) out.step_tokens = 1.0 + spec_.speculation.levels();
  const ConfiguredLimits limits = resolve_limits(stack_, spec_.scheduler);
  const std::int64_t rows = limits.tokens.value_or(kMaxBatchedTokens);
  max = std::min({max, limits.seqs.value_or(kMaxRunningSequences), rows});
  if (full_law_ && context > 0) {
    max = std::min(max, pool_units_ * sizes_->block_tokens() / context);
  }
  constexpr double kGrowth = 1.12;  // of the numbers that are looked at
  for (std::int64_t n = 1; n <= std::max<std::int64_t>(1, max);) {
    const auto next = std::max(n + 1, static_cast<std::int64_t>(static_cast<double>(n) * kGrowth));
    const double entries = static_cast<double>(n) * attended;
    std::fill(loads.begin(), loads.end(), DecodeLoad{.attended = entries, .held = entries});
    const auto [interval, latency] = times({.decodes = n, .loads = loads, .chunks = {}});
    if (n == 1) out.token = latency + sequence;
    out.decodes.push_back(
        {.max = next - 1, .interval = interval + sequence * static_cast<double>(n)});
    n = next;
  }
  // Kernels may be quicker with more rows.
  for (std::size_t i = out.decodes.size(); i-- > 1;) {
    Seconds& before = out.decodes[i - 1].interval;
    before = std::min(before, out.decodes[i].interval);
  }
  out.prompt_token = Seconds{std::numeric_limits<double>::infinity()};
  for (std::int64_t n = rows; n >= 1; n /= 2) {
    const PrefillChunk chunk{.tokens = n, .before = 0, .last = false};
    const Seconds time = times({.decodes = 0, .loads = {}, .chunks = {&chunk, 1}}).first;
    out.prompt_token = std::min(out.prompt_token, time * (1.0 / static_cast<double>(n)));
  }
  return out;
}

}  // namespace kvsim
