#include "models/cost/rates/host_rate.hpp"

#include <algorithm>

#include "models/cost/kernels/library.hpp"

namespace kvsim {

BytesPerSecond host_rate(const Roofline& roofline, const Gpu& gpu, const Stack& stack,
                         Bytes piece) {
  const Roofline::Rates of_op =
      roofline.rates({.name = "host copy", .family = OpFamily::kHostCopy});
  const BytesPerSecond rate = of_op.bandwidth * of_op.bandwidth_reached;
  const Calibration& calibration = roofline.calibration();
  const bool of_device = calibration.kernels == nullptr && calibration.id != Calibration{}.id;
  const bool is_bound =
      of_device ? of_op.bandwidth_reached == 1 : stack.kernels.empty() && stack.reached.empty();
  const bool whole = piece <= Bytes{};
  if (is_bound || (of_device && whole)) return rate;
  // Large enough to make the launch negligible.
  constexpr double kLarge = 1e15, kMany = 1e9, kMicro = 1e-6;
  const double bytes = whole ? kLarge : kMany * static_cast<double>(piece.count());
  const KernelLibrary& kernels =
      calibration.kernels != nullptr ? *calibration.kernels : KernelLibrary::builtin();
  const KernelChoice& copies = kernels.kept_choice(KernelOp::kCopy, gpu, "", {});
  const double us = copies.microseconds(
      CopyCall{.kind = CopyKind::kHostToDevice, .bytes = bytes, .pieces = whole ? 1 : kMany});
  return std::min(rate, BytesPerSecond{bytes / (us * kMicro)});
}

}  // namespace kvsim
