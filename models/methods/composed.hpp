#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "models/methods/axes.hpp"
#include "models/methods/method.hpp"
#include "models/methods/prefill_axis.hpp"
#include "models/methods/tier_axis.hpp"

namespace kvsim {

/// The parts of a composition, with every axis resolved.
struct Composition {
  std::string name;
  // All declared parameters with given or default values. Values resolved later are in `solved` and
  // override them. Shared, because a sweep resolves thousands of methods with mostly equal values.
  std::shared_ptr<const Params> declared;
  Params solved;
  std::shared_ptr<const SelectRule> select;
  std::shared_ptr<const BudgetRule> budget;
  std::shared_ptr<const MergeRule> merge;
  std::shared_ptr<const StoreRule> store;
  std::vector<bool> keeps_recorded;            // layers that keep recorded rows; empty: none
  std::shared_ptr<const ShareRule> share;      // nullptr: layers do not share
  std::shared_ptr<const ReadRule> read;        // nullptr: everything held is read
  std::shared_ptr<const TierRule> tier;        // nullptr: pages leave the GPU unchanged
  std::shared_ptr<const PrefillRule> prefill;  // nullptr: the prompt's full attention is computed
  Dtype recorded = Dtype::kFp16;
  std::int32_t n_layers = 0;  // 0: unknown
  bool query_head = false;    // every query head has its own entries: K and V stored n_heads times
  bool rerotate = false;      // keys are rotated to their cache index (StreamingLLM, 3.2)
  bool rerotate_prompt = false;     // the same once, for kept prompt keys (kvpress)
  bool learns_steps = false;        // select or merge needs the attention row of decode steps
  std::vector<std::string> unread;  // declared parameters that no maker read under these settings

  /// Returns the store of a layer. `layer` may be outside the range of `keeps_recorded`.
  [[nodiscard]] const StoreRule& store_of(std::int32_t layer) const;
  [[nodiscard]] bool keeps(std::int32_t layer) const {
    return static_cast<std::size_t>(layer) < keeps_recorded.size() &&
           keeps_recorded[static_cast<std::size_t>(layer)];
  }
};

/// The stored heads that share a decision.
enum class DecisionScope : std::uint8_t { kHead, kLayer };

/// A method composed of axis choices.
class ComposedMethod final : public Method {
 public:
  explicit ComposedMethod(Composition parts);

  [[nodiscard]] const Composition& parts() const { return parts_; }
  /// The scope within one layer.
  [[nodiscard]] DecisionScope decision_scope() const;
  /// True if the heads of one session keep different entries and only their selectors or mergers
  /// share data.
  [[nodiscard]] bool selects_apart() const;
  /// True if `layer` decides jointly with the next one.
  [[nodiscard]] bool starts_pair(std::int32_t layer, std::int32_t n_layers) const;
  /// True if attention is over recorded keys, so that its retained share is defined.
  [[nodiscard]] bool has_retained_mass() const;
  /// True if data of the whole model is required before any layer can be compressed.
  [[nodiscard]] bool needs_survey() const;
  /// True if a KV head can be replayed without the other heads of its layer.
  [[nodiscard]] bool heads_apart() const;
  /// Traffic of one stored head in one step.
  [[nodiscard]] StepTraffic head_traffic(std::int32_t layer, const StepEvents& events,
                                         const HeadShape& shape) const;

  [[nodiscard]] const std::string& name() const override { return parts_.name; }
  [[nodiscard]] const Params& params() const override;  // assembled on first use
  [[nodiscard]] MethodNeeds needs() const override;
  [[nodiscard]] PrefillPeak prefill_peak() const override;
  [[nodiscard]] Compaction compaction() const override;
  [[nodiscard]] std::int32_t extra_launches() const override;
  [[nodiscard]] std::int32_t eager_operators(bool has_rows) const override;
  [[nodiscard]] bool merges() const override { return parts_.merge->merges(); }
  [[nodiscard]] std::optional<std::int64_t> entries_held(std::int32_t layer, std::int64_t prompt,
                                                         std::int64_t tokens) const override;
  [[nodiscard]] std::optional<std::int64_t> entries_attended(std::int32_t layer,
                                                             std::int64_t prompt,
                                                             std::int64_t tokens) const override;
  [[nodiscard]] std::optional<StepEntries> step_entries(std::int32_t layer, std::int64_t prompt,
                                                        std::int64_t tokens) const override;
  [[nodiscard]] bool appends_in_decode() const override;
  [[nodiscard]] bool has_equal_layers() const override;
  [[nodiscard]] std::int32_t stored_heads(const LayerShape& shape) const override;
  [[nodiscard]] Dtype store_dtype(Dtype recorded) const override;
  [[nodiscard]] StepTraffic decode_traffic(std::int32_t layer, const LayerShape& shape,
                                           Dtype recorded, double attended,
                                           bool evicts) const override;
  [[nodiscard]] std::optional<CacheBytes> layer_bytes(std::int32_t layer, const LayerShape& shape,
                                                      Dtype recorded, std::int64_t prompt,
                                                      std::int64_t tokens) const override;
  [[nodiscard]] CacheBytes rows_bytes(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                                      std::int64_t prompt_entries,
                                      std::int64_t entries) const override;
  [[nodiscard]] Bytes side_bytes(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                                 std::int64_t prompt_entries, std::int64_t entries) const override;
  [[nodiscard]] bool plain_rows() const override { return plain_; }
  [[nodiscard]] bool fixed_rows() const override;
  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override;
  [[nodiscard]] PromptPart prompt_part(std::int32_t layer) const override;
  [[nodiscard]] PrefillExtra masked_step(std::int32_t layer, const LayerShape& shape,
                                         Dtype recorded, std::int64_t tokens) const override;
  [[nodiscard]] PrefillExtra prefill_extra(std::int32_t layer, const LayerShape& shape,
                                           Dtype recorded, std::int64_t prompt) const override;

 private:
  [[nodiscard]] bool selects_together() const;
  [[nodiscard]] bool in_pair(std::int32_t layer) const;

  /// entries_held of a layer with a budget of `budget`.
  [[nodiscard]] std::optional<std::int64_t> held_within(std::int32_t layer, std::int64_t budget,
                                                        std::int64_t prompt,
                                                        std::int64_t tokens) const;
  [[nodiscard]] HeadShape head_of(std::int32_t layer, const LayerShape& shape,
                                  Dtype recorded) const;
  /// Side data of selection, merging and budget.
  [[nodiscard]] Bytes side_of_axes(std::int32_t layer, std::int64_t heads, const HeadShape& head,
                                   std::int64_t entries) const;

  Composition parts_;
  // Properties of the axes, cached because they are needed for every layer and step.
  bool plain_ = true;
  bool masks_ = false;
  bool has_law_ = true;
  bool refreshes_ = false;
  double paired_layers_ = 0;  // share of all layers
  mutable std::once_flag params_once_;
  mutable Params params_;
};

/// Returns `method` as a ComposedMethod. Errors: ContractError if it has another type, such as a
/// test's method.
[[nodiscard]] const ComposedMethod& as_composed(const Method& method);
/// Whether `method` is the full cache, or a format with rows of fixed size that computes whole
/// prompts and keeps all entries on the GPU.
[[nodiscard]] bool is_full_or_format(const Method& method);

}  // namespace kvsim
