#pragma once

// Values as the documents of docs/results.md hold them.

#include <cmath>
#include <cstdint>
#include <optional>

#include <nlohmann/json.hpp>

#include "models/units/units.hpp"

namespace kvsim {

/// Bytes that a model counts as a real number, as the whole number they mean.
[[nodiscard]] inline std::int64_t whole(double bytes) { return std::llround(bytes); }

/// null where there is none, or where it is no number.
[[nodiscard]] inline nlohmann::ordered_json number_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? nlohmann::ordered_json(*value)
                                        : nlohmann::ordered_json(nullptr);
}

}  // namespace kvsim
