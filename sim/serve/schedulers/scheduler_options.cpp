#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/error.hpp"
#include "sim/serve/schedulers/scheduler.hpp"

namespace kvsim {
namespace {

/// Names of the spec's members that request something; `swap: false` and `prefix_caching: false` do
/// not.
std::vector<std::string_view> set_options(const SchedulerSpec& spec) {
  std::vector<std::string_view> names;
  const auto add = [&](std::string_view name, bool set) {
    if (set) names.push_back(name);
  };
  add("max_num_batched_tokens", spec.max_num_batched_tokens.has_value());
  add("max_num_seqs", spec.max_num_seqs.has_value());
  add("long_prefill_token_threshold", spec.long_prefill_token_threshold.has_value());
  add("chunked_prefill", spec.chunked_prefill.has_value());
  add("prefix_caching", spec.prefix_caching.value_or(false));
  add("batch", spec.batch.has_value());
  add("watermark", spec.watermark.has_value());
  add("swap", spec.swap.value_or(false));
  add("policy", spec.policy.has_value());
  add("conservativeness", spec.conservativeness.has_value());
  add("max_prefill_tokens", spec.max_prefill_tokens.has_value());
  add("mixed_chunk", spec.mixed_chunk.value_or(false));
  add("reserve_full_isl", spec.reserve_full_isl.has_value());
  return names;
}

template <class T>
bool contains(std::span<const T> all, const T& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

}  // namespace

std::string_view display_name(QueueOrder order) {
  switch (order) {
    case QueueOrder::kPriority:
      return "by priority";
    case QueueOrder::kShortestDeclared:
      return "shortest declared output first";
    case QueueOrder::kFcfs:
      break;
  }
  return "first come first served";
}

void expect_at_least(std::string_view scheduler, std::string_view option, std::int64_t value,
                     std::int64_t low) {
  if (value >= low) return;
  throw InputError{
      fmt::format("scheduler {}: {}: expected at least {}, got {}", scheduler, option, low, value)};
}

void check_scheduler_options(const SchedulerSpec& spec, std::string_view name) {
  // The engine's prefill_chunk is a token budget under every scheduler.
  static constexpr std::array<std::string_view, 2> kStatic{"batch", "max_num_batched_tokens"};
  std::span<const std::string_view> options{kStatic};
  std::span<const std::string_view> policies;
  if (name != "static") {
    const SchedulerInfo& info = find_scheduler(name);
    options = info.options;
    policies = info.policies;
  }
  for (const std::string_view option : set_options(spec)) {
    if (contains(options, option)) continue;
    throw InputError{fmt::format("scheduler {}: {}: not an option of this scheduler (options: {})",
                                 name, option, fmt::join(options, ", "))};
  }
  if (spec.policy && !contains(policies, std::string_view{*spec.policy})) {
    const std::vector<std::string> known{policies.begin(), policies.end()};
    throw InputError{
        fmt::format("scheduler {}: policy: {}", name, unknown_name("policy", *spec.policy, known))};
  }
}

}  // namespace kvsim
