// Dynamic Memory Compression (Nawrot et al. 2024): the retrofitted model decides for each token and
// KV head whether to append it or to accumulate it into the last entry, before the token is
// attended to. The decisions (alpha) are recorded in the trace; merge=accumulate applies them.

#include <limits>

#include <fmt/format.h>

#include "models/methods/learn/oracle.hpp"
#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

constexpr const char* kAlpha = "decision.alpha";

class DmcSelector final : public Selector {
 public:
  void learn_prompt(PromptScores& scores) override { alpha_ = recorded_scores(scores, kAlpha); }
  double score(std::int32_t id) const override {
    return 1.0 - alpha_[static_cast<std::size_t>(id)];
  }
  double importance(std::int32_t /*id*/, std::int32_t /*newest*/,
                    bool /*at_prefill*/) const override {
    return std::numeric_limits<double>::infinity();  // no entry is dropped
  }
  void leaving(const EntryTable& entries, std::int32_t newest, std::int64_t /*room*/,
               std::vector<std::int32_t>& out) override {
    if (entries.size() >= 2 && alpha_[static_cast<std::size_t>(newest)] >= 0.5) {
      out.push_back(newest);
    }
  }

 private:
  std::vector<double> alpha_;  // by position, 0 or 1
};

class DmcRule final : public SelectRule {
 public:
  std::unique_ptr<Selector> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<DmcSelector>();
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.inputs.per_head = {kAlpha};
    return needs;
  }
  bool leaves_before_attend() const override { return true; }
  std::optional<std::int64_t> held(std::int64_t /*budget*/, std::int64_t /*prompt*/,
                                   std::int64_t /*tokens*/) const override {
    return std::nullopt;  // depends on the model's decisions
  }
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{0};
  }
  // alpha and omega are in channels of key and query: no additional work.
  void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                const HeadShape& /*shape*/) const override {}
};

std::shared_ptr<const SelectRule> resolve_dmc(MethodResolver& resolver) {
  if (resolver.choice("merge") != "accumulate") {
    resolver.refuse(
        fmt::format("select=dmc decides which tokens are accumulated into the last entry: expected "
                    "merge=accumulate, got merge={}",
                    resolver.choice("merge")));
  }
  if (resolver.word("granularity") == "query_head") {
    resolver.refuse("it decides per KV head: expected granularity=kv_head");
  }
  if (resolver.budget()) {
    resolver.refuse("the retrofitted model decides merges: it takes no budget");
  }
  return std::make_shared<DmcRule>();
}

}  // namespace

AxisChoice select_dmc() {
  return {
      .axis = "select", .name = "dmc", .params = {}, .make = &resolve_dmc, .takes_budget = false};
}

}  // namespace kvsim
