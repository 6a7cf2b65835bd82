#pragma once

#include <string_view>

#include "validation/published/published_csv.hpp"

namespace kvsim {

/// What a document says of a setting that its rows only name ("Setting 1"), in the words of an
/// engine's options; empty: the row names none, or its document is not known.
[[nodiscard]] std::string_view named_setting(const PublishedRow& row);

}  // namespace kvsim
