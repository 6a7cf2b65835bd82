#include "models/cost/rates/roofline.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <variant>

#include "models/cost/rates/kernel_use.hpp"
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

constexpr double kDeviations = 1.645;  // standard deviations for a 90 % interval

}  // namespace

Roofline::Roofline(const Gpu& gpu, const Stack& stack, const Calibration& calibration)
    : bandwidth_{gpu.hbm_bandwidth.count()},
      link_{gpu.c2c.value_or(gpu.pcie).count()},
      processors_{static_cast<double>(gpu.sms)},
      launch_overhead_{stack.launch_overhead.count()},
      gpu_{&gpu},
      collective_latency_{stack.collective_latency.count()},
      adds_{stack.overlap == Overlap::kAdd},
      sm_clocks_{kvsim::sm_clocks(gpu)},
      calibration_{calibration} {
  attention_flops_ = stack.attention_per_clock * sm_clocks_;
  prompt_attention_flops_ = stack.prompt_attention_per_clock * sm_clocks_;
  // The NVLink rate is the sum of both directions.
  peer_link_ = gpu.nvlink ? gpu.nvlink->count() / 2 : gpu.pcie.count();
  const bool network = stack.exchange_rate.count() > 0;
  exchange_link_ = network ? stack.exchange_rate.count() : peer_link_;
  exchange_latency_ = network ? stack.exchange_latency.count() : collective_latency_;
  // With fitted kernels, other operators use the stack's profile.
  const bool nominal = calibration.id == Calibration{}.id || calibration.kernels != nullptr;
  std::size_t known = 0;
  for (std::size_t i = 0; nominal && i < kOpFamilies; ++i) {
    const auto found = stack.reached.find(std::string{name_of(static_cast<OpFamily>(i))});
    if (found == stack.reached.end()) continue;
    reached_[i] = found->second;
    ++known;
  }
  KVSIM_CHECK(!nominal || known == stack.reached.size(),
              "stack {} states a rate for an unknown operator family", stack.name);
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    flop_rate_[i] = peak_flops(gpu, kDtypes[i].dtype).count();
  }
  if (calibration_.kernels == nullptr) return;
  is_bound_ = stack.kernels.empty() && stack.reached.empty();
  for (std::size_t i = 0; i < kKernelOps; ++i) {
    const auto whose = stack.kernels.find(name_of(static_cast<KernelOp>(i)));
    if (whose == stack.kernels.end()) continue;
    stacks_[i] = whose->second;
    // An engine uses the kernels that its version ships.
    const bool own = !stack.version.empty() && stack.name.starts_with(whose->second);
    if (own) stacks_[i] += "-" + stack.version;
  }
}

Roofline::Rates Roofline::rates(const Op& op) const {
  const Efficiency& efficiency = calibration_.of(op.family);
  const ReachedRates& reached = reached_[static_cast<std::size_t>(op.family)];
  double share = reached.bandwidth;
  if (reached.elements_per_clock > 0) {
    const double element = 2 * bits_of(op.dtype) / 8.0;  // read and written
    share = std::min(share, reached.elements_per_clock * sm_clocks_ * element / bandwidth_);
  }
  const bool peers = op.family == OpFamily::kCollective;
  const double to_peers = op.exchange ? exchange_link_ : peer_link_;
  const double link = op.family == OpFamily::kHostCopy ? link_ : peers ? to_peers : bandwidth_;
  const double latency = op.exchange ? exchange_latency_ : collective_latency_;
  const double peak = flop_rate_[static_cast<std::size_t>(op.dtype)];
  const double arithmetic =
      is_clocked(op) ? std::min(1.0, clocked_flops(op) / peak) : reached.flops;
  return {.flops = FlopsPerSecond{peak},
          .bandwidth = BytesPerSecond{link},
          .flops_reached = efficiency.flops * arithmetic,
          .bandwidth_reached = std::min(1.0, efficiency.bandwidth * share),
          .fill = op.blocks > 0 && processors_ > 0 ? std::min(1.0, op.blocks / processors_) : 1.0,
          .overhead = Seconds{peers ? latency : launch_overhead_}};
}

Roofline::Terms Roofline::terms(const Op& op) const {
  const Rates r = rates(op);
  return {.fixed = static_cast<double>(op.launches) * r.overhead.count(),
          .per_flop = 1.0 / (r.flops.count() * r.flops_reached * r.fill),
          .per_byte = 1.0 / (r.bandwidth.count() * r.bandwidth_reached * r.fill),
          .adds = adds_ && !is_clocked(op)};
}

const KernelChoice* Roofline::kernel(const Op& op) const {
  if (!op.kernel || is_clocked(op)) return nullptr;
  const auto family = static_cast<std::size_t>(op_of(op.kernel->call));
  if (stacks_[family].empty()) return nullptr;
  // Engines have all-reduce kernels; other collectives use NCCL.
  const auto* collective = std::get_if<CollectiveCall>(&op.kernel->call);
  const bool by_nccl = collective != nullptr && collective->kind != CollectiveKind::kAllReduce;
  Last& last = by_nccl ? last_nccl_ : last_[family];
  if (last.format != op.kernel->format) {
    // "*": the stack with the best-known kernels.
    const std::string_view whose = by_nccl                  ? std::string_view{"nccl"}
                                   : stacks_[family] == "*" ? std::string_view{}
                                                            : std::string_view{stacks_[family]};
    last = {.format = op.kernel->format,
            .choice = &calibration_.kernels->kept_choice(static_cast<KernelOp>(family), *gpu_,
                                                         whose, *op.kernel->format)};
  }
  return last.choice;
}

namespace {

constexpr std::size_t kShort = 1024;
// Prompts have more rows: their calls rarely recur except for the next kind of layer, and have a
// small separate cache.
constexpr double kFewRows = 1024;
constexpr std::size_t kLong = 64;

// Rows, widths and bytes; fractions are not needed to distinguish calls.
std::uint64_t whole(double x) { return static_cast<std::uint64_t>(x); }

constexpr std::uint64_t kMix =
    0x9E3779B97F4A7C15U;  // 2^64 over the golden ratio, odd, with well-distributed bits

std::uint64_t hash_of(const GemmCall& call) {
  return ((whole(call.m) * kMix ^ whole(call.n)) * kMix ^ whole(call.k)) * kMix;
}
std::uint64_t hash_of(const ElementwiseCall& call) {
  return ((whole(call.bytes_read) * kMix ^ whole(call.bytes_written)) * kMix ^
          static_cast<std::uint64_t>(call.kind)) *
         kMix;
}
double rows_of(const GemmCall& call) { return call.m; }
double rows_of(const ElementwiseCall& call) { return call.rows; }

}  // namespace

void Roofline::remember_calls() {
  products_.resize(kShort + kLong);
  streams_.resize(kShort + kLong);
}

template <class Call>
double Roofline::known_us(std::vector<Known<Call>>& all, const KernelChoice& choice,
                          const Call& call) {
  const std::uint64_t hash =
      (hash_of(call) ^ reinterpret_cast<std::uintptr_t>(&choice)) * kMix >> 32U;
  Known<Call>& known =
      all[rows_of(call) > kFewRows ? kShort + (hash & (kLong - 1)) : hash & (kShort - 1)];
  if (known.choice != &choice || known.call != call) {
    known = {.choice = &choice, .call = call, .us = choice.microseconds(call)};
  }
  return known.us;
}

Seconds Roofline::time(const Op& op) const {
  constexpr double kMicro = 1e-6;
  if (const KernelChoice* choice = kernel(op)) {
    const KernelUse& use = *op.kernel;
    if (!products_.empty() && use.chunk == 0) {
      if (const auto* product = std::get_if<GemmCall>(&use.call)) {
        return Seconds{use.times * known_us(products_, *choice, *product) * kMicro};
      }
      if (const auto* stream = std::get_if<ElementwiseCall>(&use.call)) {
        return Seconds{use.times * known_us(streams_, *choice, *stream) * kMicro};
      }
    }
    return Seconds{microseconds(*choice, use) * kMicro};
  }
  return Seconds{terms(op).at(op.flops.count(), op.bytes_read + op.bytes_written)};
}

Bound Roofline::bound(const Op& op) const {
  const Terms t = terms(op);
  const double arithmetic = op.flops.count() * t.per_flop;
  const double traffic = (op.bytes_read + op.bytes_written) * t.per_byte;
  // A kernel's form has no separate launches: time far above both rates is latency.
  const double fixed =
      kernel(op) != nullptr ? time(op).count() - std::max(arithmetic, traffic) : t.fixed;
  if (fixed > std::max(arithmetic, traffic)) return Bound::kLaunch;
  return arithmetic > traffic ? Bound::kCompute : Bound::kMemory;
}

GraphCost evaluate(const OpGraph& graph, const Roofline& roofline) {
  GraphCost cost;
  cost.time = graph.critical_path(durations_of(graph, roofline));
  for (OpIndex i = 0; i < graph.size(); ++i) {
    const Op& op = graph.op(i);
    cost.flops += op.flops.count();
    cost.bytes += op.bytes_read + op.bytes_written;
    cost.at_peak += roofline.at_peak(op);
  }
  return cost;
}

StepCost evaluate(const Step& step, const Roofline& roofline) {
  StepCost cost;
  for (const Segment& segment : step.segments) {
    const GraphCost once = evaluate(*segment.graph, roofline);
    const double times = segment.repeat * segment.passes;
    cost.device += once.time * times;
    cost.flops += once.flops * times;
    cost.bytes += once.bytes * times;
    cost.at_peak += once.at_peak * times;
  }
  cost.device = cost.device * step.passes;
  cost.flops *= step.passes;
  cost.bytes *= step.passes;
  cost.at_peak = cost.at_peak * step.passes;
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
    // Equal operators of one graph count as calls, equal calls of several graphs as layers.
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

std::optional<Interval> time_interval(const OpCost& line, const Roofline& roofline) {
  if (roofline.is_bound()) return std::nullopt;
  const double time = line.time.count();
  if (const KernelChoice* choice = roofline.kernel(line.op)) {
    if (time <= 0) return Interval{};
    const KernelEstimate estimate = choice->estimate(typical_call(*line.op.kernel));
    return Interval{.low = Seconds{time * std::min(1.0, estimate.low / estimate.us)},
                    .high = Seconds{time * std::max(1.0, estimate.high / estimate.us)}};
  }
  const auto& residual = roofline.calibration().of(line.op.family).relative_residual;
  if (!residual) return std::nullopt;
  const double part = std::min(1.0, kDeviations * *residual);
  return Interval{.low = Seconds{time * (1 - part)},
                  .high = Seconds{time * (1 + kDeviations * *residual)}};
}

std::optional<Interval> time_interval(const Step& step, const Roofline& roofline) {
  if (roofline.is_bound()) return std::nullopt;
  struct Spread {
    double low = 0, high = 0;
    void add(const OpCost& line, const Interval& interval) {
      low += (line.time - interval.low).count();
      high += (interval.high - line.time).count();
    }
  };
  std::vector<std::pair<const KernelChoice*, Spread>> kernels;  // in order of occurrence
  std::array<Spread, kOpFamilies> families{};
  const auto of_kernel = [&](const KernelChoice* choice) -> Spread& {
    const auto found = std::find_if(kernels.begin(), kernels.end(),
                                    [&](const auto& known) { return known.first == choice; });
    return found != kernels.end() ? found->second : kernels.emplace_back(choice, Spread{}).second;
  };
  for (const OpCost& line : explain(step, roofline)) {
    if (line.time == Seconds{}) continue;
    const auto interval = time_interval(line, roofline);
    if (!interval) return std::nullopt;
    const KernelChoice* choice = roofline.kernel(line.op);
    Spread& spread =
        choice != nullptr ? of_kernel(choice) : families[static_cast<std::size_t>(line.op.family)];
    spread.add(line, *interval);
  }
  double below = 0, above = 0;
  const auto join = [&](const Spread& spread) {
    below += spread.low * spread.low;
    above += spread.high * spread.high;
  };
  for (const auto& [choice, spread] : kernels) join(spread);
  for (const Spread& spread : families) join(spread);
  const StepCost cost = evaluate(step, roofline);
  const double low = std::max(0.0, cost.device.count() - std::sqrt(below) * step.passes);
  const double high = cost.device.count() + std::sqrt(above) * step.passes;
  const double host = kDeviations * roofline.calibration().host_residual.value_or(0);
  const double between = cost.between.count();
  return Interval{
      .low = Seconds{std::max(cost.host.count() * (1 - host), low) + between * (1 - host)},
      .high = Seconds{std::max(cost.host.count() * (1 + host), high) + between * (1 + host)}};
}

}  // namespace kvsim
