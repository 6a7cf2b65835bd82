#include <algorithm>
#include <array>
#include <cmath>

#include "models/cost/kernels/form.hpp"

namespace kvsim {
namespace {

// DeepSeek-V2 and -V3: latent of 512 and rotary part of 64 per token; heads 128 + 64 wide, values
// 128.
constexpr double kRank = 512, kRope = 64, kHead = 128;
constexpr double kTile = 128;      // tokens per step: two of FlashMLA's blocks of 64, alternately
constexpr double kGroupRows = 64;  // query heads that share a thread block's MMA tile

enum : std::size_t {
  kHost,
  kFixed,
  kSplit,
  kBlock,
  kTileTime,
  kMaxSplits,
  kMemory,
  kL2Rate,
  kL2Share,
  kTail,
  kTailAt,
  kCompute,
  kPaddedRows,
  kRow,
  kSequence,
  kPrefillFixed,
  kPrefillCompute,
  kPasses,
  kLatentPasses,
  kShortPasses,
  kShortBelow,
  kCount
};

constexpr std::array<Coefficient, kCount> kCoefficients{{
    {.name = "host",
     .unit = "us",
     .help = "launches by the host, where no CUDA graph hides them: a floor, not a sum",
     .start = 5,
     .low = 0.1,
     .high = 400},
    {.name = "fixed",
     .unit = "us",
     .help = "decode: launches on the GPU",
     .start = 10,
     .low = 1,
     .high = 100},
    {.name = "split",
     .unit = "us",
     .help = "decode: the kernel that combines splits of one sequence",
     .start = 5,
     .low = 0.01,
     .high = 60},
    {.name = "block",
     .unit = "us",
     .help = "decode: start and end of a thread block",
     .start = 1,
     .low = 0.02,
     .high = 20},
    {.name = "tile",
     .unit = "us",
     .help = "decode: a thread block's step over 128 tokens, when nothing else holds it up",
     .start = 1.4,
     .low = 0.04,
     .high = 40},
    {.name = "max_splits",
     .unit = "1",
     .help = "decode: most splits of one sequence",
     .start = 32,
     .low = 1,
     .high = 256},
    {.name = "memory",
     .unit = "1",
     .help = "decode: share of the HBM bandwidth",
     .start = 0.9,
     .low = 0.05,
     .high = 1,
     .carries = ScalingRule::kHbmShare},
    {.name = "l2_rate",
     .unit = "GB/s per SM",
     .help = "decode: reads of a cache that stays in L2",
     .start = 80,
     .low = 5,
     .high = 256},
    {.name = "l2_share",
     .unit = "1",
     .help = "decode: share of L2 that a cache may fill and stay",
     .start = 0.75,
     .low = 0.2,
     .high = 1.5},
    {.name = "tail",
     .unit = "us",
     .help = "decode: first and last thread blocks of a large call, when bandwidth idles",
     .start = 7,
     .low = 0.01,
     .high = 60},
    {.name = "tail_at",
     .unit = "of L2",
     .help = "decode: cache size at which half of the tail is there",
     .start = 0.6,
     .low = 0.05,
     .high = 4},
    {.name = "compute",
     .unit = "1",
     .help = "decode: share of the arithmetic peak",
     .start = 0.75,
     .low = 0.01,
     .high = 1},
    {.name = "padded_rows",
     .unit = "rows",
     .help = "decode: overhead of an entry in query rows: padding, conversion",
     .start = 16,
     .low = 0.1,
     .high = 256},
    {.name = "row",
     .unit = "ns",
     .help = "decode: a sequence and query head",
     .start = 1.2,
     .low = 0.01,
     .high = 40},
    {.name = "sequence",
     .unit = "ns",
     .help = "decode: a sequence",
     .start = 5,
     .low = 0.01,
     .high = 500},
    {.name = "prefill_fixed",
     .unit = "us",
     .help = "prefill: launches on the GPU",
     .start = 16,
     .low = 1,
     .high = 200},
    {.name = "prefill_compute",
     .unit = "1",
     .help = "prefill: share of the arithmetic peak",
     .start = 0.6,
     .low = 0.02,
     .high = 1.1},
    {.name = "passes",
     .unit = "1",
     .help = "prefill: number of HBM passes of queries, keys, values and outputs of all heads",
     .start = 1.5,
     .low = 0.1,
     .high = 20},
    {.name = "latent_passes",
     .unit = "1",
     .help = "prefill: number of HBM passes of a token's latent",
     .start = 3,
     .low = 0.1,
     .high = 60},
    {.name = "short_passes",
     .unit = "1",
     .help = "prefill: additional passes for sequences below short_below",
     .start = 0.2,
     .low = 0.001,
     .high = 20},
    {.name = "short_below",
     .unit = "tokens",
     .help = "prefill: length at which half of short_passes remains",
     .start = 500,
     .low = 100,
     .high = 2000},
}};

/// Start values for a stack timed outside CUDA graphs.
constexpr auto kStarts = [] {
  std::array<double, kCount> start{};
  for (std::size_t i = 0; i < kCount; ++i) start[i] = kCoefficients[i].start;
  start[kHost] = 150;
  return start;
}();

double square(double x) { return x * x; }
double fourth(double x) { return square(square(x)); }
double round_max(double a, double b) { return std::sqrt(std::sqrt(fourth(a) + fourth(b))); }

/// Absorbed: every head reads the same latent, as in decode attention with one KV head.
double decode(const MlaCall& a, const KernelFormat& format, const KernelGpu& gpu, const double* c) {
  const double batch = std::max(1.0, a.batch);
  const double seq_len = std::max(1.0, a.seq_len);
  const double n = batch * std::max(1.0, a.heads / kGroupRows);
  const double tiles = std::ceil(seq_len / kTile);
  const double splits = std::clamp(gpu.sms / n, 1.0, std::max(1.0, std::min(c[kMaxSplits], tiles)));
  const double waves = std::max(1.0, n * splits / gpu.sms);
  const double latency = (c[kBlock] + tiles / splits * c[kTileTime]) * waves;

  const double bytes = batch * seq_len * (kRank + kRope) * format.stored_bytes;
  const double fill = square(fourth(std::min(bytes / (c[kL2Share] * gpu.l2), 1e4)));
  const double missed = square(fill) / (1 + square(fill));
  const double hbm = 1e-6 * c[kMemory] * gpu.bandwidth;  // bytes per µs
  const double l2 = std::max(hbm, 1e3 * c[kL2Rate] * gpu.sms);
  const double memory = bytes * (missed / hbm + (1 - missed) / l2);

  const double compute = 2e6 * batch * seq_len * (2 * kRank + kRope) * (a.heads + c[kPaddedRows]) /
                         (c[kCompute] * gpu.peak(format.compute));
  const double size = square(bytes / (c[kTailAt] * gpu.l2));
  return c[kFixed] + c[kSplit] * (1 - 1 / splits) + round_max(latency, round_max(memory, compute)) +
         c[kTail] * size / (1 + size) + 1e-3 * batch * (c[kRow] * a.heads + c[kSequence]);
}

/// Expanded to heads: streaming of inputs, intermediates and outputs, then causal attention.
double prefill(const MlaCall& a, const KernelFormat& format, const KernelGpu& gpu,
               const double* c) {
  const double batch = std::max(1.0, a.batch);
  const double seq_len = std::max(1.0, a.seq_len);
  const double tokens = batch * seq_len;
  // A prefix token moves half the bytes of a new token: its keys and values, but no query and
  // output.
  const double prefix = batch * a.prefix;
  const double flops = tokens * (2 * a.prefix + seq_len + 1) * a.heads * (2 * kHead + kRope);
  const double compute = 1e6 * flops / (c[kPrefillCompute] * gpu.peak(format.compute));
  const double shorter = c[kShortPasses] / (1 + square(fourth(seq_len / c[kShortBelow])));
  const double wide = a.heads * (2 * (kHead + kRope) + 2 * kHead) * (c[kPasses] + shorter);
  const double latent = (kRank + kRope) * c[kLatentPasses];
  const double moved = tokens * (wide + latent) + prefix * (wide / 2 + latent);
  const double stream = 1e6 * moved * format.operand_bytes / gpu.bandwidth;
  return c[kPrefillFixed] + compute + stream;
}

/// time = ⁴√(host⁴ + kernels⁴): a host with slow launches is a lower bound. Not modelled: the
/// projections around the core. There are no measurements of cached prefixes at prefill: a prefix
/// counts by its share of arithmetic and traffic.
double microseconds(const KernelCall& call, const KernelFormat& format, const KernelGpu& gpu,
                    const double* c) {
  const auto& a = std::get<MlaCall>(call);
  return round_max(c[kHost], a.decode ? decode(a, format, gpu, c) : prefill(a, format, gpu, c));
}

}  // namespace

const KernelForm& mla_form() {
  static constexpr KernelForm kForm{.id = "mla",
                                    .op = KernelOp::kMla,
                                    .coefficients = kCoefficients,
                                    .microseconds = microseconds,
                                    .starts = kStarts};
  return kForm;
}

}  // namespace kvsim
