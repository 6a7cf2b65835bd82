#include "sim/serve/cache/swap_time.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "models/units/check.hpp"

namespace kvsim {

Seconds swap_time(const SwapTraffic& traffic, const SwapRates& rates) {
  if (traffic.total() == Bytes{}) return Seconds{};
  // From the slowest device to the fastest, so that the next one gets the unused part of a share.
  struct Flow {
    double left, max_rate, rate;  // bytes, bytes/s
  };
  std::array flows{Flow{static_cast<double>(traffic.to_nvme.count()), rates.write.count(), 0},
                   Flow{static_cast<double>(traffic.from_nvme.count()), rates.read.count(), 0},
                   Flow{static_cast<double>(traffic.pieces.count()), rates.pieces.count(), 0},
                   Flow{static_cast<double>(traffic.host.count()), rates.link.count(), 0}};
  std::sort(flows.begin(), flows.end(),
            [](const Flow& a, const Flow& b) { return a.max_rate < b.max_rate; });
  double time = 0;
  for (;;) {
    auto active =
        std::count_if(flows.begin(), flows.end(), [](const Flow& f) { return f.left > 0; });
    if (active == 0) return Seconds{time};
    double link = rates.link.count();
    double next = std::numeric_limits<double>::infinity();
    for (Flow& f : flows) {
      if (!(f.left > 0)) continue;
      f.rate = std::min(f.max_rate, link / static_cast<double>(active));
      KVSIM_CHECK(f.rate > 0, "{} B move at {} B/s", f.left, f.rate);
      link -= f.rate;
      --active;
      next = std::min(next, f.left / f.rate);
    }
    time += next;
    for (Flow& f : flows) {
      // The flow that finishes first is set to zero despite rounding.
      if (f.left > 0) f.left = f.left / f.rate <= next ? 0 : f.left - f.rate * next;
    }
  }
}

}  // namespace kvsim
