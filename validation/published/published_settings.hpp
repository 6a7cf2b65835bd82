#pragma once

#include <string_view>

#include "validation/published/published_csv.hpp"

namespace kvsim {

/// The meaning of a setting that rows only name ("Setting 1"), from their document, as an engine's
/// options; empty: the row names none, or its document is not known.
[[nodiscard]] std::string_view named_setting(const PublishedRow& row);

}  // namespace kvsim
