#pragma once

// Internal to sim/serve: transfers to and from host memory or NVMe for one iteration.

#include "models/units/units.hpp"

namespace kvsim {

/// Bytes that one GPU's link to its host carries for an iteration.
struct SwapTraffic {
  Bytes host{};     // to or from host memory
  Bytes back{};     // of `host`: towards the GPU
  Bytes to_nvme{};  // over the same link
  Bytes from_nvme{};
  Bytes pieces{};  // from host memory, in copies of one page each
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
/// Rates for one GPU's share.
struct SwapRates {
  BytesPerSecond link{0.0};
  BytesPerSecond write{0.0}, read{0.0};  // of NVMe
  BytesPerSecond pieces{0.0};            // limit of the link for copies of a page
};

/// Returns the seconds until all of it has moved. The four flows share the link max-min fairly.
/// NVMe flows are limited by its read and write rates, pieces by their own rate. NVMe reads and
/// writes simultaneously. Not modelled: latencies; the link's two directions count as one.
/// Errors: ContractError if a required rate is not above 0.
[[nodiscard]] Seconds swap_time(const SwapTraffic& traffic, const SwapRates& rates);

}  // namespace kvsim
