#include "models/cost/layer/dealt.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "models/cost/layer/collectives.hpp"
#include "models/llm/llm.hpp"
#include "models/methods/composed.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

constexpr double kFp32Bytes = 4;

}  // namespace

void check_dealt(const Stack& stack, const Llm& llm, const Method& method, Dtype kv_dtype) {
  if (stack.context_parallel == 1) return;
  if (!is_full_or_format(method)) {
    throw InputError{
        fmt::format("engine: decode_context_parallel: expected 1 with method {}: {} distributes "
                    "over GPUs only the full cache or caches with rows of a fixed size",
                    method.name(), stack.name)};
  }
  const auto needs = [&](bool is_needed, EngineVersion first, std::string_view what) {
    const auto release = parse_engine_version(stack.version);
    if (!is_needed || !release || *release >= first) return;
    throw InputError{fmt::format(
        "engine: decode_context_parallel: expected 1 for {} on {} {}: {} are modelled since {}.{}",
        llm.name, stack.name, stack.version, what, first[0], first[1])};
  };
  const auto has = [&](auto&& is) { return std::any_of(llm.layers.begin(), llm.layers.end(), is); };
  // vLLM's release notes of 0.28: Kimi-K3 (PR 50484). Earlier releases reject several block groups
  // (v1/core/kv_cache_utils.py, resolve_kv_cache_block_sizes).
  constexpr EngineVersion kStates{0, 28, 0};
  needs(has([](const LayerSpec& l) { return l.state.kind != StateKind::kNone; }), kStates,
        "layers with states");
  // PRs 44044, 46076 and 46514, merged before July 2026.
  constexpr EngineVersion kLatents{0, 25, 0};
  needs(has([](const LayerSpec& l) { return caches_latents(l) && l.attention.index.top_k > 0; }),
        kLatents, "sparse latents");
  needs(bits_of(kv_dtype) < 16 && has([](const LayerSpec& l) { return caches_latents(l); }),
        kLatents, "latents in 8 bits");
}

std::optional<std::string> describe_dealt(const Stack& stack) {
  if (stack.context_parallel == 1) return std::nullopt;
  return fmt::format(
      "decode context parallelism: the tokens of a sequence are distributed over {} GPUs, each of "
      "which attends to its tokens with the queries of all; the exchanges take the measured time "
      "of NCCL collectives, and their buffers are not counted",
      stack.context_parallel);
}

std::vector<Op> gather_queries(const AttentionWork& work, double rows, double heads, Dtype dtype,
                               std::int32_t passes) {
  const std::int32_t ranks = work.context_ranks;
  if (ranks == 1) return {};
  const double bytes = rows * heads * ranks * work.score_width * bits_of(dtype) / 8.0;
  return {collective_op("gather queries", CollectiveKind::kAllGather, bytes, ranks, dtype, passes)};
}

std::vector<Op> combine_outputs(const AttentionWork& work, double rows, double heads, Dtype dtype,
                                std::int32_t passes) {
  const std::int32_t ranks = work.context_ranks;
  if (ranks == 1) return {};
  const double sums = rows * heads * ranks * kFp32Bytes;
  const double outputs = rows * heads * ranks * work.value_width * bits_of(dtype) / 8.0;
  std::vector<Op> out{collective_op("gather softmax sums", CollectiveKind::kAllGather, sums * ranks,
                                    ranks, Dtype::kFp32, passes),
                      {.name = "scale partial outputs",
                       .family = OpFamily::kElementwise,
                       .bytes_read = outputs + sums * ranks,
                       .bytes_written = outputs + sums,
                       .launches = passes,
                       .dtype = dtype},
                      collective_op("sum partial outputs", CollectiveKind::kReduceScatter, outputs,
                                    ranks, dtype, passes)};
  if (work.is_latent) return out;
  const double own = outputs / ranks;
  out.push_back({.name = "merge attention to new tokens",
                 .family = OpFamily::kElementwise,
                 .bytes_read = 2 * own,
                 .bytes_written = own,
                 .launches = 2 * passes,
                 .dtype = dtype});
  return out;
}

std::vector<Op> gather_latents(const AttentionWork& work, double bytes, Dtype dtype,
                               std::int32_t passes) {
  const std::int32_t ranks = work.context_ranks;
  if (ranks == 1 || !work.is_latent || bytes <= 0) return {};
  return {collective_op("gather cached latents", CollectiveKind::kAllGather, bytes, ranks, dtype,
                        passes)};
}

}  // namespace kvsim
