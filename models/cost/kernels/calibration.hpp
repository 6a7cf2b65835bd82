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

/// How predictions sit about measurements; errors are predicted / measured - 1, as fractions.
struct ErrorSummary {
  std::int64_t n = 0;
  double mape = 0;
  double median_ape = 0;
  double p90_ape = 0;
  double worst_ape = 0;
  double bias = 0;  // mean signed error
};

/// Range of one dimension of the calls measured.
struct KernelRange {
  double low = 0;
  double high = 0;
};
/// The dimensions that ranges are kept of, by op, in the order of `dimensions_of`.
inline constexpr std::size_t kDimensions = 4;
[[nodiscard]] std::array<std::string_view, kDimensions> dimension_names(KernelOp op);
[[nodiscard]] std::array<double, kDimensions> dimensions_of(const KernelCall& call);

/// A form's coefficients fitted for one (op, GPU, stack, format), with how well they hold.
struct KernelCalibration {
  KernelOp op = KernelOp::kGemm;
  std::string gpu;     // catalogue name
  std::string stack;   // the kernels' software and version: "vllm-0.14.0"
  std::string format;  // KernelFormat::name
  std::string form{};  // KernelForm::id
  std::vector<double> coefficients{};
  ErrorSummary fitted{};    // over the rows fitted
  ErrorSummary held_out{};  // over whole shapes kept from the fit; n = 0: none were
  /// Quantiles of log(measured / predicted): a 90 % interval is [e^q05, e^q95] times the
  /// prediction. They are of a cross-validation over whole shapes of the rows fitted, moved outward
  /// for how few shapes there are and how much a shape's rows err together; the held-out rows have
  /// no part in them.
  double q05 = 0;
  double q95 = 0;
  std::array<KernelRange, kDimensions> ranges{};
};

/// How near the measurements behind a prediction are, best first.
enum class KernelBasis : std::uint8_t {
  kMeasured,         // this GPU (or its silicon), this stack, this format
  kOtherVersion,     // this GPU, another version of this stack's kernels
  kOtherStack,       // this GPU, other stacks; shifted by how the stacks differ elsewhere
  kSibling,          // a GPU of the same generation, by data-sheet ratios
  kOtherGeneration,  // this stack on a GPU of another generation, by data-sheet ratios
  kOtherFormat,      // this GPU, a format with equal arithmetic
  kNominal           // no measurement: the form's own start values
};
[[nodiscard]] std::string_view name_of(KernelBasis basis);

/// Whose timings: names of the catalogue's GPU, of the stack's kernels and of the format.
struct KernelSource {
  std::string gpu;
  std::string stack;
  std::string format{};
};

/// The errors of other calibrations in place of a hidden one, over the rows that it was fitted to:
/// the basis of intervals of predictions that are transferred as far.
struct KernelTransfer {
  KernelOp op = KernelOp::kGemm;
  KernelSource hidden;
  KernelBasis basis = KernelBasis::kNominal;
  std::vector<KernelSource> from{};  // the calibrations used instead; none: the form's typical
                                     // values
  /// |log(measured / predicted)|, ascending: its quantiles at (i + 0.5) / kTransferErrors.
  std::vector<double> errors{};
};
inline constexpr std::size_t kTransferErrors = 20;

/// One file of calibrations: of one GPU and family, with where its measurements are from.
struct KernelCalibrationFile {
  std::string gpu;
  std::string provenance;  // data set, version, license, address
  std::string date;        // of the fit
  std::string split;       // rule by which rows were held out
  std::vector<KernelCalibration> entries{};
  std::vector<KernelTransfer> transfers{};  // with rows of this GPU and family hidden
};

/// Reads a file ("kvsim.calibration/1"). Errors: InputError on an unknown form, op or format, or on
/// coefficients that are not the form's or are outside their bounds.
[[nodiscard]] KernelCalibrationFile read_calibration(const Field& document);
/// The same as text, keys in a fixed order, coefficients to 6 significant digits.
[[nodiscard]] std::string write_calibration(const KernelCalibrationFile& file);

/// Every *.json of a folder, or the one file. Errors: InputError as read_calibration; if there is
/// none.
[[nodiscard]] std::vector<KernelCalibrationFile> read_calibrations(
    const std::filesystem::path& path);

/// Those shipped with the program.
[[nodiscard]] const std::vector<KernelCalibrationFile>& builtin_calibrations();

/// One of them that was not read yet: its name says of what it is.
struct ShippedCalibration {
  std::string_view name;  // "gemm-a100-80gb-sxm"
  std::string_view text;
  KernelOp op{};
  std::string_view generation;  // of its GPU
};
[[nodiscard]] std::vector<ShippedCalibration> shipped_calibrations();
[[nodiscard]] KernelCalibrationFile read_shipped(const ShippedCalibration& file);

}  // namespace kvsim
