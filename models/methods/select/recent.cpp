// Attention sinks and a sliding window: Xiao et al., "Efficient Streaming Language Models with
// Attention Sinks" (StreamingLLM), section 3.2. Does not need scores, so flash attention is
// unaffected.

#include <limits>

#include <fmt/format.h>

#include "models/methods/params.hpp"
#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

constexpr double kDefaultShare = 0.2;         // share of the prompt, if n_sink is a share
constexpr std::int64_t kDefaultWindow = 512;  // default of the released class

class RecentSelector final : public Selector {
 public:
  explicit RecentSelector(std::int64_t sinks) : sinks_{sinks} {}
  void learn_prompt(PromptScores& /*scores*/) override {}
  double score(std::int32_t /*id*/) const override { return 0.0; }
  double importance(std::int32_t id, std::int32_t /*newest*/, bool /*at_prefill*/) const override {
    return id < sinks_ ? std::numeric_limits<double>::infinity() : static_cast<double>(id);
  }

 private:
  std::int64_t sinks_;
};

class RecentRule final : public SelectRule {
 public:
  explicit RecentRule(std::int64_t sinks) : sinks_{sinks} {}
  std::unique_ptr<Selector> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<RecentSelector>(sinks_);
  }
  std::int64_t min_entries() const override { return sinks_ + 1; }
  bool ranks_by_position() const override { return true; }
  MethodNeeds needs() const override { return {}; }
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{0};
  }
  void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                const HeadShape& /*shape*/) const override {}

 private:
  std::int64_t sinks_;
};

std::shared_ptr<const SelectRule> resolve_recent(MethodResolver& resolver) {
  const double share = resolver.number("start_share");
  std::int64_t sinks = resolver.integer("n_sink");
  std::int64_t window = resolver.integer("window");
  if (resolver.budget() || share > 0) {
    if (window > 0) {
      resolver.refuse(share > 0 ? "start_share is a share of a budget, from which window follows"
                                : "budget and window are both given; one follows from the other");
    }
    resolver.set_entries(resolver.budget_entries(kDefaultShare));
    if (share > 0) {
      if (resolver.given("n_sink")) {
        resolver.refuse("n_sink and start_share both set the number of first tokens");
      }
      sinks = share_or_count(share, resolver.entries());
    }
    window = resolver.entries() - sinks;
    if (window < 1) {
      resolver.refuse(
          fmt::format("a budget of {} entries leaves no window after {} sinks (expected at least "
                      "{})",
                      resolver.entries(), sinks, sinks + 1));
    }
  } else {
    if (window == 0) window = kDefaultWindow;
    resolver.set_entries(sinks + window);
  }
  resolver.resolve("n_sink", sinks);
  resolver.resolve("window", window);
  return std::make_shared<RecentRule>(sinks);
}

}  // namespace

AxisChoice select_recent() {
  return {.axis = "select",
          .name = "recent",
          .params = {integer_param("n_sink", "", 4, 0, kManyEntries, "an integer >= 0",
                                   "first tokens that are always kept",
                                   "StreamingLLM, released code", {"sinks"}),
                     number_param("start_share", "", 0, 0, 0.999, "a number in [0, 1)",
                                  "share of the budget kept as first tokens; 0: n_sink of them",
                                  "CaM, released code: 0.1 of the prompt plus 0.1 of recent"),
                     integer_param("window", "W", 0, 0, kManyEntries,
                                   "an integer >= 1, or 0 for the rest of the budget",
                                   "last tokens kept", "StreamingLLM; 512 in its released class"),
                     positions_param()},
          .make = &resolve_recent};
}

}  // namespace kvsim
