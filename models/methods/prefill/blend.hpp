#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// Returns the argument of PrefillRule::computed_tokens: squared differences between keys and
/// reused keys, both [heads, tokens, head_dim], of the first `prompt` tokens. Errors: ContractError
/// if their sizes differ.
[[nodiscard]] std::vector<double> key_differences(std::span<const float> keys,
                                                  std::span<const float> reused,
                                                  std::int64_t tokens, std::int32_t head_dim,
                                                  std::int64_t prompt);

}  // namespace kvsim
