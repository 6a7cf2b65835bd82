#pragma once

// Queries of tests about a graph, and a shard that builds graphs.

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include <doctest/doctest.h>

#include "models/cost/graph.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/gpu/gpu.hpp"
#include "tests/support/machines.hpp"

namespace kvsim::test {

/// The largest number of bytes that `owner` holds at once.
inline Bytes peak_of_owner(const OpGraph& graph, Owner owner) {
  Bytes peak;
  for (OpIndex i = 0; i < graph.size(); ++i) {
    Bytes alive;
    for (const Tensor& t : graph.tensors()) {
      if (t.owner == owner && t.first <= i && i <= t.last) alive += t.bytes;
    }
    peak = std::max(peak, alive);
  }
  return peak;
}

/// The first operator of that name; null if there is none.
inline const Op* find(const OpGraph& graph, std::string_view name) {
  for (OpIndex i = 0; i < graph.size(); ++i) {
    if (graph.op(i).name == name) return &graph.op(i);
  }
  return nullptr;
}
inline const Op& op(const OpGraph& graph, std::string_view name) {
  const Op* found = find(graph, name);
  REQUIRE_MESSAGE(found != nullptr, "no operator ", name);
  return *found;
}

/// A shard of a model on one of several H200 under vLLM, with the full cache in 16 bits.
struct ShardSite {
  Llm llm;
  std::int32_t tensor_parallel;
  std::int64_t prompt;
  Stack stack = find_stack("vllm");
  const Gpu& gpu = find_gpu("H200-141GB-SXM");
  FullMethod full{};

  ShardSite(Llm shard, std::int32_t ranks, std::int64_t tokens)
      : llm{std::move(shard)}, tensor_parallel{ranks}, prompt{tokens} {}
  [[nodiscard]] CostInput input(std::int64_t batch = 1) const {
    return {.llm = &llm,
            .method = &full,
            .stack = &stack,
            .weight_dtype = Dtype::kBf16,
            .kv_dtype = Dtype::kBf16,
            .batch = batch,
            .prompt = prompt,
            .tensor_parallel = tensor_parallel};
  }
  /// The first step after the prompt.
  [[nodiscard]] OpGraph decode(std::int32_t layer, std::int64_t batch) const {
    const CostInput in = input(batch);
    return decode_layer(in, layer, decode_moment(in, layer, prompt, prompt + 1, prompt));
  }
};

}  // namespace kvsim::test
