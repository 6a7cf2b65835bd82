#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/cost/rates/roofline.hpp"
#include "models/cost/step.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// A part of one prompt that an iteration computes.
struct PrefillChunk {
  std::int64_t tokens = 0;  // new ones
  std::int64_t before = 0;  // tokens of the same prompt that are cached and attended to
  bool last = false;        // the prompt ends here: a token is sampled, the method compresses
};

/// Sequences that decode, as the layers of one layer class see them (MixedStepCost::layer_classes).
struct DecodeLoad {
  double attended = 0;         // entries per stored head, the new ones included; sum over sequences
  double held = 0;             // entries held after the step; likewise
  std::int64_t evicting = 0;   // sequences whose method compresses in this step
  std::int64_t rewriting = 0;  // of these, those whose kept entries are all rewritten
  /// Of the others, those whose window is full: the new entry takes the slot of the evicted one.
  /// Used only on stacks whose caches grow by copying.
  std::int64_t sliding = 0;
  /// Entries of the longest stored head, new ones included; sum over sequences. 0: heads are equal,
  /// or each is read up to the longest.
  double longest = 0;
  /// Of the evicting, those whose entry leaves a hole: nothing moves.
  std::int64_t holes = 0;
  /// Entries per stored head that are moved together to close holes.
  double compacted = 0;

  friend bool operator==(const DecodeLoad&, const DecodeLoad&) = default;
};

/// One iteration of an engine with continuous batching.
struct MixedStep {
  std::int64_t decodes = 0;           // sequences that decode
  std::span<const DecodeLoad> loads;  // [classes]; ignored where decodes is 0
  std::span<const PrefillChunk> chunks;
  /// New tokens of each decoding sequence: more than one if a draft's proposals are verified. Each
  /// is a row of the projections and of the logits. A sequence's cache is read once for all; the
  /// method's other work is done for each.
  std::int64_t decode_tokens = 1;

  [[nodiscard]] std::int64_t rows() const;     // tokens that go through the layers
  [[nodiscard]] std::int64_t sampled() const;  // tokens drawn: each decoding one, each prompt's end
};

/// The part of chunks that a layer attends over, or computes; at least one token of each.
[[nodiscard]] std::vector<PrefillChunk> attended_of(const PromptPart& part,
                                                    std::span<const PrefillChunk> chunks);
/// Tokens of `step` whose Q, K and V a layer projects, and those that go through the rest of it.
struct LayerRows {
  std::int64_t projected = 0, computed = 0;
};
[[nodiscard]] LayerRows layer_rows(const MixedStep& step, const PromptPart& part);

/// A stage of a pipeline: layers [first, last) of the model, and the parts before and after all
/// layers.
struct LayerRange {
  std::int32_t first = 0;
  std::int32_t last = 0;
  bool embedding = true;
  bool head = true;  // final norm, logits, sampling; includes the time between steps
};
[[nodiscard]] LayerRange all_layers(const Llm& llm);
/// Hidden states that `rows` tokens hand from one stage of a pipeline to the next.
[[nodiscard]] Bytes stage_boundary_bytes(const CostInput& in, std::int64_t rows);

/// Work of an iteration, for MFU and MBU.
struct MixedCost {
  Seconds time;  // device and host, and the time between steps
  double flops = 0;
  double bytes = 0;   // read and written in HBM
  Seconds at_peak{};  // of the arithmetic at the sheet's rate of each operator's format
  /// Copies over the link to the host, which are serialized with the rest, and the part of `time`
  /// that they add, which is smaller if the host is the bound.
  Seconds host_copies{};
  Seconds copy_wait{};
};

/// The cost of an engine iteration: all tokens of decodes and chunks go through one set of
/// projections; decode attention is over a ragged batch; each chunk attends to its own prefix, all
/// in one kernel; the output projection has only sampled positions. Parts that depend only on the
/// number of rows are computed once per number. Attention is timed by its kernel's form (or by the
/// roofline) with the means of the ragged batch: attended entries of decodes, tokens of chunks, and
/// the prefix that gives as many pairs of query and key.
///
/// `in` is of one GPU (tensor_shard) and its batch is ignored; its method is resolved for a typical
/// prompt, and its coefficients are used for all. The method's work at a prompt's end is for the
/// whole prompt; further passes over it (prefill_passes) are separate passes. The roofline is
/// copied; objects that `in` and the roofline point to outlive it. Not thread-safe.
///
/// Not modelled: imbalance within a batch (means are used), tensors other than those of the rows.
class MixedStepCost {
 public:
  MixedStepCost(const CostInput& in, const Roofline& roofline);
  /// One stage of a pipeline. Layer classes are those of the whole model, independent of the
  /// stage's layers; a stage has the host's time of a step and of its layers.
  MixedStepCost(const CostInput& in, const Roofline& roofline, const LayerRange& layers);
  MixedStepCost(MixedStepCost&&) noexcept;
  MixedStepCost& operator=(MixedStepCost&&) noexcept;
  ~MixedStepCost();

  /// Errors: ContractError for a step without tokens or with fewer loads than layer classes;
  /// InputError where a prompt ends whose size the method does not know.
  [[nodiscard]] MixedCost cost(const MixedStep& step);
  /// Number of layer classes in `loads`: 1 if the method's layers are equal and no layer has a
  /// different cache.
  [[nodiscard]] std::int32_t layer_class_count() const;
  /// First layer of each layer class, and layers that follow it.
  struct LayerClass {
    std::int32_t layer = 0;
    std::int32_t layers = 0;
  };
  [[nodiscard]] std::span<const LayerClass> layer_classes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The same iteration as graphs, one after another: what MixedStepCost reduces, for tests and
/// explanations.
[[nodiscard]] Step mixed_step(const CostInput& in, const MixedStep& step);
[[nodiscard]] Step mixed_step(const CostInput& in, const MixedStep& step, const LayerRange& layers);

}  // namespace kvsim
