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
  [[nodiscard]] Bytes total() const { return host + to_nvme + from_nvme; }
  SwapTraffic& operator+=(const SwapTraffic& other) {
    host += other.host;
    back += other.back;
    to_nvme += other.to_nvme;
    from_nvme += other.from_nvme;
    return *this;
  }
};
/// Of one GPU's share.
struct SwapRates {
  BytesPerSecond link{0.0};
  BytesPerSecond write{0.0}, read{0.0};  // of NVMe
};

/// Seconds until all of it has moved: the three share the link max-min fairly, those of NVMe go no
/// faster than it writes or reads; NVMe writes and reads at one time. Left out: latencies, the
/// link's two directions, which count as one.
/// Errors: ContractError where a rate that is needed is not above 0.
[[nodiscard]] Seconds swap_time(const SwapTraffic& traffic, const SwapRates& rates);

}  // namespace kvsim
