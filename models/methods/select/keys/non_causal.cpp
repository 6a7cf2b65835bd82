// NonCausalAttnPress of kvpress, a part of Compactor (Chari and Van Durme 2025, arXiv 2507.08143).
// As in leverage.cpp, the mean over a layer's heads is not subtracted.

#include <algorithm>
#include <cmath>

#include "models/math/attention/attend.hpp"
#include "models/math/attention/key_redundancy.hpp"
#include "models/methods/select/keys/compactor.hpp"
#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

constexpr std::int32_t kNeighbours = 3;

class NonCausal final : public Scorer {
 public:
  NonCausal(std::int64_t chunk, bool padded, double width)
      : chunk_{chunk}, padded_{padded}, width_{width} {}

  std::vector<double> score(const ScoredTokens& tokens,
                            const SessionPlace& /*place*/) const override {
    return non_causal_scores(tokens, chunk_, padded_);
  }
  bool non_negative() const override { return true; }
  ScoreCost cost(double entries, double /*queries*/, const HeadShape& shape) const override {
    return non_causal_cost(entries, chunk_, width_, shape);
  }

 private:
  std::int64_t chunk_;
  bool padded_;
  double width_;
};

std::shared_ptr<const SelectRule> resolve_non_causal(MethodResolver& resolver) {
  return make_scored(resolver, std::make_shared<NonCausal>(resolver.integer("chunk"),
                                                           resolver.word("padding") == "zeros",
                                                           hidden_width(resolver)));
}

}  // namespace

std::vector<double> non_causal_scores(const ScoredTokens& tokens, std::int64_t chunk, bool padded) {
  const HeadVectors& head = tokens.head;
  const auto d = static_cast<std::size_t>(head.head_dim);
  const auto width = static_cast<std::size_t>(chunk);
  const std::size_t n = tokens.size();
  std::vector<double> all(n, 0.0);
  std::vector<double> row;
  for (std::size_t first = 0; first < n; first += width) {
    const std::size_t count = std::min(width, n - first);
    const std::size_t zeros = padded ? width - count : 0;
    for (std::int32_t g = 0; g < head.group; ++g) {
      for (std::size_t i = first; i < first + count; ++i) {
        const std::span<const float> q = head.query(g, tokens.positions[i]);
        row.resize(count + zeros);
        for (std::size_t j = 0; j < count; ++j)
          row[j] = dot(q, tokens.keys.subspan((first + j) * d, d));
        std::fill(row.begin() + static_cast<std::ptrdiff_t>(count), row.end(), 0.0);
        softmax_in_place(row);
        for (std::size_t j = 0; j < count; ++j) all[first + j] += row[j];
      }
      // With a zero query, all keys of its chunk have equal weights.
      for (std::size_t j = 0; j < count; ++j) {
        all[first + j] += static_cast<double>(zeros) / static_cast<double>(width);
      }
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    const std::span<const float> value = tokens.values.subspan(i * d, d);
    all[i] *= std::sqrt(dot(value, value)) / head.group;
  }
  return pool(all, kNeighbours, /*maximum=*/false);
}

ScoreCost non_causal_cost(double entries, std::int64_t chunk, double width,
                          const HeadShape& shape) {
  const double d = shape.head_dim;
  const double logits = shape.group * entries * static_cast<double>(chunk);
  // Projection of queries, logits, softmax (3) and column sums.
  return {
      .flops = 2.0 * shape.group * entries * width * d + logits * (2.0 * d + 4),
      .read = entries * shape.row_bytes() + shape.group * entries * shape.row_bytes() / 2,
      // Logits and weights of all chunks in fp32, and the queries.
      .transient = truncated<Bytes>(logits * 8 + shape.group * entries * shape.row_bytes() / 2)};
}

ParamInfo chunk_param() {
  return integer_param("chunk", "", 256, 1, kManyEntries, "an integer >= 1",
                       "tokens that attend to each other", "kvpress, NonCausalAttnPress",
                       {"chunk_size"});
}
ParamInfo padding_param() {
  return word_param("padding", {"masked", "zeros"},
                    "a partial last chunk: as long as its tokens, or padded with zero keys and "
                    "queries that count",
                    "masked: kvpress 15a267d; zeros: kvpress 0.5.4");
}

AxisChoice select_non_causal() {
  return scored_choice("non-causal", {chunk_param(), padding_param()}, &resolve_non_causal);
}

}  // namespace kvsim
