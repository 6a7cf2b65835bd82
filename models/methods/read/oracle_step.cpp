// The reference for readers and evictors: at every step each query head attends over the B entries
// with the largest attention in the full cache. No other choice of B entries retains more mass.

#include <algorithm>
#include <cmath>
#include <functional>

#include "models/methods/read/read.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

class OracleReader final : public Reader {
 public:
  OracleReader(const SessionPlace& place, std::int64_t tokens)
      : group_{place.group},
        d_{static_cast<std::size_t>(place.head_dim)},
        tokens_{static_cast<std::size_t>(tokens)},
        attention_{place.group, place.head_dim, place.scale} {}

  void prompt_written(EntryTable& /*entries*/, PromptScores& /*scores*/,
                      std::size_t /*head*/) override {}
  void appended(const EntryTable& /*entries*/, std::int32_t /*slot*/) override {}

  void attend(std::span<const float> q, const EntryTable& entries, ReadOutcome& outcome) override {
    const auto n = static_cast<std::size_t>(entries.size());
    const auto group = static_cast<std::size_t>(group_);
    outcome.log_sums.resize(group);
    if (tokens_ >= n) {
      attention_.run(q, entries.keys(), entries.values(), {});
      outcome.out.assign(attention_.output().begin(), attention_.output().end());
      for (std::size_t g = 0; g < group; ++g) {
        outcome.log_sums[g] = attention_.log_sum(static_cast<std::int32_t>(g));
      }
      outcome.entries_read = static_cast<double>(n);
      outcome.max_read = entries.size();
      return;
    }
    attention_.run_weights(q, entries.keys(), {});
    outcome.out.assign(group * d_, 0.0);
    read_.assign(n, false);
    std::size_t distinct = 0;
    for (std::int32_t g = 0; g < group_; ++g) {
      choose(attention_.probabilities(g), entries.ids());
      double mass = 0;
      const std::span<double> out =
          std::span{outcome.out}.subspan(static_cast<std::size_t>(g) * d_, d_);
      for (const std::int32_t slot : order_) {
        const double p = attention_.probabilities(g)[static_cast<std::size_t>(slot)];
        mass += p;
        const std::span<const float> value = entries.value(slot);
        for (std::size_t j = 0; j < d_; ++j) out[j] += p * static_cast<double>(value[j]);
        if (!read_[static_cast<std::size_t>(slot)]) ++distinct;
        read_[static_cast<std::size_t>(slot)] = true;
      }
      for (double& x : out) x /= mass;
      outcome.log_sums[static_cast<std::size_t>(g)] = attention_.log_sum(g) + std::log(mass);
    }
    outcome.entries_read = static_cast<double>(distinct);
    outcome.max_read = static_cast<std::int64_t>(tokens_);
  }

 private:
  /// Writes the slots of the most probable entries to order_, ascending; ties go to the older.
  void choose(std::span<const double> probabilities, std::span<const std::int32_t> ids) {
    sorted_.assign(probabilities.begin(), probabilities.end());
    const auto last = sorted_.begin() + static_cast<std::ptrdiff_t>(tokens_) - 1;
    std::nth_element(sorted_.begin(), last, sorted_.end(), std::greater<>{});
    const double lowest = *last;  // the lowest chosen probability
    order_.clear();
    ties_.clear();
    for (std::size_t slot = 0; slot < probabilities.size(); ++slot) {
      if (probabilities[slot] < lowest) continue;
      (probabilities[slot] > lowest ? order_ : ties_).push_back(static_cast<std::int32_t>(slot));
    }
    std::sort(ties_.begin(), ties_.end(), [ids](std::int32_t a, std::int32_t b) {
      return ids[static_cast<std::size_t>(a)] < ids[static_cast<std::size_t>(b)];
    });
    ties_.resize(tokens_ - order_.size());
    order_.insert(order_.end(), ties_.begin(), ties_.end());
    std::sort(order_.begin(), order_.end());
  }

  std::int32_t group_;
  std::size_t d_, tokens_;
  GroupAttention attention_;
  std::vector<std::int32_t> order_, ties_;
  std::vector<double> sorted_;
  std::vector<bool> read_;
};

/// The oracle must process all entries to choose those to omit. As a method it has the cost of the
/// full cache; its "reads" are those of a reader that knew the choice in advance.
class OracleRule final : public ReadRule {
 public:
  OracleRule(std::int64_t tokens, std::int32_t group) : tokens_{tokens}, group_{group} {}
  std::unique_ptr<Reader> start(const SessionPlace& place) const override {
    return std::make_unique<OracleReader>(place, tokens_);
  }
  double entries_read(std::int32_t /*layer*/, double entries) const override {
    return std::min(entries, static_cast<double>(tokens_) * group_);
  }

 private:
  std::int64_t tokens_;
  std::int32_t group_;
};

std::shared_ptr<const ReadRule> resolve_oracle_step(MethodResolver& resolver) {
  return std::make_shared<OracleRule>(resolve_token_budget(resolver, 0.2), group_of(resolver));
}

}  // namespace

AxisChoice read_oracle_step() {
  return {.axis = "read",
          .name = "oracle-step",
          .params = {token_budget_param(0,
                                        "entries each query head attends over; the budget limits "
                                        "what is read, everything is held",
                                        "a reference of this program")},
          .make = &resolve_oracle_step};
}

}  // namespace kvsim
