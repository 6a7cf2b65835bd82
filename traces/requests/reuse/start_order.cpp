#include "traces/requests/reuse/start_order.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

struct Interval {
  SimTime start{}, end{};
  void cover(const Interval& other) {
    start = std::min(start, other.start);
    end = std::max(end, other.end);
  }
};

std::int64_t max_concurrent(const std::vector<Interval>& intervals) {
  std::vector<std::pair<SimTime, int>> changes;
  changes.reserve(2 * intervals.size());
  for (const Interval& one : intervals) {
    changes.emplace_back(one.start, 1);
    changes.emplace_back(one.end, -1);
  }
  std::sort(changes.begin(), changes.end());
  std::int64_t now = 0;
  std::int64_t max_running = 0;
  for (const auto& [at, change] : changes) {
    now += change;
    max_running = std::max(max_running, now);
  }
  return max_running;
}

}  // namespace

std::vector<SimTime> recorded_starts(const RequestTrace& trace, SimTime stagger) {
  std::vector<SimTime> starts(trace.requests.size());
  auto join = trace.joins.begin();
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const Request& r = trace.requests[i];
    if (!trace.agents.empty()) {
      starts[i] = trace.agents[i].start + stagger * std::int64_t{r.session};
      continue;
    }
    SimTime released = r.after < 0 ? SimTime{} : starts[static_cast<std::size_t>(r.after)];
    for (; join != trace.joins.end() && join->request == static_cast<std::int64_t>(i); ++join) {
      released = std::max(released, starts[static_cast<std::size_t>(join->also)]);
    }
    // Long pauses add up; requests beyond the range of the clock stay in file order.
    constexpr SimTime kLatest{std::numeric_limits<std::int64_t>::max()};
    starts[i] = released > kLatest - r.arrival ? kLatest : released + r.arrival;
  }
  return starts;
}

std::vector<std::int32_t> start_order(const RequestTrace& trace,
                                      const std::vector<SimTime>& starts) {
  std::vector<std::int32_t> order(trace.requests.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const auto i = static_cast<std::size_t>(a);
    const auto k = static_cast<std::size_t>(b);
    if (starts[i] != starts[k]) return starts[i] < starts[k];
    return !trace.agents.empty() && trace.requests[i].session < trace.requests[k].session;
  });
  return order;
}

AgentLoad agent_load(const RequestTrace& trace, const std::vector<SimTime>& starts) {
  KVSIM_CHECK(!trace.agents.empty(), "a trace without records of agents");
  std::vector<Interval> requests;
  std::map<std::int32_t, Interval> sessions, subagents;
  Interval all{starts.front(), starts.front()};
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const AgentRecord& record = trace.agents[i];
    const Interval one{starts[i], starts[i] + std::max(record.service, SimTime{})};
    if (record.service >= SimTime{}) requests.push_back(one);
    sessions.try_emplace(trace.requests[i].session, one).first->second.cover(one);
    if (record.subagent >= 0) subagents.try_emplace(record.subagent, one).first->second.cover(one);
    all.cover(one);
  }
  std::vector<Interval> open;
  for (const auto& [session, interval] : sessions) open.push_back(interval);
  AgentLoad out{.max_requests_in_flight = max_concurrent(requests),
                .max_sessions_open = max_concurrent(open),
                .span = all.end - all.start};
  for (const auto& [subagent, interval] : subagents) open.push_back(interval);
  out.max_sessions_and_subagents_open = max_concurrent(open);
  return out;
}

}  // namespace kvsim
