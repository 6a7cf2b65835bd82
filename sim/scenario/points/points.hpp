#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "models/json/field.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// Models, GPUs and calibrations that a scenario defines; its points refer to them.
struct InlineDefinitions {
  std::vector<std::shared_ptr<const Llm>> models;
  std::vector<std::shared_ptr<const Gpu>> gpus;
  std::vector<std::shared_ptr<const Calibration>> calibrations;
  std::vector<std::string> notes{};  // full name of each GPU written as a short name
};

/// Checks the form of the keys of points in `keys` (a scenario, or one of its `points`), as far as
/// this is possible without other keys. `folder`: base of relative paths. Errors: InputError.
void check_point_keys(const Field& keys, const std::filesystem::path& folder);

/// Context in which points are read.
struct PointsInput {
  std::filesystem::path folder{};  // paths are relative to it
  bool serves = false;             // kind "serve"; else "static"
  std::uint64_t seed = 0;          // for generated workloads
  /// A plan finds the prompt length: static points may omit `prompt_tokens`. Their keys then have
  /// no `prompt_tokens`, and their spec has that of the longest sequence for which the model is
  /// published.
  bool finds_prompts = false;
  bool plans = false;  // sizes that do not fit are answers
  /// A plan of services searches layouts, and each is a point. Groups then have no `gpu_count`,
  /// `pipeline_parallel`, replicas and `expert_parallel`.
  std::optional<LayoutSearch> layouts{};
};

/// Returns all points of `scenario`: for each of its `points` (or once) the product of the keys
/// that are lists; the last changes fastest. The order for static points is model, gpu, gpu_count,
/// stack, calibration, dtype, kv_dtype, batch, prompt_tokens, output_tokens, method. For the order
/// of other points, see add_serve_points. Empty if only a replay is requested. Labels are set.
/// Errors: InputError.
[[nodiscard]] std::vector<ScenarioPoint> read_points(const Field& scenario, const PointsInput& in,
                                                     InlineDefinitions& own);

/// Whether the method of `spec` defines, for every layer, the number of entries it holds and
/// attends to, up to the run's last token.
[[nodiscard]] bool has_closed_law(const StaticSpec& spec);

/// Whether it also defines their exact size in bytes at the run's last token; some methods only
/// estimate it.
[[nodiscard]] bool has_closed_bytes(const StaticSpec& spec);

/// Bytes of K, V and side data that the whole batch holds at the end, per GPU, whether or not they
/// fit. Follows the size law, without an allocator's rounding; nullopt if the size depends on data.
[[nodiscard]] std::optional<Bytes> kv_bytes_wanted(const StaticSpec& spec);

}  // namespace kvsim
