#pragma once

// A layer's operator graph, and counts of kernels to compare with it.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/step.hpp"
#include "tests/kernels/kernel_run.hpp"
#include "tests/support/machines.hpp"

namespace kvsim::test {

constexpr std::int64_t kHeads = 8, kStored = 2, kHeadDim = 64, kWidth = 512;
constexpr std::int64_t kRows = kStored;  // of a cache, per sequence

inline Llm graph_llm(std::int32_t n_layers = 1) {
  return make_llm({.n_layers = n_layers,
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

constexpr std::int64_t kEntry = kHeadDim * 2;  // bytes of a key, or a value, of one stored head

/// A method in the graph of one layer of `n_layers`.
struct MethodGraph {
  Llm model;
  std::shared_ptr<const Method> method;
  CostInput in;

  MethodGraph(const std::string& name, const Params& params, std::int64_t budget,
              std::int64_t batch, std::int64_t prompt = 1000, std::int32_t n_layers = 1)
      : model{graph_llm(n_layers)},
        method{make_method(
            {.name = name,
             .params = params,
             .budget = budget > 0 ? std::optional{Budget{.entries = budget}} : std::nullopt},
            prompt,
            {.recorded = Dtype::kFp16,
             .shape = {.n_heads = kHeads, .n_kv_heads = kStored, .head_dim = kHeadDim},
             .n_layers = n_layers,
             .d_model = kWidth})},
        in{.llm = &model,
           .method = method.get(),
           .stack = &find_stack("ideal"),
           .weight_dtype = Dtype::kFp16,
           .kv_dtype = Dtype::kFp16,
           .batch = batch} {}

  /// A step that attends to `entries` entries and removes one of them unless `change` is growth.
  [[nodiscard]] OpGraph decode(std::int64_t entries, CacheChange change,
                               std::int32_t layer = 0) const {
    const bool evicts = change != CacheChange::kGrow;
    return decode_layer(in, layer,
                        {.attended = entries,
                         .before = entries - 1,
                         .after = evicts ? entries - 1 : entries,
                         .change = change,
                         .evicts = evicts});
  }
};

inline void check_bytes(const Counters& counted, double read, std::int64_t more_read,
                        double written, std::int64_t more_written) {
  CHECK(static_cast<double>(counted.loaded_bytes) == read + static_cast<double>(more_read));
  CHECK(static_cast<double>(counted.stored_bytes) == written + static_cast<double>(more_written));
}

}  // namespace kvsim::test
