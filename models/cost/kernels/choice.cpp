// Time of a call according to its chosen calibration.

#include <algorithm>
#include <cmath>

#include "models/cost/kernels/library.hpp"
#include "models/cost/kernels/marlin.hpp"
#include "models/cost/kernels/work.hpp"

namespace kvsim {
namespace {

constexpr double kOutside = 1.5;  // factor by which a call may be outside the measured range

/// Limits `us`, the time of a call on `here` predicted by a fit to `there`, by the rooflines. The
/// minimum is the longer of arithmetic and traffic at data-sheet rates. If the call reaches the
/// roofline on the GPU of the fit, the fit only bounds the time of the other resource, which may be
/// the bottleneck on a GPU with another ratio of the two rates. Such a call takes at most the sum
/// of both times, divided by the fraction of the roofline reached there. Calls far below the
/// roofline there are limited by latencies, which rooflines do not describe: their time is
/// unchanged. Both thresholds are those of carried_over.
double between_rooflines(double us, const KernelCall& call, const KernelFormat& format,
                         const KernelForm& form, const KernelGpu& here,
                         const KernelCalibration& fit) {
  constexpr double kAtRoofline = 0.8, kFarBelow = 0.6;
  const double min = ideal_microseconds(call, format, here);
  const KernelGpu there = kernel_gpu(find_gpu(fit.gpu));
  const double share = ideal_microseconds(call, format, there) /
                       form.microseconds(call, format, there, fit.coefficients.data());
  const double known = std::clamp((share - kFarBelow) / (kAtRoofline - kFarBelow), 0.0, 1.0);
  const KernelWork work = work_of(call, format);
  const double both = 1e6 * (work.flops / here.peak(format.compute) + work.bytes / here.bandwidth) /
                      std::min(share, 1.0);
  if (us > both) us *= std::pow(both / us, known);
  return std::max(us, min);
}

}  // namespace

double KernelChoice::microseconds(const KernelCall& call) const {
  if (marlin_moe_ > 0) {
    const Factor& first = factors_.front();
    return marlin_moe_us(std::get<MoeCall>(call), first.format, first.gpu, marlin_moe_);
  }
  const double us = fitted_us(call);
  if (max_flops_ <= 0) return us;
  return std::max(us, 1e6 * work_of(call, factors_.front().format).flops / max_flops_);
}

double KernelChoice::fitted_us(const KernelCall& call) const {
  const auto time = [&](const Factor& f) {
    const double* c = f.calibration ? f.coefficients.data() : nominal_.data();
    const double us = f.form->microseconds(call, f.format, f.gpu, c);
    return f.transferred ? between_rooflines(us, call, f.format, *f.form, f.gpu, *f.calibration)
                         : us;
  };
  if (factors_.size() == 1 && factors_[0].power == 1) return time(factors_[0]);
  double log_time = 0;
  for (const Factor& f : factors_) log_time += f.power * std::log(time(f));
  return std::exp(log_time);
}

KernelEstimate KernelChoice::estimate(const KernelCall& call) const {
  KernelEstimate out{.us = microseconds(call)};
  double widen = 0;
  const auto at = dimensions_of(call);
  const auto names = dimension_names(op_of(call));
  for (const Factor& f : factors_) {
    if (f.calibration == nullptr) continue;
    for (std::size_t i = 0; i < kDimensions; ++i) {
      if (names[i].empty()) continue;
      const KernelRange& r = f.calibration->ranges[i];
      const bool below = at[i] * kOutside < r.low;
      const bool above = at[i] > r.high * kOutside;
      if (!below && !above) continue;
      out.extrapolated = true;
      // A factor of 1.5 for every factor of e outside.
      if (at[i] > 0 && r.high > 0 && r.low > 0) {
        widen = std::max(widen, 0.1 * std::abs(std::log(below ? r.low / at[i] : at[i] / r.high)));
      }
    }
  }
  if (factors_.size() == 1 && factors_[0].calibration == nullptr) out.extrapolated = true;
  out.low = out.us * std::exp(q05_ - widen);
  out.high = out.us * std::exp(q95_ + widen);
  return out;
}

}  // namespace kvsim
