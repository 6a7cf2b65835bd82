// Methods in which what leaves lives on in another entry.

#include "models/methods/presets.hpp"

namespace kvsim {

PresetRows merging_presets() { return {}; }

}  // namespace kvsim
