// CurDKV (Sengupta et al. 2025, arXiv 2509.15038) as in kvpress, CURPress: norms of keys and values
// in place of leverage scores.
//
//   a_i = |k_i|^2, b_i = |v_i|^2, each divided by its sum over a local window of tokens
//   score_i = a_i b_i / sum over all tokens; the first tokens score 1
//
// Tokens of a window whose keys or values are all zero score 0 (kvpress divides 0 by 0).

#include <algorithm>
#include <string>
#include <utility>

#include "models/math/attention/attend.hpp"
#include "models/methods/select/scored.hpp"
#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

class Cur final : public Scorer {
 public:
  Cur(std::int64_t sinks, std::int64_t window, std::string leverage)
      : sinks_{static_cast<std::size_t>(sinks)},
        window_{static_cast<std::size_t>(window)},
        leverage_{std::move(leverage)} {}

  std::vector<double> score(const ScoredTokens& tokens,
                            const SessionPlace& /*place*/) const override {
    const auto d = static_cast<std::size_t>(tokens.head.head_dim);
    const std::vector<double> a = local_shares(tokens.keys, d);
    const std::vector<double> b = local_shares(tokens.values, d);
    std::vector<double> all(tokens.size());
    double sum = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = leverage_ == "key"     ? a[i]
               : leverage_ == "value" ? b[i]
               : leverage_ == "avg"   ? (a[i] + b[i]) / 2
                                      : a[i] * b[i];
      sum += all[i];
    }
    for (double& x : all) x = sum > 0 ? x / sum : 0;
    std::fill_n(all.begin(), std::min(sinks_, all.size()), 1.0);
    return all;
  }
  bool non_negative() const override { return true; }
  ScoreCost cost(double entries, double /*queries*/, const HeadShape& shape) const override {
    return {.flops = 4.0 * entries * shape.head_dim,
            .read = entries * shape.row_bytes(),
            .transient = truncated<Bytes>(entries) * 8};
  }

 private:
  /// Returns squared norms of rows, divided by their sum over the local window.
  [[nodiscard]] std::vector<double> local_shares(std::span<const float> rows, std::size_t d) const {
    std::vector<double> out(rows.size() / d);
    for (std::size_t first = 0; first < out.size(); first += window_) {
      const std::size_t end = std::min(first + window_, out.size());
      double sum = 0;
      for (std::size_t i = first; i < end; ++i) {
        out[i] = dot(rows.subspan(i * d, d), rows.subspan(i * d, d));
        sum += out[i];
      }
      for (std::size_t i = first; i < end; ++i) out[i] = sum > 0 ? out[i] / sum : 0;
    }
    return out;
  }

  std::size_t sinks_, window_;
  std::string leverage_;
};

std::shared_ptr<const SelectRule> resolve_cur(MethodResolver& resolver) {
  return make_scored(
      resolver, std::make_shared<Cur>(resolver.integer("n_sink"), resolver.integer("local_window"),
                                      resolver.word("leverage")));
}

}  // namespace

AxisChoice select_cur() {
  const std::string source = "kvpress, CURPress";
  return scored_choice(
      "cur",
      {integer_param("n_sink", "", 4, 0, kManyEntries, "an integer >= 0",
                     "first tokens that are kept", source, {"num_sinks"}),
       integer_param("local_window", "", 16, 1, kManyEntries, "an integer >= 1",
                     "tokens over which norms are normalised", source, {"local_window_size"}),
       word_param("leverage", {"product", "key", "value", "avg"},
                  "norms of keys times norms of values, only one of them, or their mean", source)},
      &resolve_cur);
}

}  // namespace kvsim
