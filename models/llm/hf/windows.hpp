#pragma once

#include <cstdint>
#include <vector>

#include "models/json/field.hpp"

namespace kvsim::hf {

/// The layers that attend to only `sliding_window` tokens if the file has no `layer_types`.
enum class Window : std::uint8_t {
  kNone,        // the family does not support windows
  kEvery,       // every layer, if `sliding_window` is set
  kEvery4096,   // the same; the window is 4096 if the key is absent (Mistral)
  kUpper,       // layers from `max_window_layers`, if `use_sliding_window` (Qwen2)
  kAlternate,   // layers 0, 2, 4, … (Gemma 2, gpt-oss)
  kFourOfFive,  // all but every fifth (Gemma 3n)
  kFiveOfSix    // all but every `sliding_window_pattern`-th (Gemma 3)
};

/// Returns the window of each layer in tokens, 0 for full attention. `layer_types` takes precedence
/// over the policy. Throws InputError for an unsupported kind of layer, a window in a family
/// without windows, or a sliding layer without a window.
[[nodiscard]] std::vector<std::int32_t> read_windows(const Field& config, Window policy,
                                                     std::int32_t n_layers);

}  // namespace kvsim::hf
