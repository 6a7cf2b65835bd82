#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "models/cost/calibration.hpp"
#include "models/cost/graph.hpp"
#include "models/cost/op.hpp"
#include "models/cost/step.hpp"
#include "models/gpu/gpu.hpp"
#include "models/stack/stack.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// A GPU, a stack and a calibration reduced to the rates an operator's time needs.
///
///   time = launches * overhead + max(flops / (peak * e_f), bytes / (bandwidth * e_b)) / fill
///
/// with fill = min(1, blocks / processors) where the operator has few independent blocks. Left out:
/// dependence of the efficiencies on the operator's size, caches, clocks under load.
class Roofline {
 public:
  Roofline(const Gpu& gpu, const Stack& stack, const Calibration& calibration);

  [[nodiscard]] Seconds time(const Op& op) const;
  /// Factors such that time = fixed + max(flops * per_flop, bytes * per_byte).
  struct Terms {
    double fixed = 0;
    double per_flop = 0;
    double per_byte = 0;
  };
  [[nodiscard]] Terms terms(const Op& op) const;
  [[nodiscard]] const Calibration& calibration() const { return calibration_; }

 private:
  std::array<double, kDtypes.size()> flop_rate_{};
  double bandwidth_ = 0;
  double processors_ = 0;
  double launch_overhead_ = 0;
  Calibration calibration_;
};

/// Time, work and traffic of one graph run once.
struct GraphCost {
  Seconds time{};
  double flops = 0;
  double bytes = 0;
};
[[nodiscard]] GraphCost evaluate(const OpGraph& graph, const Roofline& roofline);

/// A whole step: its segments one after another, then the host's own time, whichever is longer.
struct StepCost {
  Seconds device;
  Seconds host;
  Seconds time;  // the larger of both
  double flops = 0;
  double bytes = 0;
};
[[nodiscard]] StepCost evaluate(const Step& step, const Roofline& roofline);

/// One line of an explanation: an operator, its repetitions and what they cost together.
struct OpCost {
  std::string_view name;
  OpFamily family = OpFamily::kElementwise;
  std::int32_t repeat = 1;
  double flops = 0;
  double bytes = 0;
  Seconds time{};
  bool memory_bound = false;
};
[[nodiscard]] std::vector<OpCost> explain(const Step& step, const Roofline& roofline);

/// Two standard deviations about the step's device time, from the families' residuals taken as
/// independent errors of each family; nullopt where a family that has time carries no residual.
struct Interval {
  Seconds low;
  Seconds high;
};
[[nodiscard]] std::optional<Interval> time_interval(const Step& step, const Roofline& roofline);

}  // namespace kvsim
