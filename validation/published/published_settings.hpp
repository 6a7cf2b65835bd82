#pragma once

#include <string_view>

#include "validation/published/published_csv.hpp"

namespace kvsim {

/// Returns a setting that rows only name ("Setting 1"), as the engine options defined in their
/// document; empty if the row names no setting or its document is unknown.
[[nodiscard]] std::string_view named_setting(const PublishedRow& row);

}  // namespace kvsim
