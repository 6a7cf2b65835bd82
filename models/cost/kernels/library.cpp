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

/// Whose kernels, which version and, of collectives, which of them:
/// "aic-vllm-0.14.0:vLLM_custom_eager" are vllm, 0.14.0 and vLLM_custom_eager as a data set called
/// "aic" has them.
struct Stack {
  explicit Stack(std::string_view word) {
    constexpr std::string_view kDataSet = "aic-";
    if (word.starts_with(kDataSet)) word.remove_prefix(kDataSet.size());
    const auto colon = word.find(':');
    name = word.substr(0, colon);
    if (colon != std::string_view::npos) variant = word.substr(colon + 1);
    family = name;
    for (std::size_t i = 0; i + 1 < name.size(); ++i) {
      if (name[i] != '-' || name[i + 1] < '0' || name[i + 1] > '9') continue;
      family = name.substr(0, i);
      break;
    }
  }
  [[nodiscard]] bool has(std::string_view word) const {
    return name.find(word) != std::string_view::npos ||
           variant.find(word) != std::string_view::npos;
  }
  /// Of collectives: NCCL's, not a framework's own, and whether the time holds the host's launches.
  [[nodiscard]] bool nccl() const { return has("nccl"); }
  [[nodiscard]] bool eager() const { return has("eager"); }

  std::string_view name, family, variant;
};

/// How far an entry is trusted: its error on rows it was not fitted to, and more for few of them. A
/// fit of two dozen rows of one shape is close to all of them and says little of others.
double distrust(const KernelCalibration& entry) {
  const double error = entry.held_out.n > 0 ? entry.held_out.mape : entry.fitted.mape;
  return error + 2 / std::sqrt(static_cast<double>(entry.fitted.n + entry.held_out.n));
}

bool same_silicon(const Gpu& gpu, const Gpu& other) { return gpu.silicon == other.silicon; }

/// Formats that compute alike.
bool alike(const KernelFormat& a, const KernelFormat& b) {
  return bits_of(a.compute) == bits_of(b.compute) && a.stored_bytes == b.stored_bytes;
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
    KernelFormat format;
    bool own, exact, family, same_format, related = false;
  };
  std::vector<Candidate> candidates;
  const Stack wanted{stack};
  for (const KernelCalibration* entry : entries_) {
    if (entry->op != op) continue;
    const Gpu& measured = find_gpu(entry->gpu);
    const Stack entry_stack{entry->stack};
    const bool same_variant = wanted.variant.empty() || entry_stack.variant == wanted.variant;
    Candidate c{
        .entry = entry,
        .gpu = &measured,
        .format = parse_kernel_format(entry->format),
        .own = same_silicon(gpu, measured),
        .exact = entry_stack.name == wanted.name && same_variant,
        .family = !wanted.family.empty() && entry_stack.family == wanted.family && same_variant,
        .same_format = entry->format == format.name};
    c.related = c.own || measured.generation == gpu.generation;
    if (!c.same_format && !alike(c.format, format)) continue;
    candidates.push_back(std::move(c));
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
  // The best of those that `fits`, by held-out error: the shape of the call is not known yet.
  const auto best = [&](auto&& fits) -> const Candidate* {
    const Candidate* found = nullptr;
    for (const Candidate& c : candidates) {
      if (!fits(c)) continue;
      // A format of its own, then its own board before others of the silicon, then the same way to
      // launch, then what is known best.
      const auto rank = [&](const Candidate& x) {
        const Stack has{x.entry->stack};
        return std::tuple{!x.same_format, x.gpu != &gpu, has.eager() != wanted.eager(),
                          has.nccl() != wanted.nccl(), distrust(*x.entry)};
      };
      if (found == nullptr || rank(c) < rank(*found)) {
        found = &c;
      }
    }
    return found;
  };
  const auto named = [](const Candidate& c) {
    return fmt::format("{} kernels on {} in {}", c.entry->stack, c.entry->gpu, c.entry->format);
  };

  if (const Candidate* c = best([](const Candidate& x) { return x.own && x.exact; })) {
    factor(*c, 1);
    return settle(c->same_format ? KernelBasis::kMeasured : KernelBasis::kOtherFormat, named(*c));
  }
  if (const Candidate* c = best([](const Candidate& x) { return x.own && x.family; })) {
    factor(*c, 1);
    return settle(KernelBasis::kOtherVersion, named(*c));
  }
  const Candidate* mine = best([](const Candidate& x) { return x.own; });
  const auto foreign = [&](bool related) {
    const auto among = [&](auto&& fits) {
      return best([&](const Candidate& x) { return !x.own && x.related == related && fits(x); });
    };
    const Candidate* found = among([](const Candidate& x) { return x.exact; });
    return found != nullptr ? found : among([](const Candidate& x) { return x.family; });
  };
  const Candidate* theirs = foreign(true);
  // Times do not carry over between generations; how two stacks differ does, if less well.
  if (theirs == nullptr && mine != nullptr) theirs = foreign(false);
  if (mine != nullptr && theirs != nullptr) {
    // This GPU's other stack, shifted by how the stacks differ on the sibling.
    const Candidate* ratio = best([&](const Candidate& x) {
      return x.gpu == theirs->gpu && x.entry->stack == mine->entry->stack &&
             x.entry->format == theirs->entry->format;
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
    return settle(KernelBasis::kSibling, fmt::format("{}, by data-sheet ratios", named(*theirs)));
  }
  if (mine != nullptr) {
    factor(*mine, 1);
    return settle(KernelBasis::kOtherStack, named(*mine));
  }
  if (const Candidate* c = best([](const Candidate& x) { return x.related; })) {
    factor(*c, 1);
    return settle(KernelBasis::kSibling, fmt::format("{}, by data-sheet ratios", named(*c)));
  }
  for (const Coefficient& c : form.coefficients) choice.nominal_.push_back(c.start);
  choice.factors_.push_back(
      {.calibration = nullptr, .form = &form, .gpu = here, .format = format, .power = 1});
  return settle(KernelBasis::kNominal, "no measurement: typical shares of the data sheet's rates");
}

}  // namespace kvsim
