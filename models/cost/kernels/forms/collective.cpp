#include <algorithm>
#include <array>
#include <cmath>

#include "models/cost/kernels/form.hpp"

namespace kvsim {
namespace {

enum Index : std::size_t {
  kBaseUs,
  kMinUs,
  kLlStepUs,
  kLl128StepUs,
  kSimpleStepUs,
  kSimpleUs,
  kLlShare,
  kLl128Share,
  kSimpleShare,
  kOwnShard,
  kPeerUs,
  kSwitchUs,
  kSwitchShare,
  kOneShotUs,
  kOneShotShare,
  kTwoShotUs,
  kTwoShotShare,
  kSyncUs,
  kShotLimit,
  kNetworkUs,
  kNetworkGbps,
  kPcieSharing,
  kCount
};

constexpr std::array<Coefficient, kCount> kCoefficients{{
    {"base_us", "us", "launch and first step of a ring", 5, 0.3, 60},
    {"least_us", "us", "minimum of any call: time of the host to launch it", 3, 0.3, 100},
    {"ll_step_us", "us", "a step of a ring, low-latency protocol", 0.9, 0.05, 10},
    {"ll128_step_us", "us", "the same, protocol of 128-byte lines", 1.2, 0.05, 20},
    {"simple_step_us", "us", "the same, protocol of plain buffers", 4, 0.05, 100},
    {"simple_us", "us", "one-time cost of filling its buffers", 10, 0.1, 300},
    {"ll_share", "1", "of the link's rate, low-latency protocol", 0.03, 0.001, 1},
    {"ll128_share", "1", "the same, protocol of 128-byte lines", 0.4, 0.02, 1.2},
    {"simple_share", "1", "the same, protocol of plain buffers", 0.75, 0.02, 1.2},
    {"own_shard", "1", "weight of a GPU's own shard relative to the bytes of its link", 0.3, 0, 2},
    {"peer_us", "us", "each further peer of an all-to-all", 0.5, 0.01, 10},
    {"switch_us", "us", "of an all-reduce inside the switch", 60, 1, 300},
    {"switch_share", "1", "of the link's rate there", 0.6, 0.05, 1.2},
    {"one_shot_us", "us", "of a one-shot all-reduce: every GPU reads all others", 6, 0.3, 100},
    {"one_shot_share", "1", "of the link's rate there", 0.4, 0.02, 1.2},
    {"two_shot_us", "us", "of a two-shot one: scatter, then gather", 12, 0.5, 150},
    {"two_shot_share", "1", "of the link's rate there", 0.45, 0.02, 1.2},
    {"sync_us", "us", "each further peer at their barriers", 0.15, 0.005, 4},
    {"shot_limit_mb", "MB", "size above which frameworks leave an all-reduce to NCCL", 64, 0.1,
     2000},
    {"network_us", "us", "crossing between nodes", 8, 0.3, 100},
    {"network_gbps", "GB/s", "between nodes, per GPU of a node", 6, 0.2, 100},
    {"pcie_sharing", "1", "exponent of how GPUs share PCIe: 1 is one root for all", 1.5, 0, 3},
}};

/// A limit has no effect far below it: fits also start from limits of 1.5 and 6 MB.
constexpr std::array<double, 2 * kCount> kStarts = [] {
  std::array<double, 2 * kCount> out{};
  for (std::size_t i = 0; i < kCount; ++i) out[i] = out[kCount + i] = kCoefficients[i].start;
  out[kShotLimit] = 1.5;
  out[kCount + kShotLimit] = 6;
  return out;
}();

double squared(double x) { return x * x; }
double eighth_power(double x) { return squared(squared(squared(x))); }
double eighth_root(double x) { return std::sqrt(std::sqrt(std::sqrt(x))); }

/// The library uses the fastest of its algorithms; near a switch its choice is not always optimal,
/// so the minimum is smoothed.
class Quickest {
 public:
  void offer(double us) { us_[static_cast<std::size_t>(n_++)] = us; }
  [[nodiscard]] double us() const {
    const double min = *std::min_element(us_.begin(), us_.begin() + n_);
    double sum = 0;
    for (std::ptrdiff_t i = 0; i < n_; ++i) {
      sum += eighth_power(min / us_[static_cast<std::size_t>(i)]);
    }
    return min / eighth_root(sum);
  }

 private:
  std::array<double, 6> us_{};
  std::ptrdiff_t n_ = 0;
};

/// Returns the minimum of: rings with NCCL's three protocols (latency per step, and a fraction of
/// the link rate); for all-reduce also the reduction in an NVLink switch (since Hopper), and the
/// one- and two-shot kernels of serving frameworks. Between nodes only rings, at the network's
/// rate.
double microseconds(const KernelCall& any, const KernelFormat&, const KernelGpu& gpu,
                    const double* c) {
  const auto& call = std::get<CollectiveCall>(any);
  const double gpus = call.gpus;
  const double node = std::clamp(call.gpus_per_node, 1.0, gpus);
  const bool one_node = gpus <= node;
  // Bytes per µs.
  const bool nvlink = gpu.nvlink > 0 && gpus <= gpu.nvlink_gpus;
  const double link =
      nvlink ? gpu.nvlink / 2e6
             : gpu.pcie / 1e6 * std::exp2(-c[kPcieSharing] * (std::log2(std::max(2.0, node)) - 1));
  const bool all_reduce = call.kind == CollectiveKind::kAllReduce;

  double steps = 1, volume = call.bytes, own = 0, peers_us = 0;
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      steps = 2 * (gpus - 1);
      volume = 2 * (gpus - 1) / gpus * call.bytes;
      own = call.bytes / gpus;
      break;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      steps = gpus - 1;
      volume = (gpus - 1) / gpus * call.bytes;
      own = call.bytes / gpus;
      break;
    case CollectiveKind::kAllToAll:
      volume = (gpus - 1) / gpus * call.bytes;
      own = call.bytes / gpus;
      peers_us = c[kPeerUs] * (gpus - 1);
      break;
    case CollectiveKind::kBroadcast:
      steps = gpus - 1;
      break;
    case CollectiveKind::kSendReceive:
      break;
  }
  volume += c[kOwnShard] * own;
  const double network = 1e3 * c[kNetworkGbps] * node;
  const double start =
      c[kBaseUs] + peers_us + (one_node ? 0 : (all_reduce ? 2 : 1) * c[kNetworkUs]);
  const auto ring = [&](double step_us, double share) {
    const double rate = one_node ? link * share : std::min(link * share, network);
    return start + steps * step_us + volume / rate;
  };

  Quickest quickest;
  quickest.offer(ring(c[kLlStepUs], c[kLlShare]));
  quickest.offer(ring(c[kLl128StepUs], c[kLl128Share]));
  quickest.offer(c[kSimpleUs] + ring(c[kSimpleStepUs], c[kSimpleShare]));
  if (all_reduce && one_node) {
    if (nvlink && gpu.hopper_or_later && gpus > 2) {
      quickest.offer(c[kSwitchUs] + call.bytes * (1 + 1 / gpus) / (link * c[kSwitchShare]));
    }
    const double sync = c[kSyncUs] * gpus;
    // Far above the limit this time is never the minimum.
    const double over = 1 + eighth_power(call.bytes / (1e6 * c[kShotLimit]));
    quickest.offer(over *
                   (c[kOneShotUs] + sync + (gpus - 1) * call.bytes / (link * c[kOneShotShare])));
    quickest.offer(over * (c[kTwoShotUs] + sync +
                           2 * (gpus - 1) / gpus * call.bytes / (link * c[kTwoShotShare])));
  }
  const double us = quickest.us();
  const double larger = std::max(us, c[kMinUs]);
  return larger * eighth_root(1 + eighth_power(std::min(us, c[kMinUs]) / larger));
}

}  // namespace

const KernelForm& collective_form() {
  static constexpr KernelForm kForm{.id = "collective",
                                    .op = KernelOp::kCollective,
                                    .coefficients = kCoefficients,
                                    .microseconds = microseconds,
                                    .starts = kStarts,
                                    .rows_per_start = 0};
  return kForm;
}

}  // namespace kvsim
