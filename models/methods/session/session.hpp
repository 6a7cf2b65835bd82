#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "models/math/attention/attend.hpp"
#include "models/methods/composed.hpp"
#include "models/methods/session/kept_entry.hpp"
#include "models/methods/session/step_tile.hpp"
#include "models/methods/view/entry_table.hpp"

namespace kvsim {

/// The stored heads of one sequence with joint decisions, step by step on the replay clock: append,
/// attend, learn, compress. Bytes read in a step are therefore those of the cache before
/// compression. Usually one head; all heads of a layer or of a pair of layers if they share one
/// decision. Their tables always hold the same ids, unless each head selects separately and only
/// selectors or mergers share data.
class CacheSession {
 public:
  /// Calls task(i) for each i in [0, count), possibly on several threads.
  using ParallelRun =
      std::function<void(std::size_t count, const std::function<void(std::size_t)>& task)>;

  /// `heads`: the recorded vectors, which must outlive the session; for a pair, those of the
  /// shallower layer first. Errors: ContractError if the method re-rotates and no rope is given.
  CacheSession(const ComposedMethod& method, const SessionPlace& place,
               std::vector<HeadVectors> heads);

  /// Learns from the prompt's attention. `alive`: positions that the previous layer passed on, for
  /// nested methods.
  void learn(PromptScores& scores, std::optional<std::span<const std::int32_t>> alive = {});
  /// Returns the results of `learn` for budgets that compare heads: one verdict, or one per head if
  /// heads select separately.
  [[nodiscard]] std::vector<HeadVerdict> verdicts() const;
  /// Returns the positions of the prompt that head `h` would keep.
  [[nodiscard]] std::vector<std::int32_t> planned(const EntryBudget& allotted,
                                                  std::size_t h = 0) const;
  /// Sets the computed tokens (ascending) of a prompt whose other rows are reused. Required before
  /// prefill if the method reuses rows.
  void compute_only(std::span<const std::int32_t> tokens) {
    computed_.assign(tokens.begin(), tokens.end());
  }
  /// Compresses the prompt.
  void prefill(PromptScores& scores, const EntryBudget& allotted);

  /// Lets `run` compute a block's attention for several heads at the same time. Results do not
  /// depend on it.
  void set_parallel(ParallelRun run) { run_ = std::move(run); }

  /// Starts a block of at most `max` steps and returns its number of steps.
  /// The outputs of its steps are computed together after the last step, if they are `read`. All
  /// other results are those of single steps.
  [[nodiscard]] std::int64_t start_block(std::int64_t max, bool read = true);
  /// Returns output [group, d] and log-sum-exp of head `h` at step `i` of the last block.
  [[nodiscard]] std::span<const double> block_output(std::size_t h, std::int64_t i) const;
  [[nodiscard]] double block_log_sum(std::size_t h, std::int64_t i, std::int32_t g) const;

  /// Runs the next decode step. The results below are for this step and valid until the next call;
  /// attention results are valid only outside a block.
  void step();
  /// The same in parts, for callers that compute the rows of heads layer by layer: appends and
  /// attends for heads first … first + count - 1, whose rows must be available; heads in order.
  /// Then call finish_step() once for all heads. Errors: ContractError for a subset of the heads if
  /// the method compresses before it attends.
  void step_heads(std::size_t first, std::size_t count);
  void finish_step();
  /// Returns output [group, d] and log-sum-exp [group] of head `h`.
  [[nodiscard]] std::span<const double> output(std::size_t h) const;
  [[nodiscard]] double log_sum(std::size_t h, std::int32_t g) const;
  [[nodiscard]] const GroupAttention& attention(std::size_t h = 0) const {
    return heads_[h].attention;
  }
  [[nodiscard]] const StepEvents& events(std::size_t h = 0) const { return heads_[h].events; }
  /// Maximum number of entries that one query head of head `h` read in the step.
  [[nodiscard]] std::int64_t max_read(std::size_t h) const {
    return heads_[h].reader ? heads_[h].outcome.max_read
                            : static_cast<std::int64_t>(heads_[h].events.attended);
  }
  /// Bytes that the step's read fetched from host memory.
  [[nodiscard]] Bytes fetched(std::size_t h) const { return heads_[h].outcome.from_host; }
  /// Result of the prompt's round trip through a tier; all 0 without a tier.
  [[nodiscard]] const TierTrip& tier_trip() const { return trip_; }
  /// Result of the prompt's attention if part of it is not computed; otherwise all 0.
  [[nodiscard]] const PrefillOutcome& prefill_outcome() const { return prefill_outcome_; }
  /// True if the last step dropped or merged an entry.
  [[nodiscard]] bool compressed() const { return compressed_; }

  [[nodiscard]] std::size_t size() const { return heads_.size(); }
  [[nodiscard]] const EntryTable& entries(std::size_t h = 0) const { return heads_[h].entries; }
  [[nodiscard]] const Selector& selector(std::size_t h = 0) const { return *selectors_[of(h)]; }
  [[nodiscard]] const SessionPlace& place() const { return place_; }
  /// Bytes that head `h` currently holds.
  [[nodiscard]] CacheBytes bytes(std::size_t h) const;
  [[nodiscard]] Counts counts() const;
  /// Positions that each entry of head `h` represents, ascending; entries ordered by first member.
  [[nodiscard]] std::vector<std::vector<std::int32_t>> kept(std::size_t h = 0) const;
  /// Entries of head `h` by position, each with its role after the prompt's compression or the last
  /// step.
  [[nodiscard]] std::vector<KeptEntry> why_kept(std::size_t h = 0) const;

 private:
  /// A head's kind of attention in a block of steps.
  enum class InBlock : std::uint8_t { kPlain, kScored, kSingly, kUnread };
  struct Head {
    HeadVectors vectors;
    EntryTable entries;
    GroupAttention attention;
    std::unique_ptr<Merger> merger;
    std::unique_ptr<Store> store;    // nullptr: rows are stored unchanged
    std::unique_ptr<Reader> reader;  // nullptr: all entries are read
    ReadOutcome outcome{};           // result of a reader, or of a merger that extends the output
    StepEvents events;
    // Bias of the step's attention, by slot ([group, slots] if query heads attend to different
    // entries); empty: none.
    std::vector<double> bias;
    InBlock how = InBlock::kSingly;  // for the last block
    StepTile tile;
    // Outputs and log-sums of a block for steps whose attention is not part of a tile.
    std::vector<double> outputs, log_sums;
  };
  [[nodiscard]] InBlock in_block(const Head& head) const;
  [[nodiscard]] static bool in_tile(InBlock how) {
    return how == InBlock::kPlain || how == InBlock::kScored;
  }
  void keep_output(std::size_t h);
  void finish_block();
  /// Calls action(head) for each head.
  void for_heads(const std::function<void(Head&)>& action);
  void append(std::int32_t id);
  void attend(Head& head);
  void attend_rerotated(Head& head);
  void learn_step(bool prompt_fed);
  void compress();
  void compress_prompt(const EntryBudget& allotted);
  /// Rotates the kept keys of the prompt to the positions 0, 1, ….
  void rerotate_prompt();
  /// Creates one selector for all `heads`, or one per head.
  void start_selectors(std::span<const HeadVectors> heads, bool apart);
  void let_go(std::size_t h, std::span<const std::int32_t> ids);
  [[nodiscard]] std::size_t of(std::size_t h) const { return selectors_.size() > 1 ? h : 0; }
  [[nodiscard]] StepView view_of(std::span<const HeadStep> steps,
                                 std::span<const double> group_sum) const;
  void rewrite_merged(Head& head);
  void prompt_one_by_one();
  /// Sends the oldest tokens through the tier.
  void return_from_tier();
  /// Replaces the rows of tokens that are not computed by reused rows.
  void blend_prompt();
  /// Runs the prompt's attention under the method.
  void attend_prompt();
  void attend_blended(const Head& head);
  /// Rebuilds the cache from all tokens so far, as if they were the prompt.
  void refresh();
  [[nodiscard]] std::int64_t room() const;

  const Composition& method_;
  SessionPlace place_;
  std::vector<std::unique_ptr<Selector>> selectors_;  // one, or one per head
  std::unique_ptr<Sharer> sharer_;
  std::vector<Head> heads_;
  std::vector<EntryTable*> tables_;  // tables of heads_, for the sharer
  EntryBudget allotted_;
  std::vector<std::int32_t> alive_;  // nested methods: positions of the layer's tokens
  bool nested_ = false;
  std::vector<std::int32_t> computed_;  // see compute_only
  std::int32_t newest_ = -1;            // position of the newest token
  std::int64_t prompt_entries_ = 0;
  std::vector<std::vector<std::int32_t>> leaving_;  // by selector, from the last compression
  bool compressed_ = false;
  std::vector<std::int32_t> kept_;
  std::vector<float> q_, rotated_q_, rotated_keys_;
  std::vector<double> group_sum_;
  std::int64_t steps_ = 0;
  ParallelRun run_;                              // empty: heads are computed one after another
  std::int64_t block_steps_ = 0, block_at_ = 0;  // of the current block; 0: none
  bool block_is_read_ = true;                    // its outputs are read
  TierTrip trip_;
  PrefillOutcome prefill_outcome_;
  Counts retired_;  // of selectors and mergers before the last refresh
};

}  // namespace kvsim
