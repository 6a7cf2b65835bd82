#pragma once

#include <memory>

#include "models/stack/stack.hpp"

namespace kvsim {

struct StaticSpec;

/// The settings of a static batch's engine and the origin of each value; null for a stack without
/// engine options. Errors: as with_options.
[[nodiscard]] std::shared_ptr<const EngineSettings> engine_settings(const StaticSpec& spec);

}  // namespace kvsim
