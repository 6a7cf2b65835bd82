#include <algorithm>
#include <array>
#include <cmath>

#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/work.hpp"

namespace kvsim {
namespace {

enum : std::size_t { kFixed, kMemory, kScanFixed, kStep, kBlocks, kScan, kCount };

constexpr double kChunk = 64;  // flash-linear-attention, chunk_gated_delta_rule

constexpr std::array<Coefficient, kCount> kCoefficients{{
    {.name = "fixed",
     .unit = "us",
     .help = "decode: launch and set-up",
     .start = 2.5,
     .low = 0.1,
     .high = 60},
    {.name = "memory",
     .unit = "1",
     .help = "share of the HBM bandwidth for states, read and written",
     .start = 0.7,
     .low = 0.02,
     .high = 1.2},
    {.name = "scan_fixed",
     .unit = "us",
     .help = "prompt: launches of a scan's kernels",
     .start = 20,
     .low = 1,
     .high = 200},
    {.name = "step",
     .unit = "us",
     .help = "prompt: one chunk of 64 tokens in the kernel that carries the state",
     .start = 2.5,
     .low = 0.05,
     .high = 40},
    {.name = "blocks",
     .unit = "1",
     .help =
         "prompt: thread blocks per head and sequence of that kernel, over those that an SM runs",
     .start = 1,
     .low = 0.05,
     .high = 16},
    {.name = "scan",
     .unit = "1",
     .help =
         "prompt: share of the HBM bandwidth of the kernels within chunks, which read and write "
         "rows of queries, keys and values several times",
     .start = 0.15,
     .low = 0.005,
     .high = 1.2},
}};

/// Decode reads and writes every state. For a prompt, kernels within chunks run in parallel over
/// all chunks; the kernel that carries the state processes a sequence's chunks in order.
double microseconds(const KernelCall& any, const KernelFormat& format, const KernelGpu& gpu,
                    const double* c) {
  const auto& call = std::get<RecurrenceCall>(any);
  if (call.decode) {
    return c[kFixed] + 1e6 * work_of(call, format).bytes / (gpu.bandwidth * c[kMemory]);
  }
  const double heads = call.batch * call.heads;
  const double states = 2 * heads * call.key_dim * call.value_dim * call.state_bytes;
  const double rows =
      heads * call.tokens * (2 * call.key_dim + 2 * call.value_dim) * format.operand_bytes;
  const double waves = std::max(1.0, heads * c[kBlocks] / gpu.sms);
  return c[kScanFixed] + std::ceil(call.tokens / kChunk) * c[kStep] * waves +
         1e6 / gpu.bandwidth * (states / c[kMemory] + rows / c[kScan]);
}

}  // namespace

const KernelForm& recurrence_form() {
  static constexpr KernelForm kForm{.id = "recurrence",
                                    .op = KernelOp::kRecurrence,
                                    .coefficients = kCoefficients,
                                    .microseconds = microseconds};
  return kForm;
}

}  // namespace kvsim
