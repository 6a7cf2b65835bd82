#include "sim/plan/confidence.hpp"

#include <cmath>

#include <boost/math/special_functions/erf.hpp>
#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/units_format.hpp"

namespace kvsim {
namespace {

constexpr double kKnown = 0.9;  // share of cases in the models' intervals

}  // namespace

double confidence_power(double confidence) {
  KVSIM_CHECK(confidence >= 0 && confidence < 1, "a confidence of {}", confidence);
  if (confidence == kKnown) return 1;
  return boost::math::erf_inv(confidence) / boost::math::erf_inv(kKnown);
}

double memory_power(double confidence) { return std::fmin(1.0, confidence_power(confidence)); }

double range_confidence(double confidence) { return confidence > 0 ? confidence : kKnown; }

namespace {

MemoryMargin margin_at(const Stack& stack, std::int32_t gpus, double confidence,
                       MemoryEnd MemoryEnds::*end) {
  const auto ends = memory_ends(stack, gpus);
  if (!ends) {
    return {
        .end = {},
        .basis = fmt::format("none: stack {} counts only tensors, which is a bound", stack.name)};
  }
  MemoryMargin out{.end = to_power((*ends).*end, memory_power(confidence)), .basis = ends->basis};
  if (confidence > kKnown) {
    out.basis += fmt::format(
        "; p{:g} counts as p90, the widest that was observed: there are too few sources for more",
        100 * confidence);
  }
  return out;
}

}  // namespace

MemoryMargin memory_end(const Stack& stack, std::int32_t gpus, double confidence) {
  return margin_at(stack, gpus, confidence, &MemoryEnds::high);
}
MemoryMargin better_memory_end(const Stack& stack, std::int32_t gpus, double confidence) {
  return margin_at(stack, gpus, confidence, &MemoryEnds::low);
}

ConservativeBound time_end(Seconds time, const std::optional<Interval>& interval,
                           double confidence) {
  if (!interval || !(time.count() > 0)) return {.factor = 1, .basis = "none"};
  const double high = interval->high.count() / time.count();
  return {.factor = std::pow(std::fmax(1.0, high), confidence_power(confidence)),
          .basis = "intervals of the times"};
}

std::string margin_text(const MemoryMargin& margin, Bytes usable, Bytes safety_margin,
                        double confidence) {
  const MemoryEnd& end = margin.end;
  if (end == MemoryEnd{}) return "";
  const std::string at = confidence > kKnown
                             ? fmt::format("; at p{:g} (as at p90)", 100 * confidence)
                             : fmt::format("; at p{:g}", 100 * confidence);
  if (end.reserve != Bytes{}) {
    return fmt::format("{} {} of the GPU's {} are a safety margin", at, safety_margin, usable);
  }
  return fmt::format("{} activations count x {:.3g}, non-PyTorch memory x {:.3g}", at,
                     end.terms.activation, end.terms.non_torch);
}

}  // namespace kvsim
