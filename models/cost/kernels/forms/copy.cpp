#include <algorithm>
#include <array>

#include "models/cost/kernels/form.hpp"

namespace kvsim {
namespace {

enum Index : std::size_t { kFixedUs, kDeviceShare, kHostShare, kPieceUs, kSmallShare, kCount };

// The start values are published measurements; they are used if nothing was fitted. fixed_us: one
// page of a KV cache on A100 at 1.2 GB/s (vLLM pull request 11531) minus its bytes. device_share:
// BabelStream copy, counting read and write: 1.61 of 2.04 TB/s on A100, 2.90 of 3.35 on H100, 4.01
// of 4.80 on H200 (Azure AI benchmarking guide). host_share: nvbandwidth, pinned: 26.3 of 32 GB/s
// on A100, 51 to 52 of 64 on H100 and H200 (same source). piece_us, small_share: cuMemcpyBatchAsync
// on H100 (vLLM pull request 42212): 0.6 to 1.0 µs per piece of 4 KiB, 6.3 to 7.1 GB/s with pieces
// up to 24 KiB, then 44 to 52 GB/s.
constexpr std::array<Coefficient, kCount> kCoefficients{{
    {"fixed_us", "us", "launch", 8, 0.3, 100},
    {"device_share", "1", "of HBM bandwidth, read and write counted", 0.83, 0.1, 1.1},
    {"host_share", "1", "of the link to the host, pinned memory", 0.81, 0.05, 1.1},
    {"piece_us", "us", "each further piece, as a separate transfer", 0.6, 0.001, 50},
    {"small_share", "1", "of the link to the host with pieces up to 24 KiB", 0.105, 0.001, 1.1},
}};

constexpr double kSmallPiece = 24 * 1024;

/// Pieces are sequential: each takes the longer of its descriptor and its bytes.
double microseconds(const KernelCall& any, const KernelFormat&, const KernelGpu& gpu,
                    const double* c) {
  const auto& call = std::get<CopyCall>(any);
  const double pieces = std::max(1.0, call.pieces);
  const double descriptors = (pieces - 1) * c[kPieceUs];
  if (call.kind == CopyKind::kDevice) {
    return c[kFixedUs] +
           std::max(descriptors, 2e6 * call.bytes / (gpu.bandwidth * c[kDeviceShare]));
  }
  // A single small copy waits for its launch rather than for the copy engine's queue.
  const bool small = pieces > 1 && call.bytes / pieces <= kSmallPiece;
  const double share = small ? std::min(c[kSmallShare], c[kHostShare]) : c[kHostShare];
  return c[kFixedUs] + std::max(descriptors, 1e6 * call.bytes / (gpu.host_link * share));
}

}  // namespace

const KernelForm& copy_form() {
  static constexpr KernelForm kForm{.id = "copy",
                                    .op = KernelOp::kCopy,
                                    .coefficients = kCoefficients,
                                    .microseconds = microseconds};
  return kForm;
}

}  // namespace kvsim
