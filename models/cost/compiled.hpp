#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/cost/roofline.hpp"
#include "models/cost/step.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// One layer's decode graph reduced to coefficients: flops, bytes and tensor sizes are linear in
/// the entries attended, held before and held after, so a long run costs nanoseconds a step.
/// Where a method's traffic is not linear, every step is evaluated on its graph instead. The input
/// and the roofline's GPU outlive it.
class CompiledLayer {
 public:
  CompiledLayer(const CostInput& in, std::int32_t layer, CacheChange change, bool evicts,
                const Roofline& roofline);

  [[nodiscard]] GraphCost cost(const DecodeMoment& moment) const;
  /// Largest set of the graph's tensors alive at once, the layer's own cache among them.
  [[nodiscard]] Bytes alive_peak(const DecodeMoment& moment) const;
  [[nodiscard]] bool is_linear() const { return linear_; }
  /// cost() is a sum of maxima of terms linear in the moment: no fitted kernel's time varies.
  [[nodiscard]] bool is_convex() const;

 private:
  /// c[0] + c[1] * attended + c[2] * before + c[3] * after
  template <class T>
  struct Linear {
    std::array<T, 4> c{};
    [[nodiscard]] T at(const DecodeMoment& m) const {
      return c[0] + c[1] * static_cast<T>(m.attended) + c[2] * static_cast<T>(m.before) +
             c[3] * static_cast<T>(m.after);
    }
    [[nodiscard]] bool is_constant() const { return c[1] == T{} && c[2] == T{} && c[3] == T{}; }
  };
  struct VaryingOp {
    Linear<double> flops{};
    Linear<double> bytes{};
    Roofline::Terms terms{};
    const KernelChoice* choice = nullptr;  // not null: `call` at `length` is what is timed
    KernelCall call{};
    double times = 1;
    Linear<double> length{};
  };
  enum class Size : std::uint8_t { kLinear, kSideBefore, kSideAfter };
  struct VaryingTensor {
    Size how = Size::kLinear;
    Linear<std::int64_t> bytes;
  };
  struct AliveSet {
    std::int64_t constant = 0;
    std::uint32_t varying = 0;  // bit i: varying tensor i is in it
  };

  void reduce_ops(std::span<const OpGraph> samples);
  void reduce_tensors(std::span<const OpGraph> samples);

  const CostInput& in_;
  const Roofline& roofline_;
  std::int32_t layer_;
  CacheChange change_;
  bool evicts_;
  bool linear_ = true;
  double constant_time_ = 0;
  Linear<double> flops_;
  Linear<double> bytes_;
  Linear<double> at_peak_;  // s, of the arithmetic at the sheet's rate
  std::vector<VaryingOp> ops_;
  std::vector<VaryingTensor> tensors_;
  std::vector<AliveSet> sets_;
};

/// The embedding and the logits of a decode step: no method or length touches them.
struct DecodeEnds {
  GraphCost cost;
  Bytes peak;  // of either's tensors
};
[[nodiscard]] DecodeEnds decode_ends(const CostInput& in, const Roofline& roofline);

/// All decode steps of one (model, GPU, method, stack, batch): compiled layers, made as they are
/// first needed, and the embedding and logits around them.
class CompiledDecode {
 public:
  CompiledDecode(const CostInput& in, const Roofline& roofline);
  /// As above, where the ends and the groups (layer_groups of the input) were worked out before.
  CompiledDecode(const CostInput& in, const Roofline& roofline, const DecodeEnds& ends,
                 std::vector<LayerGroup> groups);

  /// The compiled form of the layers of `groups()[group]` for a step that changes their cache so;
  /// groups of layers alike share it.
  [[nodiscard]] const CompiledLayer& layer(std::size_t group, const DecodeMoment& moment);
  [[nodiscard]] const std::vector<LayerGroup>& groups() const { return groups_; }
  [[nodiscard]] const GraphCost& around() const { return ends_.cost; }  // embedding and logits
  [[nodiscard]] Bytes around_peak() const { return ends_.peak; }        // of either's tensors
  [[nodiscard]] Seconds host() const { return host_; }

 private:
  static constexpr std::size_t kForms = 6;  // 3 cache changes, evicting or not
  const CostInput& in_;
  const Roofline& roofline_;
  std::vector<LayerGroup> groups_;
  std::vector<std::array<std::unique_ptr<CompiledLayer>, kForms>> forms_;
  DecodeEnds ends_;
  Seconds host_;
};

}  // namespace kvsim
