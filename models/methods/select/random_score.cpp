// Uniformly distributed random scores: a baseline that any scorer must beat (kvpress, RandomPress).
// Keyed by (seed, layer, head, position), so that a token's score never changes.

#include "models/math/counter_random.hpp"
#include "models/methods/select/scored.hpp"
#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

class RandomScore final : public Scorer {
 public:
  std::vector<double> score(const ScoredTokens& tokens, const SessionPlace& place) const override {
    std::vector<double> all;
    all.reserve(tokens.size());
    const std::uint64_t key = counter_key({place.seed, static_cast<std::uint64_t>(place.layer),
                                           static_cast<std::uint64_t>(tokens.kv_head)});
    for (const std::int32_t position : tokens.positions) {
      all.push_back(counter_uniform(key, static_cast<std::uint64_t>(position)));
    }
    return all;
  }
  bool non_negative() const override { return true; }
  ScoreCost cost(double entries, double /*queries*/, const HeadShape& /*shape*/) const override {
    return {.flops = 0, .read = 0, .transient = truncated<Bytes>(entries) * 4};
  }
};

std::shared_ptr<const SelectRule> resolve_random_score(MethodResolver& resolver) {
  return make_scored(resolver, make_random(resolver));
}

}  // namespace

std::shared_ptr<const Scorer> make_random(MethodResolver& /*resolving*/) {
  return std::make_shared<RandomScore>();
}
AxisChoice select_random() { return scored_choice("random", {}, &resolve_random_score); }

}  // namespace kvsim
