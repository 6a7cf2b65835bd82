#include "models/cost/roofline.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "models/units/check.hpp"

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
      link_{gpu.c2c.value_or(gpu.pcie).count()},
      processors_{static_cast<double>(gpu.sms)},
      launch_overhead_{stack.launch_overhead.count()},
      collective_latency_{stack.collective_latency.count()},
      adds_{stack.overlap == Overlap::kAdd},
      copies_by_element_{stack.copies_by_element},
      calibration_{calibration} {
  // NVLink's figure is of both directions together.
  peer_link_ = gpu.nvlink ? gpu.nvlink->count() / 2 : gpu.pcie.count();
  const bool nominal = calibration.id == Calibration{}.id;
  std::size_t known = 0;
  for (std::size_t i = 0; nominal && i < kOpFamilies; ++i) {
    const auto found = stack.reached.find(std::string{name_of(static_cast<OpFamily>(i))});
    if (found == stack.reached.end()) continue;
    reached_[i] = found->second;
    ++known;
  }
  KVSIM_CHECK(!nominal || known == stack.reached.size(),
              "stack {} gives a rate of an unknown operator family", stack.name);
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    flop_rate_[i] = peak_flops(gpu, kDtypes[i].dtype).count();
  }
}

Roofline::Rates Roofline::rates(const Op& op) const {
  const Efficiency& efficiency = calibration_.of(op.family);
  const ReachedRates& reached = reached_[static_cast<std::size_t>(op.family)];
  const bool copies = op.family == OpFamily::kConcatCopy || op.family == OpFamily::kExpandCopy;
  const double width = copies_by_element_ && copies ? bits_of(op.dtype) / 16.0 : 1.0;
  const bool peers = op.family == OpFamily::kCollective;
  const double link = op.family == OpFamily::kHostCopy ? link_ : peers ? peer_link_ : bandwidth_;
  return {.flops = FlopsPerSecond{flop_rate_[static_cast<std::size_t>(op.dtype)]},
          .bandwidth = BytesPerSecond{link},
          .flops_reached = efficiency.flops * reached.flops,
          .bandwidth_reached = std::min(1.0, efficiency.bandwidth * reached.bandwidth * width),
          .fill = op.blocks > 0 && processors_ > 0 ? std::min(1.0, op.blocks / processors_) : 1.0,
          .overhead = Seconds{peers ? collective_latency_ : launch_overhead_}};
}

Roofline::Terms Roofline::terms(const Op& op) const {
  const Rates r = rates(op);
  return {.fixed = static_cast<double>(op.launches) * r.overhead.count(),
          .per_flop = 1.0 / (r.flops.count() * r.flops_reached * r.fill),
          .per_byte = 1.0 / (r.bandwidth.count() * r.bandwidth_reached * r.fill),
          .adds = adds_};
}

Seconds Roofline::time(const Op& op) const {
  return Seconds{terms(op).at(op.flops.count(), op.bytes_read + op.bytes_written)};
}

Bound Roofline::bound(const Op& op) const {
  const Terms t = terms(op);
  const double arithmetic = op.flops.count() * t.per_flop;
  const double traffic = (op.bytes_read + op.bytes_written) * t.per_byte;
  if (t.fixed > std::max(arithmetic, traffic)) return Bound::kLaunch;
  return arithmetic > traffic ? Bound::kCompute : Bound::kMemory;
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
  cost.device = cost.device * step.passes;
  cost.flops *= step.passes;
  cost.bytes *= step.passes;
  cost.host = step.host;
  cost.between = step.between;
  cost.time = std::max(cost.device, cost.host) + cost.between;
  return cost;
}

std::string_view name_of(Bound bound) {
  constexpr std::array<std::string_view, 3> kNames{"compute", "memory", "launch"};
  return kNames[static_cast<std::size_t>(bound)];
}

std::vector<OpCost> explain(const Step& step, const Roofline& roofline) {
  std::vector<OpCost> lines;
  for (const Segment& segment : step.segments) {
    // Alike operators of one graph are calls, alike calls of several graphs are layers.
    std::vector<OpCost> once;
    for (OpIndex i = 0; i < segment.graph->size(); ++i) {
      const Op& op = segment.graph->op(i);
      const auto found =
          std::find_if(once.begin(), once.end(), [&](const OpCost& line) { return line.op == op; });
      if (found != once.end()) {
        ++found->calls;
      } else {
        once.push_back({.op = op, .layers = segment.first_layer < 0 ? 0 : segment.repeat});
      }
    }
    for (const OpCost& line : once) {
      const auto found = std::find_if(lines.begin(), lines.end(), [&](const OpCost& other) {
        return line.layers > 0 && other.layers > 0 && other.op == line.op &&
               other.calls == line.calls;
      });
      if (found != lines.end()) {
        found->layers += line.layers;
      } else {
        lines.push_back(line);
      }
    }
  }
  for (OpCost& line : lines) {
    line.time = roofline.time(line.op) * static_cast<double>(line.times());
    line.bound = roofline.bound(line.op);
  }
  return lines;
}

std::optional<Interval> time_interval(const Step& step, const Roofline& roofline) {
  std::array<double, kOpFamilies> by_family{};
  for (const OpCost& line : explain(step, roofline)) {
    by_family[static_cast<std::size_t>(line.op.family)] += line.time.count();
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
