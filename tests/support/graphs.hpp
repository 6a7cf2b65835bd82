#pragma once

// Queries of tests about a graph.

#include <algorithm>

#include "models/cost/graph.hpp"

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

}  // namespace kvsim::test
