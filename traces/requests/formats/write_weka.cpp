#include "traces/requests/formats/write_weka.hpp"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <unordered_map>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "traces/requests/formats/record_reader.hpp"

namespace kvsim {
namespace {

/// Formats seconds with all non-zero decimals, to the millisecond.
std::string json_seconds(SimTime time) {
  constexpr std::int64_t kMillisecond = kPicosecondsPerSecond / 1000;
  const std::int64_t ms = time.count() / kMillisecond;
  return fmt::format("{}.{:03}", ms / 1000, ms % 1000);
}

class SessionText {
 public:
  SessionText(const RequestTrace& trace, std::string_view name) : trace_{trace} {
    fmt::format_to(end(),
                   "{{\"id\":\"{}\",\"models\":[],\"block_size\":{},\"hash_id_scope\":\"local\","
                   "\"tool_tokens\":0,\"system_tokens\":0,\"requests\":[",
                   name, trace.prefix_block);
  }
  void add(std::size_t i) {
    const AgentRecord& record = trace_.agents[i];
    if (record.subagent != subagent_) {
      close();
      if (record.subagent >= 0) open(record);
    }
    if (has_entry_) text_ += ',';
    has_entry_ = true;
    write(i);
  }
  std::string take() {
    close();
    text_ += "]}\n";
    return std::move(text_);
  }

 private:
  std::back_insert_iterator<std::string> end() { return std::back_inserter(text_); }
  void open(const AgentRecord& record) {
    if (has_entry_) text_ += ',';
    subagent_ = record.subagent;
    base_ = record.start;
    fmt::format_to(end(),
                   "{{\"t\":{},\"type\":\"subagent\",\"agent_id\":\"agent_{:03}\","
                   "\"subagent_type\":\"\",\"status\":\"completed\",\"models\":[],\"requests\":[",
                   json_seconds(base_), ++agents_);
    has_entry_ = false;
  }
  void close() {
    if (subagent_ < 0) return;
    text_ += "]}";
    subagent_ = -1;
    base_ = SimTime{};
    has_entry_ = true;
  }
  void write(std::size_t i) {
    const Request& r = trace_.requests[i];
    const AgentRecord& record = trace_.agents[i];
    fmt::format_to(end(),
                   "{{\"t\":{},\"type\":\"n\",\"model\":\"\",\"in\":{},\"out\":{},\"hash_ids\":[",
                   json_seconds(record.start - base_), r.prompt_tokens, r.output_tokens);
    bool first = true;
    for (const std::uint64_t id : shared_ids(trace_, i)) {
      const std::size_t next = numbers_.size() + 1;
      fmt::format_to(end(), "{}{}", first ? "" : ",", numbers_.try_emplace(id, next).first->second);
      first = false;
    }
    fmt::format_to(end(), "],\"think_time\":{}", json_seconds(r.after < 0 ? SimTime{} : r.arrival));
    if (record.service >= SimTime{}) {
      fmt::format_to(end(), ",\"api_time\":{}", json_seconds(record.service));
    }
    text_ += '}';
  }

  const RequestTrace& trace_;
  std::string text_{};
  std::unordered_map<std::uint64_t, std::size_t> numbers_{};
  std::int32_t subagent_ = -1, agents_ = 0;
  SimTime base_{};
  bool has_entry_ = false;
};

}  // namespace

std::vector<std::pair<std::string, std::string>> weka_texts(const RequestTrace& trace) {
  if (trace.agents.empty()) {
    throw InputError{trace.name, "sessions of agents for the layout weka", trace.format};
  }
  std::unordered_map<std::uint64_t, std::int32_t> owners;
  std::vector<std::vector<std::size_t>> requests(trace.agent_sessions.size());
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const std::int32_t session = trace.requests[i].session;
    requests[static_cast<std::size_t>(session)].push_back(i);
    for (const std::uint64_t id : shared_ids(trace, i)) {
      if (owners.try_emplace(id, session).first->second == session) continue;
      throw InputError{trace.name, "sessions that share no prefix ids for the layout weka",
                       "ids of the scope \"global\""};
    }
  }
  std::vector<std::pair<std::string, std::string>> out;
  for (std::size_t s = 0; s < requests.size(); ++s) {
    const std::string& name = trace.agent_sessions[s].name;
    SessionText text{trace, name.substr(0, name.rfind(".json"))};
    for (const std::size_t i : requests[s]) text.add(i);
    out.emplace_back(name, text.take());
  }
  return out;
}

}  // namespace kvsim
