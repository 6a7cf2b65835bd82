#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "models/cost/kernels/call.hpp"

namespace kvsim {

/// The chip parameter that a coefficient scales with, which defines its value on another GPU.
enum class ScalingRule : std::uint8_t {
  kAsIs,      // latencies, sizes, shares of what is faster on a faster chip
  kHbmShare,  // a share of the HBM bandwidth: where it is low, something else holds the kernel up
  kSmRate     // a rate of one SM, given over its even share of the HBM bandwidth
};

/// One coefficient of a timing form: its meaning, and where a fit starts and may go. Coefficients
/// are latencies (µs), shares of a data-sheet rate, or sizes, so that they carry over to another
/// GPU.
struct Coefficient {
  std::string_view name;  // snake case, as calibration files write it
  std::string_view unit;  // "us", "1", "bytes"
  std::string_view help;
  double start = 1;
  double low = 0;  // above 0: the fit works in the logarithm; otherwise on the value
  double high = 1;
  ScalingRule carries = ScalingRule::kAsIs;
};

/// A structured analytic form of one family's kernel time. Pure: no state, no allocation.
struct KernelForm {
  std::string_view id;  // "decode-attention": what calibration files name
  KernelOp op;
  std::span<const Coefficient> coefficients;
  /// Time of one call in µs; `c` has one value per coefficient, in their order.
  double (*microseconds)(const KernelCall& call, const KernelFormat& format, const KernelGpu& gpu,
                         const double* c);
  /// Further points that a fit starts from, `coefficients.size()` values each, one after another:
  /// for kernels that choose between algorithms, where a fit finds only the nearest minimum.
  std::span<const double> starts{};
  /// Rows per coefficient below which they are not tried: few rows cannot distinguish algorithms.
  double rows_per_start = 10;
};

/// The form of `op`.
[[nodiscard]] const KernelForm& form_of(KernelOp op);

/// The lower bound of any kernel: the larger of arithmetic and traffic at data-sheet rates, µs.
/// Traffic is every operand once; the calls that `kvsim validate measured` counts as large have 30
/// µs of it.
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
