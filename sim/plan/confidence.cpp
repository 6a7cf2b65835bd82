#include "sim/plan/confidence.hpp"

#include <cmath>

#include <boost/math/special_functions/erf.hpp>
#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/units_format.hpp"
#include "sim/serve/intervals.hpp"

namespace kvsim {
namespace {

constexpr double kKnown = 0.9;  // share of cases in the intervals that models give

}  // namespace

double confidence_power(double confidence) {
  KVSIM_CHECK(confidence >= 0 && confidence < 1, "a confidence of {}", confidence);
  if (confidence == kKnown) return 1;
  return boost::math::erf_inv(confidence) / boost::math::erf_inv(kKnown);
}

namespace {

WorseEnd end_of(const Stack& stack, double confidence, double MemoryResidual::*end) {
  const auto residual = memory_residual(stack);
  if (!residual) {
    return {.factor = 1,
            .basis = fmt::format("none: stack {} holds tensors alone, a bound", stack.name)};
  }
  return {.factor = std::pow((*residual).*end, confidence_power(confidence)),
          .basis = residual->basis};
}

}  // namespace

WorseEnd memory_end(const Stack& stack, double confidence) {
  return end_of(stack, confidence, &MemoryResidual::high);
}
WorseEnd better_memory_end(const Stack& stack, double confidence) {
  return end_of(stack, confidence, &MemoryResidual::low);
}

WorseEnd time_end(Seconds time, const std::optional<Interval>& interval, double confidence) {
  if (!interval || !(time.count() > 0)) return {.factor = 1, .basis = "none"};
  const double high = interval->high.count() / time.count();
  return {.factor = std::pow(std::fmax(1.0, high), confidence_power(confidence)),
          .basis = "intervals of the times"};
}

Gpu gpu_at(const Gpu& gpu, const Stack& stack, const WorseEnd& end,
           const std::optional<EngineStartup>& startup) {
  const auto residual = memory_residual(stack);
  if (!residual || end.factor == 1) return gpu;
  return with_memory_for(gpu, *residual, end.factor, startup);
}

std::string held_back_text(const Gpu& gpu, const Gpu& counted) {
  if (counted.hbm_usable >= gpu.hbm_usable) return "";
  return fmt::format("; to be sure, {} of the GPU's {} are not counted on",
                     gpu.hbm_usable - counted.hbm_usable, gpu.hbm_usable);
}

}  // namespace kvsim
