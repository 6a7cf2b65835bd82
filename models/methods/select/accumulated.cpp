// Accumulated attention: H2O (Zhang et al. 2023) sums each token's attention over all queries; with
// a decay per step it is ZeroMerge's contribution score (eq. (5)).
//
//   s_i <- decay * s_i + sum over the group of a_i,   a new token starts at its own a

#include <algorithm>
#include <limits>
#include <vector>

#include "models/methods/axes.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

class AccumulatedSelector final : public Selector {
 public:
  AccumulatedSelector(const AccumulatedSettings& settings, std::int32_t tokens)
      : settings_{settings}, score_(static_cast<std::size_t>(tokens), 0.0) {}

  void learn_prompt(PromptScores& scores) override {
    const auto sums = scores.column_sums(settings_.decay);
    KVSIM_CHECK(sums.size() <= score_.size(), "{} sums, {} tokens", sums.size(), score_.size());
    std::copy(sums.begin(), sums.end(), score_.begin());
  }
  void observe(const AttentionRow& row) override {
    for (std::size_t slot = 0; slot < row.ids.size(); ++slot) {
      double& score = at(row.ids[slot]);
      score = settings_.decay * score + row.group_sum[slot];
    }
  }
  double score(std::int32_t id) const override { return score_[static_cast<std::size_t>(id)]; }
  void merge_scores(std::int32_t into, std::int32_t from, bool take_max) override {
    at(into) = take_max ? std::max(at(into), at(from)) : at(into) + at(from);
  }

 private:
  double importance(std::int32_t id, std::int32_t newest, bool at_prefill) const override {
    const std::int64_t recent = at_prefill ? settings_.recent_prompt : settings_.recent_decode;
    if (id < settings_.sinks || id > newest - recent)
      return std::numeric_limits<double>::infinity();
    return score_[static_cast<std::size_t>(id)];
  }
  double& at(std::int32_t id) { return score_[static_cast<std::size_t>(id)]; }

  AccumulatedSettings settings_;
  std::vector<double> score_;  // by id
};

class AccumulatedRule final : public SelectRule {
 public:
  explicit AccumulatedRule(const AccumulatedSettings& settings) : settings_{settings} {}

  std::unique_ptr<Selector> start(std::int32_t tokens) const override {
    return std::make_unique<AccumulatedSelector>(settings_, tokens);
  }
  MethodNeeds needs() const override {
    return {.prompt_scores = PromptScoreClass::kColumnSums,
            .prompt_window = 0,
            .score_exec = settings_.score_exec,
            .retries_smaller_chunks = settings_.retries_smaller_chunks,
            .score_copies = settings_.score_copies,
            .fp32_softmax = settings_.fp32_softmax,
            .decode_rows = true};
  }
  Bytes side_bytes_per_entry(Dtype recorded) const override {
    return settings_.score_in_cache_dtype ? bytes_of(1, recorded) : Bytes{4};
  }
  std::int64_t protected_entries() const override {
    return settings_.sinks + settings_.recent_decode;
  }

  // Work as the method catalogue counts it: decay, add and compare once an entry held before; the
  // sum over the group rides on the read of the row.
  void add_step(StepTraffic& traffic, double attended, std::int32_t group,
                Dtype recorded) const override {
    const auto side = static_cast<double>(side_bytes_per_entry(recorded).count());
    traffic.score_row_write += group * attended * 4.0;
    traffic.score_row_read += group * attended * 4.0;
    traffic.side_read += attended * side;
    traffic.side_write += attended * side;
    traffic.extra_flops += (attended - 1.0) * (settings_.decay == 1.0 ? 2.0 : 3.0);
  }

 private:
  AccumulatedSettings settings_;
};

}  // namespace

std::shared_ptr<const SelectRule> make_select_accumulated(const AccumulatedSettings& settings) {
  return std::make_shared<AccumulatedRule>(settings);
}

}  // namespace kvsim
