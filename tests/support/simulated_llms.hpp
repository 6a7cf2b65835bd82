#pragma once

// The catalogue's models that the simulator has operators for.

#include <algorithm>
#include <iterator>
#include <vector>

#include "models/llm/catalogue.hpp"
#include "models/llm/layer/layer_kind.hpp"

namespace kvsim::test {

inline bool is_simulated(const Llm& llm) {
  return std::all_of(llm.layers.begin(), llm.layers.end(),
                     [](const LayerSpec& layer) { return unsupported_kind(layer).empty(); });
}

inline std::vector<Llm> simulated_llms() {
  std::vector<Llm> out;
  std::copy_if(builtin_llms().begin(), builtin_llms().end(), std::back_inserter(out), is_simulated);
  return out;
}

}  // namespace kvsim::test
