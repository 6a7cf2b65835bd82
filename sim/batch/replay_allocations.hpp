#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "models/cost/graph.hpp"
#include "sim/memory/hbm.hpp"

namespace kvsim {

/// An allocation of a graph that did not fit.
struct TensorRefusal {
  std::string what;        // the tensor's name
  OpIndex op = 0;          // the one that requested it
  std::size_t tensor = 0;  // its index in the graph
  Refusal refusal;
};

/// Runs the graph's allocations and releases one by one in the order of its schedule. Afterwards
/// `hbm` is unchanged except for its high-water mark; after a refusal it holds the memory allocated
/// at that moment.
[[nodiscard]] std::optional<TensorRefusal> replay_allocations(Hbm& hbm, const OpGraph& graph);

}  // namespace kvsim
