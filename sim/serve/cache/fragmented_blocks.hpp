#pragma once

// Internal to sim/serve: a paged cache whose dropped entries leave holes until a layer is
// rewritten.

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// Rows that the blocks of heads which hold `heads` rows each have room for: of blocks across heads
/// as many in every head as the longest needs, else each head's own.
[[nodiscard]] std::int64_t rows_in_blocks(std::span<const std::int64_t> heads,
                                          std::int64_t block_tokens, bool per_head);

/// Whether a layer is rewritten: more than kCompactionSlack of its blocks' rows are not in `held`,
/// and fewer blocks would suffice. `written` and `held` are of its heads, the longest first.
[[nodiscard]] bool closes_holes(std::span<const std::int64_t> written,
                                std::span<const std::int64_t> held, std::int64_t block_tokens,
                                bool per_head);

/// The steps at which the layers of each class were rewritten. In between, every head gets one row
/// per decode step.
class FragmentedBlocks {
 public:
  struct Stretch {
    std::int64_t from = 0;            // step after which it holds; 0: the prompt
    std::vector<std::int64_t> heads;  // rows written then, holes among them, the longest first
  };
  explicit FragmentedBlocks(std::size_t layer_classes) : layer_classes_(layer_classes) {}

  void start(std::size_t layer_class, std::vector<std::int64_t> heads) {
    layer_classes_[layer_class].stretches.push_back({0, std::move(heads)});
  }
  /// Steps that are known.
  [[nodiscard]] std::int64_t reached(std::size_t layer_class) const {
    return layer_classes_[layer_class].reached;
  }
  /// Step reached + 1 leaves `held`.
  void add(std::size_t layer_class, std::span<const std::int64_t> held, std::int64_t block_tokens,
           bool per_head);
  /// The stretch that a known `step` ends in.
  [[nodiscard]] const Stretch& after(std::size_t layer_class, std::int64_t step) const;
  /// Rows written of each head just before step `step` >= 1 ends, its own among them.
  void within(std::size_t layer_class, std::int64_t step, std::vector<std::int64_t>& heads) const;

 private:
  struct LayerClass {
    std::vector<Stretch> stretches;
    std::int64_t reached = 0;
  };
  std::vector<LayerClass> layer_classes_;
  std::vector<std::int64_t> written_;
};

}  // namespace kvsim
