#pragma once

#include <cstdint>
#include <string_view>

namespace kvsim {

enum class CatalogueKind : std::uint8_t { kModel, kGpu, kMethod, kStack, kCalibration, kDevice };

/// "model" or "models", …. Errors: InputError naming the nearest.
[[nodiscard]] CatalogueKind parse_kind(std::string_view word);
/// "models", ….
[[nodiscard]] std::string_view plural_of(CatalogueKind kind);

}  // namespace kvsim
