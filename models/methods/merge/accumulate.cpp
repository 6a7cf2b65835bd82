// A dropped token is merged into the previous entry, as a mean weighted by learned importances
// (Dynamic Memory Compression, Nawrot et al. 2024, section 3.1):
//
//   k <- (k z + k_t w_t) / (z + w_t),  the same for v,  z <- z + w_t
//
// A new entry starts with z = w_t.

#include <vector>

#include <fmt/format.h>

#include "models/methods/learn/oracle.hpp"
#include "models/methods/merge/merge.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr const char* kOmega = "decision.omega";

class AccumulateMerger final : public Merger {
 public:
  void learn_prompt(PromptScores& scores, std::size_t head) override {
    omega_ = recorded_scores(scores, kOmega, head);
  }
  void absorb_prompt(EntryTable& /*entries*/, Selector& /*selector*/,
                     std::span<const std::int32_t> losers, std::span<const float> /*keys*/,
                     std::span<const float> /*values*/) override {
    KVSIM_CHECK(false, "{} tokens lost at once; the prompt is fed one by one", losers.size());
  }
  std::int32_t absorb(EntryTable& entries, Selector& /*selector*/,
                      std::span<const std::int32_t> leaving) override {
    for (const std::int32_t id : leaving) {
      const std::int32_t from = entries.slot_of(id);
      KVSIM_CHECK(from == entries.size() - 1 && from >= 1, "slot {} of {} is to be accumulated",
                  from, entries.size());
      const std::int32_t into = from - 1;  // only the newest entry leaves, so slots are in order
      if (entries.id(into) != last_) {
        last_ = entries.id(into);
        z_ = omega_[static_cast<std::size_t>(last_)];
        key_.assign(entries.key(into).begin(), entries.key(into).end());
        value_.assign(entries.value(into).begin(), entries.value(into).end());
      }
      const double omega = omega_[static_cast<std::size_t>(id)];
      const double share = z_ + omega > 0 ? omega / (z_ + omega) : 0.0;
      for (std::size_t j = 0; j < key_.size(); ++j) {
        key_[j] += (static_cast<double>(entries.key(from)[j]) - key_[j]) * share;
        value_[j] += (static_cast<double>(entries.value(from)[j]) - value_[j]) * share;
      }
      z_ += omega;
      entries.merge_into(into, {&id, 1}, key_, value_, z_);
    }
    return static_cast<std::int32_t>(leaving.size());
  }

 private:
  std::vector<double> omega_;  // by position
  // The last entry, in fp64 so that small updates of its mean are not lost.
  std::int32_t last_ = -1;
  double z_ = 0;
  std::vector<double> key_, value_;
};

class AccumulateRule final : public MergeRule {
 public:
  std::unique_ptr<Merger> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<AccumulateMerger>();
  }
  bool merges() const override { return true; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.inputs.per_head = {kOmega};
    return needs;
  }
  bool prompt_one_by_one() const override { return true; }
  bool keeps_size_law() const override { return false; }
  double bias(std::int32_t /*count*/, double /*weight*/) const override { return 0.0; }
  // z of the last entry.
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{4};
  }
  Compaction compaction() const override { return Compaction::kAppend; }
  std::int32_t launches() const override { return 2; }
  // Gate and choice; two products, a sum, a division and a write each for key and value; the
  // weight.
  std::int32_t operators() const override { return 13; }
  // Reads the last row; its write is counted as the append.
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    traffic.move_read += events.merged * shape.row_bytes();
    traffic.side_read += 4.0;
    traffic.side_write += 4.0;
    traffic.extra_flops += events.merged * 6.0 * shape.head_dim;
  }
};

std::shared_ptr<const MergeRule> resolve_accumulate(MethodResolver& resolver) {
  if (resolver.choice("select") != "dmc") {
    resolver.refuse(
        fmt::format("merge=accumulate adds the newest token to the entry before it: expected "
                    "select=dmc, got select={}",
                    resolver.choice("select")));
  }
  return std::make_shared<AccumulateRule>();
}

}  // namespace

AxisChoice merge_accumulate() {
  return {.axis = "merge", .name = "accumulate", .params = {}, .make = &resolve_accumulate};
}

}  // namespace kvsim
