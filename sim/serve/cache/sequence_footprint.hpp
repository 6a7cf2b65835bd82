#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "models/cost/cache_rows.hpp"
#include "models/cost/step.hpp"
#include "models/methods/resolve/measured.hpp"
#include "sim/batch/point/decode_segments.hpp"
#include "sim/batch/point/method_by_prompt.hpp"
#include "sim/memory/groups/group_sizes.hpp"
#include "sim/serve/cache/fragmented_blocks.hpp"

namespace kvsim {

/// Layers of one size law: the first of them, and how many there are.
struct LayerSpan {
  std::int32_t layer = 0;
  std::int32_t layers = 1;
};

/// The blocks of one method's sequences. A block of a layer class holds `block_tokens` entries of
/// all stored heads in all of its layers, or of one head if the stack has per-head blocks. With one
/// class of plain rows and equal heads, the unit is a block of all heads; otherwise it is a byte.
/// In an engine with groups of layers (vLLM) the unit is a block id, whatever the layers.
class BlockSizes {
 public:
  /// `in` is of one GPU; its method is any that the spec resolves to. `groups`: of an engine that
  /// keeps the full cache in groups.
  BlockSizes(const CostInput& in, std::span<const LayerSpan> layer_classes,
             std::optional<GroupSizes> groups = std::nullopt);

  [[nodiscard]] std::size_t layer_classes() const { return layer_classes_.size(); }
  [[nodiscard]] std::int64_t block_tokens() const { return block_; }
  [[nodiscard]] bool counts_blocks() const { return counts_blocks_; }
  [[nodiscard]] Bytes unit() const { return unit_; }
  /// Units of one block of rows in every layer.
  [[nodiscard]] std::int64_t block_units() const { return block_units_; }
  [[nodiscard]] bool plain() const { return plain_; }
  [[nodiscard]] bool windowed() const { return windowed_; }
  /// Layers with a window hold more than it sees: every token, as all others.
  [[nodiscard]] bool holds_unseen() const { return holds_unseen_; }
  /// Null: one kind of blocks for all layers.
  [[nodiscard]] const GroupSizes* groups() const { return groups_ ? &*groups_ : nullptr; }
  /// A block holds one head's entries.
  [[nodiscard]] bool per_head() const { return per_head_; }
  [[nodiscard]] std::int64_t pool_units(Bytes pool) const { return pool.count() / unit_.count(); }
  /// Units of full rows of `tokens` tokens during the computation of a prompt, of which the last
  /// `chunk` are new. Layers with a window keep only the window.
  [[nodiscard]] std::int64_t prompt_units(std::int64_t tokens, std::int64_t chunk) const;
  /// Bytes of the rows of `tokens` tokens that a prompt in the making holds; of a window's layers
  /// what it reaches. Exact where a block's bytes are a multiple of its entries.
  [[nodiscard]] Bytes prompt_logical(std::int64_t tokens) const;

  struct LayerClass {
    LayerSpan layers;
    std::int64_t limit = 0;          // most entries held, of a window; 0: none
    std::int64_t sees = 0;           // most entries that attention reads; 0: all
    std::int64_t units = 1;          // of a block; of rows that are not plain, one of the prompt's
    std::vector<CacheItem> other{};  // states, windows, index keys, compressed entries: no rows

    /// Of them in all layers, for one sequence.
    [[nodiscard]] Bytes other_bytes(std::int64_t tokens) const;
  };
  [[nodiscard]] const LayerClass& layer_class(std::size_t l) const { return layer_classes_[l]; }

 private:
  std::vector<LayerClass> layer_classes_;
  std::optional<GroupSizes> groups_;
  std::int64_t block_ = 1;
  std::int64_t rows_ = 1;  // entries that LayerClass::units are of
  std::int64_t block_units_ = 1;
  Bytes unit_{1};
  Bytes bytes_per_token_{};  // of prompt_logical(); 0: it is no whole number of tokens' bytes
  bool counts_blocks_ = true;
  bool plain_ = true;
  bool windowed_ = false;
  bool holds_unseen_ = false;
  bool has_other_ = false;
  bool per_head_ = false;
};

/// How the cache of a sequence goes on after a prompt of known length: the method resolved for it.
class SequenceFootprint {
 public:
  /// `offloads`: if a step reads a layer only partially, all of the layer's entries are outside the
  /// GPU, and HBM has room for those that a step reads.
  SequenceFootprint(std::shared_ptr<const Method> method, const CostInput& base,
                    const BlockSizes& sizes, std::int64_t prompt, bool offloads = false);

  [[nodiscard]] std::int64_t prompt() const { return prompt_; }
  [[nodiscard]] bool all_layers_at_once() const { return all_layers_; }
  /// Some layer keeps fewer entries than the prompt has.
  [[nodiscard]] bool compresses_prompt() const { return compresses_prompt_; }
  /// Units after the prompt and its compression.
  [[nodiscard]] std::int64_t prompt_units() const { return kept_units_; }
  struct Step {
    std::int64_t during = 0;  // units
    std::int64_t after = 0;
    bool evicts = false;
    std::int64_t until = 0;  // last step of which the same is known to hold
  };
  /// Units within and after decode step `step` >= 1.
  [[nodiscard]] Step units(std::int64_t step) {
    if (step == answered_) return answer_;
    const auto at = static_cast<std::size_t>(step);
    const bool known = at < steps_.size() && steps_[at].until >= step;
    answer_ = known ? steps_[at] : computed_units(step);
    answered_ = step;
    if (!known && is_shared()) keep(step, answer_);
    return answer_;
  }
  /// The moment of one layer class.
  [[nodiscard]] DecodeState moment(std::size_t layer_class, std::int64_t step) {
    const auto& segments = trajectory_.segments();
    if (segment_ >= segments.size() || step < segments[segment_].first ||
        step > segments[segment_].last) {
      seek(step);
    }
    return trajectory_.moment(segment_, columns_[layer_class], step);
  }
  /// Entries that attention reads of a stored head at decode step `step`, the new one included, in
  /// the layers of one layer class: the mean of heads, and where a kernel waits for it the longest
  /// (else 0).
  struct Attended {
    double mean = 0;
    double longest = 0;
  };
  [[nodiscard]] Attended attended(std::size_t layer_class, std::int64_t step);
  /// Entries per stored head that are moved together after step `step`; nullopt: survivors are
  /// written as entries leave, as the method's own cost has it.
  [[nodiscard]] std::optional<double> moved_together(std::size_t layer_class, std::int64_t step);
  /// Bytes of the entries held after `step` steps (0: the prompt), whole model.
  [[nodiscard]] Bytes logical(std::int64_t step);
  /// The same for all tokens so far, and the bytes of all their blocks.
  [[nodiscard]] Bytes full_logical(std::int64_t step);
  [[nodiscard]] std::int64_t full_units(std::int64_t step);
  /// Heads hold different numbers, or dropped entries leave holes: attention reads more than the
  /// method attends to. For entries that a step does not read: bytes outside the GPU after `step`
  /// steps, whole model.
  [[nodiscard]] Bytes outside(std::int64_t step);
  /// Bytes that step `step` reads of them.
  [[nodiscard]] double fetched(std::int64_t step);
  [[nodiscard]] bool offloads() const { return offloads_; }
  [[nodiscard]] bool uneven() const { return ragged_ || holes_ != nullptr; }
  /// Most units at any time up to `steps` decode steps.
  [[nodiscard]] std::int64_t max_units(std::int64_t steps);

  std::int32_t users = 0;  // sequences that follow it now

 private:
  void seek(std::int64_t step);
  [[nodiscard]] Step computed_units(std::int64_t step);
  /// Whether steps are kept for other sequences: only many layer classes take long to add up.
  [[nodiscard]] bool is_shared() const {
    constexpr std::size_t kFewClasses = 4;
    return users > 1 && columns_.size() > kFewClasses && sizes_->groups() == nullptr;
  }
  void keep(std::int64_t step, const Step& answer);
  /// Of layers that only append plain rows: units by the step's place within a block.
  void tabulate();
  [[nodiscard]] std::int64_t units_of(std::size_t layer_class, std::int64_t entries,
                                      bool straddles);
  /// For layers whose stored heads hold these numbers, the longest first; one number if all are
  /// equal.
  [[nodiscard]] std::int64_t units_of(std::size_t layer_class, std::span<const std::int64_t> heads);
  /// Entries of the stored heads after `step` steps, the longest first; one number if all are
  /// equal.
  void heads_after(std::size_t layer_class, std::int64_t step, std::vector<std::int64_t>& heads);
  void add_ragged(std::size_t layer_class, std::int64_t step, Step& out);
  void add_lazy(std::size_t layer_class, std::int64_t step, Step& out);

  std::shared_ptr<const Method> method_;
  CostInput in_;
  const BlockSizes* sizes_;
  std::int64_t prompt_;
  std::vector<LayerClass> columns_;  // one a layer class
  DecodeSegments trajectory_;
  std::vector<std::unique_ptr<CacheRows>> rows_;
  bool all_layers_ = false;
  bool compresses_prompt_ = false;
  std::int64_t kept_units_ = 0;
  struct Place {
    std::int64_t units = 0;
    std::int64_t same = 0;  // further steps with as many
  };
  std::vector<Place> places_;   // [step mod block]; empty: computed per step
  std::int64_t per_block_ = 0;  // units that each further block of steps adds
  Bytes logical_start_{};       // logical(0),
  Bytes logical_each_{};        // and what each step adds; 0: computed per step
  std::vector<std::vector<std::int64_t>>
      known_units_;  // [layer classes][blocks]; -1: not computed yet
  /// Bytes that the method itself keeps in host memory for a layer.
  [[nodiscard]] Bytes own_host(std::size_t layer_class, std::int64_t step,
                               std::int64_t entries) const;
  /// Entries per stored head that a step reads where `entries` are held.
  [[nodiscard]] double read_of(std::size_t layer_class, std::int64_t entries) const;
  /// Entries of a layer in HBM, of which `room` are a whole number of blocks.
  [[nodiscard]] Bytes in_hbm(std::size_t layer_class, std::int64_t entries,
                             std::int64_t room) const;
  bool offloads_ = false;
  bool ragged_ = false;
  std::vector<std::int64_t> before_, after_;  // of heads
  std::unique_ptr<FragmentedBlocks> holes_;   // null: survivors are written as entries leave
  std::vector<std::int64_t> max_within_;      // with holes: [steps - 1], most units up to there
  std::int64_t reached_ = 0;
  std::vector<Step> steps_;     // [step]; `until` 0: not kept
  std::int64_t answered_ = -1;  // step of `answer_`
  Step answer_{};
  std::size_t segment_ = 0;  // of the step evaluated last
};

/// The size laws of one method by prompt length, made on demand. If there are many, those that no
/// sequence uses are dropped.
class SequenceFootprints {
 public:
  SequenceFootprints(MethodSpec method, MethodContext site,
                     std::shared_ptr<const MeasuredLaw> measured, CostInput base);

  /// Errors: InputError where the method's parameters cannot be kept for such a prompt.
  [[nodiscard]] std::shared_ptr<const Method> resolve(std::int64_t prompt) const;
  /// The same, or the full cache where they cannot, which is counted.
  [[nodiscard]] std::shared_ptr<const Method> resolve_or_full(std::int64_t prompt);
  /// Prompt lengths that hold every token because the method cannot be kept for them.
  struct Unresolved {
    std::int64_t lengths = 0;
    std::int64_t shortest = 0, longest = 0;
    std::string why;  // of the first
  };
  [[nodiscard]] const Unresolved& unresolved() const { return unresolved_; }
  [[nodiscard]] SequenceFootprint& at(std::int64_t prompt, const BlockSizes& sizes);
  /// From now on laws offload what a step does not read.
  void offload() { offloads_ = true; }

 private:
  MethodSpec method_;
  MethodContext site_;
  std::shared_ptr<const MeasuredLaw> measured_;
  CostInput base_;
  bool offloads_ = false;
  std::map<std::int64_t, std::unique_ptr<SequenceFootprint>> footprints_;
  std::set<std::int64_t> unresolved_lengths_;
  Unresolved unresolved_;
};

}  // namespace kvsim
