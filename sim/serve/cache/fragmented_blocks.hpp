#pragma once

// Internal to sim/serve: a paged cache whose dropped entries leave holes until a layer is
// rewritten.

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// Row capacity of the blocks of heads that hold `heads` rows each. Blocks across heads provide
/// every head with the rows that the longest needs; otherwise each head has its own blocks.
[[nodiscard]] std::int64_t rows_in_blocks(std::span<const std::int64_t> heads,
                                          std::int64_t block_tokens, bool per_head);

/// Returns whether a layer is rewritten: more than kCompactionSlack of its blocks' rows are not in
/// `held`, and fewer blocks would suffice. `written` and `held` are rows of its heads, longest
/// first.
[[nodiscard]] bool closes_holes(std::span<const std::int64_t> written,
                                std::span<const std::int64_t> held, std::int64_t block_tokens,
                                bool per_head);

/// The steps at which the layers of each class were rewritten. In between, every head gets one row
/// per decode step.
class FragmentedBlocks {
 public:
  struct Stretch {
    std::int64_t from = 0;            // step after which it holds; 0: the prompt
    std::vector<std::int64_t> heads;  // rows written by then, including holes; longest first
  };
  explicit FragmentedBlocks(std::size_t layer_classes) : layer_classes_(layer_classes) {}

  void start(std::size_t layer_class, std::vector<std::int64_t> heads) {
    layer_classes_[layer_class].stretches.push_back({0, std::move(heads)});
  }
  /// Number of known steps.
  [[nodiscard]] std::int64_t reached(std::size_t layer_class) const {
    return layer_classes_[layer_class].reached;
  }
  /// Adds step reached + 1, after which the heads hold `held` rows.
  void add(std::size_t layer_class, std::span<const std::int64_t> held, std::int64_t block_tokens,
           bool per_head);
  /// Returns the stretch in which a known `step` ends.
  [[nodiscard]] const Stretch& after(std::size_t layer_class, std::int64_t step) const;
  /// Stores in `heads` the rows of each head just before step `step` >= 1 ends, including its own.
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
