#include "traces/requests/request.hpp"

#include <cstddef>

#include "models/units/check.hpp"

namespace kvsim {

void check_requests(const RequestTrace& trace) {
  SimTime last{};
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const Request& r = trace.requests[i];
    KVSIM_CHECK(r.prompt_tokens >= 1 && r.output_tokens >= 0 && r.declared_tokens >= 0,
                "request {} has a length that none can have", i);
    KVSIM_CHECK(r.arrival >= SimTime{}, "request {} comes before the workload starts", i);
    KVSIM_CHECK(r.after < static_cast<std::int64_t>(i), "request {} waits for a later one", i);
    if (r.after < 0) {
      KVSIM_CHECK(r.arrival >= last, "request {} comes before the one in front of it", i);
      last = r.arrival;
    }
    KVSIM_CHECK(r.prefix_count == 0 || trace.prefix_block > 0, "prefix ids of no block size");
    KVSIM_CHECK(
        r.prefix_first >= 0 && r.prefix_count >= 0 &&
            static_cast<std::size_t>(r.prefix_first) + static_cast<std::size_t>(r.prefix_count) <=
                trace.prefix_ids.size(),
        "request {} names prefix ids that are not there", i);
  }
}

}  // namespace kvsim
