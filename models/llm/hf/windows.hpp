#pragma once

#include <cstdint>
#include <vector>

#include "models/json/field.hpp"

namespace kvsim::hf {

/// Which layers see only `sliding_window` tokens when the file has no `layer_types`.
enum class Window : std::uint8_t {
  kNone,        // the family's code knows no window
  kEvery,       // every layer, where `sliding_window` is given
  kEvery4096,   // the same; the window is 4096 where the key is absent (Mistral)
  kUpper,       // layers from `max_window_layers` on, if `use_sliding_window` (Qwen2)
  kAlternate,   // layers 0, 2, 4, … (Gemma 2, gpt-oss)
  kFourOfFive,  // all but each fifth (Gemma 3n)
  kFiveOfSix    // all but each `sliding_window_pattern`-th (Gemma 3)
};

/// Window of each layer in tokens, 0 where it sees all. `layer_types`, where given, wins over the
/// policy. Errors: InputError for a kind of layer that is not modelled, a window in a family
/// without one, or a sliding layer without a window.
[[nodiscard]] std::vector<std::int32_t> read_windows(const Field& config, Window policy,
                                                     std::int32_t n_layers);

}  // namespace kvsim::hf
