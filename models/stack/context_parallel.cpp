// Context parallelism: entries distributed over GPUs, and prompts split over groups of GPUs.

#include "models/stack/context_parallel.hpp"

#include <string>
#include <string_view>

#include <fmt/format.h>

#include "models/units/error.hpp"

namespace kvsim {
namespace {

bool is_vllm_since(const Stack& stack, EngineVersion first) {
  if (!stack.defaults || stack.defaults->engine != "vLLM") return false;
  const auto version = parse_engine_version(stack.version);
  return version && *version >= first;
}

[[noreturn]] void refuse(std::string_view key, const std::string& why) {
  throw InputError{fmt::format("engine: {}: expected 1 {}", key, why)};
}
std::string for_stack(const Stack& stack, std::string_view first) {
  return fmt::format("for stack {}{}{}: it is modelled for vLLM from {} on", stack.name,
                     stack.version.empty() ? "" : " ", stack.version, first);
}

}  // namespace

bool has_context_parallel(const Stack& stack) {
  // vLLM PR 23734, and PR 24864 for keys and values of heads.
  return is_vllm_since(stack, {0, 11, 0});
}

bool has_prefill_context(const Stack& stack) {
  // vLLM PR 46570; PR 56157 for exchanges between experts in decode steps.
  return is_vllm_since(stack, {0, 30, 0});
}

void take_context_parallel(Stack& out, const StackOptions& options) {
  if (const std::int32_t ranks = options.context_parallel.value_or(1); ranks > 1) {
    if (!has_context_parallel(out)) refuse("decode_context_parallel", for_stack(out, "0.11"));
    out.context_parallel = ranks;
    out.block_tokens *= ranks;
  }
  if (const std::int32_t parts = options.prefill_context.value_or(1); parts > 1) {
    constexpr std::string_view kKey = "prefill_context_parallel";
    if (!has_prefill_context(out)) refuse(kKey, for_stack(out, "0.30"));
    const auto together = [](std::string_view what) {
      return fmt::format("with {}: they are not modelled together", what);
    };
    if (out.context_parallel > 1) refuse(kKey, together("decode_context_parallel"));
    if (out.host_weights > 0) refuse(kKey, together("host_weights"));
    out.prefill_context = parts;
  }
}

}  // namespace kvsim
