#pragma once

// Keys shared by points of all kinds, with their choices, and the engine that a combination of
// choices describes.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "sim/scenario/fields/calibration_field.hpp"
#include "sim/scenario/points/points.hpp"

namespace kvsim {

/// Calls `read`. Its error is reported at the place of `field`, unless it begins with that place.
template <class Read>
decltype(auto) placed(const Field& field, Read read) {
  try {
    return read();
  } catch (const InputError& error) {
    if (std::string_view{error.what()}.starts_with(field.place() + ":")) throw;
    field.fail(error.what());
  }
}

/// One value of a key and its place.
template <class T>
struct Choice {
  T value;
  Field field;
};
template <class T>
using Choices = std::vector<Choice<T>>;

/// Keys of one group of points: its own first, then the scenario's.
class Group {
 public:
  Group(Field scenario, std::optional<Field> own)
      : scenario_{std::move(scenario)}, own_{std::move(own)} {}

  [[nodiscard]] std::optional<Field> find(std::string_view key) const;
  [[nodiscard]] Field required(std::string_view key) const;
  [[nodiscard]] const Field& place() const { return own_ ? *own_ : scenario_; }
  [[nodiscard]] const Field& scenario() const { return scenario_; }

 private:
  Field scenario_;
  std::optional<Field> own_;
};

/// A format of the weights: one dtype for all, or a named quantization.
struct RequestedWeights {
  std::optional<Dtype> dtype;
  const WeightFormat* format = nullptr;
};

/// A format of the cache: an element format, or a method that only sets a format ("nvfp4").
struct RequestedCache {
  std::optional<Dtype> dtype;
  std::string method;
};

/// A method, and the trace on which its size law is measured: its name in the file and its path.
struct RequestedMethod {
  MethodSpec spec;
  std::string measured_on;
  std::filesystem::path trace;
};

[[nodiscard]] Choices<std::int64_t> read_counts(const Field& field, std::string_view key);
/// The keys of an engine, for any workload.
struct EngineAxes {
  Choices<const Llm*> models;
  Choices<const Gpu*> gpus;
  Choices<const Stack*> stacks;
  Choices<RequestedCalibration> calibrations;
  Choices<std::int64_t> gpu_counts;
  std::optional<Choices<RequestedWeights>> dtypes;   // absent: as published
  std::optional<Choices<RequestedCache>> kv_dtypes;  // absent: the dtype of the activations
  Choices<RequestedMethod> methods;
  nlohmann::ordered_json memory;  // as in the scenario; null if absent
  nlohmann::ordered_json engine;  // as in the scenario; null if absent
  StackOptions options;

  /// Number of choices for model, gpu, gpu_count, stack, calibration, dtype, kv_dtype, in this
  /// order.
  [[nodiscard]] std::vector<std::size_t> sizes() const;
};
[[nodiscard]] EngineAxes read_engine_axes(const Group& group, const std::filesystem::path& folder,
                                          InlineDefinitions& own);
/// Returns the settings of the simulated allocator; nullopt if it is not simulated. Errors:
/// InputError if one of the stacks does not use it or, for a service, keeps its cache in a pool.
[[nodiscard]] std::optional<AllocatorConfig> read_allocator(const Group& group,
                                                            const EngineAxes& axes, bool serves);
/// Checks the form of the engine's keys in `keys`. Errors: InputError.
void check_engine_keys(const Field& keys, const std::filesystem::path& folder);

/// Iterates over a product of choices; the last changes fastest.
class CartesianIndex {
 public:
  explicit CartesianIndex(std::vector<std::size_t> sizes)
      : sizes_{std::move(sizes)}, at_(sizes_.size()) {}
  [[nodiscard]] std::size_t operator[](std::size_t axis) const { return at_[axis]; }
  [[nodiscard]] const std::vector<std::size_t>& at() const { return at_; }
  void advance();
  [[nodiscard]] double product() const;

 private:
  std::vector<std::size_t> sizes_;
  std::vector<std::size_t> at_;
};
/// Reports an error at `place` if the product exceeds the number of points that a scenario may
/// have.
void check_number_of_points(std::size_t before, const CartesianIndex& product, const Field& place);

/// The spec for the first seven choices `at`; batch, lengths and method are not set yet. Errors:
/// InputError if the model cannot be sharded across that many GPUs.
[[nodiscard]] StaticSpec engine_spec(const EngineAxes& axes, const CartesianIndex& at);

/// Returns the method of `spec` in the cache format of `at`.
[[nodiscard]] MethodSpec method_in_cache(const EngineAxes& axes, const CartesianIndex& at,
                                         const MethodSpec& spec);

/// Methods resolved once for all points with the same prompt, cache format and model, and the names
/// of the traces that were opened.
class ResolvedMethods {
 public:
  explicit ResolvedMethods(const EngineAxes& axes) : axes_{&axes}, traces_(axes.methods.size()) {}
  /// Resolves `spec`, the choice number `method` in the point's cache format, for the model of
  /// `at`.
  [[nodiscard]] std::shared_ptr<const Method> resolve(std::size_t method, const MethodSpec& spec,
                                                      const CartesianIndex& at, std::int64_t prompt,
                                                      Dtype kv_dtype);
  /// Sets the source of the point's size law.
  void resolve_sizes(std::size_t method, ScenarioPoint& point);

 private:
  const EngineAxes* axes_;
  std::map<std::tuple<std::size_t, std::size_t, std::size_t, std::int64_t, Dtype>,
           std::shared_ptr<const Method>>
      resolved_;
  std::vector<std::string> traces_;
};

/// Rejects sizes whose byte counts would exceed the range in which they are exact.
void check_sizes(const StaticSpec& spec, const Field& place);

/// The scenario's keys for a point, up to `kv_dtype`.
[[nodiscard]] nlohmann::ordered_json engine_keys(const StaticSpec& spec,
                                                 const std::string& calibration,
                                                 const MethodSpec& method);

}  // namespace kvsim
