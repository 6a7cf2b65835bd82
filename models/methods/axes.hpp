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

// The axes a method is composed of. A *rule* is an axis choice with its parameters settled:
// immutable, shared by all heads, with size law and cost. What a rule learns about one stored head
// (or the few that are decided upon together) lives in the object its `start` makes.

/// The state of a session.
struct SessionPlace {
  std::int32_t layer = 0;  // of a pair: the shallower
  std::int32_t n_layers = 1;
  std::int32_t first_head = 0;        // KV head in its layer
  std::int32_t first_query_head = 0;  // in its layer, of the first stored head
  std::int32_t group = 1;             // query heads that share a stored head
  std::int32_t head_dim = 0;
  std::int32_t tokens = 0;  // length of the whole trace
  double scale = 0;
  std::uint64_t seed = 0;
  const Rope* rope = nullptr;  // not owned
};

/// One stored head at a decode step, after its attention.
struct HeadStep {
  const EntryTable& entries;
  const GroupAttention& attention;  // probabilities and logits by slot
  std::span<const float> q;         // [group, d]
  std::span<const double> bias{};   // by slot, as added to the logits; empty: none
};

/// A decode step of the heads that are decided upon together; their slots hold the same ids.
struct StepView {
  std::int32_t newest = 0;            // position of the step's token
  std::span<const std::int32_t> ids;  // by slot
  std::span<const double> group_sum;  // probabilities by slot, summed over every query head
  std::span<const HeadStep> heads;
};

/// Things counted on the way (fallbacks taken, tokens retained), by name; summed over heads.
using Counts = std::map<std::string, double>;

/// What a budget gives a stored head at the end of the prompt.
struct EntryBudget {
  std::int64_t entries = std::numeric_limits<std::int64_t>::max();
  double threshold = -std::numeric_limits<double>::infinity();  // for selectors judging by one
};

class LogitAverage;

/// The select axis: which entries matter. Learns from attention, owns no cache memory.
class Selector {
 public:
  virtual ~Selector() = default;

  /// Positions of the prompt that earlier layers let through (nested selection); called before
  /// learn_prompt, by methods that nest only.
  virtual void restrict_prompt(std::span<const std::int32_t> /*alive*/) {}
  /// Called once, before anything else.
  virtual void learn_prompt(PromptScores& scores) = 0;
  /// Called once, before the prompt is compressed: the entries that the head may hold (layers
  /// differ under some budgets), and how many of them may be other than merge slots; INT64_MAX
  /// without a limit.
  virtual void allow(const EntryBudget& /*allotted*/, std::int64_t /*room*/) {}
  /// Called after each decode step's attention, the new token among the entries, if the rule needs
  /// decode rows.
  virtual void observe(const StepView& /*step*/) {}
  /// Entries that single query heads do not see at this step: adds -infinity at their places of
  /// `bias` [group, entries], by slot. Called before a step's attention if
  /// SelectRule::hides_entries.
  virtual void hide(const EntryTable& /*entries*/, std::span<double> /*bias*/) const {}
  /// A merge happened: the score of `into` takes in that of `from`.
  virtual void merge_scores(std::int32_t /*into*/, std::int32_t /*from*/, bool /*take_max*/) {}

  /// The averages of raw logits that it decides by, for mergers that need them too; nullptr: it
  /// keeps none.
  virtual LogitAverage* logit_average() { return nullptr; }

  /// The kept position that the row of a loser of the prompt goes to; -1: the merger finds one.
  [[nodiscard]] virtual std::int32_t stand_in(std::int32_t /*id*/) const { return -1; }

  /// The selector's score of the entry `id`; 0 if it keeps none.
  [[nodiscard]] virtual double score(std::int32_t id) const = 0;
  /// One number of the whole head for budgets that compare heads or layers (its meaning is the
  /// pair's own); NaN where there is none.
  [[nodiscard]] virtual double statistic() const {
    return std::numeric_limits<double>::quiet_NaN();
  }
  /// Importance of the token at position `id`; +infinity protects it, -infinity lets it go
  /// whatever the budget. `newest`: position of the newest token; `at_prefill`: the prompt is
  /// being compressed at once, its end is `newest`.
  [[nodiscard]] virtual double importance(std::int32_t id, std::int32_t newest,
                                          bool at_prefill) const = 0;

  /// Of positions 0 … prompt-1 those to keep, ascending and unique. By default the
  /// `allotted.entries` most important; ties go to the older.
  /// Errors: ContractError if fewer than 1 is allotted.
  [[nodiscard]] virtual std::vector<std::int32_t> plan(std::int32_t prompt,
                                                       const EntryBudget& allotted) const;

  /// Ids that leave now, appended to `out` ascending. By default the least important of the
  /// entries that are not pinned, until `room` of those remain; among equals the youngest leaves.
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

  /// One decision for all heads of a layer (head_mean): they share a selector.
  [[nodiscard]] virtual bool shared_by_layer() const { return false; }
  /// A layer has only those prompt tokens that the layer before it passed on: the most important,
  /// as many as the layer's own budget.
  [[nodiscard]] virtual bool nested() const { return false; }
  /// False: the prompt is not compressed at its end, only by `leaving` at decode steps.
  [[nodiscard]] virtual bool compresses_prompt() const { return true; }
  /// True: entries leave before a step's attention instead of after it.
  [[nodiscard]] virtual bool leaves_before_attend() const { return false; }
  /// False: decode steps only append, whatever the budget.
  [[nodiscard]] virtual bool leaves_in_decode() const { return true; }
  /// It ranks unprotected entries by position: the newest stay.
  [[nodiscard]] virtual bool ranks_by_position() const { return false; }
  /// Query heads of a group may see different entries of the same cache.
  [[nodiscard]] virtual bool hides_entries() const { return false; }
  /// The smallest budget of a layer in addition to a merge's slots: the protected entries.
  [[nodiscard]] virtual std::int64_t least_entries() const { return 1; }
  [[nodiscard]] virtual PrefillPeak prefill_peak() const { return PrefillPeak::kPerLayer; }
  [[nodiscard]] virtual Compaction compaction(Compaction of_merge) const { return of_merge; }
  /// As Method::eager_operators, from a step's rows to what leaves: their sum over the group,
  /// decay, addition, what is not protected, its minimum.
  [[nodiscard]] virtual std::int32_t operators() const { return needs().decode_rows ? 5 : 0; }

  /// The size law, where the layer's budget is `budget` entries: held after the compression that
  /// follows token `tokens`; nullopt: only replay knows.
  [[nodiscard]] virtual std::optional<std::int64_t> held(std::int64_t budget, std::int64_t prompt,
                                                         std::int64_t tokens) const {
    static_cast<void>(prompt);
    return tokens < budget ? tokens : budget;
  }
  /// Attended at the step that brings the sequence to `tokens`, the new one included.
  [[nodiscard]] virtual std::optional<std::int64_t> attended(std::int64_t budget,
                                                             std::int64_t prompt,
                                                             std::int64_t tokens) const {
    const auto before = held(budget, prompt, tokens - 1);
    if (!before) return std::nullopt;
    return *before + 1;
  }
  /// The same if layers have different laws.
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
  /// True if any budget other than the tokens themselves bounds it (false: nothing is dropped).
  [[nodiscard]] virtual bool bounded() const { return true; }

  /// Side data for `entries` entries of one stored head.
  [[nodiscard]] virtual Bytes side_bytes(std::int64_t entries, const HeadShape& shape) const = 0;
  /// Adds one step's traffic of one stored head: score rows, carried scores, the method's moves.
  virtual void add_step(StepTraffic& traffic, const StepEvents& events,
                        const HeadShape& shape) const = 0;
  [[nodiscard]] virtual PrefillExtra prefill_extra(const LayerShape& /*shape*/, Dtype /*recorded*/,
                                                   std::int64_t /*prompt*/) const {
    return {};
  }
};

/// The merge axis: what happens to dropped entries of one stored head.
class Merger {
 public:
  virtual ~Merger() = default;
  /// Before anything else; `head` indexes scores.heads().
  virtual void learn_prompt(PromptScores& /*scores*/, std::size_t /*head*/) {}
  /// For rules that need the layer: the arguments of the next absorb_prompt or absorb, shown to the
  /// mergers of all heads before any of them acts. `keys` [prompt, d] of the prompt's dropped
  /// tokens; empty: `leaving` are in the table.
  virtual void consider(const EntryTable& /*entries*/, std::span<const std::int32_t> /*leaving*/,
                        std::span<const float> /*keys*/) {}
  /// The prompt's dropped tokens (ascending positions), all at once; `keys`, `values` [prompt, d].
  /// The kept ones are in the table.
  virtual void absorb_prompt(EntryTable& entries, Selector& selector,
                             std::span<const std::int32_t> losers, std::span<const float> keys,
                             std::span<const float> values) = 0;
  /// The prompt fitted: nothing lost. Its tokens are in the table.
  virtual void prompt_fits(EntryTable& /*entries*/) {}
  /// After a decode step's attention, if the rule needs decode rows; `head` indexes step.heads.
  virtual void observe(const StepView& /*step*/, std::size_t /*head*/) {}
  /// The entries `leaving` (ids, ascending) go: each is erased from the table, whatever becomes of
  /// its row. Returns how many were merged into another entry.
  virtual std::int32_t absorb(EntryTable& entries, Selector& selector,
                              std::span<const std::int32_t> leaving) = 0;

  /// Ids of entries whose rows the last `absorb` changed without merging them (only values).
  [[nodiscard]] virtual std::span<const std::int32_t> touched() const { return {}; }

  /// Adds to the attended output the part that no entry represents (a state): out [group, d],
  /// log_sums [group], both of the attention over entries, are replaced by those of all.
  virtual void extend_output(std::span<const float> /*q*/, std::span<double> /*out*/,
                             std::span<double> /*log_sums*/) {}
  virtual void report(Counts& /*counts*/) const {}
};

class MergeRule {
 public:
  virtual ~MergeRule() = default;
  [[nodiscard]] virtual std::unique_ptr<Merger> start(const SessionPlace& place) const = 0;
  /// The mergers of a layer's heads see each other's dropped entries (each head's by rank),
  /// although each head chooses its entries separately.
  [[nodiscard]] virtual bool needs_layer() const { return false; }
  /// Mergers of the heads of a session, which may share what they see.
  [[nodiscard]] virtual std::vector<std::unique_ptr<Merger>> start_heads(const SessionPlace& place,
                                                                         std::size_t heads) const;
  [[nodiscard]] virtual bool merges() const = 0;
  [[nodiscard]] virtual MethodNeeds needs() const { return {}; }
  /// Entries of the budget set aside for merged ones.
  [[nodiscard]] virtual std::int64_t slots() const { return 0; }
  /// True: the prompt is fed token by token through the decode rule, with its final scores.
  [[nodiscard]] virtual bool prompt_one_by_one() const { return false; }
  /// Of prompt_one_by_one: each token attends over what is held, and `observe` sees its row.
  [[nodiscard]] virtual bool prompt_attends() const { return false; }
  /// False: the number of entries does not follow from only selection and budget.
  [[nodiscard]] virtual bool keeps_size_law() const { return true; }
  /// Added to the logit of an entry of `count` tokens with the merger's weight; called only if some
  /// entry is merged.
  [[nodiscard]] virtual double bias(std::int32_t count, double weight) const = 0;
  [[nodiscard]] virtual bool extends_output() const { return false; }
  /// Every so many decode steps the cache is rebuilt from all tokens, which are in host memory; 0:
  /// never.
  [[nodiscard]] virtual std::int64_t refresh_period() const { return 0; }
  /// Kept in host memory for one stored head of `tokens` tokens.
  [[nodiscard]] virtual Bytes host_bytes(std::int64_t /*tokens*/,
                                         const HeadShape& /*shape*/) const {
    return Bytes{0};
  }
  [[nodiscard]] virtual Bytes side_bytes(std::int64_t entries, const HeadShape& shape) const = 0;
  [[nodiscard]] virtual Compaction compaction() const = 0;
  [[nodiscard]] virtual std::int32_t launches() const = 0;
  /// As Method::eager_operators, for what a step's merge takes.
  [[nodiscard]] virtual std::int32_t operators() const { return launches(); }
  /// Adds one step's traffic of one stored head.
  virtual void add_step(StepTraffic& traffic, const StepEvents& events,
                        const HeadShape& shape) const = 0;
  [[nodiscard]] virtual PrefillExtra prefill_extra(const LayerShape& /*shape*/, Dtype /*recorded*/,
                                                   std::int64_t /*prompt*/) const {
    return {};
  }
  /// As Method::masked_step.
  [[nodiscard]] virtual PrefillExtra masked_step(const LayerShape& /*shape*/, Dtype /*recorded*/,
                                                 std::int64_t /*tokens*/) const {
    return {};
  }
};

/// What budgets that compare heads or layers may know of one stored head after its prompt.
struct HeadVerdict {
  std::vector<double> importance;  // [prompt], as Selector::importance at prefill
  std::vector<double> score;       // [prompt], as Selector::score
  double statistic = 0;
};

/// How much must be known before a budget can be given out.
enum class BudgetScope : std::uint8_t { kHead, kLayer, kModel };

/// The budget axis: how many entries a (layer, stored head) may hold.
class BudgetRule {
 public:
  virtual ~BudgetRule() = default;
  [[nodiscard]] virtual BudgetScope scope() const { return BudgetScope::kHead; }
  /// Entries of every head in `layer`; INT64_MAX where nothing is dropped, nullopt where it depends
  /// on data (scopes kLayer and kModel).
  [[nodiscard]] virtual std::optional<std::int64_t> entries(std::int32_t layer) const = 0;
  /// Every layer has the same.
  [[nodiscard]] virtual bool layers_alike() const = 0;
  /// `layer` is exempt from a selection that other layers undergo: it carries no scores.
  [[nodiscard]] virtual bool keeps_whole(std::int32_t /*layer*/) const { return false; }
  /// scope kLayer: an allotment for each head of `layer`.
  [[nodiscard]] virtual std::vector<EntryBudget> allot_layer(
      std::int32_t layer, std::span<const HeadVerdict> heads) const;
  /// scope kModel: for each head of each layer.
  [[nodiscard]] virtual std::vector<std::vector<EntryBudget>> allot_model(
      std::span<const std::vector<HeadVerdict>> layers) const;
  /// Lengths and offsets of ragged heads, per stored head.
  [[nodiscard]] virtual Bytes side_bytes_per_head() const { return Bytes{0}; }
};

/// The store axis: the format survivors are kept in. Of one stored head: rows in the table are what
/// attention sees, so a quantised row is written back as it will be read.
class Store {
 public:
  virtual ~Store() = default;
  /// The kept entries of the prompt are in the table; `head` indexes scores.heads().
  virtual void prompt_written(EntryTable& entries, PromptScores& scores, std::size_t head) = 0;
  /// The step's token was appended; before it is attended over.
  virtual void appended(EntryTable& entries, std::int32_t slot) = 0;
  /// The step is done: attended over, compressed.
  virtual void stepped(EntryTable& /*entries*/) {}
  /// A merge wrote the row at `slot`.
  virtual void rewritten(EntryTable& entries, std::int32_t slot) = 0;
  /// The entry `id` is about to leave.
  virtual void leaving(const EntryTable& /*entries*/, std::int32_t /*id*/) {}
  /// Ids of the rows that the last `stepped` rewrote beyond the newest.
  [[nodiscard]] virtual std::span<const std::int32_t> requantised() const { return {}; }
  /// K and V held now, the format's own scales, zeros and indices included.
  [[nodiscard]] virtual Bytes kv_bytes(const EntryTable& entries) const = 0;
  virtual void report(Counts& /*counts*/) const {}
};

class StoreRule {
 public:
  virtual ~StoreRule() = default;
  [[nodiscard]] virtual std::unique_ptr<Store> start(const SessionPlace& place,
                                                     Dtype recorded) const = 0;
  /// The plain format nearest to it: what full-precision rows are kept in.
  [[nodiscard]] virtual Dtype dtype(Dtype recorded) const = 0;
  [[nodiscard]] virtual MethodNeeds needs() const { return {}; }
  /// K and V are elements of `dtype` and nothing else.
  [[nodiscard]] virtual bool plain() const { return false; }
  /// False: rows stay as they come and the hooks need not be called.
  [[nodiscard]] virtual bool rounds() const = 0;
  /// K and V of one stored head with `entries` entries, of which the prompt left `prompt_entries`.
  [[nodiscard]] virtual Bytes kv_bytes(std::int64_t prompt_entries, std::int64_t entries,
                                       std::int32_t head_dim, Dtype recorded) const = 0;
  /// Bits an element costs in the long run, for budgets that are shares of bytes.
  [[nodiscard]] virtual double bits_per_element(std::int32_t head_dim, Dtype recorded) const = 0;
  /// True where rows are grouped along tokens, so that a single one cannot leave its group.
  [[nodiscard]] virtual bool groups_tokens() const { return false; }
  /// False: bytes depend on which entries left, not on how many, so only a cache that drops nothing
  /// has a law.
  [[nodiscard]] virtual bool by_count() const { return !groups_tokens(); }
  /// What leaves is hidden from attention but stays in memory: bytes are those of every token.
  [[nodiscard]] virtual bool masks() const { return false; }
  /// False: rows differ from the recorded ones by more than half precision, so a share of the
  /// recorded attention is undefined.
  [[nodiscard]] virtual bool keeps_values() const { return true; }
  /// A single key or value, for rows that are stored outside any group of tokens.
  virtual void round_row(std::span<float> /*row*/, Dtype /*recorded*/) const {}
  [[nodiscard]] virtual Bytes row_bytes(std::int32_t head_dim, Dtype recorded) const {
    return bytes_of(head_dim, dtype(recorded));
  }
  /// Adds one step's traffic beyond reading kv_bytes and appending a row.
  /// Operators of a decode step in plain PyTorch: of an entry's rounding, and of codes that become
  /// numbers again.
  [[nodiscard]] virtual std::int32_t operators() const { return 0; }
  virtual void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                        const HeadShape& /*shape*/) const {}
  [[nodiscard]] virtual PrefillExtra prefill_extra(const LayerShape& /*shape*/, Dtype /*recorded*/,
                                                   std::int64_t /*prompt*/) const {
    return {};
  }
};

/// The result of a reader for one step.
struct ReadOutcome {
  std::vector<double> out;       // [group, d]
  std::vector<double> log_sums;  // [group]: ln of the sum of exponentials over what was read
  double entries_read = 0;       // distinct entries the group's query heads read between them
  std::int64_t most_read = 0;    // entries that one of them read, at the most
  Bytes from_host{0};
};

/// The read axis: which of the entries held a step reads. Of one stored head.
class Reader {
 public:
  virtual ~Reader() = default;
  /// The kept entries of the prompt are in the table; `head` indexes scores.heads().
  virtual void prompt_written(EntryTable& entries, PromptScores& scores, std::size_t head) = 0;
  virtual void appended(const EntryTable& entries, std::int32_t slot) = 0;
  /// One step: q [group, d] over entries of its choice.
  virtual void attend(std::span<const float> q, const EntryTable& entries,
                      ReadOutcome& outcome) = 0;
  virtual void report(Counts& /*counts*/) const {}
};

class ReadRule {
 public:
  virtual ~ReadRule() = default;
  /// nullptr: everything held is read.
  [[nodiscard]] virtual std::unique_ptr<Reader> start(const SessionPlace& place) const = 0;
  [[nodiscard]] virtual MethodNeeds needs() const { return {}; }
  /// The reader needs all heads of a layer side by side.
  [[nodiscard]] virtual bool needs_layer() const { return false; }
  /// Readers of the heads that are decided upon together, which may share what they learn.
  [[nodiscard]] virtual std::vector<std::unique_ptr<Reader>> start_heads(const SessionPlace& place,
                                                                         std::size_t heads) const;
  /// False: attention is not over recorded keys (keys rebuilt from a few factors), so its share of
  /// the attention is undefined.
  [[nodiscard]] virtual bool keeps_rows() const { return true; }
  /// Fetched from host memory at a step over `entries` entries of one stored head, at most (the
  /// law; replay counts).
  [[nodiscard]] virtual double link_bytes(double /*entries*/, const HeadShape& /*shape*/) const {
    return 0;
  }
  /// The whole cache of one stored head in `layer`, where `full` is K and V as the store has them.
  [[nodiscard]] virtual CacheBytes cache_bytes(std::int32_t layer, Bytes full, std::int64_t prompt,
                                               std::int64_t entries, const HeadShape& shape) const {
    static_cast<void>(layer), static_cast<void>(prompt), static_cast<void>(entries);
    static_cast<void>(shape);
    return {.kv = full, .side = Bytes{0}, .host = Bytes{0}};
  }
  /// Entries read of `entries` by a stored head in `layer`. An upper bound where only replay knows
  /// how far the query heads of a group agree.
  [[nodiscard]] virtual double entries_read(std::int32_t /*layer*/, double entries) const {
    return entries;
  }
  /// Layers of one kind are stored and read in the same way; at least 0.
  [[nodiscard]] virtual std::int32_t layer_kind(std::int32_t /*layer*/) const { return 0; }
  virtual void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                        const HeadShape& /*shape*/) const {}
  [[nodiscard]] virtual PrefillExtra prefill_extra(const LayerShape& /*shape*/, Dtype /*recorded*/,
                                                   std::int64_t /*prompt*/) const {
    return {};
  }
};

/// The share axis, for one pair of layers with the stored heads that are decided together: the
/// shallower layer's first, then as many of the deeper. Rewrites rows as both layers will read
/// them; may hold a separate Store for the pair's shared rows.
class Sharer {
 public:
  virtual ~Sharer() = default;
  virtual void prompt_written(std::span<EntryTable* const> heads, PromptScores& scores) = 0;
  /// The step's token has been attended over in both layers.
  virtual void stepped(std::span<EntryTable* const> heads) = 0;
  /// The entries `ids` are about to leave both layers.
  virtual void leaving(std::span<const std::int32_t> /*ids*/) {}
  /// Stored for `head` (K and V, then norms, indices): a pair's common part is split evenly.
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
  /// Whether `layer` is the shallower of a pair.
  [[nodiscard]] virtual bool starts_pair(std::int32_t layer, std::int32_t n_layers) const = 0;
  /// A pair's heads are decided upon as one (rows of all heads), or head by head.
  [[nodiscard]] virtual bool whole_rows() const = 0;
  [[nodiscard]] virtual std::unique_ptr<Sharer> start(const SessionPlace& place,
                                                      const StoreRule& store,
                                                      Dtype recorded) const = 0;
  /// A paired layer's cache by the law, all stored heads; nullopt: only replay knows.
  [[nodiscard]] virtual std::optional<CacheBytes> layer_bytes(const LayerShape& shape,
                                                              Dtype recorded,
                                                              const StoreRule& store,
                                                              std::int64_t prompt,
                                                              std::int64_t entries) const = 0;
  /// K and V bytes of the whole model over those without sharing, approximately: the factor by
  /// which a budget in bytes holds more.
  [[nodiscard]] virtual double bytes_share() const = 0;
  virtual void add_step(StepTraffic& traffic, const StepEvents& events,
                        const HeadShape& shape) const = 0;
  [[nodiscard]] virtual PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                                                   std::int64_t prompt) const = 0;
};

}  // namespace kvsim
