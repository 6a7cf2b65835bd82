#include "traces/requests/request.hpp"

#include <algorithm>

#include "models/units/check.hpp"

namespace kvsim {

std::span<const std::uint64_t> shared_ids(const RequestTrace& trace, std::size_t request) {
  const Request& r = trace.requests[request];
  const std::int32_t count = trace.agents.empty()
                                 ? r.prefix_count
                                 : std::min(r.prefix_count, trace.agents[request].blocks);
  return std::span{trace.prefix_ids}.subspan(static_cast<std::size_t>(r.prefix_first),
                                             static_cast<std::size_t>(count));
}

void check_requests(const RequestTrace& trace) {
  KVSIM_CHECK(trace.agents.empty() || trace.agents.size() == trace.requests.size(),
              "{} records of agents for {} requests", trace.agents.size(), trace.requests.size());
  std::int32_t joined = 0;
  for (const Join& join : trace.joins) {
    KVSIM_CHECK(join.request >= joined && join.also >= 0 && join.also < join.request &&
                    join.request < std::ssize(trace.requests) &&
                    trace.requests[static_cast<std::size_t>(join.request)].after >= 0,
                "request {} waits for {} too", join.request, join.also);
    joined = join.request;
  }
  KVSIM_CHECK(!trace.shared_list || (trace.joins.empty() && !trace.conversations),
              "turns of a conversation wait for their own");
  SimTime last{};
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const Request& r = trace.requests[i];
    KVSIM_CHECK(r.prompt_tokens >= 1 && r.output_tokens >= 0 && r.declared_tokens >= 0,
                "request {} has an impossible length", i);
    KVSIM_CHECK(r.arrival >= SimTime{}, "request {} comes before the workload starts", i);
    KVSIM_CHECK(r.after < static_cast<std::int64_t>(i), "request {} waits for a later one", i);
    if (r.after < 0) {
      KVSIM_CHECK(r.arrival >= last, "request {} arrives before the previous one", i);
      last = r.arrival;
    }
    KVSIM_CHECK(r.prefix_count == 0 || trace.prefix_block > 0, "prefix ids of no block size");
    KVSIM_CHECK(
        r.prefix_first >= 0 && r.prefix_count >= 0 &&
            static_cast<std::size_t>(r.prefix_first) + static_cast<std::size_t>(r.prefix_count) <=
                trace.prefix_ids.size(),
        "request {} refers to prefix ids that do not exist", i);
  }
}

}  // namespace kvsim
