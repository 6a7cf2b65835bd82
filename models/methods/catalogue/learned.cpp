// Oracles, surrogates and recorded decisions.

#include "models/methods/presets.hpp"

namespace kvsim {

PresetRows learned_presets() { return {}; }

}  // namespace kvsim
