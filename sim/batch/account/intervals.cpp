#include "sim/batch/account/intervals.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/check.hpp"

namespace kvsim {

std::string time_basis(std::span<const Step> some, const Roofline& roofline, const Stack& stack) {
  if (roofline.is_bound()) {
    return fmt::format("none: stack {} uses the data sheet's rates, which are a bound", stack.name);
  }
  const Calibration& calibration = roofline.calibration();
  if (calibration.kernels == nullptr) {
    const bool residuals =
        std::any_of(calibration.families.begin(), calibration.families.end(),
                    [](const Efficiency& e) { return e.relative_residual.has_value(); });
    return residuals ? fmt::format("residuals of calibration {}", calibration.id)
                     : fmt::format("none: calibration {}", calibration.id);
  }
  // Kernel families by the basis of their measurements, closest basis first.
  std::map<KernelBasis, std::set<std::string_view>> kernels;
  std::set<std::string_view> unmeasured;
  bool others = false;
  for (const Step& step : some) {
    for (const OpCost& line : explain(step, roofline)) {
      if (const KernelChoice* choice = roofline.kernel(line.op)) {
        kernels[choice->basis()].insert(name_of(op_of(line.op.kernel->call)));
      } else if (is_unmeasured(line.op.family)) {
        unmeasured.insert(name_of(line.op.family));
      } else {
        others = others || line.time > Seconds{};
      }
    }
  }
  std::vector<std::string> parts;
  for (const auto& [basis, families] : kernels) {
    parts.push_back(fmt::format("{}: {} kernels", fmt::join(families, ", "), name_of(basis)));
  }
  constexpr double kPercent = 100;
  if (!unmeasured.empty()) {
    parts.push_back(fmt::format(
        "{}: no measurements, the data sheet's rates: standard deviation {:.0f} %, a judgement",
        fmt::join(unmeasured, ", "), kPercent * kUnmeasuredResidual));
  }
  if (others) {
    parts.push_back(fmt::format(
        "{}operators about the shares of stack {}: standard deviation {:.0f} %, a judgement",
        kernels.empty() ? "" : "other ", stack.name,
        kPercent * calibration.families.front().relative_residual.value_or(0)));
  }
  if (parts.empty()) return "none: no step completed";
  parts.emplace_back("likewise for the host");
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace kvsim
