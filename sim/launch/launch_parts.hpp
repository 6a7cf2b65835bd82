#pragma once

// Internal to sim/launch: the flags of one engine.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/gpu/gpu.hpp"
#include "models/launch/flag_lists.hpp"
#include "models/llm/llm.hpp"
#include "models/methods/method.hpp"
#include "models/stack/stack.hpp"
#include "sim/launch/launch.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// The settings of a service or a static batch that a launch depends on.
struct LaunchInput {
  const Llm* llm = nullptr;
  const Gpu* gpu = nullptr;
  Stack stack;  // as simulated
  StackOptions options{};
  MethodSpec method{"full", {}, {}};
  Dtype weight_dtype = Dtype::kBf16;
  Dtype kv_dtype = Dtype::kBf16;
  const WeightFormat* weight_format = nullptr;
  std::int32_t tensor_parallel = 1;
  std::int32_t pipeline_parallel = 1;
  SchedulerSpec scheduler{};
  ClusterSpec cluster{};
  SpeculationSpec speculation{};
  Bytes host_memory{0};
  std::optional<std::int64_t> max_model_len{};
  std::int64_t longest_prompt = 0;  // of the requests, tokens
  std::int64_t copies = 1;
  std::string model;
};

/// Writes the flags of one role.
class LaunchWriter {
 public:
  LaunchWriter(const EngineFlags& engine, EngineVersion version, const LaunchInput& in,
               std::string role);

  /// `replicas`: copies of the service that one command starts (with data-parallel attention), else
  /// 1; `gpus`: GPUs of one command divided by those of tensor and pipeline parallelism. Errors: as
  /// launch_of.
  [[nodiscard]] LaunchRole role();
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

 private:
  [[noreturn]] void refuse(const std::string& what) const;
  [[nodiscard]] std::string engine_text() const;
  [[nodiscard]] bool has(std::string_view flag) const;
  void add(std::string_view flag, std::string value = {});
  /// Adds a flag. Throws InputError that names `what` if the version does not have it.
  void require(std::string_view flag, std::string value, std::string_view what);
  void note(std::string text);

  void add_weights();
  void add_cache();
  void add_method();
  void add_method_flag(const std::string& option);
  void add_experts();
  void add_limits();
  void add_scheduler();
  void add_speculation();
  void add_split();
  void finish_files();

  const EngineFlags& engine_;
  EngineVersion version_;
  const LaunchInput& in_;
  LaunchRole out_;
  nlohmann::ordered_json yaml_;  // of TensorRT-LLM's options file
  std::vector<std::string> notes_;
};

/// `value` as YAML: block style, two blanks per level.
[[nodiscard]] std::string yaml_text(const nlohmann::ordered_json& value);

}  // namespace kvsim
