#include "traces/requests/request_order.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace kvsim {

void keep_requests(RequestTrace& trace, std::span<const std::int32_t> order) {
  std::vector<std::int32_t> now(trace.requests.size(), -1);
  std::vector<Request> kept;
  std::vector<AgentRecord> agents;
  kept.reserve(order.size());
  for (const std::int32_t old : order) {
    Request r = trace.requests[static_cast<std::size_t>(old)];
    if (r.after >= 0) r.after = now[static_cast<std::size_t>(r.after)];
    now[static_cast<std::size_t>(old)] = static_cast<std::int32_t>(kept.size());
    kept.push_back(r);
    if (!trace.agents.empty()) agents.push_back(trace.agents[static_cast<std::size_t>(old)]);
  }
  trace.requests = std::move(kept);
  trace.agents = std::move(agents);
  for (Join& join : trace.joins) {
    join = {.request = now[static_cast<std::size_t>(join.request)],
            .also = now[static_cast<std::size_t>(join.also)]};
  }
  // Requests for which a request waits in addition to `after` may have been left out.
  std::erase_if(trace.joins, [](const Join& join) { return join.request < 0 || join.also < 0; });
  std::stable_sort(trace.joins.begin(), trace.joins.end(),
                   [](const Join& a, const Join& b) { return a.request < b.request; });
}

void put_in_order(RequestTrace& trace) {
  const auto& requests = trace.requests;
  std::vector<SimTime> begins(requests.size());
  std::vector<std::int32_t> order(requests.size());
  std::iota(order.begin(), order.end(), 0);
  auto join = trace.joins.begin();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Request& r = requests[i];
    begins[i] = r.after < 0 ? r.arrival : begins[static_cast<std::size_t>(r.after)];
    for (; join != trace.joins.end() && join->request == static_cast<std::int64_t>(i); ++join) {
      begins[i] = std::max(begins[i], begins[static_cast<std::size_t>(join->also)]);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return begins[static_cast<std::size_t>(a)] < begins[static_cast<std::size_t>(b)];
  });
  keep_requests(trace, order);
}

}  // namespace kvsim
