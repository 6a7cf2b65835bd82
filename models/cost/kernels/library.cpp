#include "models/cost/kernels/library.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include "models/cost/kernels/marlin.hpp"
#include "models/cost/kernels/spread.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

/// Widening of the 90 % interval of log(measured / predicted) on each side without a calibration of
/// the pair, if the library has no cases of such transfers: a judgement.
constexpr std::array<double, 7> kWidening{0.0, 0.12, 0.20, 0.20, 0.20, 0.25, 0.7};
constexpr double kWorseFit = 1.15;  // maximum error relative to the best stack's fit

/// Removes the source of the timings: "vllm-0.14.0" of "aic-vllm-0.14.0".
std::string_view bare(std::string_view stack) {
  constexpr std::string_view kProfiler = "aic-";
  if (stack.starts_with(kProfiler)) stack.remove_prefix(kProfiler.size());
  return stack;
}

/// Whether an entry's stack is the requested one; its kind of collectives may be omitted:
/// "vllm-0.14.0" is "aic-vllm-0.14.0:vLLM_custom_graph".
bool is_stack(std::string_view entry, std::string_view wanted) {
  entry = bare(entry);
  wanted = bare(wanted);
  return entry == wanted ||
         (wanted.find(':') == std::string_view::npos && entry.substr(0, entry.find(':')) == wanted);
}

/// "vllm" of "vllm-0.14.0".
std::string_view family_of(std::string_view stack) {
  stack = bare(stack);
  for (std::size_t i = 0; i + 1 < stack.size(); ++i) {
    if (stack[i] == '-' && stack[i + 1] >= '0' && stack[i + 1] <= '9') return stack.substr(0, i);
  }
  return stack;
}

/// Implementation of a collective's stack: NCCL's kernels or a framework's, and whether the time
/// includes the host's launches. Times of one kind do not apply to another.
struct CollectiveWay {
  explicit CollectiveWay(std::string_view stack)
      : nccl{stack.find("nccl") != std::string_view::npos},
        torch{stack.find("torch") != std::string_view::npos},
        eager{stack.find("eager") != std::string_view::npos} {}
  friend bool operator==(const CollectiveWay&, const CollectiveWay&) = default;
  bool nccl, torch, eager;
};

/// Fits of collectives to fewer rows, with one number of GPUs, are valid only for the configuration
/// they were fitted to.
constexpr std::int64_t kFewRows = 40;

/// Whether the family's time depends more on the kernel's algorithm than on the chip. Prefill
/// attention is bound by arithmetic: fits of one stack transfer to another chip within 4 to 16 %,
/// fits of another stack on the same chip within 12 to 40 % (leave-one-out over the published
/// timings). Streaming kernels are bound by bandwidth, but the stack determines whether they are
/// fused.
bool stack_before_chip(KernelOp op) {
  return op == KernelOp::kPrefillAttention || op == KernelOp::kElementwise;
}

/// The distance of a measured GPU from the requested one.
enum class Nearness : std::uint8_t { kSame, kSilicon, kGeneration, kOther };

Nearness nearness(const Gpu& gpu, const Gpu& other) {
  if (has_equal_times(gpu, other)) return Nearness::kSame;
  if (gpu.silicon == other.silicon) return Nearness::kSilicon;
  return gpu.generation == other.generation ? Nearness::kGeneration : Nearness::kOther;
}

/// Formats with equal arithmetic and, except for their scales, equal bytes.
bool equal_but_scales(const KernelFormat& a, const KernelFormat& b) {
  constexpr double kScales = 0.05;
  return bits_of(a.compute) == bits_of(b.compute) &&
         std::abs(a.stored_bytes - b.stored_bytes) <= kScales * b.stored_bytes;
}
/// Whether timings are valid for both formats: fp16 and bf16, over either of them or over the same
/// narrower cache.
bool equal_times(const KernelFormat& a, const KernelFormat& b) {
  if (a.name == b.name) return true;
  const auto cache = [](const KernelFormat& f) {
    const std::size_t slash = f.name.find('/');
    return slash == std::string::npos ? f.name : f.name.substr(slash);
  };
  return equal_but_scales(a, b) && a.operand_bytes == b.operand_bytes && bits_of(a.compute) == 16 &&
         a.quantises == b.quantises && (a.stored_bytes == 2 || cache(a) == cache(b));
}
bool is_attention(KernelOp op) {
  return op == KernelOp::kDecodeAttention || op == KernelOp::kPrefillAttention ||
         op == KernelOp::kMla;
}
/// Whether timings of another width apply: for caches that a kernel converts on reading, and for
/// experts with packed weights.
bool converts_equally(KernelOp op, const KernelFormat& measured, const KernelFormat& wanted) {
  const auto unpacks = [](const KernelFormat& f) {
    return f.stored_bytes < f.operand_bytes && bits_of(f.compute) == 16;
  };
  if (op == KernelOp::kMoe) return unpacks(measured) && unpacks(wanted);
  return is_attention(op) && bits_of(measured.compute) == bits_of(wanted.compute) &&
         wanted.stored_bytes < wanted.operand_bytes;
}

/// Parses "0.14.0" of "aic-vllm-0.14.0" into comparable numbers; parts after the third are ignored.
std::array<int, 3> version_of(std::string_view stack) {
  std::array<int, 3> version{};
  const std::size_t at = stack.rfind('-');
  std::size_t part = 0;
  for (std::size_t i = at == std::string_view::npos ? stack.size() : at + 1;
       i < stack.size() && part < version.size(); ++i) {
    if (stack[i] >= '0' && stack[i] <= '9') {
      version[part] = std::min(10 * version[part] + (stack[i] - '0'), 100'000);
    } else if (stack[i] == '.') {
      ++part;
    } else {
      break;
    }
  }
  return version;
}

/// Returns the format in which the kernels of `stack` multiply weights of `format` on `gpu`:
/// weights are unpacked if its tensor cores do not support the format. Since 0.12 vLLM's packages
/// contain triton_kernels, which multiply MXFP4 experts on Hopper (vllm-project/vllm pulls 27370
/// and 28788, of which the first was reverted); before, Marlin's kernels unpack them like other
/// 4-bit weights, unless triton_kernels was also installed.
KernelFormat multiplied_on(const Gpu& gpu, KernelOp op, std::string_view stack,
                           const KernelFormat& format) {
  const bool is_matrix = op == KernelOp::kGemm || op == KernelOp::kMoe;
  const bool is_known = bits_of(format.compute) >= 16 || gpu.peak.contains(format.compute);
  if (is_matrix && !is_known) {
    return parse_kernel_format(format.stored_bytes < 1 ? "int4_wo" : "int8_wo");
  }
  constexpr std::array kFirst{0, 12, 0};
  const bool is_versioned = family_of(stack) == "vllm" && bare(stack) != "vllm";
  if (op == KernelOp::kMoe && format.name == "mxfp4" && gpu.generation == "hopper" &&
      is_versioned && version_of(stack) < kFirst) {
    return parse_kernel_format("int4_wo");
  }
  return format;
}

/// Returns the distance of two versions of one stack, roughly proportional to the time between
/// releases; 0 if one of them has no version.
int versions_apart(std::string_view stack, std::string_view wanted) {
  const auto number = [](std::string_view name) {
    const auto [major, minor, patch] = version_of(name);
    return 10'000 * major + 100 * minor + std::min(patch, 99);
  };
  if (family_of(stack) == bare(stack) || family_of(wanted) == bare(wanted)) return 0;
  return std::abs(number(stack) - number(wanted));
}

/// Whether `op` is a matrix product, bound by arithmetic or by traffic.
bool is_product(KernelOp op) {
  return op == KernelOp::kGemm || op == KernelOp::kGroupedGemm || op == KernelOp::kMoe;
}

/// Returns the coefficients of `entry` on another GPU. Kernels that reach most of the HBM bandwidth
/// are limited by it, and reach the same fraction on other memory. Kernels far below it are limited
/// by their SMs: on the same chip with other memory their rate is proportional to the number of
/// SMs. The range between is interpolated: its ends are the fraction of well-made kernels (0.8 and
/// more), and a fraction that none of them has. A kernel limited by SMs on one GPU is limited by
/// the memory of the other at 0.8, so the order of kernels is preserved.
/// This does not apply to other chips with different SMs: there, all coefficients are fractions.
/// The exception is streaming operators: each thread loads, computes a little and stores, so bytes
/// per SM and clock depend on the kernel and not on the chip. They are equal within 10 to 20 % for
/// embeddings, which are far from every memory's bandwidth: 2.0 to 2.5 B per clock and SM on A100,
/// A40 and H100 (docs/accuracy.md).
std::vector<double> carried_over(const KernelCalibration& entry, const KernelForm& form,
                                 const Gpu& gpu) {
  constexpr double kHeldUp = 0.8, kFarBelow = 0.6;
  const Gpu& measured = find_gpu(entry.gpu);
  std::vector<double> out = entry.coefficients;
  const Nearness near = nearness(gpu, measured);
  const bool other_chip = near == Nearness::kGeneration || near == Nearness::kOther;
  if (near == Nearness::kSame) return out;
  if (other_chip && is_product(entry.op)) {
    // Loads of an SM are hidden by arithmetic on a chip with fewer FLOP per byte: the fit then only
    // finds a lower bound of the rate, at which loads become visible.
    const Dtype compute = parse_kernel_format(entry.format).compute;
    const auto ratio = [&](const Gpu& g) {
      return peak_flops(g, compute).count() / g.hbm_bandwidth.count();
    };
    for (std::size_t i = 0; i < form.coefficients.size() && i < out.size(); ++i) {
      const Coefficient& c = form.coefficients[i];
      const bool hidden = c.carries == ScalingRule::kSmRate && ratio(gpu) > ratio(measured);
      if (hidden) out[i] = std::max(out[i], c.start);
    }
  }
  if (other_chip && entry.op != KernelOp::kElementwise) return out;
  const KernelGpu there = kernel_gpu(measured), here = kernel_gpu(gpu);
  // An SM's even share of the bandwidth there, divided by that here.
  const double processors =
      other_chip ? sm_clocks(gpu) / sm_clocks(measured) : here.sms / there.sms;
  const double even = there.bandwidth / here.bandwidth * processors;
  for (std::size_t i = 0; i < form.coefficients.size() && i < out.size(); ++i) {
    double of_sms = form.coefficients[i].carries == ScalingRule::kSmRate ? 1 : 0;
    if (form.coefficients[i].carries == ScalingRule::kHbmShare) {
      of_sms = std::clamp((kHeldUp - out[i]) / (kHeldUp - kFarBelow), 0.0, 1.0);
    }
    if (of_sms == 0) continue;
    const double moved = out[i] * std::pow(even, of_sms);
    const bool share = form.coefficients[i].carries == ScalingRule::kHbmShare;
    out[i] = share ? std::min(moved, std::max(out[i], kHeldUp)) : moved;
  }
  return out;
}

/// Returns the distance of two GPUs' ratios of arithmetic to bandwidth.
double ratio_apart(const Gpu& a, const Gpu& b, Dtype compute) {
  const auto ratio = [&](const Gpu& gpu) {
    return std::log(peak_flops(gpu, compute).count() / gpu.hbm_bandwidth.count());
  };
  return std::abs(ratio(a) - ratio(b));
}

}  // namespace

bool has_equal_times(const Gpu& gpu, const Gpu& other) {
  const double bandwidth = gpu.hbm_bandwidth.count() / other.hbm_bandwidth.count();
  return gpu.silicon == other.silicon && gpu.sms == other.sms && std::abs(bandwidth - 1) < 0.02;
}

struct KernelLibrary::Kept {
  /// All inputs of a choice; a hypothetical GPU may have the name of an existing one.
  using Key = std::tuple<KernelOp, std::string, std::string, std::array<std::string, 3>,
                         std::vector<double>>;
  std::mutex mutex;
  std::map<Key, KernelChoice> choices;
};

KernelLibrary::KernelLibrary(KernelLibrary&&) noexcept = default;
KernelLibrary& KernelLibrary::operator=(KernelLibrary&&) noexcept = default;
KernelLibrary::~KernelLibrary() = default;

const KernelChoice& KernelLibrary::kept_choice(KernelOp op, const Gpu& gpu, std::string_view stack,
                                               const KernelFormat& format) const {
  const std::scoped_lock lock{kept_->mutex};
  const KernelGpu sheet = kernel_gpu(gpu);
  std::vector<double> numbers{sheet.bandwidth, sheet.fp32_flops,  sheet.sms,  sheet.l2,
                              sheet.nvlink,    sheet.nvlink_gpus, sheet.pcie, sheet.host_link};
  numbers.insert(numbers.end(), sheet.flops.begin(), sheet.flops.end());
  const Kept::Key key{op,
                      std::string{stack},
                      format.name,
                      {gpu.name, gpu.generation, gpu.silicon},
                      std::move(numbers)};
  const auto found = kept_->choices.find(key);
  if (found != kept_->choices.end()) return found->second;
  return kept_->choices.emplace(key, choose(op, gpu, stack, format)).first->second;
}

struct KernelLibrary::File {
  KernelCalibrationFile content;
  std::optional<ShippedCalibration> shipped;
  std::once_flag once;

  const KernelCalibrationFile& read() {
    if (shipped) std::call_once(once, [this] { content = read_shipped(*shipped); });
    return content;
  }
  [[nodiscard]] bool may_time(KernelOp op, const Gpu& gpu) const {
    return !shipped ||
           (shipped->op == op && (shipped->generation == gpu.generation || stack_before_chip(op)));
  }
  [[nodiscard]] bool is_comparable(KernelOp op, bool same_op) const {
    return !shipped || (shipped->op == op) == same_op;
  }
};

KernelLibrary::KernelLibrary(std::vector<KernelCalibrationFile> files)
    : kept_{std::make_unique<Kept>()} {
  for (KernelCalibrationFile& file : files) {
    files_.push_back(std::make_unique<File>());
    files_.back()->content = std::move(file);
  }
}

const KernelLibrary& KernelLibrary::builtin() {
  static const KernelLibrary library = [] {
    KernelLibrary out{std::vector<KernelCalibrationFile>{}};
    for (const ShippedCalibration& file : shipped_calibrations()) {
      out.files_.push_back(std::make_unique<File>());
      out.files_.back()->shipped = file;
    }
    return out;
  }();
  return library;
}

std::vector<const KernelCalibration*> KernelLibrary::entries() const {
  std::vector<const KernelCalibration*> out;
  for (const auto& file : files_) {
    for (const KernelCalibration& entry : file->read().entries) out.push_back(&entry);
  }
  return out;
}

std::vector<const KernelTransfer*> KernelLibrary::transfers() const {
  std::vector<const KernelTransfer*> out;
  for (const auto& file : files_) {
    for (const KernelTransfer& transfer : file->read().transfers) out.push_back(&transfer);
  }
  return out;
}

/// Returns the 90 % quantile of |log(measured / predicted)| for predictions with the transfer
/// `basis` on a GPU of `generation`; nullopt with too few cases. Families differ more than bases:
/// two cases of the family, whose limit is then their largest error, take precedence over cases of
/// other families. Cases of the same generation take precedence: its stacks use one set of kernels.
std::optional<double> KernelLibrary::reach_error(KernelOp op, KernelBasis basis,
                                                 std::string_view generation) const {
  constexpr std::size_t kEnough = 4;  // cases, before less similar ones are added
  constexpr std::size_t kMin = 2;
  constexpr double kLevel = 0.9;
  Clusters cases;
  const auto take = [&](bool same_op, bool same_basis, bool of_generation = false) {
    for (const auto& file : files_) {
      if (!file->is_comparable(op, same_op)) continue;
      for (const KernelTransfer& t : file->read().transfers) {
        if (of_generation && find_gpu(t.hidden.gpu).generation != generation) continue;
        if ((t.op == op) == same_op && (t.basis == basis) == same_basis) cases.push_back(t.errors);
      }
    }
  };
  take(true, true, true);
  if (cases.size() >= kEnough) return upper_limit(cases, kLevel);
  cases.clear();
  take(true, true);
  if (cases.size() < kEnough) take(true, false);
  if (cases.size() < kMin) {
    take(false, true);
    if (cases.size() < kEnough) return std::nullopt;
  }
  return upper_limit(cases, kLevel);
}

KernelChoice KernelLibrary::choose(KernelOp op, const Gpu& gpu, std::string_view stack,
                                   const KernelFormat& stored) const {
  const KernelFormat format = multiplied_on(gpu, op, stack, stored);
  struct Candidate {
    const KernelCalibration* entry;
    KernelFormat format;
    Nearness gpu;
    double apart;        // ratio_apart
    int versions_apart;  // within one family
    bool exact, family, same_format;
  };
  std::vector<Candidate> candidates;
  const auto consider = [&](const KernelCalibration* entry) {
    if (entry->op != op) return;
    const Gpu& measured = find_gpu(entry->gpu);
    if (measured.generation != gpu.generation && !stack_before_chip(op)) return;
    Candidate c{.entry = entry,
                .format = parse_kernel_format(entry->format),
                .gpu = nearness(gpu, measured),
                .apart = is_product(op) ? ratio_apart(gpu, measured, format.compute) : 0,
                .versions_apart = versions_apart(entry->stack, stack),
                .exact = is_stack(entry->stack, stack),
                .family = !stack.empty() && family_of(entry->stack) == family_of(stack),
                .same_format = false};
    c.same_format = equal_times(c.format, format);
    if (!c.same_format && !equal_but_scales(c.format, format) &&
        !converts_equally(op, c.format, format)) {
      return;
    }
    candidates.push_back(std::move(c));
  };
  for (const auto& file : files_) {
    if (!file->may_time(op, gpu)) continue;
    for (const KernelCalibration& entry : file->read().entries) consider(&entry);
  }
  // Of other widths only the nearest is used, and only if this one was not measured.
  double nearest = std::numeric_limits<double>::infinity();
  const auto apart = [&](const Candidate& c) {
    return std::abs(c.format.stored_bytes - format.stored_bytes);
  };
  for (const Candidate& c : candidates) nearest = std::min(nearest, apart(c));
  std::erase_if(candidates, [&](const Candidate& c) { return apart(c) > nearest; });
  const KernelGpu here = kernel_gpu(gpu);
  if (op == KernelOp::kCollective) {
    // Frameworks' kernels read the memory of other GPUs: without NVLink they use NCCL instead (vLLM
    // and SGLang custom_all_reduce.py: "not supported on more than two PCIe-only GPUs";
    // TensorRT-LLM allreduceOp.cpp: NCCL unless all GPUs are connected by NVLink).
    const CollectiveWay way{here.nvlink > 0 ? stack : "nccl"};
    std::erase_if(candidates, [&](const Candidate& c) {
      return CollectiveWay{c.entry->stack} != way || (!c.exact && c.entry->fitted.n < kFewRows);
    });
  }
  const KernelForm& form = form_of(op);
  KernelChoice choice;
  const auto factor = [&](const Candidate& c, double power) {
    choice.factors_.push_back({.calibration = c.entry,
                               .form = &form,
                               .gpu = here,
                               .format = format,
                               .power = power,
                               .transferred = is_product(op) && c.gpu != Nearness::kSame,
                               .coefficients = carried_over(*c.entry, form, gpu)});
  };
  const auto resolve = [&](KernelBasis basis, std::string provenance) {
    // Timings of engines with Marlin already include the limit.
    const bool is_own = std::any_of(
        choice.factors_.begin(), choice.factors_.end(), [&](const KernelChoice::Factor& f) {
          return f.calibration != nullptr && has_marlin(bare(f.calibration->stack));
        });
    if (!is_own) choice.max_flops_ = marlin_flops(op, gpu, stack, format);
    // Timings of this width on this chip take precedence, also those of another stack.
    const bool is_timed = std::any_of(
        choice.factors_.begin(), choice.factors_.end(), [&](const KernelChoice::Factor& f) {
          return f.calibration != nullptr && !f.transferred &&
                 equal_but_scales(parse_kernel_format(f.calibration->format), format);
        });
    constexpr std::array kMarlinMoe{0, 8, 5};
    const bool has_marlin_moe = bare(stack) == family_of(stack) || version_of(stack) >= kMarlinMoe;
    if (op == KernelOp::kMoe && !is_timed && has_marlin_moe) {
      choice.marlin_moe_ = marlin_moe_flops(gpu, bare(stack), format);
    }
    if (choice.marlin_moe_ > 0) {
      choice.max_flops_ = 0;
      provenance = fmt::format("blocks of Marlin at {:.3g} TFLOP/s, in place of {}",
                               choice.marlin_moe_ * 1e-12, provenance);
    }
    if (choice.max_flops_ > 0) {
      provenance += fmt::format(", at most {:.3g} TFLOP/s (Marlin)", choice.max_flops_ * 1e-12);
    }
    choice.basis_ = basis;
    choice.provenance_ = std::move(provenance);
    if (const auto reach = basis == KernelBasis::kMeasured
                               ? std::nullopt
                               : reach_error(op, basis, gpu.generation)) {
      double max = *reach;
      // Without any fit the interval is at least that of another stack.
      if (basis == KernelBasis::kNominal) {
        max = std::max(max, reach_error(op, KernelBasis::kOtherStack, gpu.generation).value_or(0));
      }
      choice.q05_ = -max;
      choice.q95_ = max;
      return choice;
    }
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
  // Formats of the same name come first, then the GPU with the nearest ratio of arithmetic to
  // bandwidth, on which the bottleneck is the same. The nearest version is used, unless it was
  // measured on few shapes: such a fit transfers poorly, even if its own error is small. Otherwise
  // the version with the most shapes is used.
  constexpr std::int64_t kFew = 4;  // factor by which it has fewer shapes
  const auto best = [&](auto&& fits) -> const Candidate* {
    std::int64_t max = 0;
    for (const Candidate& c : candidates) {
      if (fits(c)) max = std::max(max, c.entry->fitted.n);
    }
    const Candidate* found = nullptr;
    for (const Candidate& c : candidates) {
      if (!fits(c)) continue;
      const auto rank = [max](const Candidate& x) {
        const auto& fitted = x.entry->fitted;
        return std::tuple{x.same_format,     -x.apart, kFew * fitted.n >= max,
                          -x.versions_apart, fitted.n, -fitted.mape};
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
    return resolve(basis, c.gpu == Nearness::kSame
                              ? named(c)
                              : fmt::format("{}, by data-sheet ratios", named(c)));
  };
  const auto same = [](const Candidate& c) { return c.gpu == Nearness::kSame; };
  const auto silicon = [](const Candidate& c) { return c.gpu == Nearness::kSilicon; };
  if (const Candidate* c = best([&](const Candidate& x) { return same(x) && x.exact; })) {
    return use(*c, c->same_format ? KernelBasis::kMeasured : KernelBasis::kOtherFormat);
  }
  // The same stack on the same chip with other memory takes precedence over another version of it
  // here: data-sheet ratios transfer better than versions.
  if (const Candidate* c =
          best([&](const Candidate& x) { return silicon(x) && x.exact && x.same_format; })) {
    return use(*c, KernelBasis::kSibling);
  }
  if (const Candidate* c =
          best([&](const Candidate& x) { return same(x) && x.family && x.same_format; })) {
    return use(*c, KernelBasis::kOtherVersion);
  }
  if (const Candidate* c =
          best([&](const Candidate& x) { return silicon(x) && x.family && x.same_format; })) {
    return use(*c, KernelBasis::kSibling);
  }
  for (const Nearness far : {Nearness::kGeneration, Nearness::kOther}) {
    for (const bool exact : {true, false}) {
      if (const Candidate* c = best([&](const Candidate& x) {
            return stack_before_chip(op) && x.gpu == far && x.same_format &&
                   (exact ? x.exact : x.family);
          })) {
        return use(*c,
                   far == Nearness::kOther ? KernelBasis::kOtherGeneration : KernelBasis::kSibling);
      }
    }
  }
  // Other stacks: the geometric mean of the most informative ones. An unknown stack is more likely
  // to equal another's newest version than an older one, and few shapes are weak evidence.
  // Attention kernels differ in kind: only stacks with a good fit are used, because a bad fit
  // indicates unusual kernels, or a host that launches them one by one.
  const auto mean_of = [&](std::vector<const Candidate*> some, KernelBasis basis) {
    const std::vector<const Candidate*> all = some;
    std::erase_if(some, [&all](const Candidate* c) {
      return std::any_of(all.begin(), all.end(), [c](const Candidate* other) {
        return family_of(other->entry->stack) == family_of(c->entry->stack) &&
               version_of(other->entry->stack) > version_of(c->entry->stack);
      });
    });
    std::int64_t max = 0;
    for (const Candidate* c : some) max = std::max(max, c->entry->fitted.n);
    std::erase_if(some, [max](const Candidate* c) { return 2 * c->entry->fitted.n < max; });
    if (is_attention(op)) {
      const auto error = [](const Candidate* c) {
        return c->entry->held_out.n > 0 ? c->entry->held_out.mape : c->entry->fitted.mape;
      };
      double min = std::numeric_limits<double>::infinity();
      for (const Candidate* c : some) min = std::min(min, error(c));
      std::erase_if(some, [&](const Candidate* c) { return error(c) > kWorseFit * min; });
    }
    std::string provenance;
    for (const Candidate* c : some) {
      factor(*c, 1.0 / static_cast<double>(some.size()));
      provenance += (provenance.empty() ? "" : ", ") + named(*c);
    }
    if (some.size() > 1) provenance = fmt::format("mean of {}", provenance);
    if (basis == KernelBasis::kSibling) provenance += ", by data-sheet ratios";
    return resolve(basis, std::move(provenance));
  };
  const auto those = [&](auto&& fits) {
    std::vector<const Candidate*> some;
    for (const bool same_format : {true, false}) {
      for (const Candidate& c : candidates) {
        if (fits(c) && c.same_format == same_format) some.push_back(&c);
      }
      if (!some.empty()) break;
    }
    return some;
  };
  if (const auto mine = those(same); !mine.empty()) {
    return mean_of(mine, KernelBasis::kOtherStack);
  }
  const auto near = [](const Candidate& c) { return c.gpu != Nearness::kOther; };
  for (const bool exact : {true, false}) {
    if (const Candidate* c =
            best([&](const Candidate& x) { return near(x) && (exact ? x.exact : x.family); })) {
      return use(*c, KernelBasis::kSibling);
    }
  }
  if (const auto chip = those(silicon); !chip.empty()) return mean_of(chip, KernelBasis::kSibling);
  if (const auto any = those(near); !any.empty()) {
    return mean_of(any, KernelBasis::kSibling);
  }
  for (const Coefficient& c : form.coefficients) choice.nominal_.push_back(c.start);
  choice.factors_.push_back(
      {.calibration = nullptr, .form = &form, .gpu = here, .format = format, .power = 1});
  return resolve(KernelBasis::kNominal, "no measurement: typical shares of the data sheet's rates");
}

}  // namespace kvsim
