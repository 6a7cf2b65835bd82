#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// Element types of safetensors files that kvsim reads or writes.
enum class TensorType : std::uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

/// Returns the bytes of one element, and the format's word for it ("F16").
[[nodiscard]] std::size_t item_size(TensorType type);
[[nodiscard]] std::string_view name_of(TensorType type);

/// A tensor's location in the file.
struct TensorEntry {
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes from the start of the data section

  [[nodiscard]] std::int64_t elements() const;
};

/// A memory-mapped safetensors file whose header has been fully checked: sizes, types, and offsets
/// that are in range, contiguous and do not overlap. No allocation depends on an unchecked header.
class Safetensors {
 public:
  /// Errors: InputError "PATH: TENSOR: expected …, got …".
  [[nodiscard]] static Safetensors open(const std::filesystem::path& path);
  Safetensors(Safetensors&&) noexcept;
  Safetensors& operator=(Safetensors&&) noexcept;
  ~Safetensors();

  [[nodiscard]] const std::string& place() const;  // the path, for messages
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;
  [[nodiscard]] const std::map<std::string, TensorEntry>& tensors() const;
  /// Returns nullptr if there is none.
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;

  /// Raw little-endian bytes of a tensor of this file.
  [[nodiscard]] std::span<const std::byte> bytes(const TensorEntry& entry) const;
  /// Reads elements first … first + count - 1 of a floating-point tensor as fp32 into `out`.
  /// Errors: ContractError outside the tensor, InputError for an integer tensor.
  void read_floats(std::string_view name, std::int64_t first, std::span<float> out) const;
  void read_floats(const TensorEntry& entry, std::int64_t first, std::span<float> out) const;
  /// Advises the system that a tensor's pages are no longer needed.
  void release(const TensorEntry& entry) const;
  /// The same for elements first … first + count - 1.
  void release(const TensorEntry& entry, std::int64_t first, std::int64_t count) const;

 private:
  struct Map;
  explicit Safetensors(std::unique_ptr<Map> map);
  std::unique_ptr<Map> map_;
};

}  // namespace kvsim
