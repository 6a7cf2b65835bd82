#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/methods/method.hpp"

namespace kvsim {

/// `method`, resolved for the layers of a model whose caches it can compress, as a method of all
/// its layers. `ordinals`: for each layer of the model, its number among those, or -1: such a layer
/// holds every token, and costs nothing more.
[[nodiscard]] std::shared_ptr<const Method> on_layers(std::shared_ptr<const Method> method,
                                                      std::vector<std::int32_t> ordinals);

}  // namespace kvsim
