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

/// Layers of one size law: the first one and their number.
struct LayerSpan {
  std::int32_t layer = 0;
  std::int32_t layers = 1;
};

/// The blocks of one method's sequences. A block of a layer class holds `block_tokens` entries of
/// all stored heads in all of its layers, or of one head if the stack has per-head blocks. With one
/// class of plain rows and equal heads, the unit is a block of all heads; otherwise it is a byte.
/// In an engine with groups of layers (vLLM), the unit is a block id, regardless of the layers.
class BlockSizes {
 public:
  /// `in` describes one GPU; its method is any that the spec resolves to. `groups`: for an engine
  /// that keeps the full cache in groups.
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
  /// Whether layers with a window hold every token, as other layers do, not only the window.
  [[nodiscard]] bool holds_unseen() const { return holds_unseen_; }
  /// Null: one kind of blocks for all layers.
  [[nodiscard]] const GroupSizes* groups() const { return groups_ ? &*groups_ : nullptr; }
  /// Whether a block holds one head's entries.
  [[nodiscard]] bool per_head() const { return per_head_; }
  [[nodiscard]] std::int64_t pool_units(Bytes pool) const { return pool.count() / unit_.count(); }
  /// Units of full rows of `tokens` tokens during the computation of a prompt, of which the last
  /// `chunk` are new. Layers with a window keep only the window.
  [[nodiscard]] std::int64_t prompt_units(std::int64_t tokens, std::int64_t chunk) const;
  /// Bytes of the rows of `tokens` tokens during the prefill of a prompt; layers with a window
  /// count only the tokens that it reaches. Exact if a block's bytes are a multiple of its entries.
  [[nodiscard]] Bytes prompt_logical(std::int64_t tokens) const;

  struct LayerClass {
    LayerSpan layers;
    std::int64_t limit = 0;          // most entries that a window holds; 0: no limit
    std::int64_t sees = 0;           // most entries that attention reads; 0: all
    std::int64_t units = 1;          // of a block; if rows are not plain, of a block of the prompt
    std::vector<CacheItem> other{};  // states, windows, index keys, compressed entries: not rows

    /// Bytes of `other` in all layers, for one sequence.
    [[nodiscard]] Bytes other_bytes(std::int64_t tokens) const;
  };
  [[nodiscard]] const LayerClass& layer_class(std::size_t l) const { return layer_classes_[l]; }

 private:
  std::vector<LayerClass> layer_classes_;
  std::optional<GroupSizes> groups_;
  std::int64_t block_ = 1;
  std::int64_t rows_ = 1;  // entries that LayerClass::units refer to
  std::int64_t block_units_ = 1;
  Bytes unit_{1};
  Bytes bytes_per_token_{};  // of prompt_logical(); 0: not a whole number of bytes
  bool counts_blocks_ = true;
  bool plain_ = true;
  bool windowed_ = false;
  bool holds_unseen_ = false;
  bool has_other_ = false;
  bool per_head_ = false;
};

/// Cache size of a sequence after a prompt of known length, under the method resolved for it.
class SequenceFootprint {
 public:
  /// `offloads`: if a step reads a layer only partially, all of the layer's entries are outside the
  /// GPU, and HBM has room for those that a step reads.
  SequenceFootprint(std::shared_ptr<const Method> method, const CostInput& base,
                    const BlockSizes& sizes, std::int64_t prompt, bool offloads = false);

  [[nodiscard]] std::int64_t prompt() const { return prompt_; }
  [[nodiscard]] bool all_layers_at_once() const { return all_layers_; }
  /// Whether some layer keeps fewer entries than the prompt has.
  [[nodiscard]] bool compresses_prompt() const { return compresses_prompt_; }
  /// Units after the prompt and its compression.
  [[nodiscard]] std::int64_t prompt_units() const { return kept_units_; }
  struct Step {
    std::int64_t during = 0;  // units
    std::int64_t after = 0;
    bool evicts = false;
    std::int64_t until = 0;  // last step for which the same is known to hold
  };
  /// Units during and after decode step `step` >= 1.
  [[nodiscard]] Step units(std::int64_t step) {
    if (step == answered_) return answer_;
    const auto at = static_cast<std::size_t>(step);
    const bool known = at < steps_.size() && steps_[at].until >= step;
    answer_ = known ? steps_[at] : computed_units(step);
    answered_ = step;
    if (!known && is_shared()) keep(step, answer_);
    return answer_;
  }
  /// Decode state of one layer class at `step`.
  [[nodiscard]] DecodeState moment(std::size_t layer_class, std::int64_t step) {
    const auto& segments = trajectory_.segments();
    if (segment_ >= segments.size() || step < segments[segment_].first ||
        step > segments[segment_].last) {
      seek(step);
    }
    return trajectory_.moment(segment_, columns_[layer_class], step);
  }
  /// Entries per stored head that attention reads at decode step `step`, including the new one, in
  /// the layers of one layer class: the mean over heads, and the longest if a kernel waits for it
  /// (else 0).
  struct Attended {
    double mean = 0;
    double longest = 0;
  };
  [[nodiscard]] Attended attended(std::size_t layer_class, std::int64_t step);
  /// Entries per stored head that are moved together after step `step`; nullopt: survivors are
  /// written as entries leave, as in the method's own cost.
  [[nodiscard]] std::optional<double> moved_together(std::size_t layer_class, std::int64_t step);
  /// Bytes of the entries held after `step` steps (0: the prompt), whole model.
  [[nodiscard]] Bytes logical(std::int64_t step);
  /// The same for all tokens so far, and the bytes of all their blocks.
  [[nodiscard]] Bytes full_logical(std::int64_t step);
  [[nodiscard]] std::int64_t full_units(std::int64_t step);
  /// Bytes outside the GPU after `step` steps, whole model: entries that a step does not read.
  [[nodiscard]] Bytes outside(std::int64_t step);
  /// Bytes of these that step `step` reads.
  [[nodiscard]] double fetched(std::int64_t step);
  [[nodiscard]] bool offloads() const { return offloads_; }
  /// Whether heads hold different numbers of entries, or dropped entries leave holes: attention
  /// then reads more than the method attends to.
  [[nodiscard]] bool uneven() const { return ragged_ || holes_ != nullptr; }
  /// Peak units up to `steps` decode steps.
  [[nodiscard]] std::int64_t max_units(std::int64_t steps);

  std::int32_t users = 0;  // sequences that currently use it

 private:
  void seek(std::int64_t step);
  [[nodiscard]] Step computed_units(std::int64_t step);
  /// Whether steps are kept for other sequences: only with many layer classes is the sum slow.
  [[nodiscard]] bool is_shared() const {
    constexpr std::size_t kFewClasses = 4;
    return users > 1 && columns_.size() > kFewClasses && sizes_->groups() == nullptr;
  }
  void keep(std::int64_t step, const Step& answer);
  /// For layers that only append plain rows: tabulates units by the step's position within a block.
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
  std::vector<LayerClass> columns_;  // one per layer class
  DecodeSegments trajectory_;
  std::vector<std::unique_ptr<CacheRows>> rows_;
  bool all_layers_ = false;
  bool compresses_prompt_ = false;
  std::int64_t kept_units_ = 0;
  struct Place {
    std::int64_t units = 0;
    std::int64_t same = 0;  // further steps with the same units
  };
  std::vector<Place> places_;   // [step mod block]; empty: computed per step
  std::int64_t per_block_ = 0;  // units that each further block of steps adds
  Bytes logical_start_{};       // logical(0),
  Bytes logical_each_{};        // and the bytes that each step adds; 0: computed per step
  std::vector<std::vector<std::int64_t>>
      known_units_;  // [layer classes][blocks]; -1: not computed yet
  /// Bytes that the method itself keeps in host memory for a layer.
  [[nodiscard]] Bytes own_host(std::size_t layer_class, std::int64_t step,
                               std::int64_t entries) const;
  /// Entries per stored head that a step reads if `entries` are held.
  [[nodiscard]] double read_of(std::size_t layer_class, std::int64_t entries) const;
  /// Bytes of a layer in HBM if it holds `entries` entries; `room`: capacity of their blocks.
  [[nodiscard]] Bytes in_hbm(std::size_t layer_class, std::int64_t entries,
                             std::int64_t room) const;
  bool offloads_ = false;
  bool ragged_ = false;
  std::vector<std::int64_t> before_, after_;  // of heads
  std::unique_ptr<FragmentedBlocks> holes_;   // null: survivors are written as entries leave
  std::vector<std::int64_t> max_within_;      // with holes: [steps - 1], peak units until then
  std::int64_t reached_ = 0;
  std::vector<Step> steps_;     // [step]; `until` 0: not kept
  std::int64_t answered_ = -1;  // step of `answer_`
  Step answer_{};
  std::size_t segment_ = 0;  // of the step evaluated last
};

/// The size laws of one method by prompt length, created on demand. If there are many, unused ones
/// are dropped.
class SequenceFootprints {
 public:
  SequenceFootprints(MethodSpec method, MethodContext site,
                     std::shared_ptr<const MeasuredLaw> measured, CostInput base);

  /// Errors: InputError if the method's parameters are infeasible for this prompt length.
  [[nodiscard]] std::shared_ptr<const Method> resolve(std::int64_t prompt) const;
  /// The same, but returns the full cache if they are infeasible, and counts it.
  [[nodiscard]] std::shared_ptr<const Method> resolve_or_full(std::int64_t prompt);
  /// Prompt lengths with the full cache because the method is infeasible for them.
  struct Unresolved {
    std::int64_t lengths = 0;
    std::int64_t shortest = 0, longest = 0;
    std::string why;  // of the first
  };
  [[nodiscard]] const Unresolved& unresolved() const { return unresolved_; }
  [[nodiscard]] SequenceFootprint& at(std::int64_t prompt, const BlockSizes& sizes);
  /// Size laws created later offload the entries that a step does not read.
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
