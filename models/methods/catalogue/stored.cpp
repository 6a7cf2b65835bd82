// Stores of fewer bits, and layers that share.

#include "models/methods/presets.hpp"

namespace kvsim {

PresetRows stored_presets() { return {}; }

}  // namespace kvsim
