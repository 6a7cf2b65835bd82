#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "traces/safetensors.hpp"

namespace kvsim {

/// A tensor to be written to a file.
struct TensorPlan {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;
};

/// Writes a safetensors file of any size as a stream: the header, then the tensors' elements in the
/// order of the plan, in pieces of any length. Until finish() the file has a temporary name in the
/// same folder, and is removed if the writer is destroyed.
class SafetensorsWriter {
 public:
  /// Errors: InputError "PATH: cannot be written: REASON".
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorPlan> plan,
                    const std::map<std::string, std::string>& metadata);
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  /// Writes the next elements of the current tensor, rounded to its type (to nearest, ties to
  /// even). A piece may not extend past the tensor's end. Errors: ContractError if it does, or if
  /// the tensor is of integers; InputError if the disk is full.
  void write(std::span<const float> values);
  void write(std::span<const std::int32_t> values);
  /// Name of the current tensor; empty when all are written.
  [[nodiscard]] std::string current() const;
  /// Completes the file, calls `check` with its temporary name, and renames it. Errors:
  /// ContractError if tensors are missing, InputError if the file cannot be put in place, and
  /// exceptions of `check`; no file is left then.
  void finish(const std::function<void(const std::filesystem::path&)>& check = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvsim
