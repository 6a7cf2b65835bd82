#pragma once

// Values in the form of the documents of docs/results.md.

#include <cmath>
#include <cstdint>
#include <optional>

#include <nlohmann/json.hpp>

#include "models/units/units.hpp"

namespace kvsim {

/// Converts bytes that a model computes as a real number to a whole number.
[[nodiscard]] inline std::int64_t whole(double bytes) { return std::llround(bytes); }

/// null if there is no value or it is not finite.
[[nodiscard]] inline nlohmann::ordered_json number_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? nlohmann::ordered_json(*value)
                                        : nlohmann::ordered_json(nullptr);
}

}  // namespace kvsim
