#pragma once

// A reference for speed: a minimal simulation of continuous batching. It waits, admits, decodes and
// counts. It serves first come first served with a linear cost and reports only TTFT and E2E. It
// has no memory blocks, preemption, chunks, token spans or timeline. The difference in time to
// kvsim is the cost of those features.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "models/units/units.hpp"
#include "traces/requests/request.hpp"

namespace kvsim::peer {

/// Seconds of an iteration: a + b per prompt token + c per decode + d per entry that decodes attend
/// to.
struct NaiveCost {
  double iteration = 0, prompt_token = 0, decode = 0, entry = 0;
};

struct NaiveResult {
  std::int64_t completed = 0, output_tokens = 0, iterations = 0;
  double ttft_mean = 0, e2e_mean = 0;  // seconds
};

/// Whole prompts of waiting requests are added to the iteration while `max_tokens` and `max_seqs`
/// allow it, or a single longer one. The end of a prompt generates its first token, each later
/// iteration one more. Requests are in order of arrival and have at least one token.
inline NaiveResult naive_loop(const RequestTrace& trace, const NaiveCost& cost,
                              std::size_t max_seqs, std::int64_t max_tokens) {
  struct Running {
    std::size_t request;
    std::int32_t left;     // tokens to generate
    std::int32_t entries;  // of its cache
  };
  const std::vector<Request>& requests = trace.requests;
  std::vector<double> first(requests.size()), last(requests.size());
  std::deque<std::size_t> waiting;
  std::vector<Running> running;
  NaiveResult out;
  double now = 0;
  std::size_t next = 0;
  std::int64_t entries = 0;  // of all running requests
  const auto arrival = [&](std::size_t i) { return to_seconds(requests[i].arrival).count(); };
  while (next < requests.size() || !waiting.empty() || !running.empty()) {
    if (waiting.empty() && running.empty() && arrival(next) > now) now = arrival(next);
    while (next < requests.size() && arrival(next) <= now) waiting.push_back(next++);

    const std::size_t decodes = running.size();
    std::int64_t prompt_tokens = 0;
    const std::int64_t attended = entries;
    while (!waiting.empty() && running.size() < max_seqs) {
      const Request& r = requests[waiting.front()];
      const bool alone = prompt_tokens == 0 && decodes == 0;
      if (!alone && prompt_tokens + r.prompt_tokens > max_tokens) break;
      prompt_tokens += r.prompt_tokens;
      running.push_back({waiting.front(), r.output_tokens, r.prompt_tokens});
      entries += r.prompt_tokens;
      waiting.pop_front();
    }
    now += cost.iteration + cost.prompt_token * static_cast<double>(prompt_tokens) +
           cost.decode * static_cast<double>(decodes) + cost.entry * static_cast<double>(attended);
    ++out.iterations;

    for (std::size_t i = decodes; i < running.size(); ++i) first[running[i].request] = now;
    out.output_tokens += static_cast<std::int64_t>(running.size());
    entries += static_cast<std::int64_t>(running.size());
    std::size_t kept = 0;
    for (Running& r : running) {
      ++r.entries;
      if (--r.left > 0) {
        running[kept++] = r;
        continue;
      }
      last[r.request] = now;
      entries -= r.entries;
      ++out.completed;
    }
    running.resize(kept);
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    out.ttft_mean += first[i] - arrival(i);
    out.e2e_mean += last[i] - arrival(i);
  }
  if (!requests.empty()) {
    out.ttft_mean /= static_cast<double>(requests.size());
    out.e2e_mean /= static_cast<double>(requests.size());
  }
  return out;
}

}  // namespace kvsim::peer
