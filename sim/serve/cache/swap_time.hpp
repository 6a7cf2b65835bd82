#pragma once

// Inside of sim/serve: what goes to host memory or NVMe and back for one iteration.

#include "models/units/units.hpp"

namespace kvsim {

/// Bytes that one GPU's link to its host carries for an iteration.
struct SwapTraffic {
  Bytes host{};     // to or from host memory
  Bytes back{};     // of `host`: towards the GPU
  Bytes to_nvme{};  // through it
  Bytes from_nvme{};
  Bytes pieces{};  // from host memory in copies of a page each
  [[nodiscard]] Bytes total() const { return host + to_nvme + from_nvme + pieces; }
  SwapTraffic& operator+=(const SwapTraffic& other) {
    host += other.host;
    back += other.back;
    to_nvme += other.to_nvme;
    from_nvme += other.from_nvme;
    pieces += other.pieces;
    return *this;
  }
};
/// Of one GPU's share.
struct SwapRates {
  BytesPerSecond link{0.0};
  BytesPerSecond write{0.0}, read{0.0};  // of NVMe
  BytesPerSecond pieces{0.0};            // most that copies of a page reach of the link
};

/// Seconds until all of it has moved: the four share the link max-min fairly, those of NVMe go no
/// faster than it writes or reads, pieces no faster than they can; NVMe writes and reads at one
/// time. Left out: latencies, the link's two directions, which count as one.
/// Errors: ContractError where a rate that is needed is not above 0.
[[nodiscard]] Seconds swap_time(const SwapTraffic& traffic, const SwapRates& rates);

}  // namespace kvsim
