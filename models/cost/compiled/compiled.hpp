#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "models/cost/cache_rows.hpp"
#include "models/cost/compiled/compiled_graph.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/cost/step.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// One layer's decode graph reduced to coefficients: flops, bytes and tensor sizes are linear in
/// the entries attended, held before and held after, so a step of a long run takes nanoseconds. If
/// a method's traffic is not linear, every step is evaluated on its graph instead, but only on the
/// part that changes between states. The input and the roofline's GPU must outlive it.
class CompiledLayer {
 public:
  CompiledLayer(const CostInput& in, std::int32_t layer, CacheChange change, bool evicts,
                const Roofline& roofline);

  [[nodiscard]] GraphCost cost(const DecodeState& moment) const;
  [[nodiscard]] Seconds time(const DecodeState& moment) const;
  /// Returns the largest set of the graph's simultaneously alive tensors, including the layer's
  /// cache.
  [[nodiscard]] Bytes alive_peak(const DecodeState& moment) const;
  [[nodiscard]] bool is_linear() const { return form_.is_linear(); }
  /// Whether cost() is a sum of maxima of terms linear in the moment: no fitted kernel's time
  /// varies.
  [[nodiscard]] bool is_convex() const { return form_.is_convex(); }

 private:
  using Form = CompiledGraph<3>;
  static Form::Counts counts_of(const DecodeState& m) { return {m.attended, m.before, m.after}; }
  [[nodiscard]] GraphCost on_graph(const DecodeState& moment) const;

  const CostInput& in_;
  const Roofline& roofline_;
  std::int32_t layer_;
  CacheRows rows_;
  Form form_;
  mutable std::optional<GraphCost> outside_;  // cost of the constant part, if not linear
};

/// The embedding and the logits of a decode step, which are independent of method and length.
struct DecodeEnds {
  GraphCost cost;
  Bytes peak;  // larger peak of their tensors
};
[[nodiscard]] DecodeEnds decode_ends(const CostInput& in, const Roofline& roofline);

/// All decode steps of one (model, GPU, method, stack, batch): compiled layers, created on first
/// use, and the embedding and logits around them.
class CompiledDecode {
 public:
  CompiledDecode(const CostInput& in, const Roofline& roofline);
  /// As above, with precomputed ends and groups (layer_groups of the input).
  CompiledDecode(const CostInput& in, const Roofline& roofline, const DecodeEnds& ends,
                 std::vector<LayerGroup> groups);

  /// Returns the compiled form of the layers of `groups()[group]` for a step with this change of
  /// their cache; equal groups share it.
  [[nodiscard]] const CompiledLayer& layer(std::size_t group, const DecodeState& moment);
  [[nodiscard]] const std::vector<LayerGroup>& groups() const { return groups_; }
  [[nodiscard]] const GraphCost& around() const { return ends_.cost; }  // embedding and logits
  [[nodiscard]] Bytes around_peak() const { return ends_.peak; }        // peak of their tensors
  [[nodiscard]] Seconds host() const { return host_; }

 private:
  static constexpr std::size_t kForms = 6;  // 3 cache changes, with or without eviction
  const CostInput& in_;
  const Roofline& roofline_;
  std::vector<LayerGroup> groups_;
  std::vector<std::array<std::unique_ptr<CompiledLayer>, kForms>> forms_;
  DecodeEnds ends_;
  Seconds host_;
};

}  // namespace kvsim
