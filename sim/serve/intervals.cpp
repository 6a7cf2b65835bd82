#include "sim/serve/intervals.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/check.hpp"

namespace kvsim {

std::optional<MemoryResidual> memory_residual(const Stack& stack) {
  // Ends of log(published / predicted) over the table that docs/published-data.md describes, moved
  // outward for how few documents there are and how much the rows of one err together (upper_limit
  // of models/cost/kernels/spread.hpp). Rows that a profile's constants are from are left out, but
  // for the starts of engines, of which there are few. A test holds them against the table, and
  // counts the rows of each document in the interval of the others.
  if (stack.growth == CacheGrowth::kPaged) {
    return MemoryResidual{
        .low = 0.83,
        .high = 1.21,
        .without_cache = true,
        .basis =
            "weights, activations and what is not torch's at 12 published starts of vLLM, of three "
            "repositories, took 0.83 to 1.21 times what is predicted (validate published)"};
  }
  if (!stack.rounds_allocations) return std::nullopt;
  return MemoryResidual{
      .low = 0.87,
      .high = 1.31,
      .basis =
          "90 % of 107 published peaks in PyTorch, of seven documents, are 0.87 to 1.31 times the "
          "predicted (validate published)"};
}

BytesInterval peak_interval(const MemoryResidual& residual, Bytes peak, Bytes cache) {
  const Bytes counted = residual.without_cache ? std::min(cache, peak) : Bytes{};
  const auto part = static_cast<double>((peak - counted).count());
  return {.low = counted + Bytes{std::llround(part * residual.low)},
          .high = counted + Bytes{std::llround(part * residual.high)}};
}

PoolInterval pool_interval(const EngineStartup& startup, const Stack& stack,
                           const StackOptions& measured) {
  const auto residual = memory_residual(stack);
  KVSIM_CHECK(residual && residual->without_cache && startup.blocks >= 0,
              "the pool of stack {}, which has none", stack.name);
  struct End {
    Bytes pool, peak;
  };
  const auto at = [&](double factor) {
    const auto taken = [&](Bytes predicted, const std::optional<Bytes>& is) {
      if (is) return predicted;
      return Bytes{std::llround(factor * static_cast<double>(predicted.count()))};
    };
    const Bytes weights = taken(startup.weights, measured.weights);
    const Bytes non_torch = taken(startup.non_torch, measured.non_torch);
    const Bytes activation = taken(startup.activation, measured.activation);
    const Bytes pool =
        std::clamp(startup.cache_beside(weights, non_torch, activation), Bytes{}, startup.total);
    const Bytes all = weights + non_torch + activation + startup.graphs + pool;
    return End{.pool = pool, .peak = std::min(all, startup.limit())};
  };
  const End more = at(residual->high), less = at(residual->low);
  PoolInterval out{.low = more.pool,
                   .high = less.pool,
                   .peak_low = std::min(more.peak, less.peak),
                   .peak_high = std::max(more.peak, less.peak),
                   .basis = residual->basis};
  const std::int64_t block_tokens = stack.block_tokens;
  out.blocks_low = out.low.count() / startup.block.count();
  out.blocks_high = out.high.count() / startup.block.count();
  out.tokens_low = out.blocks_low * block_tokens;
  out.tokens_high = out.blocks_high * block_tokens;
  return out;
}

Gpu with_memory_for(const Gpu& gpu, const MemoryResidual& residual, double factor,
                    const std::optional<EngineStartup>& startup) {
  Gpu out = gpu;
  if (!residual.without_cache) {
    const auto usable = static_cast<double>(gpu.hbm_usable.count());
    out.hbm_usable = Bytes{std::llround(usable / factor)};
  } else if (startup) {
    out.hbm_usable = std::max(Bytes{}, gpu.hbm_usable - startup->as_memory(factor));
  }
  out.hbm = std::max(out.hbm, out.hbm_usable);
  return out;
}

std::optional<Interval> sum_interval(Seconds sum, std::span<const Step> some,
                                     const Roofline& roofline) {
  if (some.empty()) return std::nullopt;
  double time = 0, low = 0, high = 0;
  for (const Step& step : some) {
    const auto interval = time_interval(step, roofline);
    if (!interval) return std::nullopt;
    time += evaluate(step, roofline).time.count();
    low += interval->low.count();
    high += interval->high.count();
  }
  if (time <= 0) return std::nullopt;
  return Interval{.low = sum * (low / time), .high = sum * (high / time)};
}

std::string time_basis(std::span<const Step> some, const Roofline& roofline, const Stack& stack) {
  if (roofline.is_bound()) {
    return fmt::format("none: stack {} gives the data sheet's rates, a bound", stack.name);
  }
  const Calibration& calibration = roofline.calibration();
  if (calibration.kernels == nullptr) {
    const bool residuals =
        std::any_of(calibration.families.begin(), calibration.families.end(),
                    [](const Efficiency& e) { return e.relative_residual.has_value(); });
    return residuals ? fmt::format("residuals of calibration {}", calibration.id)
                     : fmt::format("none: calibration {}", calibration.id);
  }
  // Families by how near their measurements are, nearest first.
  std::map<KernelBasis, std::set<std::string_view>> kernels;
  bool others = false;
  for (const Step& step : some) {
    for (const OpCost& line : explain(step, roofline)) {
      if (const KernelChoice* choice = roofline.kernel(line.op)) {
        kernels[choice->basis()].insert(name_of(op_of(line.op.kernel->call)));
      } else {
        others = others || line.time > Seconds{};
      }
    }
  }
  std::vector<std::string> parts;
  for (const auto& [basis, families] : kernels) {
    parts.push_back(fmt::format("{}: {} kernels", fmt::join(families, ", "), name_of(basis)));
  }
  if (others) {
    constexpr double kPercent = 100;
    parts.push_back(fmt::format(
        "{}operators about the shares of stack {}: {:.0f} % a standard deviation, a judgement",
        kernels.empty() ? "" : "other ", stack.name,
        kPercent * calibration.families.front().relative_residual.value_or(0)));
  }
  if (parts.empty()) return "none: no step was through";
  parts.emplace_back("the host likewise");
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace kvsim
