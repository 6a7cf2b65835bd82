#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "models/cost/kernels/call.hpp"

namespace kvsim {

/// The chip parameter that a coefficient scales with, used to transfer it to another GPU.
enum class ScalingRule : std::uint8_t {
  kAsIs,      // latencies, sizes, fractions of rates that scale with the chip
  kHbmShare,  // a fraction of the HBM bandwidth; if it is low, another resource is the limit
  kSmRate     // a rate of one SM, relative to its even share of the HBM bandwidth
};

/// One coefficient of a timing form: its meaning, and the start value and bounds of a fit.
/// Coefficients are latencies (µs), fractions of a data-sheet rate, or sizes, so that they can be
/// transferred to another GPU.
struct Coefficient {
  std::string_view name;  // snake case, as in calibration files
  std::string_view unit;  // "us", "1", "bytes"
  std::string_view help;
  double start = 1;
  double low = 0;  // above 0: the fit works in the logarithm; otherwise on the value
  double high = 1;
  ScalingRule carries = ScalingRule::kAsIs;
};

/// A structured analytic form of one family's kernel time. Pure: no state, no allocation.
struct KernelForm {
  std::string_view id;  // "decode-attention": the name in calibration files
  KernelOp op;
  std::span<const Coefficient> coefficients;
  /// Returns the time of one call in µs; `c` has one value per coefficient, in their order.
  double (*microseconds)(const KernelCall& call, const KernelFormat& format, const KernelGpu& gpu,
                         const double* c);
  /// Further starting points of a fit, concatenated, `coefficients.size()` values each: for kernels
  /// that choose between algorithms, since a fit only finds the nearest minimum.
  std::span<const double> starts{};
  /// Rows per coefficient required to try them: few rows cannot distinguish algorithms.
  double rows_per_start = 10;
};

/// Returns the form of `op`.
[[nodiscard]] const KernelForm& form_of(KernelOp op);

/// Returns the lower bound of any kernel: the larger of arithmetic and traffic at data-sheet rates,
/// µs. Traffic counts every operand once; `kvsim validate measured` classifies calls with 30 µs of
/// it as large.
[[nodiscard]] double ideal_microseconds(const KernelCall& call, const KernelFormat& format,
                                        const KernelGpu& gpu);

// One per family, in forms/.
[[nodiscard]] const KernelForm& decode_attention_form();
[[nodiscard]] const KernelForm& prefill_attention_form();
[[nodiscard]] const KernelForm& mla_form();
[[nodiscard]] const KernelForm& gemm_form();
[[nodiscard]] const KernelForm& grouped_gemm_form();
[[nodiscard]] const KernelForm& moe_form();
[[nodiscard]] const KernelForm& elementwise_form();
[[nodiscard]] const KernelForm& collective_form();
[[nodiscard]] const KernelForm& copy_form();
[[nodiscard]] const KernelForm& recurrence_form();
[[nodiscard]] const KernelForm& convolution_form();
[[nodiscard]] const KernelForm& index_scores_form();
[[nodiscard]] const KernelForm& index_choice_form();
[[nodiscard]] const KernelForm& sparse_attention_form();

}  // namespace kvsim
