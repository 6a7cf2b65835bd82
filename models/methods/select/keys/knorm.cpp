// The norm of keys: Devoto et al. 2024, "A Simple and Effective L2 Norm-Based Strategy for KV Cache
// Compression", found that keys with a low norm attract attention.
//
//   score_i = -|k_i|

#include <cmath>

#include "models/math/attention/attend.hpp"
#include "models/methods/select/scored.hpp"
#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

class Knorm final : public Scorer {
 public:
  std::vector<double> score(const ScoredTokens& tokens,
                            const SessionPlace& /*place*/) const override {
    const auto d = static_cast<std::size_t>(tokens.head.head_dim);
    std::vector<double> all;
    all.reserve(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto key = tokens.keys.subspan(i * d, d);
      all.push_back(-std::sqrt(dot(key, key)));
    }
    return all;
  }
  bool non_negative() const override { return false; }
  ScoreCost cost(double entries, double /*queries*/, const HeadShape& shape) const override {
    return {.flops = 2.0 * entries * shape.head_dim,
            .read = entries * shape.row_bytes() / 2,
            .transient = truncated<Bytes>(entries) * 4};
  }
};

std::shared_ptr<const SelectRule> resolve_knorm(MethodResolver& resolver) {
  return make_scored(resolver, make_knorm(resolver));
}

}  // namespace

std::shared_ptr<const Scorer> make_knorm(MethodResolver& /*resolving*/) {
  return std::make_shared<Knorm>();
}
AxisChoice select_knorm() { return scored_choice("knorm", {}, &resolve_knorm); }

}  // namespace kvsim
