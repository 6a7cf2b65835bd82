#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "models/methods/view/vectors.hpp"

namespace kvsim {

/// Attention of the last `rows` queries of a prompt over all of it, one head after another:
/// [heads][group][rows][prompt]. After a row's position, logits are -infinity and probabilities are
/// 0.
struct WindowRows {
  std::int32_t rows = 0;
  std::int64_t prompt = 0;
  std::int32_t group = 1;
  std::vector<double> logits, probabilities;

  /// Row r is for position prompt - rows + r; `head` counts stored heads.
  [[nodiscard]] std::span<const double> row(const std::vector<double>& of, std::size_t head,
                                            std::int32_t g, std::int32_t r) const {
    const auto p = static_cast<std::size_t>(prompt);
    const auto at = (head * static_cast<std::size_t>(group) + static_cast<std::size_t>(g)) *
                        static_cast<std::size_t>(rows) +
                    static_cast<std::size_t>(r);
    return std::span{of}.subspan(at * p, p);
  }
};

/// Data of a prompt for stored heads with a joint decision (one head, except for joint decisions of
/// a layer or a pair of layers). Results are computed on first use and cached. Thread-safe.
class PromptScores {
 public:
  explicit PromptScores(const HeadVectors& head) : heads_{head} {}
  /// `first_head`: index of heads.front() in its layer; `layer` outlives this object.
  PromptScores(std::vector<HeadVectors> heads, std::int32_t first_head, const LayerVectors& layer)
      : heads_{std::move(heads)}, first_head_{first_head}, layer_{&layer} {}

  [[nodiscard]] std::int32_t prompt() const {
    return static_cast<std::int32_t>(heads_.front().prompt);
  }
  [[nodiscard]] std::span<const HeadVectors> heads() const { return heads_; }
  /// Returns the data of head `h` only.
  [[nodiscard]] PromptScores of_head(std::size_t h) const;
  /// Index of the KV head of heads().front() in its layer.
  [[nodiscard]] std::int32_t first_head() const { return first_head_; }
  /// Number of the KV head of heads()[h] in the model's layer; a trace may contain only a sample of
  /// the heads.
  [[nodiscard]] std::int32_t head_number(std::size_t h) const;
  /// Returns the layer (for a pair, the shallower one). Errors: ContractError if no layer was
  /// given.
  [[nodiscard]] const LayerVectors& layer() const;
  [[nodiscard]] bool knows_layer() const { return layer_ != nullptr; }

  /// prompt_column_sums (models/math), summed over the heads: [prompt].
  [[nodiscard]] std::span<const double> column_sums(double decay);
  /// The last `rows` rows, limited to the prompt's length.
  [[nodiscard]] const WindowRows& window(std::int32_t rows);

  /// Attention row of position t: logits and probabilities of query head g over keys 0 … t.
  struct Row {
    std::size_t head = 0;
    std::int32_t g = 0;
    std::int64_t t = 0;
    std::span<const double> logits, probabilities;  // [t + 1]
  };
  /// Calls `visit` with the rows of positions first … prompt-1, ordered by head, position, query
  /// head. Rows are not cached, because s^2 values would be too many.
  void each_row(std::int64_t first, const std::function<void(const Row&)>& visit) const;

 private:
  PromptScores(std::vector<HeadVectors> heads, std::int32_t first_head, const LayerVectors* layer)
      : heads_{std::move(heads)}, first_head_{first_head}, layer_{layer} {}

  std::vector<HeadVectors> heads_;
  std::int32_t first_head_ = 0;
  const LayerVectors* layer_ = nullptr;
  std::mutex guard_;
  std::map<double, std::vector<double>> sums_;
  std::map<std::int32_t, WindowRows> windows_;
};

}  // namespace kvsim
