// kvsim requests info: the load that a workload places on a service.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/options/workload_options.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/cli/requests/requests_tiers.hpp"
#include "sim/report/catalogue/describe_text.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "traces/requests/request_stats.hpp"
#include "traces/requests/reuse/block_reuse.hpp"
#include "traces/requests/reuse/start_order.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

constexpr double kStagger = 300.0;    // seconds between the starts of sessions
constexpr double kLatestStart = 6e6;  // seconds; leaves the clock enough range for the service
constexpr std::int64_t kMaxCapacity = std::int64_t{1} << 40;

/// Prefix reuse for one order of the requests.
struct ScheduledReuse {
  std::string name;
  SimTime stagger{};
  ReuseCurve curve{}, head_first{};
  std::optional<AgentLoad> load{};  // only for agent records
};

struct ReuseReport {
  std::vector<std::int64_t> capacities;   // blocks
  std::vector<ScheduledReuse> schedules;  // at least one
  std::vector<ReuseCurve> sessions{};     // of agents, each separately
  std::optional<TierQuestion> tiers{};
};

std::int64_t count_subagents(const RequestTrace& trace) {
  std::int64_t sum = 0;
  for (const AgentSession& session : trace.agent_sessions) sum += session.subagents;
  return sum;
}

std::vector<std::int64_t> read_capacities(const Arguments& arguments) {
  std::vector<std::int64_t> out;
  for (const std::string& word : arguments.list("capacity-blocks")) {
    const auto blocks = parse_integer(word);
    if (!blocks || *blocks < 1 || *blocks > kMaxCapacity) {
      throw InputError{"--capacity-blocks",
                       fmt::format("integers in [1, {}], joined by commas", kMaxCapacity),
                       fmt::format("\"{}\"", word)};
    }
    out.push_back(*blocks);
  }
  if (out.empty()) {
    for (std::int64_t blocks = 4096; blocks <= 131'072; blocks *= 2) out.push_back(blocks);
  }
  return out;
}

ReuseReport reuse_of(const RequestTrace& trace, const Arguments& arguments) {
  ReuseReport out{.capacities = read_capacities(arguments), .schedules = {}};
  if (trace.agents.empty()) {
    out.schedules.push_back({.name = "recorded"});
  } else {
    const double stagger = arguments.number("stagger", 0, kLatestStart).value_or(kStagger);
    const std::vector<SimTime> starts = recorded_starts(trace, SimTime{});
    const double last = to_seconds(*std::max_element(starts.begin(), starts.end())).count();
    if (stagger * static_cast<double>(trace.agent_sessions.size()) + last > kLatestStart) {
      throw InputError{"--stagger", fmt::format("starts within {:.0f} s", kLatestStart),
                       fmt::format("{} sessions every {:g} s, of up to {:g} s",
                                   trace.agent_sessions.size(), stagger, last)};
    }
    out.schedules.push_back({.name = "together"});
    out.schedules.push_back({.name = "staggered", .stagger = to_sim_time(Seconds{stagger})});
  }
  for (ScheduledReuse& one : out.schedules) {
    const std::vector<SimTime> starts = recorded_starts(trace, one.stagger);
    const std::vector<std::int32_t> order = start_order(trace, starts);
    one.curve = reuse_curve(trace, order, TouchOrder::kTailFirst);
    one.head_first = reuse_curve(trace, order, TouchOrder::kHeadFirst);
    if (!trace.agents.empty()) one.load = agent_load(trace, starts);
  }
  if (trace.agents.empty()) return out;
  std::vector<std::vector<std::int32_t>> requests(trace.agent_sessions.size());
  for (const std::int32_t i : start_order(trace, recorded_starts(trace, SimTime{}))) {
    const std::int32_t session = trace.requests[static_cast<std::size_t>(i)].session;
    requests[static_cast<std::size_t>(session)].push_back(i);
  }
  for (const auto& order : requests) {
    out.sessions.push_back(reuse_curve(trace, order, TouchOrder::kTailFirst));
  }
  return out;
}

template <class T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

/// Hits as a share of all blocks; nullopt if there are no blocks.
std::optional<double> hit_rate(std::int64_t hits, const ReuseCurve& curve) {
  if (curve.blocks == 0) return std::nullopt;
  return static_cast<double>(hits) / static_cast<double>(curve.blocks);
}

ordered_json schedule_json(const ScheduledReuse& one, const ReuseReport& report,
                           const RequestTrace& trace) {
  const ReuseCurve& curve = one.curve;
  ordered_json lru = ordered_json::array();
  for (const std::int64_t blocks : report.capacities) {
    const std::int64_t hits = curve.hits_of(blocks);
    const std::int64_t head_first = one.head_first.hits_of(blocks);
    lru.push_back({{"capacity_blocks", blocks},
                   {"capacity_tokens", blocks * trace.prefix_block},
                   {"hit_blocks", hits},
                   {"block_hit_rate", or_null(hit_rate(hits, curve))},
                   {"hit_blocks_head_first", head_first},
                   {"block_hit_rate_head_first", or_null(hit_rate(head_first, curve))}});
  }
  ordered_json out{{"stagger_s", to_seconds(one.stagger).count()},
                   {"blocks", curve.blocks},
                   {"distinct_blocks", curve.distinct},
                   {"unbounded",
                    {{"hit_blocks", curve.hits},
                     {"hit_blocks_one_token_computed", curve.hits - curve.whole_prompts},
                     {"prompts_wholly_cached", curve.whole_prompts},
                     {"distinct_blocks", curve.distinct},
                     {"block_hit_rate", or_null(hit_rate(curve.hits, curve))}}},
                   {"lru", std::move(lru)}};
  if (one.load) {
    out["span_s"] = to_seconds(one.load->span).count();
    out["max_requests_in_flight"] = one.load->max_requests_in_flight;
    out["max_sessions_open"] = one.load->max_sessions_open;
    out["max_sessions_and_subagents_open"] = one.load->max_sessions_and_subagents_open;
  }
  if (report.tiers) out["tiers"] = tiers_json(*report.tiers, trace, curve);
  return out;
}

/// An object with the first schedule's members, and every schedule by name in `schedules`.
ordered_json reuse_json(const RequestTrace& trace, const ReuseReport& report) {
  ordered_json out{{"block_tokens", trace.prefix_block},
                   {"schedule", report.schedules.front().name}};
  out.update(schedule_json(report.schedules.front(), report, trace));
  for (const ScheduledReuse& one : report.schedules) {
    out["schedules"][one.name] = schedule_json(one, report, trace);
    out[one.name] = out["schedules"][one.name];
  }
  return out;
}

/// Adds the values that only agent records have.
void add_agents(const RequestTrace& trace, const ReuseReport& reuse, ordered_json& out) {
  struct Sums {
    std::int64_t requests = 0, input = 0, output = 0;
    SimTime start{}, end{};
  };
  std::vector<Sums> sums(trace.agent_sessions.size());
  std::int64_t of_subagents = 0;
  std::int64_t without_service = 0;
  std::int64_t rest = 0;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const Request& r = trace.requests[i];
    const AgentRecord& record = trace.agents[i];
    Sums& sum = sums[static_cast<std::size_t>(r.session)];
    sum.start = sum.requests == 0 ? record.start : std::min(sum.start, record.start);
    sum.end = std::max(sum.end, record.start + std::max(record.service, SimTime{}));
    ++sum.requests;
    sum.input += r.prompt_tokens;
    sum.output += r.output_tokens;
    of_subagents += record.subagent >= 0 ? 1 : 0;
    without_service += record.service < SimTime{} ? 1 : 0;
    rest += std::max<std::int64_t>(
        0, r.prompt_tokens - std::ssize(shared_ids(trace, i)) * std::int64_t{trace.prefix_block});
  }
  out["block_size"] = trace.prefix_block;
  out["sessions_with_subagents"] =
      std::count_if(trace.agent_sessions.begin(), trace.agent_sessions.end(),
                    [](const AgentSession& one) { return one.subagents > 0; });
  out["requests_of_subagents"] = of_subagents;
  out["full_blocks"] = reuse.schedules.front().curve.blocks;
  out["tokens_outside_full_blocks"] = rest;
  out["longest_prompt"] = out["prompt_lengths"]["max"];
  out["requests_without_api_time"] = without_service;
  out["per_session"] = ordered_json::array();
  for (std::size_t s = 0; s < sums.size(); ++s) {
    const ReuseCurve& alone = reuse.sessions[s];
    out["per_session"].push_back(
        {{"file", trace.agent_sessions[s].name},
         {"requests", sums[s].requests},
         {"subagents", trace.agent_sessions[s].subagents},
         {"input_tokens", sums[s].input},
         {"output_tokens", sums[s].output},
         {"full_blocks", alone.blocks},
         {"hit_blocks", alone.hits},
         {"hit_blocks_one_token_computed", alone.hits - alone.whole_prompts},
         {"prompts_wholly_cached", alone.whole_prompts},
         {"distinct_blocks", alone.distinct},
         {"span_s", to_seconds(sums[s].end - sums[s].start).count()}});
  }
}

ordered_json lengths_json(const LengthSummary& lengths) {
  return {{"mean", lengths.mean},  {"p50", lengths.p50}, {"p90", lengths.p90},
          {"p99", lengths.p99},    {"min", lengths.min}, {"max", lengths.max},
          {"total", lengths.total}};
}

ordered_json load_json(const RequestTrace& trace, const RequestStats& stats,
                       const std::optional<ReuseReport>& reuse) {
  ordered_json out{{"schema", "kvsim.requests-info/2"},
                   {"name", trace.name},
                   {"format", trace.format},
                   {"requests", stats.requests},
                   {"skipped", trace.skipped},
                   {"waiting", stats.waiting},
                   {"input_tokens", stats.prompt.total},
                   {"output_tokens", stats.output.total},
                   {"sessions", stats.sessions},
                   {"subagents", count_subagents(trace)},
                   {"span_s", stats.span.count()},
                   {"request_s", or_null(stats.rate)},
                   {"inter_arrival_cv", or_null(stats.inter_arrival_cv)},
                   {"distinct_arrivals", stats.distinct_arrivals},
                   {"prompt_lengths", lengths_json(stats.prompt)},
                   {"output_lengths", lengths_json(stats.output)},
                   {"zero_outputs", stats.zero_outputs},
                   {"declared", stats.declared},
                   {"prefix", nullptr},
                   {"notes", trace.notes}};
  if (stats.prefix) {
    const PrefixSummary& prefix = *stats.prefix;
    out["prefix"] = {
        {"block_tokens", prefix.block},
        {"blocks", prefix.blocks},
        {"distinct", prefix.distinct},
        {"reusable", prefix.reusable},
        {"reusable_share", prefix.blocks > 0 ? ordered_json(static_cast<double>(prefix.reusable) /
                                                            static_cast<double>(prefix.blocks))
                                             : ordered_json(nullptr)}};
  }
  out["reuse"] = reuse ? reuse_json(trace, *reuse) : ordered_json(nullptr);
  if (!trace.agents.empty() && reuse) add_agents(trace, *reuse, out);
  return out;
}

std::string reuse_text(const RequestTrace& trace, const ReuseReport& report, std::size_t width) {
  std::vector<Table::Column> columns{{"LRU cache, blocks"}, {"tokens"}};
  for (const ScheduledReuse& one : report.schedules) columns.push_back({one.name});
  Table table{std::move(columns)};
  const auto add = [&](std::string blocks, std::string tokens, auto&& hits_of) {
    std::vector<std::string> row{std::move(blocks), std::move(tokens)};
    for (const ScheduledReuse& one : report.schedules) {
      const auto rate = hit_rate(hits_of(one.curve), one.curve);
      row.push_back(rate ? fmt::format("{:.2f} %", 100.0 * *rate) : "-");
    }
    table.add_row(std::move(row));
  };
  for (const std::int64_t blocks : report.capacities) {
    add(with_commas(blocks), with_commas(blocks * trace.prefix_block),
        [&](const ReuseCurve& curve) { return curve.hits_of(blocks); });
  }
  add("unbounded", "", [](const ReuseCurve& curve) { return curve.hits; });
  const std::string stagger =
      trace.agents.empty() ? ""
                           : fmt::format("; staggered: sessions start every {:g} s",
                                         to_seconds(report.schedules.back().stagger).count());
  std::string out =
      fmt::format("\nblocks found in a prefix cache{}\n{}", stagger, table.str(width));
  for (const ScheduledReuse& one : report.schedules) {
    if (report.tiers) out += tiers_text(*report.tiers, trace, one.curve, one.name, width);
  }
  return out;
}

std::string load_text(const RequestTrace& trace, const RequestStats& stats,
                      const std::optional<ReuseReport>& reuse, std::size_t width) {
  Facts facts;
  facts.add("format", trace.format);
  facts.add("requests", with_commas(stats.requests));
  if (trace.skipped > 0) facts.add("passed over", with_commas(trace.skipped));
  if (stats.waiting > 0) {
    facts.add("waiting", fmt::format("{} wait for an earlier one", with_commas(stats.waiting)));
  }
  if (const std::int64_t subagents = count_subagents(trace); subagents > 0) {
    facts.add("sessions", fmt::format("{}, with {} sub-agents", with_commas(stats.sessions),
                                      with_commas(subagents)));
  } else if (stats.sessions > 0) {
    facts.add("sessions", with_commas(stats.sessions));
  }
  facts.add("span", fmt::format("{:.6g} s", stats.span.count()));
  if (stats.rate) facts.add("rate", fmt::format("{:.4g} requests/s", *stats.rate));
  if (stats.inter_arrival_cv) {
    facts.add("burstiness",
              fmt::format("CV {:.4g} of the time between arrivals, {} distinct times",
                          *stats.inter_arrival_cv, with_commas(stats.distinct_arrivals)));
  }
  if (stats.prefix) {
    const PrefixSummary& prefix = *stats.prefix;
    facts.add("prefixes",
              fmt::format("{} blocks of {} tokens, {} distinct; {:.1f} % are a leading run that an "
                          "unbounded cache would hold",
                          with_commas(prefix.blocks), prefix.block, with_commas(prefix.distinct),
                          prefix.blocks > 0 ? 100.0 * static_cast<double>(prefix.reusable) /
                                                  static_cast<double>(prefix.blocks)
                                            : 0.0));
  }
  if (stats.zero_outputs > 0) facts.add("no output", with_commas(stats.zero_outputs));
  if (stats.declared > 0)
    facts.add("max_tokens", fmt::format("of {}", with_commas(stats.declared)));
  for (const std::string& note : trace.notes) facts.add("note", note);
  Table table{
      {{"tokens", Table::Align::kLeft}, {"mean"}, {"p50"}, {"p90"}, {"p99"}, {"max"}, {"total"}}};
  const auto row = [&](std::string name, const LengthSummary& lengths) {
    table.add_row({std::move(name), fmt::format("{:.1f}", lengths.mean),
                   fmt::format("{:.0f}", lengths.p50), fmt::format("{:.0f}", lengths.p90),
                   fmt::format("{:.0f}", lengths.p99), with_commas(lengths.max),
                   with_commas(lengths.total)});
  };
  row("prompt", stats.prompt);
  row("output", stats.output);
  return fmt::format("{}\n{}{}{}", trace.name, facts.str(width), table.str(width),
                     reuse ? reuse_text(trace, *reuse, width) : "");
}

int run_requests_info(const Arguments& arguments) {
  arguments.expect_words(1, 1'000'000, "request traces");
  const RequestTrace trace = file_workload(arguments, arguments.words());
  const std::string got = fmt::format("the format {}", trace.format);
  if (arguments.has("capacity-blocks") && trace.prefix_block == 0) {
    throw InputError{"--capacity-blocks", "a trace with prefix ids", got};
  }
  if (arguments.has("stagger") && trace.agents.empty()) {
    throw InputError{"--stagger", "recorded sessions of agents", got};
  }
  const RequestStats stats = summarise_requests(trace);
  std::optional<ReuseReport> reuse;
  std::optional<TierQuestion> tiers = read_tiers(arguments, trace);
  if (trace.prefix_block > 0) {
    reuse = reuse_of(trace, arguments);
    reuse->tiers = std::move(tiers);
  }
  write_out(arguments.has("json") ? to_file_text(load_json(trace, stats, reuse))
                                  : load_text(trace, stats, reuse, terminal_width()));
  return kDone;
}

}  // namespace

Command requests_info_command() {
  std::vector<Option> options = trace_file_options();
  options.push_back(
      {"capacity-blocks", 0, "N,…", false,
       "capacities of a prefix cache for which to print the reuse, in blocks of the trace "
       "(4096 to 131072, doubling)"});
  options.push_back(
      {"stagger", 0, "S", false, "sessions of agents: seconds between their starts (300)"});
  for (Option& option : tier_options()) options.push_back(std::move(option));
  options.push_back({"json", 0, "", false, "print JSON (schema kvsim.requests-info/2)"});
  return {
      .name = "requests info",
      .summary = "print the load of a request trace: rate, lengths, sessions, reuse by capacity",
      .usage = "kvsim requests info FILE... [options]",
      .examples =
          "kvsim requests info scenarios/samples/chat-azure.csv\n"
          "kvsim requests info scenarios/samples/long-mooncake.jsonl \\\n"
          "      --capacity-blocks 1000,4000\n"
          "kvsim requests info trace.jsonl --format mooncake --skip-bad 10 --json\n"
          "kvsim requests info agents --model llama-3.1-8b \\\n"
          "      --tiers hbm=40GiB,host=256GiB@25GB/s",
      .options = std::move(options),
      .run = run_requests_info};
}

}  // namespace kvsim
