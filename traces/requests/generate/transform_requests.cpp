#include "traces/requests/generate/transform_requests.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "traces/requests/formats/context_ids.hpp"
#include "traces/requests/formats/record_reader.hpp"
#include "traces/requests/random_stream.hpp"
#include "traces/requests/request_order.hpp"

namespace kvsim {
namespace {

void check_time(double seconds, std::string_view what) {
  if (seconds > 1.0 * kLongestTrace) {
    throw InputError{what, fmt::format("times within {} s", kLongestTrace),
                     fmt::format("{:.6g} s", seconds)};
  }
}

/// Moves each arrival by a uniform share of `width`.
void spread(RequestTrace& trace, Seconds width, std::uint64_t seed) {
  RandomStream stream{seed, "spread"};
  for (Request& r : trace.requests) {
    if (r.after < 0) r.arrival += to_sim_time(width * stream.uniform());
  }
  put_in_order(trace);
}

void cut_window(RequestTrace& trace, const TransformSpec& spec) {
  const SimTime from = to_sim_time(spec.from.value_or(Seconds{0.0}));
  const SimTime until =
      spec.until ? to_sim_time(*spec.until) : SimTime{std::numeric_limits<std::int64_t>::max()};
  std::vector<bool> stays(trace.requests.size());
  std::vector<std::int32_t> order;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    Request& r = trace.requests[i];
    stays[i] = r.after < 0 ? r.arrival >= from && r.arrival < until
                           : stays[static_cast<std::size_t>(r.after)];
    if (!stays[i]) continue;
    order.push_back(static_cast<std::int32_t>(i));
    if (r.after < 0) r.arrival = r.arrival - from;
  }
  if (order.empty()) {
    throw InputError{fmt::format(
        "{}: no request comes from {} {}", trace.name, to_text(to_seconds(from)),
        spec.until ? fmt::format("until {}", to_text(*spec.until)) : std::string{"on"})};
  }
  keep_requests(trace, order);
}

/// Renumbers ids as 0, 1, … in order of first occurrence; returns their number.
std::uint64_t renumber(std::vector<std::uint64_t>& ids) {
  std::unordered_map<std::uint64_t, std::uint64_t> numbers;
  for (std::uint64_t& id : ids) id = numbers.try_emplace(id, numbers.size()).first->second;
  return numbers.size();
}

void repeat(RequestTrace& trace, std::int32_t times) {
  auto& requests = trace.requests;
  const std::size_t n = requests.size();
  const std::size_t n_ids = trace.prefix_ids.size();
  constexpr auto kMax = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
  const auto copies = static_cast<std::size_t>(times);
  if (n > kMax / copies || n_ids > kMax / copies) {
    throw InputError{"repeat", fmt::format("at most {} requests and prefix ids in total", kMax),
                     fmt::format("{} times {} and {}", times, n, n_ids)};
  }
  SimTime first{std::numeric_limits<std::int64_t>::max()};
  SimTime last{};
  std::int64_t roots = 0;
  std::int32_t sessions = static_cast<std::int32_t>(trace.agent_sessions.size());
  for (const Request& r : requests) {
    sessions = std::max(sessions, r.session + 1);
    if (r.after >= 0) continue;
    first = std::min(first, r.arrival);
    last = std::max(last, r.arrival);
    ++roots;
  }
  if (last <= first) {
    throw InputError{"repeat", "arrivals that are spread over time",
                     fmt::format("{} requests that all arrive at once", roots)};
  }
  if (sessions > 0 && static_cast<std::size_t>(sessions) > kMax / copies) {
    throw InputError{"repeat", fmt::format("at most {} sessions", kMax), "more"};
  }
  // A copy begins one mean gap after the end of the previous copy.
  const SimTime period = last - first + SimTime{(last - first).count() / (roots - 1)};
  check_time(to_seconds(last).count() + to_seconds(period).count() * (times - 1), "repeat");
  const std::uint64_t distinct = renumber(trace.prefix_ids);
  requests.reserve(n * copies);
  trace.prefix_ids.reserve(n_ids * copies);
  const std::vector<AgentRecord> agents = trace.agents;
  const std::vector<AgentSession> agent_sessions = trace.agent_sessions;
  const std::vector<Join> joins = trace.joins;
  std::int32_t subagents = 0;
  for (const AgentRecord& one : agents) subagents = std::max(subagents, one.subagent + 1);
  for (std::int32_t copy = 1; copy < times; ++copy) {
    const auto before = static_cast<std::int32_t>(requests.size());
    for (std::size_t i = 0; i < n; ++i) {
      Request r = requests[i];
      if (r.after < 0) r.arrival += period * copy;
      if (r.after >= 0) r.after += before;
      if (r.session >= 0) r.session += sessions * copy;
      if (r.prefix_count > 0) {
        r.prefix_first += static_cast<std::int32_t>(n_ids) * copy;
      }
      requests.push_back(r);
    }
    for (AgentRecord one : agents) {
      if (one.subagent >= 0) one.subagent += subagents * copy;
      trace.agents.push_back(one);
    }
    trace.agent_sessions.insert(trace.agent_sessions.end(), agent_sessions.begin(),
                                agent_sessions.end());
    for (const Join& join : joins) {
      trace.joins.push_back({.request = join.request + before, .also = join.also + before});
    }
    for (std::size_t i = 0; i < n_ids; ++i) {
      trace.prefix_ids.push_back(trace.prefix_ids[i] + distinct * static_cast<std::uint64_t>(copy));
    }
  }
}

void scale_rate(RequestTrace& trace, double factor) {
  for (Request& r : trace.requests) {
    if (r.after >= 0) continue;
    const double scaled = static_cast<double>(r.arrival.count()) / factor;
    check_time(scaled * 1e-12, "rate_scale");
    r.arrival = SimTime{std::llround(scaled)};
  }
}

/// Rounded up, so that no length becomes zero and the number of blocks is unchanged.
std::int32_t scaled_length(std::int32_t tokens, double factor, std::string_view what) {
  // A product that is whole except for rounding errors counts as whole.
  const double scaled = std::ceil(static_cast<double>(tokens) * factor * (1.0 - 1e-14));
  if (scaled > kMaxTokens) {
    throw InputError{what, fmt::format("lengths of at most {} tokens", kMaxTokens),
                     fmt::format("{:.0f}", scaled)};
  }
  return static_cast<std::int32_t>(scaled);
}

void scale_prompts(RequestTrace& trace, double factor) {
  if (trace.prefix_block > 0) {
    const double block = trace.prefix_block * factor;
    if (block < 1.0 || block > kMaxTokens || std::abs(block - std::round(block)) > 1e-9) {
      throw InputError{"prompt_scale",
                       fmt::format("a factor that makes whole blocks of prefixes of {} tokens",
                                   trace.prefix_block),
                       fmt::format("{:g}", factor)};
    }
    trace.prefix_block = static_cast<std::int32_t>(std::llround(block));
  }
  for (Request& r : trace.requests) {
    r.prompt_tokens = scaled_length(r.prompt_tokens, factor, "prompt_scale");
  }
}

void note_cut(RequestTrace& trace, std::int64_t count, std::string_view what,
              std::int32_t max_tokens) {
  if (count == 0) return;
  trace.notes.push_back(fmt::format("{} {} longer than {} tokens were cut", with_commas(count),
                                    what, with_commas(max_tokens)));
}

void cap_prompts(RequestTrace& trace, std::int32_t max_tokens) {
  std::int64_t cut = 0;
  for (Request& r : trace.requests) {
    if (r.prompt_tokens <= max_tokens) continue;
    ++cut;
    r.prompt_tokens = max_tokens;
    if (trace.prefix_block > 0) {
      r.prefix_count =
          std::min(r.prefix_count, (max_tokens + trace.prefix_block - 1) / trace.prefix_block);
    }
  }
  note_cut(trace, cut, "prompts", max_tokens);
}

void cap_outputs(RequestTrace& trace, std::int32_t max_tokens) {
  std::int64_t cut = 0;
  for (Request& r : trace.requests) {
    if (r.output_tokens <= max_tokens) continue;
    ++cut;
    r.output_tokens = max_tokens;
  }
  note_cut(trace, cut, "outputs", max_tokens);
}

/// Sets equal prefix ids for requests that send the same one of `count` texts.
void repeat_prompts(RequestTrace& trace, std::int32_t count) {
  constexpr std::int32_t kBlock = 16;  // the smallest block of an engine's prefix cache
  if (trace.prefix_block > 0) {
    throw InputError{"distinct_prompts", "a workload without prefix ids",
                     fmt::format("prefix ids of {} tokens each", trace.prefix_block)};
  }
  ContextIds ids{trace, kBlock};
  std::vector<std::vector<std::uint64_t>> blocks(
      std::min(static_cast<std::size_t>(count), trace.requests.size()));
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    ids.turn(trace.requests[i], blocks[i % blocks.size()]);
  }
}

}  // namespace

void transform_requests(RequestTrace& trace, const TransformSpec& spec, std::uint64_t seed) {
  KVSIM_CHECK(spec.rate_scale > 0.0 && spec.prompt_scale > 0.0 && spec.output_scale >= 0.0 &&
                  spec.repeat >= 1,
              "scales and repeats");
  if (spec.spread) spread(trace, *spec.spread, seed);
  if (spec.from || spec.until) cut_window(trace, spec);
  if (spec.limit && *spec.limit < std::ssize(trace.requests)) {
    std::vector<std::int32_t> first(static_cast<std::size_t>(*spec.limit));
    std::iota(first.begin(), first.end(), 0);
    keep_requests(trace, first);
  }
  if (spec.repeat > 1) repeat(trace, spec.repeat);
  if (spec.rate_scale != 1.0) scale_rate(trace, spec.rate_scale);
  if (spec.prompt_scale != 1.0) scale_prompts(trace, spec.prompt_scale);
  if (spec.output_scale != 1.0) {
    for (Request& r : trace.requests) {
      r.output_tokens = scaled_length(r.output_tokens, spec.output_scale, "output_scale");
    }
  }
  if (spec.max_prompt_tokens) cap_prompts(trace, *spec.max_prompt_tokens);
  if (spec.max_output_tokens) cap_outputs(trace, *spec.max_output_tokens);
  for (Request& r : trace.requests) {
    // A declared length may be below outputs that were scaled up.
    if (spec.declared_tokens) r.declared_tokens = *spec.declared_tokens;
    if (spec.declares_outputs) r.declared_tokens = r.output_tokens;
    if (r.declared_tokens > 0) r.output_tokens = std::min(r.output_tokens, r.declared_tokens);
  }
  if (spec.distinct_prompts) repeat_prompts(trace, *spec.distinct_prompts);
  check_requests(trace);
}

}  // namespace kvsim
