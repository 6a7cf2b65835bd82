#include <algorithm>
#include <array>
#include <cmath>
#include <variant>

#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/forms/tiles.hpp"

namespace kvsim {
namespace {

using tiles::kStep;
using tiles::Tile;

// One product per expert, all in one kernel (DeepGEMM): tiles as in a plain product, with each
// expert's rows padded to the tile's height.
enum C : std::size_t {
  kLaunch,
  kArithmetic,
  kTileEdge,
  kTileLatency,
  kStepLatency,
  kMemory,
  kSmBandwidth,
  kOverlap,
  kWaveOverlap,
  kPromotion,
  kMasked,
  kCount
};

constexpr std::array<Coefficient, kCount> kCoefficients{
    Coefficient{.name = "launch",
                .unit = "us",
                .help = "launch and set-up",
                .start = 4,
                .low = 0.3,
                .high = 30},
    {.name = "arithmetic",
     .unit = "1",
     .help = "share of the arithmetic peak inside a large tile",
     .start = 0.85,
     .low = 0.2,
     .high = 1},
    {.name = "tile_edge",
     .unit = "elements",
     .help = "edge of a tile at which loads into registers cost as much as its arithmetic",
     .start = 5,
     .low = 0.1,
     .high = 300},
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
     .start = 0.7,
     .low = 0.1,
     .high = 1,
     .carries = ScalingRule::kHbmShare},
    {.name = "sm_bandwidth",
     .unit = "1",
     .help = "maximum load rate of one SM, relative to its even share of the HBM bandwidth",
     .start = 3,
     .low = 0.2,
     .high = 20,
     .carries = ScalingRule::kSmRate},
    {.name = "overlap",
     .unit = "1",
     .help =
         "norm that combines arithmetic and HBM times: 1 is their sum, a large one their maximum",
     .start = 4,
     .low = 1.2,
     .high = 16},
    {.name = "wave_overlap",
     .unit = "1",
     .help = "share of an unfilled last turn that is saved",
     .start = 0.4,
     .low = 0.01,
     .high = 1},
    {.name = "promotion",
     .unit = "1",
     .help = "fp32 additions of block-scaled partial sums that the tensor cores wait for",
     .start = 1,
     .low = 0.01,
     .high = 5},
    {.name = "masked",
     .unit = "1",
     .help = "time of the masked layout relative to the contiguous one",
     .start = 1,
     .low = 0.5,
     .high = 2}};

constexpr std::array<Tile, 4> kTiles{{{64, 64}, {64, 128}, {128, 128}, {128, 64}}};

double microseconds(const KernelCall& any, const KernelFormat& format, const KernelGpu& gpu,
                    const double* c) {
  const auto& call = std::get<GroupedGemmCall>(any);
  const tiles::Machine machine = tiles::machine_of(gpu, format);
  const double operand = tiles::operand_bytes(format);
  const double even = machine.bandwidth / machine.sms;
  const double rows = call.rows / call.experts;  // per expert
  const double visited = std::min(1.0, rows) * call.experts;
  const double memory = (visited * call.n * call.k * format.stored_bytes +
                         call.rows * (call.k * operand + 2 * call.n)) /
                        (machine.bandwidth * c[kMemory]);
  const double steps = tiles::whole(call.k / kStep);
  double best = 0;
  for (std::size_t i = 0; i < kTiles.size(); ++i) {
    const Tile tile = kTiles[i];
    const double area = tile.m * tile.n;
    double step =
        2 * kStep * (area + c[kTileEdge] * (tile.m + tile.n)) / (machine.flops * c[kArithmetic]);
    if (format.block_scaled) step += c[kPromotion] * area / machine.fp32;
    const double load =
        kStep * (std::min(tile.m, std::max(1.0, rows)) * operand + tile.n * format.stored_bytes) /
        (even * c[kSmBandwidth]);
    step = std::max({step, c[kStepLatency], load});
    const double grid =
        visited * tiles::whole(std::max(1.0, rows) / tile.m) * tiles::whole(call.n / tile.n);
    const double us =
        tiles::waves(grid, machine.sms, c[kWaveOverlap]) * (steps * step + c[kTileLatency]);
    if (i == 0 || us < best) best = us;
  }
  const double us = tiles::overlap(best, memory, c[kOverlap]);
  return c[kLaunch] + (call.masked ? c[kMasked] * us : us);
}

}  // namespace

const KernelForm& grouped_gemm_form() {
  static constexpr KernelForm kForm{.id = "grouped-gemm",
                                    .op = KernelOp::kGroupedGemm,
                                    .coefficients = kCoefficients,
                                    .microseconds = microseconds};
  return kForm;
}

}  // namespace kvsim
