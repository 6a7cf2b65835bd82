// Q-Filters (Godey et al. 2025, arXiv 2503.02812) as in kvpress, QFilterPress: the product of a key
// with one direction per KV head, along which most queries are positive.
//
//   u_g = first right singular vector of a query head's queries after RoPE, signed so that more
//   than half of them have a positive product with it;  score_i = k_i . mean of u_g over the group
//
// Direction: the released make_filters.py counts queries on each side, and takes the other side if
// at most half are positive. If exactly half are positive, its result depends on the sign returned
// by the SVD; kvsim then uses the sum of the products. The mean of the products over all queries
// could have the other sign if few long queries oppose many short ones.
//
// The released filters are -u and kvpress scores -filter . k: the two signs cancel. The authors
// compute u in advance from 3000 queries of other texts. A trace has no filters, so they are
// computed from its prompt's queries.

#include "models/math/attention/attend.hpp"
#include "models/math/low_rank/leverage.hpp"
#include "models/methods/select/scored.hpp"
#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

class QFilter final : public Scorer {
 public:
  std::vector<double> score(const ScoredTokens& tokens,
                            const SessionPlace& /*place*/) const override {
    const HeadVectors& head = tokens.head;
    const auto d = static_cast<std::size_t>(head.head_dim);
    std::vector<double> filter(d, 0.0);
    for (std::int32_t g = 0; g < head.group; ++g) {
      const auto queries =
          head.q.subspan(static_cast<std::size_t>(g * head.tokens + tokens.first_query) * d,
                         static_cast<std::size_t>(tokens.tokens - tokens.first_query) * d);
      const std::vector<double> direction = leading_direction(queries, d);
      for (std::size_t j = 0; j < d; ++j) filter[j] += direction[j] / head.group;
    }
    std::vector<double> all(tokens.size(), 0.0);
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (std::size_t j = 0; j < d; ++j) {
        all[i] += filter[j] * static_cast<double>(tokens.keys[i * d + j]);
      }
    }
    return all;
  }
  bool non_negative() const override { return false; }
  // Cost with precomputed filters.
  ScoreCost cost(double entries, double /*queries*/, const HeadShape& shape) const override {
    return {.flops = 2.0 * entries * shape.head_dim,
            .read = entries * shape.row_bytes() / 2,
            .transient = truncated<Bytes>(entries * shape.row_bytes() / 2)};  // the products
  }
};

std::shared_ptr<const SelectRule> resolve_qfilter(MethodResolver& resolver) {
  return make_scored(resolver, std::make_shared<QFilter>());
}

}  // namespace

AxisChoice select_qfilter() { return scored_choice("qfilter", {}, &resolve_qfilter); }

}  // namespace kvsim
