#pragma once

#include <cstdint>

#include "traces/synthetic/generate.hpp"

namespace kvsim::synthetic {

/// The logits at which a query head has its shares of the sink, its neighbours, the heavy hitters
/// and the target of an induction query.
struct Gains {
  double sink = 0, local = 0, heavy = 0, induction = 0;
};

[[nodiscard]] Gains gains_of(const GenerateOptions& o, std::int64_t layer, std::int64_t head);

}  // namespace kvsim::synthetic
