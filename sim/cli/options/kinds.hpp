#pragma once

#include <cstdint>
#include <string_view>

namespace kvsim {

enum class CatalogueKind : std::uint8_t { kModel, kGpu, kMethod, kStack, kCalibration, kDevice };

/// Parses "model" or "models", …. Errors: InputError with the nearest kind.
[[nodiscard]] CatalogueKind parse_kind(std::string_view word);
/// "models", ….
[[nodiscard]] std::string_view plural_of(CatalogueKind kind);

}  // namespace kvsim
