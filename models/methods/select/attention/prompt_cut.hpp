#pragma once

// Shared by selections that cut the prompt once, at its end, and append every later token.

#include <cstdint>
#include <optional>
#include <vector>

#include "models/methods/select/select.hpp"

namespace kvsim {

/// Scores by position, fixed after the prompt; no entry leaves at decode steps.
class PromptCutSelector : public Selector {
 public:
  double score(std::int32_t id) const override {
    const auto at = static_cast<std::size_t>(id);
    return at < score_.size() ? score_[at] : 0.0;
  }
  void leaving(const EntryTable& /*entries*/, std::int32_t /*newest*/, std::int64_t /*room*/,
               std::vector<std::int32_t>& /*out*/) override {}

 protected:
  [[nodiscard]] bool has_score(std::int32_t id) const {
    return static_cast<std::size_t>(id) < score_.size();
  }

  std::vector<double> score_;  // for the first positions; later ones have no score
};

/// E = min(prompt, budget) + generated; no side data, no work per step.
class PromptCutRule : public SelectRule {
 public:
  bool leaves_in_decode() const override { return false; }
  bool rerotates_once() const override { return true; }
  std::optional<std::int64_t> held(std::int64_t budget, std::int64_t prompt,
                                   std::int64_t tokens) const override {
    return held_by_appending(budget, prompt, tokens);
  }
  Compaction compaction(Compaction /*of_merge*/) const override { return Compaction::kAppend; }
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{0};
  }
  void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                const HeadShape& /*shape*/) const override {}
};

}  // namespace kvsim
