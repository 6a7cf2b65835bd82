#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/methods/entry_table.hpp"
#include "models/methods/method.hpp"

namespace kvsim {

// The axes a method is composed of. A *rule* is an axis choice with its parameters settled:
// immutable, shared by all heads, with size law and cost. What a rule learns about one (layer,
// stored head) lives in the object its `start` makes.

/// What a selector may learn from a prompt; computed on demand, so a method pays for what it asks.
class PromptScores {
 public:
  virtual ~PromptScores() = default;
  [[nodiscard]] virtual std::int32_t prompt() const = 0;
  /// prompt_column_sums (models/math) of the head group: [prompt].
  [[nodiscard]] virtual std::span<const double> column_sums(double decay) = 0;
};

/// The attention of one decode step over the entries of a table, by slot.
struct AttentionRow {
  std::span<const std::int32_t> ids;
  std::span<const double> group_sum;  // probabilities summed over the query heads of the group
};

/// The select axis: which entries matter. Learns from attention, owns no cache memory, knows no
/// clock.
class Selector {
 public:
  virtual ~Selector() = default;

  /// Called once, before anything else.
  virtual void learn_prompt(PromptScores& scores) = 0;
  /// Called after each decode step's attention, the new token among the entries.
  virtual void observe(const AttentionRow& row) = 0;
  /// A merge happened: the score of `into` takes in that of `from`.
  virtual void merge_scores(std::int32_t into, std::int32_t from, bool take_max) = 0;

  /// What the selector holds of the entry `id`: its score, 0 where it keeps none.
  [[nodiscard]] virtual double score(std::int32_t id) const = 0;

  /// Of positions 0 … prompt-1 the `budget` most important, ascending and unique. Ties go to the
  /// older. Errors: ContractError if budget < 1 or an implementation breaks that promise.
  [[nodiscard]] std::vector<std::int32_t> plan(std::int32_t prompt, std::int32_t budget) const;

  /// The slot of the least important unmerged entry; among equals the youngest leaves. `newest` is
  /// the position of the newest token. Errors: ContractError if every entry is protected.
  [[nodiscard]] std::int32_t victim(const EntryTable& entries, std::int32_t newest) const;

 private:
  /// Importance of the token at position `id`; +infinity protects it. `newest` as above;
  /// `at_prefill`: the prompt is being compressed at once, its end is `newest`.
  [[nodiscard]] virtual double importance(std::int32_t id, std::int32_t newest,
                                          bool at_prefill) const = 0;
};

class SelectRule {
 public:
  virtual ~SelectRule() = default;
  [[nodiscard]] virtual std::unique_ptr<Selector> start(std::int32_t tokens) const = 0;
  [[nodiscard]] virtual MethodNeeds needs() const = 0;
  /// Scores carried per entry, bytes; `recorded` is the dtype the cache is stored in.
  [[nodiscard]] virtual Bytes side_bytes_per_entry(Dtype recorded) const = 0;
  /// Entries that can never leave at a decode step, the newest token included.
  [[nodiscard]] virtual std::int64_t protected_entries() const = 0;
  /// Adds one step's traffic of one stored head with `group` query heads: score row, carried
  /// scores.
  virtual void add_step(StepTraffic& traffic, double attended, std::int32_t group,
                        Dtype recorded) const = 0;
};

/// The merge axis: what becomes of entries that lose.
class Merger {
 public:
  virtual ~Merger() = default;
  /// The prompt's losers (ascending positions), all at once; `keys`, `values` [prompt, d].
  virtual void absorb_prompt(EntryTable& entries, Selector& selector,
                             std::span<const std::int32_t> losers, std::span<const float> keys,
                             std::span<const float> values) = 0;
  /// The prompt fitted: nothing lost. Its tokens are in the table.
  virtual void prompt_fits(EntryTable& entries) = 0;
  /// The token at `slot` leaves.
  virtual void absorb(EntryTable& entries, Selector& selector, std::int32_t slot) = 0;
};

class MergeRule {
 public:
  virtual ~MergeRule() = default;
  [[nodiscard]] virtual std::unique_ptr<Merger> start() const = 0;
  [[nodiscard]] virtual bool merges() const = 0;
  /// Entries of the budget set aside for merged ones.
  [[nodiscard]] virtual std::int64_t slots() const = 0;
  /// True: the prompt is fed token by token through the decode rule, with its final scores.
  [[nodiscard]] virtual bool prompt_one_by_one() const = 0;
  /// Added to the logit of an entry standing for `count` tokens.
  [[nodiscard]] virtual double bias(std::int32_t count) const = 0;
  [[nodiscard]] virtual Bytes side_bytes_per_entry(Dtype recorded) const = 0;
  [[nodiscard]] virtual Compaction compaction() const = 0;
  [[nodiscard]] virtual std::int32_t launches() const = 0;
  /// Adds one step's traffic of one stored head; row = bytes of one key and value together.
  virtual void add_step(StepTraffic& traffic, double attended, double row_bytes,
                        std::int32_t head_dim, bool evicts) const = 0;
};

/// The budget axis: how many entries a (layer, stored head) may hold.
class BudgetRule {
 public:
  virtual ~BudgetRule() = default;
  /// Entries; INT64_MAX where nothing is dropped.
  [[nodiscard]] virtual std::int64_t entries(std::int32_t layer) const = 0;
  /// Every layer has the same.
  [[nodiscard]] virtual bool layers_alike() const = 0;
};

/// The store axis: the format survivors are kept in.
class StoreRule {
 public:
  virtual ~StoreRule() = default;
  [[nodiscard]] virtual Dtype dtype(Dtype recorded) const = 0;
  /// Rounds a row to what the store can hold.
  virtual void write(std::span<float> row) const = 0;
  /// False: rows pass unchanged, `write` need not be called.
  [[nodiscard]] virtual bool rounds() const = 0;
};

// One maker per choice, defined in the file of that choice.

[[nodiscard]] std::shared_ptr<const SelectRule> make_select_all();

/// The first `sinks` and the last `window` tokens.
struct RecentSettings {
  std::int64_t sinks = 4;
  std::int64_t window = 512;
};
[[nodiscard]] std::shared_ptr<const SelectRule> make_select_recent(const RecentSettings& settings);

/// Accumulated attention, decayed per step. Protects the first `sinks`, and the last tokens:
/// `recent_prompt` when the prompt is compressed at once, `recent_decode` at a decode step.
struct AccumulatedSettings {
  double decay = 1.0;
  std::int64_t sinks = 0;
  std::int64_t recent_prompt = 0;
  std::int64_t recent_decode = 0;
  ScoreExec score_exec = ScoreExec::kEager;
  std::int32_t score_copies = 1;  // matrices of the cache's dtype alive in eager execution
  bool fp32_softmax = true;
  bool retries_smaller_chunks = false;
  bool score_in_cache_dtype = false;  // carried scores take the cache's dtype, not fp32
};
[[nodiscard]] std::shared_ptr<const SelectRule> make_select_accumulated(
    const AccumulatedSettings& settings);

[[nodiscard]] std::shared_ptr<const MergeRule> make_merge_drop();

/// ZeroMerge's residual slots.
struct ResidualSettings {
  std::int64_t slots = 1;
  double alpha = 0.6;
  bool l2_metric = false;   // nearest slot by distance instead of dot product
  bool score_max = true;    // score of a merged slot: the larger one, else the sum
  bool one_by_one = false;  // prompt fed through the decode rule, slots starting empty
  bool ring_layout = true;  // three entries written a step instead of two
  bool count_in_cache_dtype = false;
  Dtype recorded = Dtype::kFp32;  // the cache's dtype, for the former
};
[[nodiscard]] std::shared_ptr<const MergeRule> make_merge_residual(
    const ResidualSettings& settings);

[[nodiscard]] std::shared_ptr<const BudgetRule> make_budget_uniform(std::int64_t entries);

/// "recorded" (as the trace or model has it), "fp32", "fp16" or "bf16".
[[nodiscard]] std::shared_ptr<const StoreRule> make_store(std::string_view name);

}  // namespace kvsim
