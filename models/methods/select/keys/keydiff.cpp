// Keys that differ from the rest: Park et al. 2025, KeyDiff.
//
//   score_i = -cos(k_i, m),   m = mean over i of k_i / |k_i|

#include <cmath>

#include "models/math/attention/attend.hpp"
#include "models/methods/select/scored.hpp"
#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

class KeyDiff final : public Scorer {
 public:
  std::vector<double> score(const ScoredTokens& tokens,
                            const SessionPlace& /*place*/) const override {
    const auto d = static_cast<std::size_t>(tokens.head.head_dim);
    std::vector<double> mean(d, 0.0);
    std::vector<double> norms;
    norms.reserve(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto key = tokens.keys.subspan(i * d, d);
      norms.push_back(std::sqrt(dot(key, key)));
      if (norms.back() == 0) continue;  // a zero key has no direction
      for (std::size_t j = 0; j < d; ++j) mean[j] += static_cast<double>(key[j]) / norms.back();
    }
    double mean_norm = 0;
    for (double& x : mean) {
      x /= static_cast<double>(tokens.size());
      mean_norm += x * x;
    }
    mean_norm = std::sqrt(mean_norm);
    std::vector<double> all;
    all.reserve(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto key = tokens.keys.subspan(i * d, d);
      double product = 0;
      for (std::size_t j = 0; j < d; ++j) product += static_cast<double>(key[j]) * mean[j];
      const double scale = norms[i] * mean_norm;
      all.push_back(scale > 0 ? -product / scale : 0.0);
    }
    return all;
  }
  bool non_negative() const override { return false; }
  ScoreCost cost(double entries, double /*queries*/, const HeadShape& shape) const override {
    return {.flops = 6.0 * entries * shape.head_dim,
            .read = 2 * entries * shape.row_bytes() / 2,  // once for the mean, once for the cosine
            .transient = truncated<Bytes>(entries) * 4};
  }
};

std::shared_ptr<const SelectRule> resolve_keydiff(MethodResolver& resolver) {
  return make_scored(resolver, make_keydiff(resolver));
}

}  // namespace

std::shared_ptr<const Scorer> make_keydiff(MethodResolver& /*resolving*/) {
  return std::make_shared<KeyDiff>();
}
AxisChoice select_keydiff() { return scored_choice("keydiff", {}, &resolve_keydiff); }

}  // namespace kvsim
