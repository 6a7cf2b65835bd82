#include "sim/serve/scheduler.hpp"

#include <array>

#include "models/stack/stack.hpp"
#include "models/units/error.hpp"

namespace kvsim {

std::span<const SchedulerInfo> builtin_schedulers() {
  static const std::array table{
      SchedulerInfo{.name = "vllm-v1",
                    .summary = "token budget shared by decodes and prompt chunks; preempted "
                               "sequences are computed anew",
                    .make = &make_vllm_v1,
                    .prefix_caching = true},
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
