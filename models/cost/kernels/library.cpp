#include "models/cost/kernels/library.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
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

/// "vllm" of "vllm-0.14.0", and of "aic-vllm-0.14.0": who profiled the kernels is left out.
std::string_view family_of(std::string_view stack) {
  constexpr std::string_view kProfiler = "aic-";
  if (stack.starts_with(kProfiler)) stack.remove_prefix(kProfiler.size());
  for (std::size_t i = 0; i + 1 < stack.size(); ++i) {
    if (stack[i] == '-' && stack[i + 1] >= '0' && stack[i + 1] <= '9') return stack.substr(0, i);
  }
  return stack;
}

/// How far a measured GPU is from the one asked for, within a generation.
enum class Nearness : std::uint8_t { kSame, kSilicon, kGeneration };

Nearness nearness(const Gpu& gpu, const Gpu& other) {
  if (times_alike(gpu, other)) return Nearness::kSame;
  return gpu.silicon == other.silicon ? Nearness::kSilicon : Nearness::kGeneration;
}

/// Formats that compute alike.
bool alike(const KernelFormat& a, const KernelFormat& b) {
  return bits_of(a.compute) == bits_of(b.compute) && a.stored_bytes == b.stored_bytes;
}
/// Formats whose timings hold for each other: fp16 and bf16.
bool equal_times(const KernelFormat& a, const KernelFormat& b) {
  return a.name == b.name || (alike(a, b) && a.operand_bytes == b.operand_bytes &&
                              bits_of(a.compute) == 16 && a.quantises == b.quantises);
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

bool times_alike(const Gpu& gpu, const Gpu& other) {
  if (gpu.name == other.name) return true;
  const double bandwidth = gpu.hbm_bandwidth.count() / other.hbm_bandwidth.count();
  return gpu.silicon == other.silicon && gpu.sms == other.sms && std::abs(bandwidth - 1) < 0.02;
}

struct KernelLibrary::Kept {
  std::mutex mutex;
  std::map<std::tuple<KernelOp, std::string, std::string, std::string>, KernelChoice> choices;
};

KernelLibrary::KernelLibrary(KernelLibrary&&) noexcept = default;
KernelLibrary& KernelLibrary::operator=(KernelLibrary&&) noexcept = default;
KernelLibrary::~KernelLibrary() = default;

const KernelChoice& KernelLibrary::kept_choice(KernelOp op, const Gpu& gpu, std::string_view stack,
                                               const KernelFormat& format) const {
  const std::scoped_lock lock{kept_->mutex};
  const std::tuple key{op, gpu.name, std::string{stack}, format.name};
  const auto found = kept_->choices.find(key);
  if (found != kept_->choices.end()) return found->second;
  return kept_->choices.emplace(key, choose(op, gpu, stack, format)).first->second;
}

KernelLibrary::KernelLibrary(std::vector<KernelCalibrationFile> files)
    : files_{std::move(files)}, kept_{std::make_unique<Kept>()} {
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
    KernelFormat format;
    Nearness gpu;
    bool exact, family, same_format;
  };
  std::vector<Candidate> candidates;
  for (const KernelCalibration* entry : entries_) {
    if (entry->op != op) continue;
    const Gpu& measured = find_gpu(entry->gpu);
    if (measured.generation != gpu.generation) continue;
    Candidate c{.entry = entry,
                .format = parse_kernel_format(entry->format),
                .gpu = nearness(gpu, measured),
                .exact = entry->stack == stack,
                .family = !stack.empty() && family_of(entry->stack) == family_of(stack),
                .same_format = false};
    c.same_format = equal_times(c.format, format);
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
  // The one measured on most shapes: a fit to few of them is a poor guide elsewhere, however well
  // it holds there. Formats of the same name come first.
  const auto best = [&](auto&& fits) -> const Candidate* {
    const Candidate* found = nullptr;
    for (const Candidate& c : candidates) {
      if (!fits(c)) continue;
      const auto rank = [](const Candidate& x) {
        return std::tuple{x.same_format, x.entry->fitted.n, -x.entry->fitted.mape};
      };
      if (found == nullptr || rank(c) > rank(*found)) found = &c;
    }
    return found;
  };
  const auto named = [](const Candidate& c) {
    return fmt::format("{} kernels on {} in {}", c.entry->stack, c.entry->gpu, c.entry->format);
  };
  const auto use = [&](const Candidate& c, KernelBasis basis) {
    factor(c, 1);
    return settle(basis, c.gpu == Nearness::kSame
                             ? named(c)
                             : fmt::format("{}, by data-sheet ratios", named(c)));
  };
  const auto same = [](const Candidate& c) { return c.gpu == Nearness::kSame; };
  const auto silicon = [](const Candidate& c) { return c.gpu == Nearness::kSilicon; };
  if (const Candidate* c = best([&](const Candidate& x) { return same(x) && x.exact; })) {
    return use(*c, c->same_format ? KernelBasis::kMeasured : KernelBasis::kOtherFormat);
  }
  if (const Candidate* c =
          best([&](const Candidate& x) { return same(x) && x.family && x.same_format; })) {
    return use(*c, KernelBasis::kOtherVersion);
  }
  // The stack itself on the same chip with other memory, then any version of it there.
  for (const bool exact : {true, false}) {
    if (const Candidate* c = best([&](const Candidate& x) {
          return silicon(x) && x.same_format && (exact ? x.exact : x.family);
        })) {
      return use(*c, KernelBasis::kSibling);
    }
  }
  // This GPU's other stacks: their geometric mean, since none is nearer than another.
  std::vector<const Candidate*> mine;
  for (const Candidate& c : candidates) {
    if (same(c) && c.same_format) mine.push_back(&c);
  }
  if (mine.empty()) {
    for (const Candidate& c : candidates) {
      if (same(c)) mine.push_back(&c);
    }
  }
  if (!mine.empty()) {
    std::int64_t most = 0;
    for (const Candidate* c : mine) most = std::max(most, c->entry->fitted.n);
    std::erase_if(mine, [most](const Candidate* c) { return 2 * c->entry->fitted.n < most; });
    std::string provenance;
    for (const Candidate* c : mine) {
      factor(*c, 1.0 / static_cast<double>(mine.size()));
      provenance += (provenance.empty() ? "" : ", ") + named(*c);
    }
    return settle(KernelBasis::kOtherStack,
                  mine.size() > 1 ? fmt::format("mean of {}", provenance) : provenance);
  }
  for (const int step : {0, 1, 2}) {
    if (const Candidate* c = best([&](const Candidate& x) {
          return step == 0 ? x.exact : step == 1 ? x.family : true;
        })) {
      return use(*c, KernelBasis::kSibling);
    }
  }
  for (const Coefficient& c : form.coefficients) choice.nominal_.push_back(c.start);
  choice.factors_.push_back(
      {.calibration = nullptr, .form = &form, .gpu = here, .format = format, .power = 1});
  return settle(KernelBasis::kNominal, "no measurement: typical shares of the data sheet's rates");
}

}  // namespace kvsim
