#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/math/attention/attend.hpp"
#include "models/methods/method.hpp"
#include "models/methods/view/entry_table.hpp"
#include "models/methods/view/prompt_scores.hpp"

namespace kvsim {

// The axes that a method is composed of. A *rule* is an axis choice with resolved parameters. It is
// immutable and shared by all heads, and defines size law and cost. The state for one stored head
// (or for heads with a joint decision) is kept in the object that the rule's `start` creates.

/// The part of a model and a trace that a session covers.
struct SessionPlace {
  std::int32_t layer = 0;  // for a pair, the shallower layer
  std::int32_t n_layers = 1;
  std::int32_t first_head = 0;        // index of the first KV head in its layer
  std::int32_t first_query_head = 0;  // index of its first query head
  std::int32_t group = 1;             // query heads that share a stored head
  std::int32_t head_dim = 0;
  std::int32_t tokens = 0;  // length of the whole trace
  double scale = 0;
  std::uint64_t seed = 0;
  const Rope* rope = nullptr;  // not owned
};

/// One stored head after the attention of a decode step.
struct HeadStep {
  const EntryTable& entries;
  const GroupAttention& attention;  // probabilities and logits by slot
  std::span<const float> q;         // [group, d]
  std::span<const double> bias{};   // by slot, as added to the logits; empty: none
};

/// A decode step of heads with a joint decision; their slots hold the same ids.
struct StepView {
  std::int32_t newest = 0;            // position of the step's token
  std::span<const std::int32_t> ids;  // by slot
  std::span<const double> group_sum;  // probabilities by slot, summed over every query head
  std::span<const HeadStep> heads;
};

/// Event counts by name (fallbacks taken, tokens retained), summed over heads.
using Counts = std::map<std::string, double>;

/// The budget of a stored head at the end of the prompt.
struct EntryBudget {
  std::int64_t entries = std::numeric_limits<std::int64_t>::max();
  double threshold = -std::numeric_limits<double>::infinity();  // for selectors that use one
};

class LogitAverage;

/// The select axis: which entries are kept. A selector processes attention and owns no cache
/// memory.
class Selector {
 public:
  virtual ~Selector() = default;

  /// Sets the prompt positions that earlier layers passed on (nested selection). Called before
  /// learn_prompt, only for nested methods.
  virtual void restrict_prompt(std::span<const std::int32_t> /*alive*/) {}
  /// Called once, before anything else.
  virtual void learn_prompt(PromptScores& scores) = 0;
  /// Called once, before the prompt is compressed. `allotted`: the entries that the head may hold,
  /// which differ by layer under some budgets. `room`: the entries that are not merge slots;
  /// INT64_MAX if unlimited.
  virtual void allow(const EntryBudget& /*allotted*/, std::int64_t /*room*/) {}
  /// Called after each decode step's attention if the rule needs decode rows. The entries include
  /// the new token.
  virtual void observe(const StepView& /*step*/) {}
  /// Hides entries from single query heads at this step: adds -infinity to their elements of `bias`
  /// [group, entries], by slot. Called before a step's attention if SelectRule::hides_entries.
  virtual void hide(const EntryTable& /*entries*/, std::span<double> /*bias*/) const {}
  /// Called after a merge: adds the score of `from` to the score of `into`, or takes the larger
  /// one.
  virtual void merge_scores(std::int32_t /*into*/, std::int32_t /*from*/, bool /*take_max*/) {}

  /// The selector's averages of raw logits, for mergers that also need them; nullptr if it does not
  /// keep any.
  virtual LogitAverage* logit_average() { return nullptr; }

  /// The kept position into which the row of a dropped prompt token is merged; -1 if the merger
  /// chooses it.
  [[nodiscard]] virtual std::int32_t representative(std::int32_t /*id*/) const { return -1; }

  /// The selector's score of the entry `id`; 0 if the selector does not keep scores.
  [[nodiscard]] virtual double score(std::int32_t id) const = 0;
  /// One number for the whole head, for budgets that compare heads or layers. Each pair of selector
  /// and budget defines its meaning. NaN if undefined.
  [[nodiscard]] virtual double statistic() const {
    return std::numeric_limits<double>::quiet_NaN();
  }
  /// Importance of the token at position `id`; +infinity protects it, -infinity drops it regardless
  /// of the budget. `newest`: position of the newest token; `at_prefill`: whether the whole prompt
  /// is compressed at once; it ends at `newest`.
  [[nodiscard]] virtual double importance(std::int32_t id, std::int32_t newest,
                                          bool at_prefill) const = 0;

  /// Returns the positions in 0 … prompt-1 to keep, ascending and unique. By default these are the
  /// `allotted.entries` most important positions; ties go to the older.
  /// Errors: ContractError if less than 1 entry is allotted.
  [[nodiscard]] virtual std::vector<std::int32_t> plan(std::int32_t prompt,
                                                       const EntryBudget& allotted) const;

  /// Appends the ids to evict now to `out`, ascending. By default these are the least important
  /// unpinned entries, until `room` unpinned entries remain; ties evict the youngest.
  /// Errors: ContractError if too many are protected.
  virtual void leaving(const EntryTable& entries, std::int32_t newest, std::int64_t room,
                       std::vector<std::int32_t>& out);
  virtual void report(Counts& /*counts*/) const {}
};

class SelectRule {
 public:
  virtual ~SelectRule() = default;
  [[nodiscard]] virtual std::unique_ptr<Selector> start(const SessionPlace& place) const = 0;
  [[nodiscard]] virtual MethodNeeds needs() const = 0;

  /// True if the selectors of a layer's heads use data of all heads, although each selects
  /// separately.
  [[nodiscard]] virtual bool needs_layer() const { return false; }
  /// Creates the selectors of heads that select separately; they may share data.
  [[nodiscard]] virtual std::vector<std::unique_ptr<Selector>> start_heads(
      std::span<const SessionPlace> places) const;

  /// True if all heads of a layer share a selector and its decisions (head_mean).
  [[nodiscard]] virtual bool shared_by_layer() const { return false; }
  /// True if each head's selection uses the vectors of all heads of its layer.
  [[nodiscard]] virtual bool reads_layer() const { return false; }
  /// True if a layer has only the prompt tokens that the previous layer passed on: the most
  /// important ones, up to the layer's own budget.
  [[nodiscard]] virtual bool nested() const { return false; }
  /// False if the prompt is compressed only by `leaving` at decode steps, not at its end.
  [[nodiscard]] virtual bool compresses_prompt() const { return true; }
  /// True if entries leave before a step's attention instead of after it.
  [[nodiscard]] virtual bool leaves_before_attend() const { return false; }
  /// False if decode steps only append, regardless of the budget.
  [[nodiscard]] virtual bool leaves_in_decode() const { return true; }
  /// With positions=rerotate: true if kept prompt keys are moved to their rank once, at the
  /// prompt's end, and later tokens keep their positions. False if every key is moved to its rank
  /// at every step.
  [[nodiscard]] virtual bool rerotates_once() const { return false; }
  /// True if unprotected entries are ranked by position: the newest are kept.
  [[nodiscard]] virtual bool ranks_by_position() const { return false; }
  /// True if the query heads of a group may attend to different entries of the same cache.
  [[nodiscard]] virtual bool hides_entries() const { return false; }
  /// Minimum budget of a layer in addition to a merge's slots: the protected entries.
  [[nodiscard]] virtual std::int64_t min_entries() const { return 1; }
  [[nodiscard]] virtual PrefillPeak prefill_peak() const { return PrefillPeak::kPerLayer; }
  [[nodiscard]] virtual Compaction compaction(Compaction of_merge) const { return of_merge; }
  /// Like Method::eager_operators, from a step's rows to the eviction: sum over the group, decay,
  /// addition, selection of unprotected entries, minimum.
  [[nodiscard]] virtual std::int32_t operators() const { return needs().decode_rows ? 5 : 0; }

  /// The size law of a layer with a budget of `budget` entries: entries held after the compression
  /// that follows token `tokens`; nullopt if they can only be replayed.
  [[nodiscard]] virtual std::optional<std::int64_t> held(std::int64_t budget, std::int64_t prompt,
                                                         std::int64_t tokens) const {
    static_cast<void>(prompt);
    return tokens < budget ? tokens : budget;
  }
  /// Entries attended at the step that brings the sequence to `tokens`, the new one included.
  [[nodiscard]] virtual std::optional<std::int64_t> attended(std::int64_t budget,
                                                             std::int64_t prompt,
                                                             std::int64_t tokens) const {
    const auto before = held(budget, prompt, tokens - 1);
    if (!before) return std::nullopt;
    return *before + 1;
  }
  /// The same for rules whose law differs by layer.
  [[nodiscard]] virtual std::optional<std::int64_t> held_at(std::int32_t /*layer*/,
                                                            std::int64_t budget,
                                                            std::int64_t prompt,
                                                            std::int64_t tokens) const {
    return held(budget, prompt, tokens);
  }
  [[nodiscard]] virtual std::optional<std::int64_t> attended_at(std::int32_t /*layer*/,
                                                                std::int64_t budget,
                                                                std::int64_t prompt,
                                                                std::int64_t tokens) const {
    return attended(budget, prompt, tokens);
  }
  /// True if a budget limits the number of entries; false if nothing is dropped.
  [[nodiscard]] virtual bool bounded() const { return true; }

  /// Side data for `entries` entries of one stored head.
  [[nodiscard]] virtual Bytes side_bytes(std::int64_t entries, const HeadShape& shape) const = 0;
  /// Adds the traffic of one stored head in one step: score rows, carried scores, the method's
  /// moves.
  virtual void add_step(StepTraffic& traffic, const StepEvents& events,
                        const HeadShape& shape) const = 0;
  [[nodiscard]] virtual PrefillExtra prefill_extra(const LayerShape& /*shape*/, Dtype /*recorded*/,
                                                   std::int64_t /*prompt*/) const {
    return {};
  }
};

/// The merge axis: the treatment of dropped entries of one stored head.
class Merger {
 public:
  virtual ~Merger() = default;
  /// Called first; `head` indexes scores.heads().
  virtual void learn_prompt(PromptScores& /*scores*/, std::size_t /*head*/) {}
  /// For rules that need the layer: receives the arguments of the next absorb_prompt or absorb.
  /// Called for the mergers of all heads before any of these calls. `keys` [prompt, d] contains the
  /// prompt's dropped tokens; if it is empty, the entries `leaving` are in the table.
  virtual void consider(const EntryTable& /*entries*/, std::span<const std::int32_t> /*leaving*/,
                        std::span<const float> /*keys*/) {}
  /// Processes all dropped tokens of the prompt (ascending positions) at once; `keys` and `values`
  /// are [prompt, d]. The kept tokens are in the table.
  virtual void absorb_prompt(EntryTable& entries, Selector& selector,
                             std::span<const std::int32_t> losers, std::span<const float> keys,
                             std::span<const float> values) = 0;
  /// Called if the whole prompt fits. Its tokens are in the table.
  virtual void prompt_fits(EntryTable& /*entries*/) {}
  /// Called after a decode step's attention if the rule needs decode rows; `head` indexes
  /// step.heads.
  virtual void observe(const StepView& /*step*/, std::size_t /*head*/) {}
  /// Evicts the entries `leaving` (ids, ascending): each is merged or dropped, and erased from the
  /// table. Returns the number of entries that were merged into another entry.
  virtual std::int32_t absorb(EntryTable& entries, Selector& selector,
                              std::span<const std::int32_t> leaving) = 0;

  /// Ids of entries whose rows (only values) the last `absorb` changed without a merge.
  [[nodiscard]] virtual std::span<const std::int32_t> touched() const { return {}; }

  /// Adds the part that entries do not represent (a state) to the attention output. Replaces out
  /// [group, d] and log_sums [group], computed over entries, by the results that include this part.
  virtual void extend_output(std::span<const float> /*q*/, std::span<double> /*out*/,
                             std::span<double> /*log_sums*/) {}
  virtual void report(Counts& /*counts*/) const {}
};

class MergeRule {
 public:
  virtual ~MergeRule() = default;
  [[nodiscard]] virtual std::unique_ptr<Merger> start(const SessionPlace& place) const = 0;
  /// True if the mergers of a layer's heads use each other's dropped entries (by rank within each
  /// head), although each head selects its entries separately.
  [[nodiscard]] virtual bool needs_layer() const { return false; }
  /// Creates the mergers of a session's heads; they may share data.
  [[nodiscard]] virtual std::vector<std::unique_ptr<Merger>> start_heads(const SessionPlace& place,
                                                                         std::size_t heads) const;
  [[nodiscard]] virtual bool merges() const = 0;
  [[nodiscard]] virtual MethodNeeds needs() const { return {}; }
  /// Entries of the budget that are reserved for merged entries.
  [[nodiscard]] virtual std::int64_t slots() const { return 0; }
  /// True if the prompt is fed token by token through the decode rule, with its final scores.
  [[nodiscard]] virtual bool prompt_one_by_one() const { return false; }
  /// With prompt_one_by_one: true if each token attends over the entries held and `observe`
  /// receives its row.
  [[nodiscard]] virtual bool prompt_attends() const { return false; }
  /// False if the number of entries does not depend only on selection and budget.
  [[nodiscard]] virtual bool keeps_size_law() const { return true; }
  /// Bias that is added to the logit of an entry of `count` tokens with merger weight `weight`;
  /// called only if there are merged entries.
  [[nodiscard]] virtual double bias(std::int32_t count, double weight) const = 0;
  [[nodiscard]] virtual bool extends_output() const { return false; }
  /// Number of decode steps after which the cache is rebuilt from all tokens, which are in host
  /// memory; 0: never.
  [[nodiscard]] virtual std::int64_t refresh_period() const { return 0; }
  /// Bytes in host memory for one stored head of `tokens` tokens.
  [[nodiscard]] virtual Bytes host_bytes(std::int64_t /*tokens*/,
                                         const HeadShape& /*shape*/) const {
    return Bytes{0};
  }
  [[nodiscard]] virtual Bytes side_bytes(std::int64_t entries, const HeadShape& shape) const = 0;
  [[nodiscard]] virtual Compaction compaction() const = 0;
  [[nodiscard]] virtual std::int32_t launches() const = 0;
  /// Like Method::eager_operators, for the merges of a step.
  [[nodiscard]] virtual std::int32_t operators() const { return launches(); }
  /// Adds the traffic of one stored head in one step.
  virtual void add_step(StepTraffic& traffic, const StepEvents& events,
                        const HeadShape& shape) const = 0;
  [[nodiscard]] virtual PrefillExtra prefill_extra(const LayerShape& /*shape*/, Dtype /*recorded*/,
                                                   std::int64_t /*prompt*/) const {
    return {};
  }
  /// Like Method::masked_step.
  [[nodiscard]] virtual PrefillExtra masked_step(const LayerShape& /*shape*/, Dtype /*recorded*/,
                                                 std::int64_t /*tokens*/) const {
    return {};
  }
};

/// Data of one stored head after its prompt, for budgets that compare heads or layers.
struct HeadVerdict {
  std::vector<double> importance;  // [prompt], from Selector::importance at prefill
  std::vector<double> score;       // [prompt], from Selector::score
  double statistic = 0;
};

/// The heads whose data is required before a budget can be assigned.
enum class BudgetScope : std::uint8_t { kHead, kLayer, kModel };

/// The budget axis: how many entries a (layer, stored head) may hold.
class BudgetRule {
 public:
  virtual ~BudgetRule() = default;
  [[nodiscard]] virtual BudgetScope scope() const { return BudgetScope::kHead; }
  /// Entries of every head in `layer`; INT64_MAX if all are kept, nullopt if it depends on data
  /// (scopes kLayer and kModel).
  [[nodiscard]] virtual std::optional<std::int64_t> entries(std::int32_t layer) const = 0;
  /// True if every layer has the same budget.
  [[nodiscard]] virtual bool has_equal_layers() const = 0;
  /// True if `layer` is exempt from a selection that applies to other layers; it does not carry
  /// scores.
  [[nodiscard]] virtual bool keeps_whole(std::int32_t /*layer*/) const { return false; }
  /// Scope kLayer: returns the budget of each head of `layer`.
  [[nodiscard]] virtual std::vector<EntryBudget> allot_layer(
      std::int32_t layer, std::span<const HeadVerdict> heads) const;
  /// Scope kModel: returns the budget of each head of each layer.
  [[nodiscard]] virtual std::vector<std::vector<EntryBudget>> allot_model(
      std::span<const std::vector<HeadVerdict>> layers) const;
  /// Bytes per stored head for the lengths and offsets of ragged heads.
  [[nodiscard]] virtual Bytes side_bytes_per_head() const { return Bytes{0}; }
};

/// The store axis: the format of the kept entries of one stored head. Attention uses the rows in
/// the table, so a quantised row is written back dequantised.
class Store {
 public:
  virtual ~Store() = default;
  /// The kept entries of the prompt are in the table; `head` indexes scores.heads().
  virtual void prompt_written(EntryTable& entries, PromptScores& scores, std::size_t head) = 0;
  /// Called after the step's token was appended, before attention.
  virtual void appended(EntryTable& entries, std::int32_t slot) = 0;
  /// Called after the step's attention and compression.
  virtual void stepped(EntryTable& /*entries*/) {}
  /// Called after a merge wrote the row at `slot`.
  virtual void rewritten(EntryTable& entries, std::int32_t slot) = 0;
  /// Called before the entry `id` is evicted.
  virtual void leaving(const EntryTable& /*entries*/, std::int32_t /*id*/) {}
  /// Ids of the rows other than the newest that the last `stepped` rewrote.
  [[nodiscard]] virtual std::span<const std::int32_t> requantised() const { return {}; }
  /// Bytes of K and V held now, including the format's scales, zeros and indices.
  [[nodiscard]] virtual Bytes kv_bytes(const EntryTable& entries) const = 0;
  virtual void report(Counts& /*counts*/) const {}
};

class StoreRule {
 public:
  virtual ~StoreRule() = default;
  [[nodiscard]] virtual std::unique_ptr<Store> start(const SessionPlace& place,
                                                     Dtype recorded) const = 0;
  /// The plain dtype nearest to the format; full-precision rows are stored in it.
  [[nodiscard]] virtual Dtype dtype(Dtype recorded) const = 0;
  [[nodiscard]] virtual MethodNeeds needs() const { return {}; }
  /// True if the store calibrates on all heads of a layer.
  [[nodiscard]] virtual bool needs_layer() const { return false; }
  /// True if K and V consist only of elements of `dtype`.
  [[nodiscard]] virtual bool plain() const { return false; }
  /// True if the size of an entry never changes, scales of its head excluded.
  [[nodiscard]] virtual bool fixed_rows() const { return false; }
  /// False if rows are stored unchanged; the hooks then need not be called.
  [[nodiscard]] virtual bool rounds() const = 0;
  /// Bytes of K and V of one stored head with `entries` entries, `prompt_entries` of them from the
  /// prompt.
  [[nodiscard]] virtual Bytes kv_bytes(std::int64_t prompt_entries, std::int64_t entries,
                                       std::int32_t head_dim, Dtype recorded) const = 0;
  /// Asymptotic bits per element, for budgets that are shares of bytes.
  [[nodiscard]] virtual double bits_per_element(std::int32_t head_dim, Dtype recorded) const = 0;
  /// True if rows are grouped along tokens, so that single rows cannot be removed from a group.
  [[nodiscard]] virtual bool groups_tokens() const { return false; }
  /// False if bytes depend on which entries left and not only on their number; there is then a law
  /// only if nothing is dropped.
  [[nodiscard]] virtual bool by_count() const { return !groups_tokens(); }
  /// True if evicted entries are hidden from attention but stay in memory, so that bytes are those
  /// of all tokens.
  [[nodiscard]] virtual bool masks() const { return false; }
  /// False if rows differ from the recorded rows by more than half precision; the retained share of
  /// attention is then undefined.
  [[nodiscard]] virtual bool keeps_values() const { return true; }
  /// True if round_row and row_bytes are valid for both keys and values.
  [[nodiscard]] virtual bool rounds_rows_apart() const { return true; }
  /// Rounds a single key or value, for rows that are stored outside any group of tokens.
  virtual void round_row(std::span<float> /*row*/, Dtype /*recorded*/) const {}
  [[nodiscard]] virtual Bytes row_bytes(std::int32_t head_dim, Dtype recorded) const {
    return bytes_of(head_dim, dtype(recorded));
  }
  /// Operators of a decode step in plain PyTorch: rounding of an entry and dequantisation of codes.
  [[nodiscard]] virtual std::int32_t operators() const { return 0; }
  /// Adds the traffic of one step in addition to reading kv_bytes and appending a row.
  virtual void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                        const HeadShape& /*shape*/) const {}
  [[nodiscard]] virtual PrefillExtra prefill_extra(const LayerShape& /*shape*/, Dtype /*recorded*/,
                                                   std::int64_t /*prompt*/) const {
    return {};
  }
};

/// The rule of rows in the recorded format.
[[nodiscard]] const StoreRule& recorded_rule();

/// The result of a reader for one step.
struct ReadOutcome {
  std::vector<double> out;       // [group, d]
  std::vector<double> log_sums;  // [group]: log-sum-exp over the entries read
  double entries_read = 0;       // distinct entries that the group's query heads read together
  std::int64_t max_read = 0;     // maximum number of entries read by one of them
  Bytes from_host{0};
};

/// The read axis: the held entries of one stored head that a step reads.
class Reader {
 public:
  virtual ~Reader() = default;
  /// The kept entries of the prompt are in the table; `head` indexes scores.heads().
  virtual void prompt_written(EntryTable& entries, PromptScores& scores, std::size_t head) = 0;
  virtual void appended(const EntryTable& entries, std::int32_t slot) = 0;
  /// Runs one step: q [group, d] over the entries that the reader chooses.
  virtual void attend(std::span<const float> q, const EntryTable& entries,
                      ReadOutcome& outcome) = 0;
  virtual void report(Counts& /*counts*/) const {}
};

class ReadRule {
 public:
  virtual ~ReadRule() = default;
  /// Returns nullptr if everything held is read.
  [[nodiscard]] virtual std::unique_ptr<Reader> start(const SessionPlace& place) const = 0;
  [[nodiscard]] virtual MethodNeeds needs() const { return {}; }
  /// True if the reader needs all heads of a layer together.
  [[nodiscard]] virtual bool needs_layer() const { return false; }
  /// Creates the readers of heads with a joint decision; they may share data.
  [[nodiscard]] virtual std::vector<std::unique_ptr<Reader>> start_heads(const SessionPlace& place,
                                                                         std::size_t heads) const;
  /// False if attention is not over recorded keys (keys are rebuilt from a few factors); the
  /// retained share of attention is then undefined.
  [[nodiscard]] virtual bool keeps_rows() const { return true; }
  /// Upper bound of the bytes fetched from host memory at a step over `entries` entries of one
  /// stored head (for the law; replay counts them).
  [[nodiscard]] virtual double link_bytes(double /*entries*/, const HeadShape& /*shape*/) const {
    return 0;
  }
  /// The whole cache of one stored head in `layer`; `full` is K and V in the store's format.
  [[nodiscard]] virtual CacheBytes cache_bytes(std::int32_t layer, Bytes full, std::int64_t prompt,
                                               std::int64_t entries, const HeadShape& shape) const {
    static_cast<void>(layer), static_cast<void>(prompt), static_cast<void>(entries);
    static_cast<void>(shape);
    return {.kv = full, .side = Bytes{0}, .host = Bytes{0}};
  }
  /// The number of entries, out of `entries`, that a stored head in `layer` reads. It is an upper
  /// bound if the overlap between the query heads of a group can only be replayed. Negative if the
  /// layer has no reader and reads everything.
  [[nodiscard]] virtual double entries_read(std::int32_t /*layer*/, double entries) const {
    return entries;
  }
  /// The kind of a layer, at least 0: layers of the same kind are stored and read in the same way.
  [[nodiscard]] virtual std::int32_t layer_kind(std::int32_t /*layer*/) const { return 0; }
  virtual void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                        const HeadShape& /*shape*/) const {}
  [[nodiscard]] virtual PrefillExtra prefill_extra(const LayerShape& /*shape*/, Dtype /*recorded*/,
                                                   std::int64_t /*prompt*/) const {
    return {};
  }
};

/// The share axis, for one pair of layers and the stored heads with a joint decision: the heads of
/// the shallower layer, then the same number of heads of the deeper. Rewrites rows to the values
/// that both layers will read. May hold a separate Store for the pair's shared rows.
class Sharer {
 public:
  virtual ~Sharer() = default;
  virtual void prompt_written(std::span<EntryTable* const> heads, PromptScores& scores) = 0;
  /// Called after both layers attended over the step's token.
  virtual void stepped(std::span<EntryTable* const> heads) = 0;
  /// Called before the entries `ids` leave both layers.
  virtual void leaving(std::span<const std::int32_t> /*ids*/) {}
  /// Bytes stored for `head` (K and V, then norms, indices); a pair's common part is split evenly.
  [[nodiscard]] virtual CacheBytes cache_bytes(std::span<EntryTable* const> heads,
                                               std::size_t head) const = 0;
  /// Bytes that a step reads for `head`: each layer reads all of the pair's shared rows.
  [[nodiscard]] virtual Bytes read_bytes(std::span<EntryTable* const> heads,
                                         std::size_t head) const = 0;
  virtual void report(Counts& /*counts*/) const {}
};

class ShareRule {
 public:
  virtual ~ShareRule() = default;
  /// True if `layer` is the shallower of a pair.
  [[nodiscard]] virtual bool starts_pair(std::int32_t layer, std::int32_t n_layers) const = 0;
  /// True if all heads of a pair share one decision (rows of all heads); false if each head has its
  /// own.
  [[nodiscard]] virtual bool whole_rows() const = 0;
  [[nodiscard]] virtual std::unique_ptr<Sharer> start(const SessionPlace& place,
                                                      const StoreRule& store,
                                                      Dtype recorded) const = 0;
  /// The size law of a paired layer's cache, all stored heads; nullopt if it can only be replayed.
  [[nodiscard]] virtual std::optional<CacheBytes> layer_bytes(const LayerShape& shape,
                                                              Dtype recorded,
                                                              const StoreRule& store,
                                                              std::int64_t prompt,
                                                              std::int64_t entries) const = 0;
  /// K and V bytes of the whole model relative to those without sharing, approximately. The inverse
  /// of this factor is the gain in entries for a budget in bytes.
  [[nodiscard]] virtual double bytes_share() const = 0;
  virtual void add_step(StepTraffic& traffic, const StepEvents& events,
                        const HeadShape& shape) const = 0;
  [[nodiscard]] virtual PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                                                   std::int64_t prompt) const = 0;
};

}  // namespace kvsim
