#pragma once

// Human-readable quantities: 80 GiB, 3.35 TB/s, 120 us. Files contain count() in base units.

#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "models/units/units.hpp"

namespace kvsim {

/// Binary prefixes, at most 4 significant digits: "1.5 KiB", "80 GiB", "512 B".
[[nodiscard]] std::string to_text(Bytes n);
/// Decimal prefixes: "12.1 ms", "480 us", "3 h 4 min" above an hour.
[[nodiscard]] std::string to_text(Seconds t);
[[nodiscard]] std::string to_text(BytesPerSecond rate);
[[nodiscard]] std::string to_text(FlopsPerSecond rate);
[[nodiscard]] std::string to_text(FlopCount n);
[[nodiscard]] std::string to_text(SimTime t);

/// Formats 53912 as "53,912".
[[nodiscard]] std::string with_commas(std::int64_t value);

}  // namespace kvsim

template <class Dimension, class Rep>
struct fmt::formatter<kvsim::Quantity<Dimension, Rep>> : fmt::formatter<std::string> {
  template <class Context>
  auto format(kvsim::Quantity<Dimension, Rep> q, Context& ctx) const {
    return fmt::formatter<std::string>::format(kvsim::to_text(q), ctx);
  }
};
