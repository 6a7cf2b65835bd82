#pragma once

#include <string>
#include <string_view>

namespace kvsim {

/// One field: quoted if it holds a comma, a quote, or a line end.
[[nodiscard]] std::string csv_field(std::string_view text);
/// The shortest digits that parse back to the same double; empty for NaN and infinities.
[[nodiscard]] std::string csv_number(double value);

}  // namespace kvsim
