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
/// each for its own GPU. A measured pair is one factor of power 1; an unseen pair of GPU and stack
/// is another stack on this GPU times the ratio of the two stacks on a sibling GPU.
class KernelChoice {
 public:
  struct Factor {
    const KernelCalibration* calibration = nullptr;
    const KernelForm* form = nullptr;
    KernelGpu gpu;
    KernelFormat format;
    double power = 1;
    /// Whether its times are limited by the rooflines of a GPU other than the calibration's.
    bool transferred = false;
    /// The calibration's coefficients, transferred from the measured GPU.
    std::vector<double> coefficients{};
  };

  [[nodiscard]] double microseconds(const KernelCall& call) const;
  [[nodiscard]] KernelEstimate estimate(const KernelCall& call) const;
  [[nodiscard]] KernelBasis basis() const { return basis_; }
  /// A description: "aic-vllm-0.14.0 kernels as on H100-80GB-SXM, scaled by data sheet".
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
  std::vector<double> nominal_;  // start values, if there are no measurements
  /// Maximum operations per second of kernels that other calibrations time too fast; 0: no limit.
  double max_flops_ = 0;
  /// The same for experts computed by Marlin's kernel (marlin_moe_us), which has no measurements
  /// here; 0: other kernels.
  double marlin_moe_ = 0;
};

/// Whether timings of one GPU apply to the other: the same chip with the same memory bandwidth
/// (A100 and A800), unlike GPUs that differ in it (H100 and H200).
[[nodiscard]] bool has_equal_times(const Gpu& gpu, const Gpu& other);

/// All available calibrations, and the rules that choose one.
class KernelLibrary {
 public:
  explicit KernelLibrary(std::vector<KernelCalibrationFile> files);
  KernelLibrary(KernelLibrary&&) noexcept;
  KernelLibrary& operator=(KernelLibrary&&) noexcept;
  ~KernelLibrary();

  /// Returns the choice that times `op` on `gpu` with the kernels of `stack` ("" or a family such
  /// as "vllm": any version) in `format`. Never fails; the basis records the transfer.
  [[nodiscard]] KernelChoice choose(KernelOp op, const Gpu& gpu, std::string_view stack,
                                    const KernelFormat& format) const;
  /// As choose, cached: the same arguments return the same object during the library's lifetime.
  /// Thread-safe.
  [[nodiscard]] const KernelChoice& kept_choice(KernelOp op, const Gpu& gpu, std::string_view stack,
                                                const KernelFormat& format) const;
  [[nodiscard]] std::vector<const KernelCalibration*> entries() const;
  [[nodiscard]] std::vector<const KernelTransfer*> transfers() const;

  /// Returns the library of the calibrations shipped with the program.
  [[nodiscard]] static const KernelLibrary& builtin();

 private:
  [[nodiscard]] std::optional<double> reach_error(KernelOp op, KernelBasis basis,
                                                  std::string_view generation) const;

  /// A loaded file, or a shipped one, which is read on first use.
  struct File;
  std::vector<std::unique_ptr<File>> files_;
  struct Kept;
  std::unique_ptr<Kept> kept_;
};

}  // namespace kvsim
