#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
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
/// finish(); until then it is a temporary beside it, removed if the writer is destroyed.
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
  /// Errors: ContractError if tensors are missing, InputError if the file cannot be put in place.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvsim
