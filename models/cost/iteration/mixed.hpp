#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/cost/rates/roofline.hpp"
#include "models/cost/step.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// A part of one prompt computed by an iteration.
struct PrefillChunk {
  std::int64_t tokens = 0;  // new tokens
  std::int64_t before = 0;  // cached tokens of the same prompt that are attended to
  bool last = false;        // end of the prompt: a token is sampled, the method compresses
};

/// Decoding sequences from the view of one layer class (MixedStepCost::layer_classes).
struct DecodeLoad {
  double attended = 0;         // entries per stored head, including new ones; sum over sequences
  double held = 0;             // entries held after the step; sum over sequences
  std::int64_t evicting = 0;   // sequences whose method compresses in this step
  std::int64_t rewriting = 0;  // of these, sequences whose kept entries are all rewritten
  /// Of the other sequences, those with a full window: the new entry takes the slot of the evicted
  /// one. Used only on stacks whose caches grow by copying.
  std::int64_t sliding = 0;
  /// Entries of the longest stored head, including new ones; sum over sequences. 0: heads are
  /// equal, or each is read up to the longest.
  double longest = 0;
  /// Of the evicting sequences, those whose evicted entry leaves a hole: nothing is moved.
  std::int64_t holes = 0;
  /// Entries per stored head that are moved to close holes.
  double compacted = 0;

  friend bool operator==(const DecodeLoad&, const DecodeLoad&) = default;
};

/// One iteration of an engine with continuous batching.
struct MixedStep {
  std::int64_t decodes = 0;           // decoding sequences
  std::span<const DecodeLoad> loads;  // [classes]; ignored if decodes is 0
  std::span<const PrefillChunk> chunks;
  /// New tokens per decoding sequence: more than one if draft tokens are verified. Each is a row of
  /// the projections and of the logits. A sequence's cache is read once for all; the method's other
  /// work is done for each.
  std::int64_t decode_tokens = 1;

  [[nodiscard]] std::int64_t rows() const;  // tokens that pass through the layers
  /// Sampled tokens: one per decoding token and per completed prompt.
  [[nodiscard]] std::int64_t sampled() const;
};

/// Returns the part of chunks that a layer attends over, or computes; at least one token of each.
[[nodiscard]] std::vector<PrefillChunk> attended_of(const PromptPart& part,
                                                    std::span<const PrefillChunk> chunks);
/// Tokens of `step` with Q, K and V projections in a layer, and tokens in the rest of the layer.
struct LayerRows {
  std::int64_t projected = 0, computed = 0;
};
[[nodiscard]] LayerRows layer_rows(const MixedStep& step, const PromptPart& part);

/// A pipeline stage: layers [first, last) of the model, and the parts before and after all layers.
struct LayerRange {
  std::int32_t first = 0;
  std::int32_t last = 0;
  bool embedding = true;
  bool head = true;  // final norm, logits, sampling; includes the time between steps
};
[[nodiscard]] LayerRange all_layers(const Llm& llm);
/// Returns the bytes of hidden states that `rows` tokens transfer between pipeline stages.
[[nodiscard]] Bytes stage_boundary_bytes(const CostInput& in, std::int64_t rows);

/// Work of an iteration, for MFU and MBU.
struct MixedCost {
  Seconds time;  // device and host, and the time between steps
  double flops = 0;
  double bytes = 0;   // read and written in HBM
  Seconds at_peak{};  // of the arithmetic at each operator's data-sheet rate
  /// Copies over the link to the host, which are serialized with all other work, and their part of
  /// `time`, which is smaller if the host is the bottleneck.
  Seconds host_copies{};
  Seconds copy_wait{};
};

/// The cost of an engine iteration: all tokens of decodes and chunks share one set of projections;
/// decode attention processes a ragged batch; all chunks attend to their own prefixes in one
/// kernel; only sampled positions have logits. Parts that depend only on the number of rows are
/// computed once per number. Attention is timed by its kernel's form (or by the roofline) with the
/// means of the ragged batch: attended entries of decodes, tokens of chunks, and the prefix with
/// the same number of (query, key) pairs.
///
/// `in` describes one GPU (tensor_shard) and its batch is ignored; its method is resolved for a
/// typical prompt, and its coefficients are used for all prompts. The method's work at a prompt's
/// end is for the whole prompt; further passes over it (prefill_passes) are separate passes. The
/// roofline is copied; objects that `in` and the roofline point to must outlive this object. Not
/// thread-safe.
///
/// Not modelled: imbalance within a batch (means are used), tensors other than the rows' tensors.
class MixedStepCost {
 public:
  MixedStepCost(const CostInput& in, const Roofline& roofline);
  /// One pipeline stage. Layer classes are those of the whole model, independent of the stage's
  /// layers; a stage includes the host's time of a step and of the stage's layers.
  MixedStepCost(const CostInput& in, const Roofline& roofline, const LayerRange& layers);
  MixedStepCost(MixedStepCost&&) noexcept;
  MixedStepCost& operator=(MixedStepCost&&) noexcept;
  ~MixedStepCost();

  /// Throws ContractError for a step without tokens or with fewer loads than layer classes, and
  /// InputError if a prompt ends whose size is not defined by the method.
  [[nodiscard]] MixedCost cost(const MixedStep& step);
  /// Number of layer classes in `loads`: 1 if the method's layers are equal and no layer has a
  /// different cache.
  [[nodiscard]] std::int32_t layer_class_count() const;
  /// First layer of each layer class, and number of layers that follow it.
  struct LayerClass {
    std::int32_t layer = 0;
    std::int32_t layers = 0;
  };
  [[nodiscard]] std::span<const LayerClass> layer_classes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns the same iteration as a sequence of graphs, which MixedStepCost reduces; for tests and
/// explanations.
[[nodiscard]] Step mixed_step(const CostInput& in, const MixedStep& step);
[[nodiscard]] Step mixed_step(const CostInput& in, const MixedStep& step, const LayerRange& layers);

}  // namespace kvsim
