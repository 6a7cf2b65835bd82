#include "traces/requests/generate/agent_sessions.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "traces/requests/formats/context_ids.hpp"
#include "traces/requests/formats/record_reader.hpp"
#include "traces/requests/random_stream.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kPicosecondsPerMillisecond = 1'000'000'000;

/// A component's distribution and its stream.
class Drawn {
 public:
  Drawn(const LengthSpec& spec, std::uint64_t seed, std::string_view name)
      : sampler_{spec}, stream_{seed, name} {}
  std::int32_t next() { return sampler_.draw(stream_); }
  SimTime milliseconds() { return SimTime{next() * kPicosecondsPerMillisecond}; }

 private:
  LengthSampler sampler_;
  RandomStream stream_;
};

/// The growing prompt of an agent.
struct AgentContext {
  std::int64_t tokens = 0;
  std::vector<std::uint64_t> blocks{};  // ids of its full blocks
  std::int32_t last = -1;               // latest request; -1: none
  SimTime end{};                        // of that request, as recorded
};

class AgentGenerator {
 public:
  AgentGenerator(const AgentSpec& spec, std::int32_t block, std::uint64_t seed)
      : spec_{spec},
        block_{block},
        requests_{spec.requests, seed, "agents.requests"},
        first_prompt_{spec.first_prompt, seed, "agents.first_prompt"},
        growth_{spec.growth, seed, "agents.growth"},
        output_{spec.output, seed, "agents.output"},
        think_{spec.think_ms, seed, "agents.think"},
        service_{spec.service_ms, seed, "agents.service"},
        subagent_requests_{spec.subagent_requests, seed, "agents.subagent_requests"},
        subagent_prompt_{spec.subagent_prompt, seed, "agents.subagent_prompt"},
        restart_{seed, "agents.restart"},
        subagent_{seed, "agents.subagent"} {
    KVSIM_CHECK(spec.sessions >= 1 && block >= 1, "{} sessions of blocks of {}", spec.sessions,
                block);
    trace_.name = "agents";
    trace_.format = "generated";
    trace_.prefix_block = block;
  }

  RequestTrace run() {
    for (std::int32_t session = 0; session < spec_.sessions; ++session) generate(session);
    check_requests(trace_);
    return std::move(trace_);
  }

 private:
  void generate(std::int32_t session) {
    trace_.agent_sessions.push_back({.name = fmt::format("session_{:04d}.json", session)});
    AgentContext main{.tokens = first_prompt_.next()};
    std::vector<std::int32_t> waits;  // last requests of sub-agents
    const std::int32_t count = requests_.next();
    for (std::int32_t i = 0; i < count; ++i) {
      if (i > 0) grow(main);
      SimTime end = main.end;
      for (const std::int32_t one : waits) end = std::max(end, end_of(one));
      add(main, session, -1, end);
      for (const std::int32_t one : waits)
        trace_.joins.push_back({.request = main.last, .also = one});
      waits.clear();
      if (i + 1 < count && subagent_.uniform() < spec_.subagent_share) {
        waits.push_back(subagent(session, main));
      }
    }
  }

  /// Generates the requests of a sub-agent; returns the last.
  std::int32_t subagent(std::int32_t session, const AgentContext& main) {
    ++trace_.agent_sessions.back().subagents;
    AgentContext agent{.tokens = subagent_prompt_.next(), .last = main.last, .end = main.end};
    const std::int32_t count = subagent_requests_.next();
    for (std::int32_t i = 0; i < count; ++i) {
      if (i > 0) agent.tokens += growth_.next();
      add(agent, session, subagents_, agent.end);
    }
    ++subagents_;
    return agent.last;
  }

  void grow(AgentContext& main) {
    if (restart_.uniform() >= spec_.restart_share) {
      main.tokens += growth_.next();
      return;
    }
    // u^(1/mean - 1) has the mean `restart_keep`.
    const double keep = spec_.restart_keep > 0.0
                            ? std::pow(restart_.uniform(), 1.0 / spec_.restart_keep - 1.0)
                            : 0.0;
    main.blocks.resize(static_cast<std::size_t>(keep * static_cast<double>(main.blocks.size())));
    main.tokens = std::ssize(main.blocks) * block_ + first_prompt_.next();
  }

  /// Adds the agent's next request, which waits for its latest one and pauses from `end`.
  void add(AgentContext& agent, std::int32_t session, std::int32_t subagent, SimTime end) {
    if (agent.tokens > kMaxTokens) {
      throw InputError{"agents", fmt::format("prompts of at most {} tokens", kMaxTokens),
                       fmt::format("{}", agent.tokens)};
    }
    Request r;
    r.after = agent.last;
    r.session = session;
    r.prompt_tokens = static_cast<std::int32_t>(agent.tokens);
    r.output_tokens = output_.next();
    AgentRecord record{.service = service_.milliseconds(), .subagent = subagent};
    if (r.after >= 0) {
      r.arrival = think_.milliseconds();
      record.start = end + r.arrival;
    }
    const std::int32_t full = r.prompt_tokens / block_;
    check_prefix_room(trace_, static_cast<std::size_t>(full) + 1);
    while (std::ssize(agent.blocks) < full) agent.blocks.push_back(next_id_++);
    r.prefix_first = static_cast<std::int32_t>(trace_.prefix_ids.size());
    trace_.prefix_ids.insert(trace_.prefix_ids.end(), agent.blocks.begin(), agent.blocks.end());
    const bool tail = r.prompt_tokens % block_ != 0;
    if (tail) trace_.prefix_ids.push_back(next_id_++);
    record.blocks = full;
    r.prefix_count = full + (tail ? 1 : 0);
    agent.last = static_cast<std::int32_t>(trace_.requests.size());
    agent.end = record.start + record.service;
    if (to_seconds(agent.end) > Seconds{1.0 * kLongestTrace}) {
      throw InputError{"agents", fmt::format("sessions of at most {} s", kLongestTrace),
                       "pauses that add up to more"};
    }
    trace_.requests.push_back(r);
    trace_.agents.push_back(record);
  }

  [[nodiscard]] SimTime end_of(std::int32_t request) const {
    const AgentRecord& record = trace_.agents[static_cast<std::size_t>(request)];
    return record.start + record.service;
  }

  AgentSpec spec_;
  std::int32_t block_;
  Drawn requests_, first_prompt_, growth_, output_, think_, service_, subagent_requests_,
      subagent_prompt_;
  RandomStream restart_, subagent_;
  RequestTrace trace_{};
  std::uint64_t next_id_ = 0;
  std::int32_t subagents_ = 0;
};

}  // namespace

// Statistics of 31 sessions of callanjfox/kv-cache-tester@94f6046 (1,512 requests of main agents,
// 13 sub-agents): mean and standard deviation of the logarithms; shares are counted.
AgentSpec published_agents() {
  const auto lognormal = [](double mu, double sigma, std::int32_t low, std::int32_t high) {
    return LengthSpec{
        .kind = LengthKind::kLognormal, .low = low, .high = high, .mu = mu, .sigma = sigma};
  };
  constexpr std::int32_t kLongest = 1 << 20;  // tokens of a prompt, and of the growth per turn
  constexpr std::int32_t kHour = 3'600'000;
  return {.requests = lognormal(3.572, 0.866, 1, 1000),
          .first_prompt = lognormal(10.437, 0.971, 1000, kLongest),
          .growth = lognormal(6.725, 1.133, 1, kLongest),
          .output = lognormal(5.689, 0.945, 1, 1 << 17),
          .think_ms = lognormal(9.829, 1.600, 0, 4 * kHour),
          .service_ms = lognormal(8.958, 0.742, 1, kHour),
          .restart_share = 0.0230,
          .restart_keep = 0.263,
          .subagent_share = 0.0086,
          .subagent_requests = lognormal(2.347, 0.535, 1, 1000),
          .subagent_prompt = lognormal(9.359, 0.100, 1000, kLongest)};
}

RequestTrace generate_agents(const AgentSpec& spec, std::int32_t block, std::uint64_t seed) {
  return AgentGenerator{spec, block, seed}.run();
}

}  // namespace kvsim
