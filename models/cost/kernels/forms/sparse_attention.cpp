#include <algorithm>
#include <array>
#include <cmath>

#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/work.hpp"

namespace kvsim {
namespace {

enum : std::size_t {
  kFixed,
  kQuery,
  kCompute,
  kMemory,
  kGroupRows,
  kPromptFixed,
  kPromptCompute,
  kPromptRows,
  kCount
};

constexpr double kRank = 512, kRope = 64;

constexpr std::array<Coefficient, kCount> kCoefficients{{
    {.name = "fixed",
     .unit = "us",
     .help = "decode: launches of attention and of what surrounds it",
     .start = 20,
     .low = 1,
     .high = 400},
    {.name = "query",
     .unit = "us",
     .help = "decode: a query token, whatever its entries",
     .start = 0.1,
     .low = 0.0005,
     .high = 10},
    {.name = "compute",
     .unit = "1",
     .help = "decode: share of the arithmetic peak, padded heads counted",
     .start = 0.4,
     .low = 0.01,
     .high = 1.2},
    {.name = "memory",
     .unit = "1",
     .help = "decode: share of the HBM bandwidth for gathered entries",
     .start = 0.5,
     .low = 0.02,
     .high = 4,
     .carries = ScalingRule::kHbmShare},
    {.name = "padded_heads",
     .unit = "heads",
     .help = "decode: fewest query heads that a thread block computes",
     .start = 64,
     .low = 1,
     .high = 128},
    {.name = "prompt_fixed",
     .unit = "us",
     .help = "prompt: launches of attention and of what surrounds it",
     .start = 40,
     .low = 1,
     .high = 2000},
    {.name = "prompt_compute",
     .unit = "1",
     .help = "prompt: share of the arithmetic peak, padded heads counted",
     .start = 0.6,
     .low = 0.01,
     .high = 1.2},
    {.name = "prompt_padded_heads",
     .unit = "heads",
     .help = "prompt: fewest query heads that a thread block computes",
     .start = 64,
     .low = 1,
     .high = 128},
}};

/// FlashMLA's sparse kernels compute tiles of 64 query heads whatever a GPU has, and a prompt's
/// kernel goes through the whole list of a query, positions without an entry included.
double microseconds(const KernelCall& any, const KernelFormat& format, const KernelGpu& gpu,
                    const double* c) {
  const auto& call = std::get<SparseAttentionCall>(any);
  const double queries = call.batch * call.queries;
  const double padded = std::max(call.heads, call.decode ? c[kGroupRows] : c[kPromptRows]);
  const double flops = 2 * queries * padded * call.chosen * (2 * kRank + kRope);
  if (!call.decode) {
    // Whole waves: a thread block takes one query.
    const double share = queries < gpu.sms ? queries / gpu.sms : 1;
    return c[kPromptFixed] + 1e6 * flops / (gpu.peak(format.compute) * c[kPromptCompute] * share);
  }
  return c[kFixed] + queries * c[kQuery] +
         1e6 * std::max(flops / (gpu.peak(format.compute) * c[kCompute]),
                        work_of(call, format).bytes / (gpu.bandwidth * c[kMemory]));
}

}  // namespace

const KernelForm& sparse_attention_form() {
  static constexpr KernelForm kForm{.id = "sparse-attention",
                                    .op = KernelOp::kSparseAttention,
                                    .coefficients = kCoefficients,
                                    .microseconds = microseconds};
  return kForm;
}

}  // namespace kvsim
