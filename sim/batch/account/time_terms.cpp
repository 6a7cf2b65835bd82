#include "sim/batch/account/time_terms.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/cost/rates/kernel_use.hpp"
#include "models/units/check.hpp"
#include "models/units/units_format.hpp"
#include "sim/batch/account/time_residual.hpp"

namespace kvsim {
namespace {

/// A count of bytes or operations without loss of precision: "8,192", "1234.5".
std::string count_text(double n) {
  constexpr double kWhole = 9007199254740992;  // 2^53
  if (n == std::floor(n) && std::abs(n) < kWhole) return with_commas(static_cast<std::int64_t>(n));
  return fmt::format("{}", n);
}

/// "2.039 TB/s", with up to twelve digits.
std::string rate_text(double rate, std::string_view unit) {
  constexpr double kTera = 1e12;
  return fmt::format("{:.12g} T{}/s", rate / kTera, unit);
}
std::string micros_text(Seconds t) { return fmt::format("{:.12g} us", t.count() * 1e6); }

std::string many(std::int64_t n, std::string_view one) {
  return fmt::format("{} {}{}", n, one, n == 1 ? "" : one.ends_with("ch") ? "es" : "s");
}

class Explainer {
 public:
  explicit Explainer(const TimeInput& in) : in_{in} {}

  [[nodiscard]] TimeTerm term(const OpCost& line) const {
    const auto times = static_cast<double>(line.times());
    return {.what = line.layers == 0
                        ? std::string{line.op.name}
                        : fmt::format("{} of {}", line.op.name, many(line.layers, "layer")),
            .family = std::string{name_of(line.op.family)},
            .layers = line.layers,
            .calls = line.calls,
            .flops = line.op.flops.count() * times,
            .bytes_read = line.op.bytes_read * times,
            .bytes_written = line.op.bytes_written * times,
            .launches = line.op.launches * line.times(),
            .bound = std::string{name_of(line.bound)},
            .time = line.time,
            .interval = time_interval(line, *in_.roofline),
            .formula = formula(line),
            .basis = basis(line.op),
            .source = source(line.op)};
  }

  /// The host's time beyond the device's time.
  [[nodiscard]] TimeTerm host(const StepCost& cost, bool decodes) const {
    const Stack& stack = *in_.cost->stack;
    const std::int64_t layers = in_.cost->llm->n_layers();
    const std::int32_t launches = decodes ? method_operators(*in_.cost->method, stack) : 0;
    std::vector<std::string> parts, keys;
    const auto add = [&](Seconds each, std::string_view key, const std::string& times) {
      if (each == Seconds{}) return;
      parts.push_back(times + micros_text(each));
      keys.emplace_back(key);
    };
    add(stack.host_per_step, "host_per_step", "");
    const Seconds layer = host_per_layer(stack, decodes ? in_.cost->batch : 0, !decodes);
    add(layer, layer > stack.host_per_layer ? "eager_per_layer" : "host_per_layer",
        many(layers, "layer") + " x ");
    if (launches > 0) {
      add(stack.host_per_launch, "host_per_launch",
          fmt::format("{} x {} of the method x ", many(layers, "layer"), many(launches, "launch")));
    }
    if (stack.schedules_ahead) {
      add(stack.inter_step_overhead, "between_steps", "");
      add(stack.inter_step_per_sequence, "between_per_sequence",
          many(in_.cost->batch, "sequence") + " x ");
    }
    return {.what = "waiting for the host",
            .family = "host",
            .bound = "host",
            .time = cost.host - cost.device,
            .formula = fmt::format("{} - {} us of the device", fmt::join(parts, " + "),
                                   cost.device.count() * 1e6),
            .basis = "stack",
            .source = fmt::format("stack {}: {}", stack.name, fmt::join(keys, ", "))};
  }

 private:
  [[nodiscard]] std::string formula(const OpCost& line) const {
    const Op& op = line.op;
    if (const KernelChoice* choice = in_.roofline->kernel(op)) return kernel_formula(line, *choice);
    const Roofline::Rates rates = in_.roofline->rates(op);
    const double bytes = op.bytes_read + op.bytes_written;
    const auto over = [&](double n, std::string_view unit, double rate, double reached) {
      std::string below = rate_text(rate, unit);
      if (reached != 1) below += fmt::format(" x {}", reached);
      if (rates.fill != 1) below += fmt::format(" x {} / {}", op.blocks, in_.gpu->sms);
      if (reached != 1 || rates.fill != 1) below = "(" + below + ")";
      return fmt::format("{} {} / {}", count_text(n), unit, below);
    };
    const std::string arithmetic =
        over(op.flops.count(), "FLOP", rates.flops.count(), rates.flops_reached);
    const std::string traffic = over(bytes, "B", rates.bandwidth.count(), rates.bandwidth_reached);
    std::vector<std::string> parts;
    if (has_launches(op)) {
      parts.push_back(op.launches == 1 ? micros_text(rates.overhead)
                                       : fmt::format("{} x {}", many(op.launches, "launch"),
                                                     micros_text(rates.overhead)));
    }
    if (op.flops.count() > 0 && bytes > 0) {
      if (in_.cost->stack->overlap == Overlap::kMax) {
        parts.push_back(fmt::format("max({}, {})", arithmetic, traffic));
      } else {
        parts.insert(parts.end(), {arithmetic, traffic});
      }
    } else if (op.flops.count() > 0) {
      parts.push_back(arithmetic);
    } else if (bytes > 0) {
      parts.push_back(traffic);
    }
    std::string times;
    if (line.layers > 0) times += many(line.layers, "layer") + " x ";
    if (line.calls > 1) times += many(line.calls, "call") + " x ";
    const std::string sum = fmt::format("{}", fmt::join(parts, " + "));
    return times.empty() || parts.size() == 1 ? times + sum : times + "(" + sum + ")";
  }

  /// "32 layers x gemm(m=8, n=4096, k=4096) of bf16 = 23.4 us (20.1 to 27.9)".
  [[nodiscard]] static std::string kernel_formula(const OpCost& line, const KernelChoice& choice) {
    const KernelUse& use = *line.op.kernel;
    if (use.times <= 0) {
      return fmt::format("in the layer's {} kernel", name_of(op_of(use.call)));
    }
    const KernelCall call = typical_call(use);
    const KernelEstimate estimate = choice.estimate(call);
    const auto names = dimension_names(op_of(call));
    const auto values = dimensions_of(call);
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < kDimensions; ++i) {
      if (!names[i].empty()) parts.push_back(fmt::format("{}={:.6g}", names[i], values[i]));
    }
    std::string times;
    if (line.layers > 0) times += many(line.layers, "layer") + " x ";
    if (line.calls > 1) times += many(line.calls, "call") + " x ";
    double calls = 0;
    visit_calls(use, [&](double n, const KernelCall&) { calls += n; });
    if (calls != 1) times += fmt::format("{:.6g} {} x ", calls, use.chunk > 0 ? "pieces" : "parts");
    return fmt::format("{}{}({}) of {}: {:.6g} us ({:.3g} to {:.3g}{})", times,
                       name_of(op_of(use.call)), fmt::join(parts, ", "), use.format->name,
                       estimate.us, estimate.low, estimate.high,
                       estimate.extrapolated ? ", extrapolated" : "");
  }

  [[nodiscard]] bool has_launches(const Op& op) const {
    return op.launches > 0 && in_.roofline->rates(op).overhead > Seconds{};
  }

  [[nodiscard]] std::string basis(const Op& op) const {
    if (const KernelChoice* choice = in_.roofline->kernel(op)) {
      return std::string{name_of(choice->basis())};
    }
    const Calibration& calibration = in_.roofline->calibration();
    if (calibration.kernels == nullptr && calibration.id != Calibration{}.id) return "calibration";
    const auto& reached = in_.cost->stack->reached;
    return reached.contains(std::string{name_of(op.family)}) ? "stack" : "data_sheet";
  }

  /// Keys of `kvsim show gpu` and `kvsim show stack`, and the calibration.
  [[nodiscard]] std::string source(const Op& op) const {
    if (const KernelChoice* choice = in_.roofline->kernel(op)) {
      return choice->provenance();
    }
    std::vector<std::string> gpu;
    if (op.flops.count() > 0) gpu.push_back(peak_key(op.dtype));
    if (op.bytes_read + op.bytes_written > 0) {
      if (op.family == OpFamily::kCollective) {
        gpu.emplace_back(in_.gpu->nvlink ? "nvlink" : "pcie");
      } else if (op.family == OpFamily::kHostCopy) {
        gpu.emplace_back(in_.gpu->c2c ? "c2c" : "pcie");
      } else {
        gpu.emplace_back("hbm_bandwidth");
      }
    }
    const bool fills = in_.roofline->rates(op).fill == 1;
    if (!fills) gpu.emplace_back("sms");
    std::vector<std::string_view> stack;
    if (has_launches(op)) {
      stack.emplace_back(op.family == OpFamily::kCollective ? "collective_latency"
                                                            : "launch_overhead");
    }
    if (in_.cost->stack->reached.contains(std::string{name_of(op.family)})) {
      stack.emplace_back("reached");
    }
    if (in_.cost->stack->overlap != Overlap::kMax) stack.emplace_back("overlap");
    if (!fills) stack.emplace_back("splits_keys");
    std::vector<std::string> parts;
    if (!gpu.empty()) {
      parts.push_back(fmt::format("gpu {}: {}", in_.gpu->name, fmt::join(gpu, ", ")));
    }
    if (!stack.empty()) {
      parts.push_back(fmt::format("stack {}: {}", in_.cost->stack->name, fmt::join(stack, ", ")));
    }
    // A kernel calibration does not apply to operators without fitted kernels.
    if (in_.roofline->calibration().kernels == nullptr) {
      parts.push_back(in_.roofline->calibration().provenance);
    }
    return fmt::format("{}", fmt::join(parts, "; "));
  }

  [[nodiscard]] std::string peak_key(Dtype dtype) const {
    if (in_.gpu->peak.contains(dtype)) return fmt::format("peak {}", name_of(dtype));
    if (dtype == Dtype::kFp32) return "peak_fp32";
    return fmt::format("peak fp16 for {}", name_of(dtype));
  }

  const TimeInput& in_;
};

}  // namespace

ExplainedStep explain_step(const TimeInput& in, std::int64_t number, std::int64_t tokens,
                           Seconds time, const Step& step) {
  ExplainedStep out{.step = number,
                    .tokens = tokens,
                    .time = time,
                    .interval = interval_of(time, {&step, 1}, *in.roofline, *in.cost,
                                            number == 0 ? RunPhase::kPrefill : RunPhase::kDecode),
                    .terms = {}};
  const Explainer explainer{in};
  const StepCost cost = evaluate(step, *in.roofline);
  // A second stream runs next to the first and takes only the time that the first leaves.
  Seconds hidden = cost.device * (-1.0 / step.passes);
  const std::vector<OpCost> lines = explain(step, *in.roofline);
  for (const OpCost& line : lines) hidden += line.time;
  for (const OpCost& line : lines) {
    if (line.time <= Seconds{}) continue;
    TimeTerm& term = out.terms.emplace_back(explainer.term(line));
    if (line.op.stream == 0) continue;
    Seconds shorter = std::min(hidden, line.time);
    constexpr double kRounding = 1e-12;
    if (line.time - shorter < line.time * kRounding) shorter = line.time;
    const double left = 1 - shorter.count() / line.time.count();
    if (term.interval)
      term.interval = Interval{term.interval->low * left, term.interval->high * left};
    term.time -= shorter;
    term.formula += fmt::format(" - {} us that other operators hide", shorter.count() * 1e6);
    hidden -= shorter;
  }
  if (step.passes > 1) {
    out.terms.push_back({.what = "further passes over the prompt",
                         .family = "method",
                         .bound = "as the first",
                         .time = cost.device * ((step.passes - 1) / step.passes),
                         .formula = fmt::format("{} x {} us of the first", step.passes - 1,
                                                cost.device.count() / step.passes * 1e6),
                         .basis = "stack",
                         .source = fmt::format("method {}", in.cost->method->name())});
  }
  if (cost.between > Seconds{}) {
    out.terms.push_back(
        {.what = "scheduling and sampling",
         .family = "host",
         .bound = "host",
         .time = cost.between,
         .formula = fmt::format("{} + {} x {}", micros_text(in.cost->stack->inter_step_overhead),
                                many(in.cost->batch, "sequence"),
                                micros_text(in.cost->stack->inter_step_per_sequence)),
         .basis = "stack",
         .source =
             fmt::format("stack {}: between_steps, between_per_sequence", in.cost->stack->name)});
  }
  if (cost.host > cost.device) out.terms.push_back(explainer.host(cost, number > 0));
  Seconds sum;
  for (const TimeTerm& term : out.terms) sum += term.time;
  constexpr double kRounding = 1e-9;
  KVSIM_CHECK(std::abs(sum.count() - time.count()) <= kRounding * time.count(),
              "the terms of step {} sum to {} s, it took {} s", number, sum.count(), time.count());
  return out;
}

}  // namespace kvsim
