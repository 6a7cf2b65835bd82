#pragma once

#include <cstdint>

#include "models/methods/method.hpp"

namespace kvsim {

/// Returns the FLOPs of a prompt's fused attention under `method`, divided by those of all causal
/// pairs. It is 1 except for methods that compute part of it (axis prefill) or whose prompt queries
/// also read part of the cache (read=dsa, read=blocks, read=infllm). Method::prefill_extra includes
/// the cost of choosing this part.
[[nodiscard]] double prompt_attention_share(const Method& method, std::int64_t prompt);

}  // namespace kvsim
