#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/methods/method.hpp"

namespace kvsim {

/// Extends `method`, resolved for the compressible layers of a model, to all its layers.
/// `ordinals`: the index of each layer among the compressible layers, or -1 for a layer that holds
/// all tokens and has no additional cost.
[[nodiscard]] std::shared_ptr<const Method> on_layers(std::shared_ptr<const Method> method,
                                                      std::vector<std::int32_t> ordinals);

}  // namespace kvsim
