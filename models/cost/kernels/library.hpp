#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/cost/kernels/calibration.hpp"
#include "models/gpu/gpu.hpp"

namespace kvsim {

struct KernelEstimate {
  double us = 0;
  double low = 0;  // 90 % interval
  double high = 0;
  bool extrapolated = false;  // outside the measured ranges by more than a factor of 1.5
};

/// The calibration used for one (op, GPU, stack, format): a product of powers of calibrated forms,
/// each on its own GPU. A measured pair is one factor of power 1; an unseen pair of GPU and stack
/// is this GPU's other stack times the ratio of the two stacks on a sibling.
class KernelChoice {
 public:
  struct Factor {
    const KernelCalibration* calibration = nullptr;
    const KernelForm* form = nullptr;
    KernelGpu gpu;
    KernelFormat format;
    double power = 1;
    /// Whether its times are kept between the rooflines of another GPU than the calibration's.
    bool transferred = false;
    /// The calibration's, as they carry over from the GPU that it was measured on.
    std::vector<double> coefficients{};
  };

  [[nodiscard]] double microseconds(const KernelCall& call) const;
  [[nodiscard]] KernelEstimate estimate(const KernelCall& call) const;
  [[nodiscard]] KernelBasis basis() const { return basis_; }
  /// For people: "aic-vllm-0.14.0 kernels as on H100-80GB-SXM, scaled by data sheet".
  [[nodiscard]] const std::string& provenance() const { return provenance_; }
  [[nodiscard]] std::span<const Factor> factors() const { return factors_; }

 private:
  friend class KernelLibrary;
  [[nodiscard]] double fitted_us(const KernelCall& call) const;

  std::vector<Factor> factors_;
  KernelBasis basis_ = KernelBasis::kNominal;
  std::string provenance_;
  double q05_ = 0;  // of log(measured / predicted), widened for transfer
  double q95_ = 0;
  std::vector<double> nominal_;  // start values, where nothing was measured
  /// Most operations per second, of kernels that others' calibrations time too fast; 0: no limit.
  double max_flops_ = 0;
  /// Of experts that Marlin's kernel computes (marlin_moe_us), which was not timed here; 0: others.
  double marlin_moe_ = 0;
};

/// Whether timings of one GPU hold for the other: the same chip with the same memory bandwidth
/// (A100 and A800), unlike those that differ in it (H100 and H200).
[[nodiscard]] bool has_equal_times(const Gpu& gpu, const Gpu& other);

/// All calibrations at hand, and the rules by which one is chosen.
class KernelLibrary {
 public:
  explicit KernelLibrary(std::vector<KernelCalibrationFile> files);
  KernelLibrary(KernelLibrary&&) noexcept;
  KernelLibrary& operator=(KernelLibrary&&) noexcept;
  ~KernelLibrary();

  /// What times `op` on `gpu` under the kernels of `stack` ("" or a family such as "vllm": any
  /// version) in `format`. Never fails: the basis says how far it had to reach.
  [[nodiscard]] KernelChoice choose(KernelOp op, const Gpu& gpu, std::string_view stack,
                                    const KernelFormat& format) const;
  /// As choose, kept: the same arguments give the same object for as long as the library lives.
  /// Safe from several threads.
  [[nodiscard]] const KernelChoice& kept_choice(KernelOp op, const Gpu& gpu, std::string_view stack,
                                                const KernelFormat& format) const;
  [[nodiscard]] std::vector<const KernelCalibration*> entries() const;
  [[nodiscard]] std::vector<const KernelTransfer*> transfers() const;

  /// The library of the calibrations shipped with the program.
  [[nodiscard]] static const KernelLibrary& builtin();

 private:
  [[nodiscard]] std::optional<double> reach_error(KernelOp op, KernelBasis basis,
                                                  std::string_view generation) const;

  /// A loaded file, or a shipped one, which is read when it is first needed.
  struct File;
  std::vector<std::unique_ptr<File>> files_;
  struct Kept;
  std::unique_ptr<Kept> kept_;
};

}  // namespace kvsim
