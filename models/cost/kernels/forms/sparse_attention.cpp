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
  kPaddedHeads,
  kPromptFixed,
  kPromptCompute,
  kPromptPaddedHeads,
  kCount
};

constexpr std::array<Coefficient, kCount> kCoefficients{{
    {.name = "fixed",
     .unit = "us",
     .help = "decode: launches of attention and the surrounding kernels",
     .start = 20,
     .low = 1,
     .high = 400},
    {.name = "query",
     .unit = "us",
     .help = "decode: a query token, independent of its entries",
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
     .help = "prompt: launches of attention and the surrounding kernels",
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

/// FlashMLA's sparse kernels compute tiles of 64 query heads regardless of the heads on a GPU, and
/// a prompt's kernel processes the whole list of a query, including positions without an entry.
double microseconds(const KernelCall& any, const KernelFormat& format, const KernelGpu& gpu,
                    const double* c) {
  const auto& call = std::get<SparseAttentionCall>(any);
  const double queries = call.batch * call.queries;
  SparseAttentionCall padded = call;
  padded.heads = std::max(call.heads, c[call.decode ? kPaddedHeads : kPromptPaddedHeads]);
  const double arithmetic = 1e6 * work_of(padded, format).flops / gpu.peak(format.compute);
  if (!call.decode) {
    // A thread block processes one query: fewer queries than SMs take as long as one per SM.
    return c[kPromptFixed] + arithmetic / c[kPromptCompute] * std::max(1.0, gpu.sms / queries);
  }
  return c[kFixed] + queries * c[kQuery] +
         std::max(arithmetic / c[kCompute],
                  1e6 * work_of(call, format).bytes / (gpu.bandwidth * c[kMemory]));
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
