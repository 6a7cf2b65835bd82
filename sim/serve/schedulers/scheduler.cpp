#include "sim/serve/schedulers/scheduler.hpp"

#include <array>

#include "models/stack/stack.hpp"
#include "models/units/error.hpp"

namespace kvsim {

namespace {

using Name = std::string_view;
constexpr std::array kVllmV1Options{
    Name{"max_num_batched_tokens"}, Name{"max_num_seqs"},   Name{"long_prefill_token_threshold"},
    Name{"chunked_prefill"},        Name{"prefix_caching"}, Name{"watermark"},
    Name{"reserve_full_isl"}};
constexpr std::array kVllmV0Options{
    Name{"max_num_batched_tokens"}, Name{"max_num_seqs"}, Name{"chunked_prefill"},
    Name{"prefix_caching"},         Name{"watermark"},    Name{"swap"}};
constexpr std::array kSglangOptions{
    Name{"max_num_batched_tokens"}, Name{"max_num_seqs"}, Name{"chunked_prefill"},
    Name{"prefix_caching"},         Name{"policy"},       Name{"conservativeness"},
    Name{"max_prefill_tokens"},     Name{"mixed_chunk"}};
constexpr std::array kTrtllmOptions{Name{"max_num_batched_tokens"}, Name{"max_num_seqs"},
                                    Name{"chunked_prefill"}, Name{"prefix_caching"},
                                    Name{"policy"}};
constexpr std::array kSglangPolicies{Name{"fcfs"}, Name{"lpm"}};
constexpr std::array kTrtllmPolicies{Name{"guaranteed-no-evict"}, Name{"max-utilization"}};

}  // namespace

std::span<const SchedulerInfo> builtin_schedulers() {
  static const std::array table{
      SchedulerInfo{.name = "vllm-v1",
                    .summary = "token budget shared by decodes and prompt chunks; preempted "
                               "sequences are recomputed",
                    .make = &make_vllm_v1,
                    .prefix_caching = true,
                    .options = kVllmV1Options},
      SchedulerInfo{.name = "vllm-v0",
                    .summary = "whole prompts before decodes; preempted sequences are recomputed "
                               "or swapped to host memory",
                    .make = &make_vllm_v0,
                    .options = kVllmV0Options},
      SchedulerInfo{.name = "sglang",
                    .summary = "prompts before decodes, admitted by an estimate of future outputs; "
                               "decodes are retracted if it was too low",
                    .make = &make_sglang,
                    .prefix_caching = true,
                    .clips = true,
                    .options = kSglangOptions,
                    .policies = kSglangPolicies},
      SchedulerInfo{.name = "trtllm",
                    .summary = "in-flight batches; sequences' declared lengths are reserved, or "
                               "sequences are admitted while they fit",
                    .make = &make_trtllm,
                    .prefix_caching = true,
                    .clips = true,
                    .options = kTrtllmOptions,
                    .policies = kTrtllmPolicies},
  };
  return table;
}

std::vector<std::string> scheduler_names() {
  std::vector<std::string> names{"static"};
  for (const SchedulerInfo& info : builtin_schedulers()) names.emplace_back(info.name);
  return names;
}

const SchedulerInfo& find_scheduler(std::string_view name) {
  for (const SchedulerInfo& info : builtin_schedulers()) {
    if (info.name == name) return info;
  }
  throw InputError{unknown_name("scheduler", name, scheduler_names())};
}

std::string default_scheduler(const Stack& stack) {
  if (stack.growth != CacheGrowth::kPaged) return "static";
  const std::string own = stack.name;
  for (const SchedulerInfo& info : builtin_schedulers()) {
    if (info.name == own) return own;
  }
  return "vllm-v1";
}

}  // namespace kvsim
