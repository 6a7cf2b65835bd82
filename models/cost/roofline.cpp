#include "models/cost/roofline.hpp"

#include <algorithm>
#include <cmath>

namespace kvsim {
namespace {

std::vector<Seconds> durations_of(const OpGraph& graph, const Roofline& roofline) {
  std::vector<Seconds> durations(static_cast<std::size_t>(graph.size()));
  for (OpIndex i = 0; i < graph.size(); ++i) {
    durations[static_cast<std::size_t>(i)] = roofline.time(graph.op(i));
  }
  return durations;
}

}  // namespace

Roofline::Roofline(const Gpu& gpu, const Stack& stack, const Calibration& calibration)
    : bandwidth_{gpu.hbm_bandwidth.count()},
      processors_{static_cast<double>(gpu.sms)},
      launch_overhead_{stack.launch_overhead.count()},
      calibration_{calibration} {
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    flop_rate_[i] = peak_flops(gpu, kDtypes[i].dtype).count();
  }
}

Roofline::Terms Roofline::terms(const Op& op) const {
  const Efficiency& efficiency = calibration_.of(op.family);
  const double fill =
      op.blocks > 0 && processors_ > 0 ? std::min(1.0, op.blocks / processors_) : 1.0;
  const double rate = flop_rate_[static_cast<std::size_t>(op.dtype)] * efficiency.flops * fill;
  return {.fixed = static_cast<double>(op.launches) * launch_overhead_,
          .per_flop = 1.0 / rate,
          .per_byte = 1.0 / (bandwidth_ * efficiency.bandwidth * fill)};
}

Seconds Roofline::time(const Op& op) const {
  const Terms t = terms(op);
  return Seconds{t.fixed + std::max(op.flops.count() * t.per_flop,
                                    (op.bytes_read + op.bytes_written) * t.per_byte)};
}

GraphCost evaluate(const OpGraph& graph, const Roofline& roofline) {
  GraphCost cost;
  cost.time = graph.critical_path(durations_of(graph, roofline));
  for (OpIndex i = 0; i < graph.size(); ++i) {
    const Op& op = graph.op(i);
    cost.flops += op.flops.count();
    cost.bytes += op.bytes_read + op.bytes_written;
  }
  return cost;
}

StepCost evaluate(const Step& step, const Roofline& roofline) {
  StepCost cost;
  for (const Segment& segment : step.segments) {
    const GraphCost once = evaluate(*segment.graph, roofline);
    cost.device += once.time * static_cast<double>(segment.repeat);
    cost.flops += once.flops * segment.repeat;
    cost.bytes += once.bytes * segment.repeat;
  }
  cost.host = step.host;
  cost.time = std::max(cost.device, cost.host);
  return cost;
}

std::vector<OpCost> explain(const Step& step, const Roofline& roofline) {
  std::vector<OpCost> lines;
  for (const Segment& segment : step.segments) {
    for (OpIndex i = 0; i < segment.graph->size(); ++i) {
      const Op& op = segment.graph->op(i);
      const double bytes = op.bytes_read + op.bytes_written;
      const Roofline::Terms t = roofline.terms(op);
      lines.push_back({.name = op.name,
                       .family = op.family,
                       .repeat = segment.repeat,
                       .flops = op.flops.count() * segment.repeat,
                       .bytes = bytes * segment.repeat,
                       .time = roofline.time(op) * static_cast<double>(segment.repeat),
                       .memory_bound = bytes * t.per_byte > op.flops.count() * t.per_flop});
    }
  }
  return lines;
}

std::optional<Interval> time_interval(const Step& step, const Roofline& roofline) {
  std::array<double, kOpFamilies> by_family{};
  for (const OpCost& line : explain(step, roofline)) {
    by_family[static_cast<std::size_t>(line.family)] += line.time.count();
  }
  double variance = 0;
  for (std::size_t i = 0; i < kOpFamilies; ++i) {
    if (by_family[i] == 0) continue;
    const auto& residual = roofline.calibration().families[i].relative_residual;
    if (!residual) return std::nullopt;
    variance += by_family[i] * *residual * by_family[i] * *residual;
  }
  const Seconds time = evaluate(step, roofline).time;
  const double spread = 2 * std::sqrt(variance);
  return Interval{Seconds{std::max(0.0, time.count() - spread)}, Seconds{time.count() + spread}};
}

}  // namespace kvsim
