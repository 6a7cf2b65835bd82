// Entries that lose are dropped: pure eviction. The freed slot takes the next token.

#include "models/methods/axes.hpp"

namespace kvsim {
namespace {

class DropMerger final : public Merger {
 public:
  void absorb_prompt(EntryTable& /*entries*/, Selector& /*selector*/,
                     std::span<const std::int32_t> /*losers*/, std::span<const float> /*keys*/,
                     std::span<const float> /*values*/) override {}
  void prompt_fits(EntryTable& /*entries*/) override {}
  void absorb(EntryTable& entries, Selector& /*selector*/, std::int32_t slot) override {
    entries.erase(slot);
  }
};

class DropRule final : public MergeRule {
 public:
  std::unique_ptr<Merger> start() const override { return std::make_unique<DropMerger>(); }
  bool merges() const override { return false; }
  std::int64_t slots() const override { return 0; }
  bool prompt_one_by_one() const override { return false; }
  double bias(std::int32_t /*count*/) const override { return 0.0; }
  Bytes side_bytes_per_entry(Dtype /*recorded*/) const override { return Bytes{0}; }
  Compaction compaction() const override { return Compaction::kSwap; }
  std::int32_t launches() const override { return 0; }
  // The append lands in the hole that the last eviction left, so a swap moves nothing more.
  void add_step(StepTraffic& /*traffic*/, double /*attended*/, double /*row_bytes*/,
                std::int32_t /*head_dim*/, bool /*evicts*/) const override {}
};

}  // namespace

std::shared_ptr<const MergeRule> make_merge_drop() { return std::make_shared<DropRule>(); }

}  // namespace kvsim
