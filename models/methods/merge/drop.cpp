// Evicted entries are dropped: pure eviction. The next token is written to the freed slot.

#include "models/methods/merge/merge.hpp"

namespace kvsim {
namespace {

class DropMerger final : public Merger {
 public:
  void absorb_prompt(EntryTable& /*entries*/, Selector& /*selector*/,
                     std::span<const std::int32_t> /*losers*/, std::span<const float> /*keys*/,
                     std::span<const float> /*values*/) override {}
  std::int32_t absorb(EntryTable& entries, Selector& /*selector*/,
                      std::span<const std::int32_t> leaving) override {
    for (const std::int32_t id : leaving) entries.erase(entries.slot_of(id));
    return 0;
  }
};

class DropRule final : public MergeRule {
 public:
  std::unique_ptr<Merger> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<DropMerger>();
  }
  bool merges() const override { return false; }
  double bias(std::int32_t /*count*/, double /*weight*/) const override { return 0.0; }
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{0};
  }
  Compaction compaction() const override { return Compaction::kSwap; }
  std::int32_t launches() const override { return 0; }
  // The append fills the slot freed by the last eviction, so there are no additional moves.
  void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                const HeadShape& /*shape*/) const override {}
};

std::shared_ptr<const MergeRule> resolve_drop(MethodResolver& /*resolving*/) {
  return std::make_shared<DropRule>();
}

}  // namespace

AxisChoice merge_drop() {
  return {.axis = "merge", .name = "drop", .params = {}, .make = &resolve_drop};
}

}  // namespace kvsim
