#include "sim/serve/schedulers/limits.hpp"

#include <algorithm>

namespace kvsim {
namespace {

std::optional<std::int64_t> above_0(std::int64_t limit) {
  return limit > 0 ? std::optional{limit} : std::nullopt;
}

}  // namespace

std::int64_t ConfiguredLimits::iteration_tokens(bool has_chunks, std::int64_t longest,
                                                std::int64_t otherwise) const {
  const std::int64_t budget = tokens.value_or(otherwise);
  return has_chunks || sets_tokens ? budget : std::max(budget, longest);
}

ConfiguredLimits resolve_limits(const Stack& stack, const SchedulerSpec& spec) {
  // Attention groups divide the spec's limits; the stack then has the divided ones.
  const bool divides = stack.attention_groups > 1;
  const auto seqs = divides ? std::nullopt : spec.max_num_seqs;
  const auto tokens = divides ? std::nullopt : spec.max_num_batched_tokens;
  return {.seqs = seqs ? seqs : above_0(stack.max_num_seqs),
          .tokens = tokens ? tokens : above_0(stack.prefill_chunk),
          .sets_tokens = spec.max_num_batched_tokens.has_value()};
}

StackOptions with_limits(StackOptions options, const SchedulerSpec& spec) {
  if (spec.max_num_seqs) options.max_num_seqs = spec.max_num_seqs;
  if (spec.max_num_batched_tokens) options.prefill_chunk = spec.max_num_batched_tokens;
  return options;
}

}  // namespace kvsim
