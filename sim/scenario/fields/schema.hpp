#pragma once

#include <nlohmann/json_fwd.hpp>

namespace kvsim {

/// The JSON Schema (draft 2020-12) of scenario files, generated from the key table.
[[nodiscard]] nlohmann::ordered_json scenario_schema();

}  // namespace kvsim
