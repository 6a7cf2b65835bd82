#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "models/json/field.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// Models, GPUs and calibrations that a scenario brings along; its points refer to them.
struct OwnParts {
  std::vector<std::shared_ptr<const Llm>> models;
  std::vector<std::shared_ptr<const Gpu>> gpus;
  std::vector<std::shared_ptr<const Calibration>> calibrations;
  std::vector<std::string> notes{};  // which GPU a short name was taken for
};

/// Checks the form of the keys of points that `keys` holds (a scenario, or one of its `points`), as
/// far as this is possible without other keys. `folder` is where paths start. Errors: InputError.
void check_point_keys(const Field& keys, const std::filesystem::path& folder);

/// What points are read for.
struct PointsInput {
  std::filesystem::path folder{};  // where paths start
  bool serves = false;             // kind "serve"; else "static"
  std::uint64_t seed = 0;          // of generated workloads
  /// A plan finds every prompt's length: static points may leave `prompt_tokens` out. Their keys
  /// then do not have it, and their spec has the longest sequence that the model is published for.
  bool finds_prompts = false;
};

/// All points of `scenario`: for each of its `points` (or once) the product of the keys given as
/// lists, the last changing fastest. Of static points in the order model, gpu, gpu_count, stack,
/// calibration, dtype, kv_dtype, batch, prompt_tokens, output_tokens, method; add_serve_points has
/// that of the others. Empty if only a replay is requested. Labels are set. Errors: InputError.
[[nodiscard]] std::vector<ScenarioPoint> read_points(const Field& scenario, const PointsInput& in,
                                                     OwnParts& own);

/// Whether `spec`'s method says of every layer how many entries it holds and attends to, up to the
/// run's last token.
[[nodiscard]] bool has_closed_law(const StaticSpec& spec);

/// Whether it also says how many bytes they take at the run's last token; some know only about.
[[nodiscard]] bool has_closed_bytes(const StaticSpec& spec);

/// Bytes of K, V and side data that the whole batch holds at the end, by the size law and without
/// an allocator's rounding, on each of its GPUs, whether or not they fit; nullopt where the size
/// depends on data.
[[nodiscard]] std::optional<Bytes> kv_bytes_wanted(const StaticSpec& spec);

}  // namespace kvsim
