#include "traces/requests/request_stats.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <unordered_set>
#include <vector>

namespace kvsim {
namespace {

double quantile(const std::vector<std::int32_t>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = at - std::floor(at);
  return sorted[below] + part * (static_cast<double>(sorted[above]) - sorted[below]);
}

LengthSummary summarise(std::vector<std::int32_t> lengths) {
  LengthSummary out;
  if (lengths.empty()) return out;
  std::sort(lengths.begin(), lengths.end());
  for (const std::int32_t length : lengths) out.total += length;
  out.mean = static_cast<double>(out.total) / static_cast<double>(lengths.size());
  out.p50 = quantile(lengths, 0.50);
  out.p90 = quantile(lengths, 0.90);
  out.p99 = quantile(lengths, 0.99);
  out.min = lengths.front();
  out.max = lengths.back();
  return out;
}

void summarise_arrivals(const RequestTrace& trace, RequestStats& stats) {
  std::vector<double> gaps;
  std::optional<SimTime> first;
  SimTime last{};
  for (const Request& r : trace.requests) {
    if (r.after >= 0) continue;
    if (!first || r.arrival != last) ++stats.distinct_arrivals;
    if (first) gaps.push_back(to_seconds(r.arrival - last).count());
    if (!first) first = r.arrival;
    last = r.arrival;
  }
  if (!first || last <= *first) return;
  stats.span = to_seconds(last - *first);
  stats.rate = arrival_rate(trace);
  const double mean = stats.span.count() / static_cast<double>(gaps.size());
  double squares = 0.0;
  for (const double gap : gaps) squares += (gap - mean) * (gap - mean);
  stats.inter_arrival_cv = std::sqrt(squares / static_cast<double>(gaps.size())) / mean;
}

PrefixSummary summarise_prefixes(const RequestTrace& trace) {
  PrefixSummary out{.block = trace.prefix_block};
  std::unordered_set<std::uint64_t> seen;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const auto ids = shared_ids(trace, i);
    std::size_t leading = 0;
    while (leading < ids.size() && seen.contains(ids[leading])) ++leading;
    seen.insert(ids.begin(), ids.end());
    out.blocks += std::ssize(ids);
    out.reusable += static_cast<std::int64_t>(leading);
  }
  out.distinct = static_cast<std::int64_t>(seen.size());
  return out;
}

}  // namespace

std::optional<double> arrival_rate(const RequestTrace& trace) {
  std::optional<SimTime> first;
  SimTime last{};
  std::int64_t count = 0;
  for (const Request& r : trace.requests) {
    if (r.after >= 0) continue;
    first = first ? std::min(*first, r.arrival) : r.arrival;
    last = std::max(last, r.arrival);
    ++count;
  }
  if (!first || last <= *first) return std::nullopt;
  return static_cast<double>(count - 1) / to_seconds(last - *first).count();
}

RequestStats summarise_requests(const RequestTrace& trace) {
  RequestStats stats{.requests = std::ssize(trace.requests)};
  std::vector<std::int32_t> prompts;
  std::vector<std::int32_t> outputs;
  std::unordered_set<std::int32_t> sessions;
  for (const Request& r : trace.requests) {
    prompts.push_back(r.prompt_tokens);
    outputs.push_back(r.output_tokens);
    stats.waiting += r.after >= 0 ? 1 : 0;
    stats.zero_outputs += r.output_tokens == 0 ? 1 : 0;
    stats.declared += r.declared_tokens > 0 ? 1 : 0;
    if (r.session >= 0) sessions.insert(r.session);
  }
  stats.prompt = summarise(std::move(prompts));
  stats.output = summarise(std::move(outputs));
  stats.sessions = static_cast<std::int64_t>(sessions.size());
  summarise_arrivals(trace, stats);
  if (trace.prefix_block > 0) stats.prefix = summarise_prefixes(trace);
  return stats;
}

}  // namespace kvsim
