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

/// A tensor that a file will hold.
struct TensorPlan {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;
};

/// Writes a safetensors file of any size as a stream: header first, then the tensors' elements in
/// the order of the plan, in pieces of any length. The file appears under its name only with
/// finish(); until then it is built next to it, and removed if the writer is destroyed.
class SafetensorsWriter {
 public:
  /// Errors: InputError "PATH: cannot be written: REASON".
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorPlan> plan,
                    const std::map<std::string, std::string>& metadata);
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  /// The next elements of the tensor whose turn it is, rounded to its type (to nearest, ties to
  /// even). A piece may not run over the tensor's end. Errors: ContractError if it does, or the
  /// tensor holds integers; InputError if the disk is full.
  void write(std::span<const float> values);
  void write(std::span<const std::int32_t> values);
  /// Name of the tensor whose turn it is; empty when all are written.
  [[nodiscard]] std::string current() const;
  /// Completes the file, calls `check` with its working name, and gives it its own name. Errors:
  /// ContractError if tensors are missing, InputError if the file cannot be put in place, and
  /// whatever `check` throws; then nothing is left.
  void finish(const std::function<void(const std::filesystem::path&)>& check = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvsim
