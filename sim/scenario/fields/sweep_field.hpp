#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/json/field.hpp"

namespace kvsim {

/// Numbers from `low` to `high`, inclusive.
struct AxisRange {
  double low = 0, high = 0;
  bool log = false;                     // divided and sampled evenly on a log scale
  bool integer = false;                 // only whole numbers
  std::optional<std::int64_t> steps{};  // number of values in a grid
  std::string unit{};                   // appended to each number: "40 GiB", a string
};

/// A key of the scenario that a sweep varies, by a list of values or over a range.
struct ScenarioAxis {
  std::string pointer;                   // RFC 6901
  std::string place;                     // its name in messages: "FILE: /sweep/axes/0"
  std::vector<nlohmann::json> values{};  // empty: a range
  std::optional<AxisRange> range{};
};

/// The `sweep` of a scenario file.
struct SweepSection {
  bool random = false;  // false: a grid
  std::int64_t samples = 0;
  std::optional<std::uint64_t> seed{};
  bool skip_impossible = false;
  std::vector<ScenarioAxis> axes{};
};

/// Reads only a `sweep` section. Errors: InputError with file and JSON pointer if a range of a grid
/// has no steps, a random sweep has no samples, a key is varied twice, or a value is listed twice.
[[nodiscard]] SweepSection read_sweep(const Field& sweep);

/// Rejects an axis with no value, too many values, a repeated value or an invalid pointer. Errors:
/// InputError that begins with the axis's place.
void check_axis(const ScenarioAxis& axis);

}  // namespace kvsim
