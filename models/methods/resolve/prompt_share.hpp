#pragma once

#include <cstdint>

#include "models/methods/method.hpp"

namespace kvsim {

/// FLOPs of a prompt's fused attention under `method` over those of all causal pairs: 1, except for
/// methods that compute part of it (axis prefill) or whose queries read part of the cache in the
/// prompt too (read=dsa, read=blocks, read=infllm). The choice of what is computed is in
/// Method::prefill_extra.
[[nodiscard]] double prompt_attention_share(const Method& method, std::int64_t prompt);

}  // namespace kvsim
