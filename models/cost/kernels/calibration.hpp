#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "models/cost/kernels/form.hpp"
#include "models/json/field.hpp"

namespace kvsim {

/// Distribution of prediction errors; errors are predicted / measured - 1, as fractions.
struct ErrorSummary {
  std::int64_t n = 0;
  double mape = 0;
  double median_ape = 0;
  double p90_ape = 0;
  double worst_ape = 0;
  double bias = 0;  // mean signed error
};

/// Range of one dimension of the measured calls.
struct KernelRange {
  double low = 0;
  double high = 0;
};
/// The dimensions with recorded ranges, by op, in the order of `dimensions_of`.
inline constexpr std::size_t kDimensions = 4;
[[nodiscard]] std::array<std::string_view, kDimensions> dimension_names(KernelOp op);
[[nodiscard]] std::array<double, kDimensions> dimensions_of(const KernelCall& call);

/// A form's coefficients fitted for one (op, GPU, stack, format), with their errors.
struct KernelCalibration {
  KernelOp op = KernelOp::kGemm;
  std::string gpu;     // catalogue name
  std::string stack;   // software and version of the kernels: "vllm-0.14.0"
  std::string format;  // KernelFormat::name
  std::string form{};  // KernelForm::id
  std::vector<double> coefficients{};
  ErrorSummary fitted{};    // over the fitted rows
  ErrorSummary held_out{};  // over whole shapes held out of the fit; n = 0: none
  /// Quantiles of log(measured / predicted): a 90 % interval is [e^q05, e^q95] times the
  /// prediction. They are from a cross-validation over whole shapes of the fitted rows, widened for
  /// small numbers of shapes and for correlated errors within a shape. Held-out rows are not used.
  double q05 = 0;
  double q95 = 0;
  std::array<KernelRange, kDimensions> ranges{};
};

/// Similarity between a prediction and the underlying measurements, best first.
enum class KernelBasis : std::uint8_t {
  kMeasured,         // this GPU (or its silicon), this stack, this format
  kOtherVersion,     // this GPU, another version of this stack's kernels
  kOtherStack,       // this GPU, other stacks; shifted by their differences elsewhere
  kSibling,          // a GPU of the same generation, by data-sheet ratios
  kOtherGeneration,  // this stack on a GPU of another generation, by data-sheet ratios
  kOtherFormat,      // this GPU, a format with equal arithmetic
  kNominal           // no measurement: the form's start values
};
[[nodiscard]] std::string_view name_of(KernelBasis basis);

/// Origin of timings: names of the catalogue's GPU, of the stack's kernels and of the format.
struct KernelSource {
  std::string gpu;
  std::string stack;
  std::string format{};
};

/// Errors of predicting the fitted rows of a hidden calibration with other calibrations: the basis
/// of intervals for predictions with the same transfer.
struct KernelTransfer {
  KernelOp op = KernelOp::kGemm;
  KernelSource hidden;
  KernelBasis basis = KernelBasis::kNominal;
  std::vector<KernelSource> from{};  // substitute calibrations; none: the form's typical values
  /// |log(measured / predicted)|, ascending: its quantiles at (i + 0.5) / kTransferErrors.
  std::vector<double> errors{};
};
inline constexpr std::size_t kTransferErrors = 20;

/// One calibration file: one GPU and family, and the origin of its measurements.
struct KernelCalibrationFile {
  std::string gpu;
  std::string provenance;  // data set, version, license, address
  std::string date;        // of the fit
  std::string split;       // rule that selects the held-out rows
  std::vector<KernelCalibration> entries{};
  std::vector<KernelTransfer> transfers{};  // with hidden rows of this GPU and family
};

/// Reads a file ("kvsim.calibration/1"). Throws InputError for an unknown form, op or format, and
/// for coefficients that do not belong to the form or are out of bounds.
[[nodiscard]] KernelCalibrationFile read_calibration(const Field& document);
/// Formats a file, with keys in a fixed order and coefficients to 6 significant digits.
[[nodiscard]] std::string write_calibration(const KernelCalibrationFile& file);

/// Reads every *.json of a folder, or one file. Throws InputError as read_calibration, and if there
/// are none.
[[nodiscard]] std::vector<KernelCalibrationFile> read_calibrations(
    const std::filesystem::path& path);

/// Returns the calibrations shipped with the program.
[[nodiscard]] const std::vector<KernelCalibrationFile>& builtin_calibrations();

/// A shipped calibration that is not loaded yet; its name identifies its contents.
struct ShippedCalibration {
  std::string_view name;  // "gemm-a100-80gb-sxm"
  std::string_view text;
  KernelOp op{};
  std::string_view generation;  // of the GPU
};
[[nodiscard]] std::vector<ShippedCalibration> shipped_calibrations();
[[nodiscard]] KernelCalibrationFile read_shipped(const ShippedCalibration& file);

}  // namespace kvsim
