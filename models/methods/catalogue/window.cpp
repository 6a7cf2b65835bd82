// Selection by the attention of recent queries.

#include "models/methods/presets.hpp"

namespace kvsim {

PresetRows window_presets() { return {}; }

}  // namespace kvsim
