#include <algorithm>
#include <array>
#include <cmath>
#include <variant>

#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/forms/tiles.hpp"

namespace kvsim {
namespace {

// Streaming kernels, one row per thread block: a few rows take as long as one, many are limited by
// bandwidth. Bytes served by the L2 cache move at its rate. PyTorch gathers up to 16 embeddings
// sequentially in one kernel, more than that in parallel.
enum C : std::size_t {
  kLaunch,  // five of them, one per kind, also for the next two
  kRow = 5,
  kBandwidth = 10,
  kCacheShare = 15,
  kCacheRate,
  kOverlap,
  kGather,
  kCount
};

constexpr std::array<Coefficient, kCount> kCoefficients{
    Coefficient{.name = "norm_launch",
                .unit = "us",
                .help = "launches of a norm",
                .start = 2,
                .low = 0.3,
                .high = 40},
    {.name = "rope_launch",
     .unit = "us",
     .help = "launches of a rotation",
     .start = 2,
     .low = 0.3,
     .high = 40},
    {.name = "activation_launch",
     .unit = "us",
     .help = "launches of an activation",
     .start = 2,
     .low = 0.3,
     .high = 40},
    {.name = "add_launch",
     .unit = "us",
     .help = "launches of an addition",
     .start = 1.5,
     .low = 0.3,
     .high = 40},
    {.name = "embedding_launch",
     .unit = "us",
     .help = "launches of an embedding",
     .start = 2,
     .low = 0.3,
     .high = 40},
    {.name = "norm_row",
     .unit = "us",
     .help = "one row of a norm, for each KiB",
     .start = 0.05,
     .low = 1e-4,
     .high = 2},
    {.name = "rope_row",
     .unit = "us",
     .help = "one row of a rotation, for each KiB",
     .start = 0.05,
     .low = 1e-4,
     .high = 2},
    {.name = "activation_row",
     .unit = "us",
     .help = "one row of an activation, for each KiB",
     .start = 0.05,
     .low = 1e-4,
     .high = 2},
    {.name = "add_row",
     .unit = "us",
     .help = "one row of an addition, for each KiB",
     .start = 0.01,
     .low = 1e-4,
     .high = 2},
    {.name = "embedding_row",
     .unit = "us",
     .help = "one row of an embedding, for each KiB",
     .start = 0.01,
     .low = 1e-4,
     .high = 2},
    {.name = "norm_bandwidth",
     .unit = "1",
     .help = "share of the HBM bandwidth of a norm",
     .start = 0.7,
     .low = 0.02,
     .high = 1.2,
     .carries = ScalingRule::kHbmShare},
    {.name = "rope_bandwidth",
     .unit = "1",
     .help = "share of the HBM bandwidth of a rotation",
     .start = 0.7,
     .low = 0.02,
     .high = 1.2,
     .carries = ScalingRule::kHbmShare},
    {.name = "activation_bandwidth",
     .unit = "1",
     .help = "share of the HBM bandwidth of an activation",
     .start = 0.7,
     .low = 0.02,
     .high = 1.2,
     .carries = ScalingRule::kHbmShare},
    {.name = "add_bandwidth",
     .unit = "1",
     .help = "share of the HBM bandwidth of an addition",
     .start = 0.8,
     .low = 0.02,
     .high = 1.2,
     .carries = ScalingRule::kHbmShare},
    {.name = "embedding_bandwidth",
     .unit = "1",
     .help = "share of the HBM bandwidth of an embedding",
     .start = 0.7,
     .low = 0.02,
     .high = 1.2,
     .carries = ScalingRule::kHbmShare},
    {.name = "cache_share",
     .unit = "1",
     .help = "part of the L2 cache that absorbs traffic",
     .start = 0.5,
     .low = 0.01,
     .high = 2},
    {.name = "cache_rate",
     .unit = "1",
     .help = "rate of that traffic relative to the HBM bandwidth",
     .start = 2,
     .low = 1,
     .high = 6},
    {.name = "overlap",
     .unit = "1",
     .help = "norm that combines the times of a row and of the traffic",
     .start = 3,
     .low = 1.2,
     .high = 16},
    {.name = "gather",
     .unit = "us",
     .help = "a row of an embedding of at most 16",
     .start = 0.6,
     .low = 0.001,
     .high = 3}};

constexpr double kGatheredRows = 16;

std::size_t place_of(ElementwiseKind kind) {
  switch (kind) {
    case ElementwiseKind::kNorm:
      return 0;
    case ElementwiseKind::kRope:
      return 1;
    case ElementwiseKind::kActivation:
      return 2;
    case ElementwiseKind::kEmbedding:
      return 4;
    case ElementwiseKind::kAdd:
    case ElementwiseKind::kOther:
      break;
  }
  return 3;
}

double microseconds(const KernelCall& any, const KernelFormat&, const KernelGpu& gpu,
                    const double* c) {
  const auto& call = std::get<ElementwiseCall>(any);
  const std::size_t kind = place_of(call.kind);
  const double bytes = call.bytes_read + call.bytes_written;
  const double bandwidth = gpu.bandwidth * 1e-6 * c[kBandwidth + kind];
  const double cached = std::min(bytes, gpu.l2 * c[kCacheShare]);
  const double traffic = (bytes - cached + cached / c[kCacheRate]) / bandwidth;
  const double row = c[kRow + kind] * bytes / (1024 * std::max(1.0, call.rows));
  double us = tiles::overlap(row, traffic, c[kOverlap]);
  if (call.kind == ElementwiseKind::kEmbedding && call.rows <= kGatheredRows) {
    us = std::max(us, c[kGather] * call.rows);
  }
  return call.kernels * c[kLaunch + kind] + us;
}

}  // namespace

const KernelForm& elementwise_form() {
  static constexpr KernelForm kForm{.id = "elementwise",
                                    .op = KernelOp::kElementwise,
                                    .coefficients = kCoefficients,
                                    .microseconds = microseconds};
  return kForm;
}

}  // namespace kvsim
