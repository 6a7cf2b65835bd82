#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <variant>

#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/forms/tiles.hpp"

namespace kvsim {
namespace {

using tiles::kStep;
using tiles::Tile;

// A product y[m, n] = x[m, k] w[n, k] is divided into output tiles, one per thread block; blocks
// run in waves over the SMs. A block iterates over k in steps of 64; a step takes as long as the
// slowest of its arithmetic, its loads and the latency of one step. Reading every operand once from
// HBM overlaps with all of it. If the tiles do not fill the GPU, k is split among blocks and their
// sums are reduced afterwards. The library uses the fastest of its tile shapes ("adaptive",
// cuBLAS), or one chosen only by the number of rows ("dispatched", the fp8 kernels of vLLM and
// SGLang); `dispatch` is the share of the second. fp8 kernels with block scales add each step's
// partial sums in fp32 outside the tensor cores, which matters if the tensor cores are fast but not
// if they are slow (H20). Long kernels reach the power limit: `throttle`.
enum C : std::size_t {
  kLaunch,
  kArithmetic,
  kTileBandwidth,
  kTileLatency,
  kStepLatency,
  kMemory,
  kSmBandwidth,
  kSplitLatency,
  kSplitBandwidth,
  kOverlap,
  kThrottle,
  kThrottleTime,
  kEpilogue,
  kWaveOverlap,
  kDispatch,
  kQuantiseLatency,
  kQuantiseRow,
  kQuantiseBandwidth,
  kPromotion,
  kCount
};

constexpr std::array<Coefficient, kCount> kCoefficients{
    Coefficient{.name = "launch",
                .unit = "us",
                .help = "launch and set-up",
                .start = 2.5,
                .low = 0.3,
                .high = 20},
    {.name = "arithmetic",
     .unit = "1",
     .help = "share of the arithmetic peak inside a large tile",
     .start = 0.9,
     .low = 0.2,
     .high = 1},
    {.name = "tile_bandwidth",
     .unit = "bytes/flop",
     .help = "rate at which an SM loads tiles, relative to its fp32 rate",
     .start = 3,
     .low = 0.05,
     .high = 50},
    {.name = "tile_latency",
     .unit = "us",
     .help = "start and end of a tile",
     .start = 0.5,
     .low = 0.01,
     .high = 10},
    {.name = "step_latency",
     .unit = "us",
     .help = "least time of 64 elements of k",
     .start = 0.1,
     .low = 0.005,
     .high = 2},
    {.name = "memory",
     .unit = "1",
     .help = "share of the HBM bandwidth",
     .start = 0.82,
     .low = 0.2,
     .high = 1,
     .carries = ScalingRule::kHbmShare},
    {.name = "sm_bandwidth",
     .unit = "1",
     .help = "maximum load rate of one SM, relative to its even share of the HBM bandwidth",
     .start = 4,
     .low = 0.5,
     .high = 20,
     .carries = ScalingRule::kSmRate},
    {.name = "split_latency",
     .unit = "us",
     .help = "reduction after a split of k",
     .start = 2,
     .low = 0.1,
     .high = 10},
    {.name = "split_bandwidth",
     .unit = "1",
     .help = "rate of that reduction over the HBM bandwidth",
     .start = 1.2,
     .low = 0.1,
     .high = 4},
    {.name = "overlap",
     .unit = "1",
     .help =
         "norm that combines arithmetic and HBM times: 1 is their sum, a large one their maximum",
     .start = 4,
     .low = 1.2,
     .high = 16},
    {.name = "throttle",
     .unit = "1",
     .help = "arithmetic time added by the power limit, at the rate an SM of the H100 has",
     .start = 0.2,
     .low = 0.001,
     .high = 1.2},
    {.name = "throttle_time",
     .unit = "us",
     .help = "kernel time at which half of it applies",
     .start = 3000,
     .low = 200,
     .high = 20000},
    {.name = "epilogue",
     .unit = "1",
     .help = "writing a tile, over its SM's even share of the HBM bandwidth",
     .start = 0.7,
     .low = 0.001,
     .high = 10},
    {.name = "wave_overlap",
     .unit = "1",
     .help = "share of an unfilled last turn that is saved",
     .start = 0.3,
     .low = 0.01,
     .high = 1},
    {.name = "dispatch",
     .unit = "1",
     .help = "share of tiles chosen only by the number of rows",
     .start = 0.1,
     .low = 0.001,
     .high = 1},
    {.name = "quantise_latency",
     .unit = "us",
     .help = "launch of the activations' quantisation",
     .start = 2,
     .low = 0.05,
     .high = 10},
    {.name = "quantise_row",
     .unit = "us",
     .help = "quantisation of a row, independent of its length",
     .start = 1e-3,
     .low = 1e-5,
     .high = 0.1},
    {.name = "quantise_bandwidth",
     .unit = "1",
     .help = "share of the HBM bandwidth while quantising",
     .start = 0.45,
     .low = 0.05,
     .high = 2},
    {.name = "promotion",
     .unit = "1",
     .help = "fp32 additions of block-scaled partial sums that the tensor cores wait for",
     .start = 1,
     .low = 0.01,
     .high = 5}};

constexpr std::array<Tile, 7> kTiles{
    {{64, 64}, {128, 64}, {128, 128}, {256, 128}, {128, 256}, {16, 64}, {32, 64}}};
constexpr double kDepth = 32;  // elements of k; a block iterates over multiples of this
constexpr double kMaxSplits = 64;
constexpr double kMinSplitDepth = 256;  // minimum elements of k per split
// The rate of an H100 SM that `throttle` refers to: 989.4 TFLOP/s in 16 bit over 132.
constexpr double kThrottleFlops = 7.5e12;

bool is_fp8(Dtype dtype) { return dtype == Dtype::kFp8E4m3 || dtype == Dtype::kFp8E5m2; }

Tile dispatched(double m) {
  return m <= 64 ? Tile{64, 64} : m <= 128 ? Tile{64, 128} : Tile{128, 128};
}

/// All values of a call that do not depend on the tile. Rates are stored as times, since division
/// is slow.
struct Problem {
  double m, n, k;
  double sms;
  const double* c;
  bool block_scaled;
  double element_us;      // arithmetic of one step, per element of the tile
  double row_us;          // loading one row or column of the tile, per step
  double row_load_us;     // loading a row of activations, per step
  double column_load_us;  // loading a column of weights, per step
  double write_us;        // writing an element
  double memory_us;       // every operand once
  double partial_sum_us;  // reducing an element, per part of k
  double depth;           // whole steps of kDepth in k, if it is not split

  /// Returns the time of `grid` tiles that iterate over `turns` steps of k in `splits` parts.
  [[nodiscard]] double tiles_us(Tile tile, double grid, double splits, double turns) const {
    const double area = tile.m * tile.n;
    const double m_used = std::min(tile.m, m);
    const double n_used = std::min(tile.n, n);
    const double step = std::max({area * element_us + (tile.m + tile.n) * row_us, c[kStepLatency],
                                  m_used * row_load_us + n_used * column_load_us});
    return tiles::waves(grid * splits, sms, c[kWaveOverlap]) *
           (turns * (kDepth / kStep) * step + c[kTileLatency] + m_used * n_used * write_us);
  }
  [[nodiscard]] double adaptive() const;
  [[nodiscard]] double by_rows() const {
    const Tile tile = dispatched(m);
    const double grid = tiles::whole(m / tile.m) * tiles::whole(n / tile.n);
    return tiles::overlap(tiles_us(tile, grid, 1, depth), memory_us, c[kOverlap]);
  }
};

double Problem::adaptive() const {
  double best = 0, best_tiles = 0, best_extra = 0;
  bool first = true;
  const auto offer = [&](double tiles, double extra) {
    const double cost = std::max(tiles, memory_us) + extra;
    if (first || cost < best || (cost == best && tiles < best_tiles)) {
      first = false;
      best = cost;
      best_tiles = tiles;
      best_extra = extra;
    }
  };
  for (const Tile& tile : kTiles) {
    const double grid = tiles::whole(m / tile.m) * tiles::whole(n / tile.n);
    offer(tiles_us(tile, grid, 1, depth), 0);
    if (block_scaled || 2 * grid > sms || k < 2 * kMinSplitDepth) continue;
    const double max = std::min({sms / grid, kMaxSplits, k / kMinSplitDepth});
    const auto splits = static_cast<double>(static_cast<std::int64_t>(max));
    offer(tiles_us(tile, grid, splits, tiles::whole(k / (splits * kDepth))),
          c[kSplitLatency] + m * n * (4 * splits + 2) * partial_sum_us);
  }
  return tiles::overlap(best_tiles, memory_us, c[kOverlap]) + best_extra;
}

double microseconds(const KernelCall& any, const KernelFormat& format, const KernelGpu& gpu,
                    const double* c) {
  const auto& call = std::get<GemmCall>(any);
  const tiles::Machine machine = tiles::machine_of(gpu, format);
  const double bandwidth = machine.bandwidth;
  const double even = bandwidth / machine.sms;
  const double operand = tiles::operand_bytes(format);
  // Promotion of block-scaled sums takes one addition per 128 of k.
  const double promotion = format.block_scaled ? c[kPromotion] / machine.fp32 : 0;
  const double load = kStep / (even * c[kSmBandwidth]);
  const double bytes =
      call.n * call.k * format.stored_bytes + call.m * call.k * operand + 2 * call.m * call.n;
  const Problem product{.m = call.m,
                        .n = call.n,
                        .k = call.k,
                        .sms = machine.sms,
                        .c = c,
                        .block_scaled = format.block_scaled,
                        .element_us = 2 * kStep / (machine.flops * c[kArithmetic]) + promotion,
                        .row_us = kStep * operand / (machine.fp32 * c[kTileBandwidth]),
                        .row_load_us = operand * load,
                        .column_load_us = format.stored_bytes * load,
                        .write_us = 2 * c[kEpilogue] / even,
                        .memory_us = bytes / (bandwidth * c[kMemory]),
                        .partial_sum_us = 1 / (bandwidth * c[kSplitBandwidth]),
                        .depth = tiles::whole(call.k / kDepth)};
  // Kernels with block scales try every shape and never split k (DeepGEMM). Products of up to 4
  // rows with integer weights use kernels outside the tensor cores, which do split k
  // (TensorRT-LLM).
  const bool vector = call.m <= 4 && !is_fp8(format.compute);
  const double dispatch = format.block_scaled || vector ? 0 : c[kDispatch];
  double us = dispatch < 1 ? (1 - dispatch) * product.adaptive() : 0;
  if (dispatch > 0.002) us += dispatch * product.by_rows();
  const double ideal = 2 * call.m * call.n * call.k / (machine.flops * gpu.sms);
  const double density = gpu.peak(Dtype::kBf16) / (gpu.sms * kThrottleFlops);
  us += c[kThrottle] * density * ideal * us / (us + c[kThrottleTime]);
  us += c[kLaunch];
  if (format.quantises) {
    // Reads 16 bit, writes 8, and reads again for the scale if rows do not fit in an SM.
    us += c[kQuantiseLatency] + call.m * c[kQuantiseRow] +
          3 * call.m * call.k / (bandwidth * c[kQuantiseBandwidth]);
  }
  return us;
}

}  // namespace

const KernelForm& gemm_form() {
  static constexpr KernelForm kForm{.id = "gemm",
                                    .op = KernelOp::kGemm,
                                    .coefficients = kCoefficients,
                                    .microseconds = microseconds};
  return kForm;
}

}  // namespace kvsim
