#pragma once

// The contents of the catalogues, for `kvsim list`, `kvsim show` and Python: as JSON and as text.
// docs/cli.md lists the keys.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/cost/kernels/calibration.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/llm.hpp"
#include "models/methods/method.hpp"
#include "models/stack/stack.hpp"

namespace kvsim {

[[nodiscard]] nlohmann::ordered_json llm_json(const Llm& llm);
[[nodiscard]] std::string llm_text(const Llm& llm, std::size_t width);
/// The format of the published weights: "bf16", "fp8_e4m3: fp8-block, the rest bf16".
[[nodiscard]] std::string published_weights_words(const Llm& llm);

[[nodiscard]] nlohmann::ordered_json gpu_json(const Gpu& gpu);
[[nodiscard]] std::string gpu_text(const Gpu& gpu, std::size_t width);

[[nodiscard]] nlohmann::ordered_json stack_json(const Stack& stack);
[[nodiscard]] std::string stack_text(const Stack& stack, std::size_t width);

[[nodiscard]] nlohmann::ordered_json method_json(const MethodInfo& method);
[[nodiscard]] std::string method_text(const MethodInfo& method, std::size_t width);

/// A calibration shipped with the program, under the name that `kvsim show calibration` takes:
/// "OP:GPU:KERNELS:FORMAT".
struct NamedCalibration {
  std::string name;
  const KernelCalibrationFile* file = nullptr;
  const KernelCalibration* entry = nullptr;
};
[[nodiscard]] std::vector<NamedCalibration> named_calibrations();
/// Errors: InputError that names the nearest names.
[[nodiscard]] NamedCalibration find_calibration(std::string_view name);
[[nodiscard]] nlohmann::ordered_json calibration_json(const NamedCalibration& named);
[[nodiscard]] std::string calibration_text(const NamedCalibration& named, std::size_t width);
/// The table of `calibrations`.
[[nodiscard]] std::string calibrations_text(const std::vector<NamedCalibration>& calibrations,
                                            std::size_t width);

/// Bytes that one more token adds to the cache of one sequence: in all layers, and only in layers
/// without a sliding window. The latter still grow once the windows are full.
struct TokenBytes {
  Bytes all_layers;
  Bytes past_windows;
};
[[nodiscard]] TokenBytes cache_bytes_per_token(const Llm& llm, Dtype kv_dtype);

}  // namespace kvsim
