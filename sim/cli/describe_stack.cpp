#include <fmt/format.h>

#include "models/units/units_format.hpp"
#include "sim/cli/describe.hpp"
#include "sim/cli/describe_text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

std::string_view word_of(CacheGrowth growth) {
  switch (growth) {
    case CacheGrowth::kStatic:
      return "static";
    case CacheGrowth::kExact:
      return "exact";
    case CacheGrowth::kConcatLayer:
      return "concat_layer";
  }
  return "unknown";
}
std::string_view sentence_of(CacheGrowth growth) {
  switch (growth) {
    case CacheGrowth::kStatic:
      return "allocated for its final length at the start";
    case CacheGrowth::kExact:
      return "grows in place by what is stored";
    case CacheGrowth::kConcatLayer:
      return "each layer's keys, then its values, are copied into a longer tensor";
  }
  return "unknown";
}
std::string_view yes_no(bool value) { return value ? "yes" : "no"; }

}  // namespace

ordered_json stack_json(const Stack& stack) {
  return {{"name", stack.name},
          {"summary", stack.summary},
          {"growth", word_of(stack.growth)},
          {"attention", stack.attention == AttentionExec::kFused ? "fused" : "eager"},
          {"logits", stack.logits == LogitPositions::kLast ? "last" : "all"},
          {"logits_fp32", stack.logits_fp32},
          {"expands_kv_heads", stack.expands_kv_heads},
          {"rounds_allocations", stack.rounds_allocations},
          {"keeps_inputs", stack.keeps_inputs},
          {"splits_keys", stack.splits_keys},
          {"norm_launches", stack.norm_launches},
          {"rope_launches", stack.rope_launches},
          {"context_bytes", stack.context.count()},
          {"usable_fraction", stack.usable_fraction},
          {"launch_overhead_s", stack.launch_overhead.count()},
          {"host_per_layer_s", stack.host_per_layer.count()},
          {"host_per_step_s", stack.host_per_step.count()},
          {"host_per_launch_s", stack.host_per_launch.count()},
          {"sources", stack.sources}};
}

std::string stack_text(const Stack& stack, std::size_t width) {
  Facts facts;
  facts.add("what", stack.summary);
  facts.add("cache", std::string{sentence_of(stack.growth)});
  facts.add("attention", stack.attention == AttentionExec::kFused
                             ? "fused: no score matrix in memory"
                             : "eager: score matrices in memory");
  facts.add("logits", fmt::format("of {}{}",
                                  stack.logits == LogitPositions::kLast ? "the last position"
                                                                        : "all positions",
                                  stack.logits_fp32 ? ", upcast to fp32" : ""));
  facts.add("KV heads", stack.expands_kv_heads ? "repeated to the query heads before attention"
                                               : "read as stored");
  facts.add("allocations", stack.rounds_allocations ? "rounded to blocks of 512 B" : "exact");
  facts.add("holds inputs", std::string{yes_no(stack.keeps_inputs)});
  facts.add("splits keys", fmt::format("{} (decode attention of few heads fills the GPU)",
                                       yes_no(stack.splits_keys)));
  facts.add("launches", fmt::format("{} a norm, {} a rotation of Q and K", stack.norm_launches,
                                    stack.rope_launches));
  facts.add("context", fmt::format("{}", stack.context));
  facts.add("usable", fmt::format("{:g} of what the driver reports", stack.usable_fraction));
  facts.add("time a launch", fmt::format("{}", stack.launch_overhead));
  facts.add("host time",
            fmt::format("{} a layer, {} a step, {} an operator of a method", stack.host_per_layer,
                        stack.host_per_step, stack.host_per_launch));
  return stack.name + "\n" + facts.str(width) + sources_text(stack.sources, width);
}

}  // namespace kvsim
