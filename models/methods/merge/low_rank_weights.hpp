#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "models/math/low_rank/low_rank_kernel.hpp"

namespace kvsim {

/// Trained feature maps of every (layer, KV head) of a model.
///
/// File format: a line "kvsim-low-rank 1 LAYERS HEADS HEAD_DIM HIDDEN RANK", then for each layer
/// and head LowRankShape::parameters() fp32 numbers, little-endian, in that order.
class LowRankWeights {
 public:
  /// Errors: InputError that names the file if it cannot be read, its first line has a different
  /// format, or its length does not match the first line.
  [[nodiscard]] static std::shared_ptr<const LowRankWeights> read(
      const std::filesystem::path& path);

  [[nodiscard]] std::int32_t n_layers() const { return layers_; }
  [[nodiscard]] std::int32_t n_heads() const { return heads_; }
  [[nodiscard]] const LowRankShape& shape() const { return shape_; }
  [[nodiscard]] std::span<const float> of(std::int32_t layer, std::int32_t head) const;

 private:
  std::int32_t layers_ = 0, heads_ = 0;
  LowRankShape shape_;
  std::vector<float> parameters_;
};

}  // namespace kvsim
