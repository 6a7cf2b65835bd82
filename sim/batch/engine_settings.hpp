#pragma once

#include <memory>

#include "models/stack/stack.hpp"

namespace kvsim {

struct StaticSpec;

/// What the engine of a static batch is set to, and where each value comes from; null for a stack
/// that is no engine with options. Errors: as with_options.
[[nodiscard]] std::shared_ptr<const EngineSettings> engine_settings(const StaticSpec& spec);

}  // namespace kvsim
