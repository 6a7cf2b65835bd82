#pragma once

// A layer's operator graph and the counts of kernels beside it.

#include <functional>
#include <string>
#include <string_view>

#include "models/cost/step.hpp"
#include "tests/kernels/kernel_run.hpp"
#include "tests/support/machines.hpp"

namespace kvsim::test {

constexpr std::int64_t kHeads = 8, kStored = 2, kHeadDim = 64, kWidth = 512;
constexpr std::int64_t kRows = kStored;  // of a cache, a sequence

inline Llm graph_llm() {
  return make_llm({.n_layers = 1,
                   .d_model = kWidth,
                   .n_heads = kHeads,
                   .n_kv_heads = kStored,
                   .head_dim = kHeadDim,
                   .d_ff = 1024,
                   .vocab = 1000});
}

inline const Op& op_of(const OpGraph& graph, std::string_view name) {
  for (OpIndex i = 0; i < graph.size(); ++i) {
    if (graph.op(i).name == name) return graph.op(i);
  }
  FAIL("the graph has no operator called ", std::string{name});
  return graph.op(0);
}

inline Counters run(const std::function<void(Device&)>& body) {
  Device device;
  body(device);
  return device.counters();
}

template <class T>
std::vector<T> numbers(std::int64_t n) {
  return stored<T>(draw(11, n));
}

}  // namespace kvsim::test
