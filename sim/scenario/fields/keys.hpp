#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "models/units/dtype.hpp"
#include "models/units/units.hpp"

namespace kvsim {

struct StackOptions;  // models/stack/stack.hpp

/// The type of a key's JSON value.
struct KeyType {
  enum class Kind : std::uint8_t {
    kNone,
    kText,
    kPath,
    kName,     // one of `words` or of the result of `names`; any text if both are empty
    kInteger,  // in [low, high]
    kNumber,   // in [low, high]
    kBoolean,
    kSize,         // "80 GiB", at least (or above) `low`
    kTime,         // "200 ms"
    kBandwidth,    // "50 GB/s"
    kFormat,       // an element format
    kCacheFormat,  // an element format, or a method that only sets a format
    kWeights,      // an element format or a quantization
    kBudget,       // a share, or a number of entries of at least `low`
    kPointer,      // a JSON pointer
    kPrices,       // an object of GPU names and prices per hour
    kQuantity,     // a number, size, time or boolean
    kAny,
    kAnyObject,
    kObject,  // the object named `words`
  };
  Kind kind = Kind::kNone;
  double low = 0, high = 0;
  bool above = false;        // sizes, times and bandwidths: must exceed `low`
  std::string_view words{};  // joined by ", "
  std::vector<std::string> (*names)() = nullptr;
};

/// Number of values that a key accepts.
enum class KeyValues : std::uint8_t {
  kOne,
  kPoints,  // one, or a list; each value makes a point
  kMany,    // one, or a list
  kList,    // a list
};

/// The engine setting that a key sets. A name sets a boolean: the second of two names is true.
using EngineMember =
    std::variant<std::monostate, std::optional<std::int64_t> StackOptions::*,
                 std::optional<std::int32_t> StackOptions::*, std::optional<double> StackOptions::*,
                 std::optional<bool> StackOptions::*, std::optional<Bytes> StackOptions::*,
                 std::optional<Seconds> StackOptions::*,
                 std::optional<BytesPerSecond> StackOptions::*,
                 std::optional<Dtype> StackOptions::*>;

/// A key of scenario files. The reader, error messages, `kvsim schema` and the tables of
/// docs/scenarios.md are generated from these.
struct ScenarioKey {
  std::string_view name;
  KeyType type;
  KeyType other{};  // an alternative type: tokens, or "workload"
  KeyValues values = KeyValues::kOne;
  std::string_view default_text{};  // "required" if the key must be present
  std::string_view help{};
  std::size_t max_items = 0;  // of a list; 0: unlimited
  bool may_be_empty = false;  // of a list
  EngineMember sets{};        // of an engine's key
  /// The key that sets the same setting: "/engine/prefill_chunk". Empty if there is none.
  std::string_view alias_of{};
};

/// An object of scenario files and its keys, in the order used by messages and `echo`.
struct ScenarioObject {
  std::string_view name;  // "scenario", "point", "memory", …
  std::span<const ScenarioKey> keys;
  bool name_instead = false;    // a string in place of the object is its "name"
  bool has_parameters = false;  // other keys are a method's parameters
};

/// Returns every object of scenario files. Parameters of methods are not included: they come from
/// builtin_methods().
[[nodiscard]] std::span<const ScenarioObject> scenario_objects();
/// Errors: ContractError for an unknown object.
[[nodiscard]] const ScenarioObject& scenario_object(std::string_view name);
/// Errors: ContractError for an unknown object or key.
[[nodiscard]] const ScenarioKey& scenario_key(std::string_view object, std::string_view key);
/// Returns the names of the keys of the object named `object`. Errors: ContractError for an unknown
/// object.
[[nodiscard]] std::vector<std::string> scenario_key_names(std::string_view object);

/// Returns the names that a key of kind kName accepts; empty if it accepts any.
[[nodiscard]] std::vector<std::string> names_of(const KeyType& type);
/// "integer; or list", "name, or object; or list".
[[nodiscard]] std::string type_text(const ScenarioKey& key);
/// "1 to 1,024", "above 0", "`fcfs`, `priority`"; empty if there is no range.
[[nodiscard]] std::string range_text(const ScenarioKey& key);
/// "tokens of one iteration; another name of /engine/prefill_chunk".
[[nodiscard]] std::string help_text(const ScenarioKey& key);
/// Returns the pointers of all keys of scenario files, except those within lists:
/// "/plan/confidence".
[[nodiscard]] std::vector<std::string> scenario_pointers();

/// Point keys that are valid only for scenarios of kind "serve", or only for kind "static".
[[nodiscard]] std::span<const std::string_view> keys_of_kind(bool serves);

/// A metric of a `published` value: a metric of a point, the length at which memory runs out, or
/// whether it runs out.
struct PublishedMetric {
  std::string_view name;
  std::string_view unit;  // "B", "s", "tokens", "tok/s", "req/s", "" (true or false)
};
[[nodiscard]] const std::vector<PublishedMetric>& published_metrics();
/// Errors: ContractError for an unknown name.
[[nodiscard]] const PublishedMetric& published_metric(std::string_view name);

/// Values of `calibration` that are not paths: "nominal" uses only the data sheet and the stack's
/// profile, "builtin" the calibrations shipped with the program.
inline constexpr std::string_view kNominalCalibration = "nominal";
inline constexpr std::string_view kBuiltinCalibration = "builtin";
[[nodiscard]] constexpr bool is_calibration_word(std::string_view text) {
  return text == kNominalCalibration || text == kBuiltinCalibration;
}

/// Figures that `figures` may list.
[[nodiscard]] std::span<const std::string_view> figure_names();

/// Limits on the sizes in a scenario.
inline constexpr std::int64_t kMaxPointTokens = 1 << 24;
inline constexpr std::int64_t kMaxBatch = 1 << 20;
inline constexpr std::int64_t kMaxGpus = 1 << 16;
inline constexpr std::size_t kMaxPoints = 100'000;
inline constexpr std::int64_t kMaxSweepPoints = 250'000;
inline constexpr std::int64_t kMaxAxisValues = 100'000;
inline constexpr std::size_t kMaxAxes = 32;
inline constexpr std::int64_t kLargestSeed =
    (std::int64_t{1} << 53) - 1;  // exact in every JSON reader
inline constexpr std::size_t kDeepestExtends = 32;

}  // namespace kvsim
