#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// A key of scenario files: what messages, the schema and docs/scenarios.md say of it.
struct ScenarioKey {
  std::string_view name;
  std::string_view type;   // "integer", "size", "name", …; "or list" where a list makes points
  std::string_view range;  // of numbers; empty elsewhere
  std::string_view default_text;
  std::string_view help;
};

/// An object of scenario files and its keys, in the order that messages and `echo` use.
struct ScenarioObject {
  std::string_view name;  // "scenario", "point", "memory", …
  std::span<const ScenarioKey> keys;
};

/// Every object a scenario may hold. A method's own parameters are not among them: they come from
/// builtin_methods().
[[nodiscard]] std::span<const ScenarioObject> scenario_objects();

/// Names of the keys of the object called `object`. Errors: ContractError for an unknown one.
[[nodiscard]] std::vector<std::string> scenario_key_names(std::string_view object);

/// Keys of points that only scenarios of kind "serve" have, or only those of kind "static".
[[nodiscard]] std::span<const std::string_view> keys_of_kind(bool serves);

/// What `published` figures may be of. A metric is a key of a result's point.
struct PublishedMetric {
  std::string_view name;
  std::string_view unit;  // "bytes", "s", "tokens", "tok/s", "" (true or false)
};
[[nodiscard]] std::span<const PublishedMetric> published_metrics();

/// Words that `calibration` takes besides paths: the data sheet and the stack's profile alone, and
/// the calibrations shipped with the program.
inline constexpr std::string_view kNominalCalibration = "nominal";
inline constexpr std::string_view kBuiltinCalibration = "builtin";
[[nodiscard]] constexpr bool is_calibration_word(std::string_view text) {
  return text == kNominalCalibration || text == kBuiltinCalibration;
}

/// Figures that `figures` may name.
[[nodiscard]] std::span<const std::string_view> figure_names();

/// Bounds of the sizes a scenario may ask for.
inline constexpr std::int64_t kMostPointTokens = 1 << 24;
inline constexpr std::int64_t kMostBatch = 1 << 20;
inline constexpr std::int64_t kMostGpus = 1 << 16;
inline constexpr std::size_t kMostPoints = 100'000;
inline constexpr std::int64_t kMostSweepPoints = 250'000;
inline constexpr std::int64_t kMostAxisValues = 100'000;
inline constexpr std::size_t kMostAxes = 32;
inline constexpr std::int64_t kLargestSeed =
    (std::int64_t{1} << 53) - 1;  // exact in every JSON reader
inline constexpr std::size_t kDeepestExtends = 32;

}  // namespace kvsim
