// Attention sinks and a sliding window: Xiao et al., "Efficient Streaming Language Models with
// Attention Sinks" (StreamingLLM), section 3.2. Needs no scores, so flash attention is untouched.

#include <limits>

#include <fmt/format.h>

#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kDefaultWindow = 512;  // the released class

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
  std::int64_t least_entries() const override { return sinks_ + 1; }
  MethodNeeds needs() const override { return {}; }
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{0};
  }
  void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                const HeadShape& /*shape*/) const override {}

 private:
  std::int64_t sinks_;
};

std::shared_ptr<const SelectRule> make(Settling& settling) {
  const std::int64_t sinks = settling.integer("n_sink");
  std::int64_t window = settling.integer("window");
  if (settling.budget()) {
    if (window > 0) settling.refuse("budget and window are both given; one follows from the other");
    settling.set_entries(settling.entries_of(*settling.budget()));
    window = settling.entries() - sinks;
    if (window < 1) {
      settling.refuse(
          fmt::format("a budget of {} entries leaves no window beside {} sinks (expected at least "
                      "{})",
                      settling.entries(), sinks, sinks + 1));
    }
  } else {
    if (window == 0) window = kDefaultWindow;
    settling.set_entries(sinks + window);
  }
  settling.settle("window", window);
  return std::make_shared<RecentRule>(sinks);
}

}  // namespace

AxisChoice select_recent() {
  return {.axis = "select",
          .name = "recent",
          .params = {integer_param("n_sink", "", 4, 0, kManyEntries, "an integer >= 0",
                                   "first tokens kept for good", "StreamingLLM, released code",
                                   {"sinks"}),
                     integer_param("window", "W", 0, 0, kManyEntries,
                                   "an integer >= 1, or 0 for what the budget leaves",
                                   "last tokens kept", "StreamingLLM; 512 in its released class"),
                     positions_param()},
          .make = &make};
}

}  // namespace kvsim
