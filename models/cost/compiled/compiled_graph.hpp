#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "models/cost/graph.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/stack/stack.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// Graphs of one shape whose flops, bytes, tensor sizes and kernels' lengths are linear in V counts
/// of cache entries, reduced to coefficients: evaluating other counts takes nanoseconds. Stack and
/// roofline must outlive it.
template <std::size_t V>
class CompiledGraph {
 public:
  using Counts = std::array<std::int64_t, V>;
  struct Sample {
    Counts counts{};
    OpGraph graph;
  };
  static constexpr std::size_t kSamples = V + 2;

  /// Constructs a graph that is not linear.
  CompiledGraph(const Stack& stack, const Roofline& roofline)
      : stack_{&stack}, roofline_{&roofline} {}
  /// `samples`, with sizes before the allocator's rounding (CostInput::exact_sizes): a base, one
  /// sample per count that changes only that count, and one at other counts to verify linearity.
  CompiledGraph(const Stack& stack, const Roofline& roofline, std::span<const Sample> samples);

  /// False if some value is not linear; the members below must not be called then.
  [[nodiscard]] bool is_linear() const { return linear_; }
  /// Whether cost() is a sum of maxima of terms linear in the counts: no fitted kernel's time
  /// varies.
  [[nodiscard]] bool is_convex() const;
  [[nodiscard]] Seconds time(const Counts& counts) const;
  [[nodiscard]] GraphCost cost(const Counts& counts) const;

  /// A method's side data, which may grow in groups; set by the method's own function, in bytes as
  /// charged by the allocator.
  struct Side {
    Bytes first;  // held from the graph's start
    Bytes later;
  };
  [[nodiscard]] bool has_side() const { return has_side_; }
  /// Returns the largest set of the graph's simultaneously alive tensors.
  [[nodiscard]] Bytes alive_peak(const Counts& counts, const Side& side) const;

 private:
  /// c[0] + c[1] * counts[0] + c[2] * counts[1] + …
  template <class T>
  struct Linear {
    std::array<T, V + 1> c{};
    [[nodiscard]] T at(const Counts& counts) const {
      T sum = c[0];
      for (std::size_t v = 0; v < V; ++v) sum += c[v + 1] * static_cast<T>(counts[v]);
      return sum;
    }
    [[nodiscard]] bool is_constant() const {
      for (std::size_t v = 1; v <= V; ++v) {
        if (c[v] != T{}) return false;
      }
      return true;
    }
    void add(const Linear& other) {
      for (std::size_t v = 0; v <= V; ++v) c[v] += other.c[v];
    }
  };
  struct VaryingOp {
    Linear<double> flops{};
    Linear<double> bytes{};
    Roofline::Terms terms{};
    const KernelChoice* choice = nullptr;  // if not null, `call` at `length` is timed
    KernelCall call{};
    double times = 1;
    Linear<double> length{};
  };
  enum class Size : std::uint8_t { kLinear, kSideFirst, kSideLater };
  struct VaryingTensor {
    Size how = Size::kLinear;
    Linear<std::int64_t> bytes;
  };
  struct AliveSet {
    std::int64_t constant = 0;
    std::uint32_t varying = 0;  // bit i: contains varying tensor i
  };
  static constexpr std::size_t kMaxTensors = 32;  // varying tensors

  template <class ValueOf>
  Linear<double> fit(std::span<const Sample> samples, ValueOf&& value_of);
  void reduce_ops(std::span<const Sample> samples);
  void reduce_tensors(std::span<const Sample> samples);
  void keep_largest(std::span<const AliveSet> sets);

  const Stack* stack_;
  const Roofline* roofline_;
  bool linear_ = false;
  bool has_side_ = false;
  double constant_time_ = 0;
  Linear<double> flops_;
  Linear<double> bytes_;
  Linear<double> at_peak_;  // s, arithmetic at the data sheet's rate
  std::vector<VaryingOp> ops_;
  std::vector<VaryingTensor> tensors_;
  std::vector<AliveSet> sets_;
};

extern template class CompiledGraph<1>;
extern template class CompiledGraph<3>;

}  // namespace kvsim
