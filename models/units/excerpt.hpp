#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvsim {

/// Returns `text`, or its first `max` bytes and "..."; UTF-8 sequences are never cut. Used for all
/// input that a message quotes.
[[nodiscard]] std::string excerpt(std::string_view text, std::size_t max = 80);

}  // namespace kvsim
