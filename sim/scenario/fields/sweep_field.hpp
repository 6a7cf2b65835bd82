#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/json/field.hpp"

namespace kvsim {

/// Numbers from `low` to `high`, both among them.
struct AxisRange {
  double low = 0, high = 0;
  bool log = false;                     // divided and drawn evenly in the logarithm
  bool integer = false;                 // only whole numbers
  std::optional<std::int64_t> steps{};  // how many of them a grid takes
  std::string unit{};                   // behind each number, which makes it a text: "40 GiB"
};

/// A key of the scenario that a sweep varies: by a list of values, or over a range.
struct ScenarioAxis {
  std::string pointer;                   // RFC 6901
  std::string place;                     // what messages call it: "FILE: /sweep/axes/0"
  std::vector<nlohmann::json> values{};  // empty: a range
  std::optional<AxisRange> range{};
};

/// The `sweep` of a scenario file.
struct SweepSection {
  bool random = false;  // else a grid
  std::int64_t samples = 0;
  std::optional<std::uint64_t> seed{};
  bool skip_impossible = false;
  std::vector<ScenarioAxis> axes{};
};

/// Reads only a `sweep` section: a grid's ranges have steps, a random one has samples, no key is
/// varied twice, no value is listed twice. Errors: InputError with file and JSON pointer.
[[nodiscard]] SweepSection read_sweep(const Field& sweep);

/// Refuses an axis with no value, too many, or one twice; its pointer if it is none. Errors:
/// InputError that begins with the axis' place.
void check_axis(const ScenarioAxis& axis);

}  // namespace kvsim
