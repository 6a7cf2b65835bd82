#include <algorithm>
#include <array>
#include <cmath>

#include "models/cost/kernels/form.hpp"

namespace kvsim {
namespace {

/// Tokens per step of a thread block: 128 in FlashAttention-2 and -3 at a head width of 128, and
/// similar in FlashInfer and TensorRT-LLM's XQA.
constexpr double kTile = 128;
constexpr double kPage = 16;        // tokens: reads are whole multiples of these
constexpr double kGroupRows = 64;   // query rows of a group that share a thread block's MMA tile
constexpr double kHeadWidth = 128;  // head width of the tile and row times

/// Names of the coefficients, in their order.
enum : std::size_t {
  kFixed,
  kFixedNarrow,
  kSplit,
  kRegroup,
  kBlock,
  kTileTime,
  kTileTimeNarrow,
  kResident,
  kMaxSplits,
  kMaxSplitsNarrow,
  kNarrowBelow,
  kPlannedHeads,
  kMemory,
  kL2Rate,
  kL2Share,
  kTail,
  kTailAt,
  kCompute,
  kPaddedRows,
  kRow,
  kHead,
  kCount
};

constexpr std::array<Coefficient, kCount> kCoefficients{{
    {.name = "fixed",
     .unit = "us",
     .help = "launches: the write of the new token, the scheduler's metadata, the kernel",
     .start = 8,
     .low = 1,
     .high = 40},
    {.name = "fixed_narrow",
     .unit = "us",
     .help = "the same of the kernel for one query head a KV head and for little work",
     .start = 8,
     .low = 1,
     .high = 40},
    {.name = "split",
     .unit = "us",
     .help = "the kernel that combines splits of one sequence",
     .start = 3,
     .low = 0.01,
     .high = 20},
    {.name = "regroup",
     .unit = "us",
     .help = "copies that put the query heads of a group next to each other (FlashAttention-2)",
     .start = 0.1,
     .low = 0.001,
     .high = 15},
    {.name = "block",
     .unit = "us",
     .help = "start and end of a thread block",
     .start = 1,
     .low = 0.02,
     .high = 20},
    {.name = "tile",
     .unit = "us",
     .help = "a thread block's step over 128 tokens of width 128, when nothing else holds it up",
     .start = 1.2,
     .low = 0.04,
     .high = 20},
    {.name = "tile_narrow",
     .unit = "us",
     .help = "the same of the narrow kernel",
     .start = 1.2,
     .low = 0.04,
     .high = 20},
    {.name = "resident",
     .unit = "blocks per SM",
     .help = "thread blocks that run simultaneously",
     .start = 1,
     .low = 0.5,
     .high = 2.5},
    {.name = "max_splits",
     .unit = "1",
     .help = "most splits of one sequence",
     .start = 32,
     .low = 1,
     .high = 256},
    {.name = "max_splits_narrow",
     .unit = "1",
     .help = "the same of the narrow kernel",
     .start = 32,
     .low = 1,
     .high = 256},
    {.name = "narrow_below",
     .unit = "tiles per SM",
     .help = "work below which the narrow kernel serves groups too",
     .start = 0.02,
     .low = 0.001,
     .high = 3},
    {.name = "planned_heads",
     .unit = "1",
     .help = "number of KV heads for which splits are planned if a call has fewer",
     .start = 1.5,
     .low = 1,
     .high = 32},
    {.name = "memory",
     .unit = "1",
     .help = "share of the HBM bandwidth",
     .start = 0.93,
     .low = 0.3,
     .high = 1,
     .carries = ScalingRule::kHbmShare},
    {.name = "l2_rate",
     .unit = "GB/s per SM",
     .help = "reads of a cache that stays in L2",
     .start = 70,
     .low = 5,
     .high = 256},
    {.name = "l2_share",
     .unit = "1",
     .help = "share of L2 that a cache may fill and stay",
     .start = 0.75,
     .low = 0.2,
     .high = 1.5},
    {.name = "tail",
     .unit = "us",
     .help = "first and last thread blocks of a large call, when bandwidth idles",
     .start = 5,
     .low = 0.01,
     .high = 40},
    {.name = "tail_at",
     .unit = "of L2",
     .help = "cache size at which half of the tail is there",
     .start = 0.9,
     .low = 0.05,
     .high = 4},
    {.name = "compute",
     .unit = "1",
     .help = "share of the arithmetic peak",
     .start = 0.5,
     .low = 0.02,
     .high = 1},
    {.name = "padded_rows",
     .unit = "rows",
     .help = "overhead of a KV head in query rows: padding, conversion of the cache",
     .start = 8,
     .low = 0.1,
     .high = 256},
    {.name = "row",
     .unit = "ns",
     .help = "a sequence and query head of width 128",
     .start = 0.3,
     .low = 0.001,
     .high = 5},
    {.name = "head",
     .unit = "ns",
     .help = "a sequence and KV head",
     .start = 5,
     .low = 0.001,
     .high = 60},
}};

/// Existing kernels: one whose blocks share an SM in pairs, one that does not split a sequence when
/// query heads are not grouped (FlashAttention-2), one with a narrow kernel for little work
/// (TensorRT-LLM).
constexpr auto kStarts = [] {
  std::array<double, 4 * kCount> starts{};
  for (std::size_t i = 0; i < starts.size(); ++i) starts[i] = kCoefficients[i % kCount].start;
  const auto at = [&](std::size_t set, std::size_t i) -> double& {
    return starts[set * kCount + i];
  };
  at(0, kResident) = 1.9;
  at(0, kMaxSplits) = 8;
  at(0, kMaxSplitsNarrow) = 4;
  at(1, kMaxSplitsNarrow) = 1.5;
  at(2, kMaxSplits) = at(2, kMaxSplitsNarrow) = 8;
  at(2, kNarrowBelow) = 0.45;
  at(3, kResident) = 1.9;
  at(3, kNarrowBelow) = 0.45;
  return starts;
}();

double square(double x) { return x * x; }
double fourth(double x) { return square(square(x)); }

/// With n = batch × KV heads (× the groups of 64 query rows):
///
///   splits = number that fills the SMs: slots / n, from 1 to the tiles of a sequence or the
///            kernel's maximum
///   latency = (block + tile × tiles / splits) × waves of the SMs' slots + tile × (tiles of the
///             longest head - tiles) / splits
///   memory = bytes / HBM rate, or / L2 rate for the part that stays in L2 between calls
///   compute = (query rows + padding) × entries / peak
///   time = fixed + combining + regrouping + ⁴√(latency⁴ + memory⁴ + compute⁴) + tail + n × head +
///          query rows × row
///
/// The fourth root is a smooth maximum: the limits overlap, but not completely. Not modelled:
/// sliding windows, several query tokens per sequence, and imbalance between sequences (the mean
/// length is used).
double microseconds(const KernelCall& call, const KernelFormat& format, const KernelGpu& gpu,
                    const double* c) {
  const auto& a = std::get<DecodeAttentionCall>(call);
  const double heads = a.kv_heads;
  const double group = a.q_heads / heads;
  const double batch = std::max(1.0, a.batch);
  const double kv_len = std::max(1.0, a.kv_len);
  const double width = a.head_dim / kHeadWidth;
  const double wide_groups = std::max(1.0, group / kGroupRows);
  const double n = batch * heads * wide_groups;
  const double tiles = std::ceil(kv_len / kTile);
  // The thread blocks of the longest head finish last.
  const double longest = std::max(tiles, std::ceil(a.longest / kTile));

  double narrow = 1;
  if (group > 1) {
    narrow = 1 / (1 + square(fourth(n * tiles / (c[kNarrowBelow] * gpu.sms))));
  }
  const auto blend = [&](std::size_t wide, std::size_t other) {
    return c[wide] + (c[other] - c[wide]) * narrow;
  };
  const double slots = gpu.sms * c[kResident];
  const double planned = batch * std::max(heads, c[kPlannedHeads]) * wide_groups;
  const double max = std::max(1.0, std::min(blend(kMaxSplits, kMaxSplitsNarrow), longest));
  const double splits = std::clamp(slots / planned, 1.0, max);
  const double waves = std::max(1.0, n * splits / slots);
  const double tile = blend(kTileTime, kTileTimeNarrow) * width;
  const double latency =
      (c[kBlock] + tiles / splits * tile) * waves + (longest - tiles) / splits * tile;

  const double pages = std::ceil(kv_len / kPage) * kPage;
  const double bytes = 2 * batch * heads * pages * a.head_dim * format.stored_bytes;
  // Steep: a sequentially read cache either stays in L2 or evicts itself.
  const double fill = square(fourth(std::min(bytes / (c[kL2Share] * gpu.l2), 1e4)));
  const double missed = square(fill) / (1 + square(fill));
  const double hbm = 1e-6 * c[kMemory] * gpu.bandwidth;  // bytes per µs
  const double l2 = std::max(hbm, 1e3 * c[kL2Rate] * gpu.sms);
  const double memory = bytes * (missed / hbm + (1 - missed) / l2);

  const double compute = 4e6 * batch * kv_len * a.head_dim * (a.q_heads + c[kPaddedRows] * heads) /
                         (c[kCompute] * gpu.peak(format.compute));

  const double limits = std::sqrt(std::sqrt(fourth(latency) + fourth(memory) + fourth(compute)));
  const double size = square(bytes / (c[kTailAt] * gpu.l2));
  double time = blend(kFixed, kFixedNarrow) + c[kSplit] * (1 - 1 / splits) + limits +
                c[kTail] * size / (1 + size) +
                1e-3 * batch * (c[kRow] * a.q_heads * width + c[kHead] * heads);
  if (group > 1) time += c[kRegroup] * (1 - 1 / std::min(batch, heads));
  return time;
}

}  // namespace

const KernelForm& decode_attention_form() {
  static constexpr KernelForm kForm{.id = "decode-attention",
                                    .op = KernelOp::kDecodeAttention,
                                    .coefficients = kCoefficients,
                                    .microseconds = microseconds,
                                    .starts = kStarts};
  return kForm;
}

}  // namespace kvsim
