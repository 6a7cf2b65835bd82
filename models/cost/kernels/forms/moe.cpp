#include <algorithm>
#include <array>
#include <cmath>
#include <variant>

#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/forms/moe_loads.hpp"
#include "models/cost/kernels/forms/tiles.hpp"

namespace kvsim {
namespace {

using moe::Loads;
using moe::loads_of;
using moe::tiles_high;
using tiles::kStep;
using tiles::Tile;

// A layer's routed experts: rows are grouped by expert, followed by two grouped products (gate with
// up, then down) with the activation between them, and the weighted sum of each token's rows. An
// expert's rows are padded to the tile's height: small batches pay one tile per expert and the
// reading of its weights, large ones pay arithmetic. With expert parallelism the time is that of
// the most loaded GPU; kernels that receive the rows of all experts skip those of other GPUs at a
// cost: `remote`.
enum C : std::size_t {
  kLaunch,
  kArithmetic,
  kTileEdge,
  kTileLatency,
  kStepLatency,
  kMemory,
  kSmBandwidth,
  kStream,
  kOverlap,
  kWaveOverlap,
  kRemote,
  kToken,
  kImbalance,
  kCount
};

constexpr std::array<Coefficient, kCount> kCoefficients{
    Coefficient{.name = "launch",
                .unit = "us",
                .help = "launches, sorting rows by expert",
                .start = 20,
                .low = 2,
                .high = 150},
    {.name = "arithmetic",
     .unit = "1",
     .help = "share of the arithmetic peak inside a large tile",
     .start = 0.7,
     .low = 0.05,
     .high = 1},
    {.name = "tile_edge",
     .unit = "elements",
     .help = "edge of a tile at which loads into registers cost as much as its arithmetic",
     .start = 10,
     .low = 0.1,
     .high = 300},
    {.name = "tile_latency",
     .unit = "us",
     .help = "start and end of a tile",
     .start = 0.5,
     .low = 0.001,
     .high = 30},
    {.name = "step_latency",
     .unit = "us",
     .help = "least time of 64 elements of k",
     .start = 0.1,
     .low = 0.005,
     .high = 4},
    {.name = "memory",
     .unit = "1",
     .help = "share of the HBM bandwidth",
     .start = 0.8,
     .low = 0.05,
     .high = 1,
     .carries = ScalingRule::kHbmShare},
    {.name = "sm_bandwidth",
     .unit = "1",
     .help = "maximum load rate of one SM, relative to its even share of the HBM bandwidth",
     .start = 3,
     .low = 0.1,
     .high = 20,
     .carries = ScalingRule::kSmRate},
    {.name = "stream",
     .unit = "1",
     .help = "share of the HBM bandwidth of the activation and the weighted sum",
     .start = 0.6,
     .low = 0.02,
     .high = 3},
    {.name = "overlap",
     .unit = "1",
     .help =
         "norm that combines arithmetic and HBM times: 1 is their sum, a large one their maximum",
     .start = 3,
     .low = 1.2,
     .high = 16},
    {.name = "wave_overlap",
     .unit = "1",
     .help = "share of an unfilled last turn that is saved",
     .start = 0.4,
     .low = 0.01,
     .high = 1},
    {.name = "remote",
     .unit = "1",
     .help = "cost of a row of another GPU's expert, relative to one of this GPU's",
     .start = 0.15,
     .low = 0.001,
     .high = 1},
    {.name = "token",
     .unit = "us",
     .help = "routing and reordering of a token",
     .start = 0.003,
     .low = 1e-5,
     .high = 0.05},
    {.name = "imbalance",
     .unit = "1",
     .help = "excess of the busiest GPU's rows, in deviations of their number",
     .start = 1.4,
     .low = 0.05,
     .high = 8}};

constexpr std::array<Tile, 6> kTiles{
    {{16, 128}, {32, 128}, {64, 128}, {128, 128}, {64, 64}, {128, 256}}};
double microseconds(const KernelCall& any, const KernelFormat& format, const KernelGpu& gpu,
                    const double* c) {
  const auto& call = std::get<MoeCall>(any);
  const tiles::Machine machine = tiles::machine_of(gpu, format);
  const Loads loads = loads_of(call, c[kImbalance]);
  const double local = call.experts / call.ep;
  const double inter = call.inter / call.tp;
  const double rows = call.tokens * call.top_k;
  const double remote = c[kRemote] * rows * (1 - 1 / call.ep);
  const double operand = tiles::operand_bytes(format);
  const double even = machine.bandwidth / machine.sms;
  std::array<double, kTiles.size()> high{}, step{};
  for (std::size_t i = 0; i < kTiles.size(); ++i) {
    const Tile tile = kTiles[i];
    high[i] = local * tiles_high(loads, tile.m) + remote / tile.m;
    // An expert's rows fill about half a tile: the other rows are not read.
    step[i] = std::max(
        {2 * kStep * (tile.m * tile.n + c[kTileEdge] * (tile.m + tile.n)) /
             (machine.flops * c[kArithmetic]),
         c[kStepLatency],
         kStep * (tile.m * operand / 2 + tile.n * format.stored_bytes) / (even * c[kSmBandwidth])});
  }
  const auto product = [&](double n, double k) {
    const double bytes = local * (loads.mean_visited * n * k * format.stored_bytes +
                                  loads.mean * (k * operand + 2 * n));
    const double steps = tiles::whole(k / kStep);
    double best = 0;
    for (std::size_t i = 0; i < kTiles.size(); ++i) {
      const double us =
          tiles::waves(high[i] * tiles::whole(n / kTiles[i].n), machine.sms, c[kWaveOverlap]) *
          (steps * step[i] + c[kTileLatency]);
      if (i == 0 || us < best) best = us;
    }
    return tiles::overlap(best, bytes / (machine.bandwidth * c[kMemory]), c[kOverlap]);
  };
  // The activation reads gate and up and writes one tensor; the sum reads every row and writes a
  // token.
  const double stream =
      rows / call.ep * (6 * inter + 2 * call.hidden) + 2 * call.tokens * call.hidden;
  return c[kLaunch] + product(2 * inter, call.hidden) + product(call.hidden, inter) +
         stream / (machine.bandwidth * c[kStream]) + call.tokens * c[kToken];
}

}  // namespace

const KernelForm& moe_form() {
  static constexpr KernelForm kForm{.id = "moe",
                                    .op = KernelOp::kMoe,
                                    .coefficients = kCoefficients,
                                    .microseconds = microseconds};
  return kForm;
}

}  // namespace kvsim
