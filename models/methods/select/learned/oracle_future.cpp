// Eviction with knowledge of the future: an entry's score is its attention from all later queries
// of the trace under the full cache, summed over the group. The entry with the lowest score is
// evicted permanently whenever the budget is exceeded. This is a strong irrevocable eviction, not a
// bound: in between, an evicted entry may have been more useful than a kept entry.

#include <algorithm>
#include <cmath>

#include "models/math/attention/attend.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

/// Sums of future attention for every position after every step, in blocks. The sums after each
/// block's last step are kept; the others are recomputed backwards from there. With n steps over T
/// tokens this holds 2 sqrt(n) T numbers. Each sum always adds the same rows in the same order.
class OracleSelector final : public Selector {
 public:
  explicit OracleSelector(const SessionPlace& place)
      : attention_{place.group, place.head_dim, place.scale} {}

  void learn_prompt(PromptScores& scores) override {
    head_ = scores.heads().front();
    q_.resize(static_cast<std::size_t>(head_.group * head_.head_dim));
    const std::int64_t steps = head_.tokens - head_.prompt;
    block_ = std::max<std::int64_t>(
        static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(steps)))), 1);
    const std::int64_t blocks = steps / block_ + 1;
    ends_.resize(static_cast<std::size_t>(blocks));
    std::vector<double> sums(static_cast<std::size_t>(head_.tokens), 0.0);
    for (std::int64_t step = steps; step >= 0; --step) {
      if (step == steps || step % block_ == block_ - 1) {
        ends_[static_cast<std::size_t>(step / block_)] = sums;
      }
      if (step > 0) add_row(head_.prompt - 1 + step, sums);
    }
    enter(0);
  }
  void leaving(const EntryTable& entries, std::int32_t newest, std::int64_t room,
               std::vector<std::int32_t>& out) override {
    enter(std::max<std::int64_t>(newest - (head_.prompt - 1), 0) / block_);
    Selector::leaving(entries, newest, room, out);
  }
  double score(std::int32_t id) const override {
    return importance(id, static_cast<std::int32_t>(head_.prompt) - 1, true);
  }
  double importance(std::int32_t id, std::int32_t newest, bool /*at_prefill*/) const override {
    const std::int64_t step = std::max<std::int64_t>(newest - (head_.prompt - 1), 0);
    KVSIM_CHECK(step / block_ == at_, "step {} outside block {} of {} steps", step, at_, block_);
    return future_[static_cast<std::size_t>(step % block_)][static_cast<std::size_t>(id)];
  }

 private:
  /// Adds the attention row of position t, summed over the group.
  void add_row(std::int64_t t, std::vector<double>& sums) {
    const auto d = static_cast<std::size_t>(head_.head_dim);
    for (std::int32_t g = 0; g < head_.group; ++g) {
      std::copy_n(head_.query(g, t).data(), d, q_.data() + static_cast<std::size_t>(g) * d);
    }
    attention_.run_weights(q_, head_.keys.first(static_cast<std::size_t>(t + 1) * d), {});
    const auto row = attention_.group_sum();
    for (std::size_t i = 0; i < row.size(); ++i) sums[i] += row[i];
  }
  void enter(std::int64_t block) {
    if (block == at_) return;
    at_ = block;
    const std::int64_t first = block * block_;
    const std::int64_t last = std::min(first + block_ - 1, head_.tokens - head_.prompt);
    future_.resize(static_cast<std::size_t>(block_));
    std::vector<double> sums = ends_[static_cast<std::size_t>(block)];
    for (std::int64_t step = last; step >= first; --step) {
      future_[static_cast<std::size_t>(step - first)] = sums;
      if (step > first) add_row(head_.prompt - 1 + step, sums);
    }
  }

  GroupAttention attention_;
  HeadVectors head_;
  std::vector<float> q_;
  std::int64_t block_ = 1;
  std::int64_t at_ = -1;                     // the block held in future_
  std::vector<std::vector<double>> ends_;    // [block][position]
  std::vector<std::vector<double>> future_;  // [step of the block][position]
};

class OracleRule final : public SelectRule {
 public:
  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<OracleSelector>(place);
  }
  // A reference: its scores have no cost, because they are not available to a real method.
  MethodNeeds needs() const override { return {}; }
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{0};
  }
  void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                const HeadShape& /*shape*/) const override {}
};

std::shared_ptr<const SelectRule> resolve_oracle_future(MethodResolver& resolver) {
  const std::int64_t entries = resolver.budget_entries(0.2);
  resolver.set_entries(entries);
  if (entries - resolver.reserve_slots(entries) < 1) {
    resolver.refuse("the slots set aside for merged entries leave no room in its budget");
  }
  return std::make_shared<OracleRule>();
}

}  // namespace

AxisChoice select_oracle_future() {
  return {.axis = "select", .name = "oracle-future", .params = {}, .make = &resolve_oracle_future};
}

}  // namespace kvsim
