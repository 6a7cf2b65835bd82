#include "models/cost/kernels/library.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

/// What leaving the measured pair adds to the 90 % interval of log(measured / predicted), either
/// side; of the pairs and GPUs left out by `kvsim validate measured --unseen`.
constexpr std::array<double, 6> kWidening{0.0, 0.12, 0.20, 0.20, 0.25, 0.7};
constexpr double kOutside = 1.5;  // factor by which a call may leave the measured range

/// "vllm" of "vllm-0.14.0".
std::string_view family_of(std::string_view stack) {
  for (std::size_t i = 0; i + 1 < stack.size(); ++i) {
    if (stack[i] == '-' && stack[i + 1] >= '0' && stack[i + 1] <= '9') return stack.substr(0, i);
  }
  return stack;
}

bool same_silicon(const Gpu& gpu, const Gpu& other) { return gpu.silicon == other.silicon; }

/// Formats that compute alike.
bool alike(const KernelFormat& a, const KernelFormat& b) {
  return bits_of(a.compute) == bits_of(b.compute) && a.stored_bytes == b.stored_bytes;
}

/// Formats whose kernels do the same work on what they read, be it of another width: caches that
/// are converted as they are read, and failing those the plain one.
bool converts_alike(const KernelFormat& measured, const KernelFormat& wanted) {
  return bits_of(measured.compute) == bits_of(wanted.compute) &&
         wanted.stored_bytes < wanted.operand_bytes;
}

/// "0.14.0" of "aic-vllm-0.14.0" as a number that grows with the version: 0.014.
double version_of(std::string_view stack) {
  const std::size_t family = family_of(stack).size();
  double version = 0, unit = 1;
  bool digits = false;
  double part = 0;
  for (std::size_t i = std::min(family + 1, stack.size()); i <= stack.size(); ++i) {
    if (i < stack.size() && stack[i] >= '0' && stack[i] <= '9') {
      part = 10 * part + (stack[i] - '0');
      digits = true;
    } else {
      if (!digits) break;
      version += part * unit;
      unit /= 1000;
      part = 0;
      digits = false;
      if (i < stack.size() && stack[i] != '.') break;
    }
  }
  return version;
}

}  // namespace

std::string_view name_of(KernelBasis basis) {
  constexpr std::array<std::string_view, 6> kNames{"measured", "other_version", "other_stack",
                                                   "sibling",  "other_format",  "nominal"};
  return kNames[static_cast<std::size_t>(basis)];
}

double KernelChoice::microseconds(const KernelCall& call) const {
  if (factors_.size() == 1 && factors_[0].power == 1) {
    const Factor& f = factors_[0];
    const double* c = f.calibration ? f.calibration->coefficients.data() : nominal_.data();
    return f.form->microseconds(call, f.format, f.gpu, c);
  }
  double log_time = 0;
  for (const Factor& f : factors_) {
    const double* c = f.calibration ? f.calibration->coefficients.data() : nominal_.data();
    log_time += f.power * std::log(f.form->microseconds(call, f.format, f.gpu, c));
  }
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
      // Half as much again for every factor of e outside.
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

KernelLibrary::KernelLibrary(std::vector<KernelCalibrationFile> files) : files_{std::move(files)} {
  for (const KernelCalibrationFile& file : files_) {
    for (const KernelCalibration& entry : file.entries) entries_.push_back(&entry);
  }
}

const KernelLibrary& KernelLibrary::builtin() {
  static const KernelLibrary library{builtin_calibrations()};
  return library;
}

KernelChoice KernelLibrary::choose(KernelOp op, const Gpu& gpu, std::string_view stack,
                                   const KernelFormat& format) const {
  struct Candidate {
    const KernelCalibration* entry;
    const Gpu* gpu;
    int away;  // 0: this GPU, 1: its silicon and bandwidth, 2: its silicon, 3: its generation
    bool exact, family, same_format, alike;
    double widths, versions = 0;  // how far apart: bits of the cache or weights, versions

    [[nodiscard]] auto rank() const {
      const ErrorSummary& error = entry->held_out.n > 0 ? entry->held_out : entry->fitted;
      return std::tuple{!same_format, widths, away, versions, error.mape};
    }
  };
  const bool attention =
      op == KernelOp::kDecodeAttention || op == KernelOp::kPrefillAttention || op == KernelOp::kMla;
  std::vector<Candidate> candidates;
  for (const KernelCalibration* entry : entries_) {
    if (entry->op != op) continue;
    const Gpu& measured = find_gpu(entry->gpu);
    if (!same_silicon(gpu, measured) && measured.generation != gpu.generation) continue;
    const KernelFormat other = parse_kernel_format(entry->format);
    Candidate c{
        .entry = entry,
        .gpu = &measured,
        .away = 3,
        .exact = entry->stack == stack,
        .family = !stack.empty() && family_of(entry->stack) == family_of(stack),
        .same_format = entry->format == format.name,
        .alike = alike(other, format),
        .widths = std::abs(other.stored_bytes - format.stored_bytes),
    };
    if (c.family) c.versions = std::abs(version_of(entry->stack) - version_of(stack));
    if (same_silicon(gpu, measured)) {
      const double ratio = gpu.hbm_bandwidth.count() / measured.hbm_bandwidth.count();
      c.away = gpu.name == measured.name ? 0 : std::abs(ratio - 1) < 0.02 ? 1 : 2;
    }
    if (c.same_format || c.alike || (attention && converts_alike(other, format))) {
      candidates.push_back(c);
    }
  }
  if (std::any_of(candidates.begin(), candidates.end(),
                  [](const Candidate& c) { return c.same_format || c.alike; })) {
    std::erase_if(candidates, [](const Candidate& c) { return !c.same_format && !c.alike; });
  }
  const KernelGpu here = kernel_gpu(gpu);
  const KernelForm& form = form_of(op);
  KernelChoice choice;
  const auto factor = [&](const Candidate& c, double power) {
    choice.factors_.push_back(
        {.calibration = c.entry, .form = &form, .gpu = here, .format = format, .power = power});
  };
  const auto settle = [&](KernelBasis basis, std::string provenance) {
    choice.basis_ = basis;
    choice.provenance_ = std::move(provenance);
    double low = 0, high = 0;
    for (const KernelChoice::Factor& f : choice.factors_) {
      if (f.calibration == nullptr || f.power < 0) continue;
      low = std::min(low, f.calibration->q05);
      high = std::max(high, f.calibration->q95);
    }
    const double more = kWidening[static_cast<std::size_t>(basis)];
    choice.q05_ = low - more;
    choice.q95_ = high + more;
    return choice;
  };
  // The best of those that `fits`: the shape of the call is not known yet.
  const auto best = [&](auto&& fits) -> const Candidate* {
    const Candidate* found = nullptr;
    for (const Candidate& c : candidates) {
      if (fits(c) && (found == nullptr || c.rank() < found->rank())) found = &c;
    }
    return found;
  };
  const auto named = [](const Candidate& c) {
    return fmt::format("{} kernels on {} in {}", c.entry->stack, c.entry->gpu, c.entry->format);
  };
  const auto by_ratio = [&](const Candidate& c) {
    return fmt::format("{}, by data-sheet ratios", named(c));
  };
  const auto basis_of = [](const Candidate& c, KernelBasis basis) {
    return c.same_format || c.alike ? basis : KernelBasis::kOtherFormat;
  };

  if (const Candidate* c = best([](const Candidate& x) { return x.away <= 2 && x.exact; })) {
    factor(*c, 1);
    return c->away <= 1 ? settle(basis_of(*c, KernelBasis::kMeasured), named(*c))
                        : settle(basis_of(*c, KernelBasis::kSibling), by_ratio(*c));
  }
  if (const Candidate* c = best([](const Candidate& x) { return x.away <= 2 && x.family; })) {
    factor(*c, 1);
    return settle(basis_of(*c, KernelBasis::kOtherVersion),
                  c->away <= 1 ? named(*c) : by_ratio(*c));
  }
  // An unknown stack is likelier to be as another's newest version than as an older one.
  const auto newest = [&](const Candidate& x) {
    return std::none_of(candidates.begin(), candidates.end(), [&](const Candidate& y) {
      return y.away <= x.away && y.same_format == x.same_format &&
             family_of(y.entry->stack) == family_of(x.entry->stack) &&
             version_of(y.entry->stack) > version_of(x.entry->stack);
    });
  };
  const Candidate* mine = best([&](const Candidate& x) { return x.away <= 2 && newest(x); });
  const Candidate* theirs = best([](const Candidate& x) { return x.away == 3 && x.exact; });
  if (theirs == nullptr) theirs = best([](const Candidate& x) { return x.away == 3 && x.family; });
  if (mine != nullptr && theirs != nullptr) {
    // This GPU's other stack, shifted by how the stacks differ on the sibling.
    const Candidate* ratio = best([&](const Candidate& x) {
      return x.gpu == theirs->gpu && x.entry->stack == mine->entry->stack;
    });
    if (ratio != nullptr) {
      factor(*mine, 1);
      factor(*theirs, 1);
      factor(*ratio, -1);
      return settle(KernelBasis::kOtherStack, fmt::format("{}, times {} over {}", named(*mine),
                                                          named(*theirs), named(*ratio)));
    }
  }
  if (theirs != nullptr && mine == nullptr) {
    factor(*theirs, 1);
    return settle(basis_of(*theirs, KernelBasis::kSibling), by_ratio(*theirs));
  }
  if (mine != nullptr) {
    factor(*mine, 1);
    return settle(basis_of(*mine, KernelBasis::kOtherStack), named(*mine));
  }
  if (const Candidate* c = best([](const Candidate&) { return true; })) {
    factor(*c, 1);
    return settle(basis_of(*c, KernelBasis::kSibling), by_ratio(*c));
  }
  for (const Coefficient& c : form.coefficients) choice.nominal_.push_back(c.start);
  choice.factors_.push_back(
      {.calibration = nullptr, .form = &form, .gpu = here, .format = format, .power = 1});
  return settle(KernelBasis::kNominal, "no measurement: typical shares of the data sheet's rates");
}

}  // namespace kvsim
