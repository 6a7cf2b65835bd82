#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/cost/graph.hpp"
#include "models/cost/op.hpp"
#include "models/cost/rates/calibration.hpp"
#include "models/cost/step.hpp"
#include "models/gpu/gpu.hpp"
#include "models/stack/stack.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// The bottleneck of an operator: the largest of its arithmetic, its traffic and its launches.
enum class Bound : std::uint8_t { kCompute, kMemory, kLaunch };
[[nodiscard]] std::string_view name_of(Bound bound);

/// A GPU, a stack and a calibration reduced to the rates that determine an operator's time.
///
///   time = launches * overhead + max(flops / (peak * e_f), bytes / (bandwidth * e_b)) / fill
///
/// or, on a stack that does not overlap them, the sum of arithmetic and traffic; with fill = min(1,
/// blocks / processors) if the operator has few independent blocks. Not modelled: dependence of the
/// efficiencies on the operator's size, caches, clocks under load. Efficiencies are those of the
/// calibration, or of the stack's profile without one. Collectives use the stack's latency and the
/// link between GPUs: NVLink, or PCIe without NVLink.
///
/// An operator with a known kernel is timed by that kernel's fitted form instead, including launch,
/// if the calibration has kernels and the stack specifies whose kernels it uses.
class Roofline {
 public:
  /// GPU and stack must outlive it. Not thread-safe.
  Roofline(const Gpu& gpu, const Stack& stack, const Calibration& calibration);

  [[nodiscard]] Seconds time(const Op& op) const;
  /// The terms of an operator's time, from data sheet, calibration and stack.
  struct Rates {
    FlopsPerSecond flops;  // of the operator's format
    BytesPerSecond bandwidth;
    double flops_reached = 1;  // fractions of both rates, from the calibration
    double bandwidth_reached = 1;
    double fill = 1;
    Seconds overhead;  // per launch
  };
  [[nodiscard]] Rates rates(const Op& op) const;
  /// Factors such that time = fixed + max(flops * per_flop, bytes * per_byte).
  struct Terms {
    double fixed = 0;
    double per_flop = 0;
    double per_byte = 0;
    bool adds = false;  // arithmetic and traffic do not overlap
    [[nodiscard]] double at(double flops, double bytes) const {
      const double arithmetic = flops * per_flop;
      const double traffic = bytes * per_byte;
      return fixed + (adds ? arithmetic + traffic : std::max(arithmetic, traffic));
    }
  };
  [[nodiscard]] Terms terms(const Op& op) const;
  [[nodiscard]] Bound bound(const Op& op) const;
  /// Returns the time of the arithmetic at the data sheet's rate of its format.
  [[nodiscard]] Seconds at_peak(const Op& op) const {
    return Seconds{op.flops.count() / flop_rate_[static_cast<std::size_t>(op.dtype)]};
  }
  /// Returns the fitted kernel that times `op`; null if the roofline does.
  [[nodiscard]] const KernelChoice* kernel(const Op& op) const;
  [[nodiscard]] const Calibration& calibration() const { return calibration_; }
  /// Caches the times of fitted matrix products and streams of few rows: those of decode steps
  /// recur with every prompt, method and layer. The results of time() are unchanged.
  void remember_calls();
  /// Whether the stack specifies neither kernels nor fractions of the data sheet: times are then a
  /// bound without measurements, and have no interval.
  [[nodiscard]] bool is_bound() const { return is_bound_; }

 private:
  /// Operations per second of attention that is limited by its instructions and reads the cache
  /// while it computes, regardless of measured kernels; 0 for other operators.
  [[nodiscard]] double clocked_flops(const Op& op) const {
    return op.family == OpFamily::kDecodeAttention    ? attention_flops_
           : op.family == OpFamily::kPrefillAttention ? prompt_attention_flops_
                                                      : 0;
  }
  [[nodiscard]] bool is_clocked(const Op& op) const { return clocked_flops(op) > 0; }
  std::array<double, kDtypes.size()> flop_rate_{};
  double bandwidth_ = 0;
  double link_ = 0;                                  // to host memory
  double peer_link_ = 0;                             // to another GPU, one direction
  double exchange_link_ = 0, exchange_latency_ = 0;  // of tokens with their experts
  double processors_ = 0;
  double launch_overhead_ = 0;
  const Gpu* gpu_ = nullptr;
  // Stack and version of the kernels; empty: none for the family.
  std::array<std::string, kKernelOps> stacks_{};
  // The last choice of each family: a step uses few formats.
  struct Last {
    const KernelFormat* format = nullptr;
    const KernelChoice* choice = nullptr;
  };
  mutable std::array<Last, kKernelOps> last_{};
  mutable Last last_nccl_{};
  template <class Call>
  struct Known {
    const KernelChoice* choice = nullptr;
    Call call{};
    double us = 0;
  };
  template <class Call>
  [[nodiscard]] static double known_us(std::vector<Known<Call>>& all, const KernelChoice& choice,
                                       const Call& call);
  mutable std::vector<Known<GemmCall>> products_;  // by hash; empty: caching is off
  mutable std::vector<Known<ElementwiseCall>> streams_;
  double collective_latency_ = 0;
  bool adds_ = false;
  double sm_clocks_;                   // of all SMs together, Hz
  double attention_flops_ = 0;         // clocked_flops of decoding
  double prompt_attention_flops_ = 0;  // clocked_flops of prompts
  bool is_bound_ = false;
  std::array<ReachedRates, kOpFamilies> reached_{};  // used if the calibration is nominal
  Calibration calibration_;
};

/// Time, work and traffic of one run of a graph.
struct GraphCost {
  Seconds time{};
  double flops = 0;
  double bytes = 0;
  Seconds at_peak{};  // of the arithmetic
};
[[nodiscard]] GraphCost evaluate(const OpGraph& graph, const Roofline& roofline);

/// A whole step: its consecutive segments, or the host's time, whichever is longer.
struct StepCost {
  Seconds device;
  Seconds host;
  Seconds between;
  Seconds time;  // the larger of device and host, plus the time between steps
  double flops = 0;
  double bytes = 0;
  Seconds at_peak{};  // of the arithmetic
};
[[nodiscard]] StepCost evaluate(const Step& step, const Roofline& roofline);

/// One line of an explanation: equal operators in all layers with them.
struct OpCost {
  Op op;                    // one of them
  std::int32_t layers = 0;  // layers with it; 0: it is outside the layers
  std::int32_t calls = 1;   // per layer, or per step
  Seconds time{};           // of all calls
  Bound bound = Bound::kMemory;
  [[nodiscard]] std::int64_t times() const { return std::int64_t{layers > 0 ? layers : 1} * calls; }
};
/// Lists a step's operators in the order of the first of each kind. Their times sum to the device's
/// time: every operator runs on one stream.
[[nodiscard]] std::vector<OpCost> explain(const Step& step, const Roofline& roofline);

/// The 90 % interval of the step's time, from the residuals of each operator's time: errors of one
/// kernel or family are assumed equal in all its calls, those of different ones independent.
/// nullopt if a family with time has no residual, or if the stack is only a bound. The host's time,
/// and the time between steps, use the calibration's residual of the host.
struct Interval {
  Seconds low;
  Seconds high;
};
[[nodiscard]] std::optional<Interval> time_interval(const Step& step, const Roofline& roofline);
/// The same for a single line.
[[nodiscard]] std::optional<Interval> time_interval(const OpCost& line, const Roofline& roofline);

}  // namespace kvsim
