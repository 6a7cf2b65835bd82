#pragma once

#include <cstdint>
#include <vector>

#include "models/cost/step.hpp"
#include "models/llm/layer/layer_kind.hpp"

namespace kvsim {

/// Packed codes are 32-bit words; their scales and zeros are in separate tensors.
inline constexpr Dtype kPackedDtype = Dtype::kFp32;
inline constexpr std::int32_t kPackedTensors = 3;

/// Sizes of one layer's cache, whole batch, by entries per stored head. For entries distributed
/// over several ranks, the sizes are those of the rank with the most entries. For layers without
/// rows that a method can compress, entries are tokens. Methods support heads of one width; a
/// latent cache is presented to a method as one head whose key and value are half the latent row
/// each.
class CacheRows {
 public:
  CacheRows(const CostInput& in, std::int32_t layer);

  [[nodiscard]] LayerCache cache(std::int64_t entries) const;
  /// Returns the keys and values that stay in addition to the cache until the end of the step, if
  /// the caller holds all old caches (CacheGrowth::kConcatAll).
  [[nodiscard]] LayerCache cache_after_step(const DecodeState& moment) const;
  [[nodiscard]] const LayerShape& shape() const { return shape_; }
  [[nodiscard]] std::int32_t stored_heads() const { return stored_heads_; }
  [[nodiscard]] Dtype dtype() const { return dtype_; }
  /// Whether K and V have a fixed number of elements of dtype() per entry; otherwise only the
  /// method defines the sizes.
  [[nodiscard]] bool plain() const { return plain_; }
  [[nodiscard]] Bytes keys(std::int64_t entries) const;    // payload, not rounded
  [[nodiscard]] Bytes values(std::int64_t entries) const;  // payload, not rounded
  /// The same as unrounded products of payload sizes: multiplied with `start`, for example the
  /// number of equal layers.
  [[nodiscard]] Product keys_size(std::int64_t entries, Product start = {}) const;
  [[nodiscard]] Product values_size(std::int64_t entries, Product start = {}) const;
  [[nodiscard]] Product side_size(std::int64_t entries, Product start = {}) const;
  [[nodiscard]] Product other_size(std::int64_t entries, Product start = {}) const;
  [[nodiscard]] Bytes side(std::int64_t entries) const {
    return side_is_line_ ? Bytes{side_start_ + entries * side_each_} : side_of_method(entries);
  }
  /// Bytes of the layer's other items: states, windows, index keys, compressed entries.
  [[nodiscard]] Bytes other(std::int64_t entries) const;
  [[nodiscard]] bool has_other() const { return !items_.empty(); }
  [[nodiscard]] const std::vector<CacheItem>& items() const { return items_; }
  /// Whether other() grows by equal amounts per entry, starting with the first.
  [[nodiscard]] bool other_is_line() const;
  /// Treats side() of plain rows as linear if it is linear at these numbers of entries: none, one,
  /// whole groups, other numbers, and more than any budget. For frequently evaluated rows.
  void fit_side_bytes();
  [[nodiscard]] bool side_is_line() const { return side_is_line_; }

 private:
  [[nodiscard]] Bytes side_of_method(std::int64_t entries) const;  // from the method
  [[nodiscard]] std::int64_t of_prompt(std::int64_t entries) const;
  [[nodiscard]] std::int64_t here(std::int64_t entries) const {
    return (entries + context_ranks_ - 1) / context_ranks_;
  }
  [[nodiscard]] CacheBytes stored(std::int64_t entries) const;  // of one sequence
  [[nodiscard]] LayerCache rows(std::int64_t entries) const;    // only keys and values, as charged
  [[nodiscard]] LayerCache rows_of(const CacheBytes& one) const;
  [[nodiscard]] Product row_size(std::int64_t entries, std::int64_t elements, Product start) const;

  const CostInput& in_;
  std::int32_t layer_;
  LayerShape shape_;
  std::int32_t stored_heads_ = 0;
  Dtype dtype_ = Dtype::kFp16;
  bool plain_ = true;
  bool latent_ = false;
  std::int32_t context_ranks_ = 1;
  std::int64_t prompt_entries_ = 0;
  std::int64_t key_elements_ = 0;  // of one entry of every stored head, one sequence
  std::int64_t value_elements_ = 0;
  std::vector<CacheItem> items_;  // other()
  bool side_is_line_ = false;
  std::int64_t side_start_ = 0;
  std::int64_t side_each_ = 0;
};

}  // namespace kvsim
