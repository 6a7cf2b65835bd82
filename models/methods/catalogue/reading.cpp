// Methods that hold all and read part, and the references.

#include "models/methods/presets.hpp"

namespace kvsim {

PresetRows reading_presets() { return {}; }

}  // namespace kvsim
