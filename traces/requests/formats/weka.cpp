#include "traces/requests/formats/weka.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "models/units/text_file.hpp"
#include "models/units/units_format.hpp"
#include "traces/requests/formats/context_ids.hpp"
#include "traces/requests/formats/record_reader.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHead = 4096;  // bytes of a file used to detect its format
constexpr std::int64_t kMaxBlock = 1 << 20;
/// Limit of a time in a session, in seconds: the sum of an entry's, a request's and its service
/// stays within the range of the clock.
constexpr double kLongestAgentTime = kLongestTrace / 3.0;

/// Converts published times, which have at most nine decimals.
SimTime agent_seconds(const Field& field, double min = 0.0) {
  const double value = field.number(min, kLongestAgentTime);
  const double whole = std::floor(value);
  return SimTime{static_cast<std::int64_t>(whole) * kPicosecondsPerSecond +
                 std::llround((value - whole) * 1e9) * 1000};
}

/// A request of a session before sessions are combined; indices refer to the session's list.
struct Draft {
  Request request{};
  AgentRecord agent{};
  std::optional<SimTime> think{};  // the recorded pause before it
  std::vector<std::int32_t> also{};
  std::vector<std::uint64_t> ids{};
};

struct Session {
  std::string name;
  std::int32_t block = 0;
  bool global = false;
  std::int32_t subagents = 0;
  std::vector<Draft> drafts{};
  /// For each sub-agent, the time of its entry and its requests in `drafts`.
  struct Span {
    SimTime entry{};
    std::size_t first = 0, end = 0;
  };
  std::vector<Span> spans{};
};

/// Records the names of keys that no reader of the format uses.
void note_unknown(const Field& object, std::span<const std::string_view> known,
                  std::set<std::string>& unknown) {
  if (!object.is_object()) object.expected("an object");
  for (const auto& [key, value] : object.raw().items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) unknown.insert(key);
  }
}

constexpr std::array<std::string_view, 8> kSessionKeys{
    "id",          "models",        "block_size", "hash_id_scope",
    "tool_tokens", "system_tokens", "requests",   "totals"};
constexpr std::array<std::string_view, 12> kRequestKeys{
    "t",           "type",         "model", "in",       "out",        "hash_ids",
    "input_types", "output_types", "stop",  "api_time", "think_time", "ttft"};
constexpr std::array<std::string_view, 12> kSubagentKeys{
    "t",           "type",         "agent_id",       "subagent_type",
    "duration_ms", "total_tokens", "tool_use_count", "status",
    "requests",    "models",       "tool_tokens",    "system_tokens"};

std::vector<std::uint64_t> ids_of(const Field& list) {
  if (!list.is_array()) list.expected("a list of ids");
  std::vector<std::uint64_t> ids;
  ids.reserve(list.raw().size());
  for (const auto& value : list.raw()) {
    // The place of an item among ten thousand is computed only when needed.
    if (!value.is_number_unsigned()) {
      (void)list.items()[ids.size()].integer(0, std::numeric_limits<std::int64_t>::max());
    }
    ids.push_back(value.get<std::uint64_t>());
  }
  return ids;
}

class SessionReader {
 public:
  SessionReader(const Field& root, std::set<std::string>& unknown)
      : root_{root}, unknown_{unknown} {}

  Session read() {
    note_unknown(root_, kSessionKeys, unknown_);
    if (const auto id = root_.find("id")) out_.name = id->string();
    out_.block = static_cast<std::int32_t>(root_.at("block_size").integer(1, kMaxBlock));
    static const std::vector<std::string> scopes{"local", "global"};
    out_.global = root_.at("hash_id_scope").choice(scopes) == scopes.back();
    static const std::vector<std::string> types{"n", "s", "subagent"};
    for (const Field& entry : root_.at("requests").items()) {
      if (entry.at("type").choice(types) == types.back()) {
        subagent(entry);
      } else {
        main_request(entry);
      }
    }
    if (out_.drafts.empty()) root_.at("requests").fail("expected at least one request, got none");
    return std::move(out_);
  }

 private:
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(out_.drafts.size()); }

  Draft request(const Field& entry, SimTime offset) {
    note_unknown(entry, kRequestKeys, unknown_);
    Draft d;
    d.agent.start = offset + agent_seconds(entry.at("t"));
    if (const auto service = entry.find("api_time")) d.agent.service = agent_seconds(*service);
    if (const auto think = entry.find("think_time")) {
      // Below 0 if a request was sent before the previous one had ended.
      d.think = std::max(SimTime{}, agent_seconds(*think, -kLongestAgentTime));
    }
    d.request.prompt_tokens = static_cast<std::int32_t>(entry.at("in").integer(1, kMaxTokens));
    d.request.output_tokens = static_cast<std::int32_t>(entry.at("out").integer(0, kMaxTokens));
    if (const auto list = entry.find("hash_ids")) d.ids = ids_of(*list);
    d.agent.blocks = static_cast<std::int32_t>(d.ids.size());
    const std::int32_t full = d.request.prompt_tokens / out_.block;
    const bool has_tail = d.request.prompt_tokens % out_.block != 0;
    if (!d.ids.empty() && d.agent.blocks != full && !(has_tail && d.agent.blocks == full + 1)) {
      entry.at("hash_ids")
          .fail(fmt::format("expected {} ids, one for each full block of {} tokens, got {}", full,
                            out_.block, d.ids.size()));
    }
    return d;
  }

  void main_request(const Field& entry) {
    Draft d = request(entry, SimTime{});
    std::vector<std::int32_t> waits = std::exchange(waits_, {});
    if (main_ >= 0) waits.insert(waits.begin(), main_);
    if (!waits.empty()) {
      d.request.after = waits.front();
      d.also.assign(waits.begin() + 1, waits.end());
    }
    main_ = size();
    out_.drafts.push_back(std::move(d));
  }

  void subagent(const Field& entry) {
    note_unknown(entry, kSubagentKeys, unknown_);
    const SimTime start = agent_seconds(entry.at("t"));
    const auto status = entry.find("status");
    const bool awaited = !status || status->string() != "async_launched";
    const std::int32_t number = out_.subagents++;
    Session::Span span{.entry = start, .first = out_.drafts.size()};
    static const std::vector<std::string> types{"n", "s"};
    std::int32_t last = -1;
    for (const Field& inner : entry.at("requests").items()) {
      (void)inner.at("type").choice(types);
      Draft d = request(inner, start);
      d.agent.subagent = number;
      d.request.after = last >= 0 ? last : main_;
      last = size();
      out_.drafts.push_back(std::move(d));
    }
    span.end = out_.drafts.size();
    out_.spans.push_back(span);
    if (awaited && last >= 0) waits_.push_back(last);
  }

  const Field& root_;
  std::set<std::string>& unknown_;
  Session out_{};
  std::int32_t main_ = -1;             // latest request of the main agent
  std::vector<std::int32_t> waits_{};  // last requests of sub-agents for which it waits
};

/// Whether times of sub-agents' requests are relative to the session's start, as in some copies of
/// the data: in every sub-agent none precedes the agent's entry. `sessions` have been read as if
/// times were relative to the entry.
bool has_session_times(const std::vector<Session>& sessions) {
  bool any = false;
  for (const Session& session : sessions) {
    for (const Session::Span& span : session.spans) {
      for (std::size_t i = span.first; i < span.end; ++i) {
        if (session.drafts[i].agent.start - span.entry < span.entry) return false;
        any = any || span.entry > SimTime{};
      }
    }
  }
  return any;
}

void use_session_times(Session& session) {
  for (const Session::Span& span : session.spans) {
    for (std::size_t i = span.first; i < span.end; ++i) {
      session.drafts[i].agent.start = session.drafts[i].agent.start - span.entry;
    }
  }
}

/// Sets arrivals of requests that do not wait, and pauses of those that do: the recorded pause
/// after a request of the same agent, otherwise the time from the last end for which it waits to
/// its start. A recorded pause while sub-agents run includes their time.
void set_pauses(Session& session) {
  const auto end_of = [&](std::int32_t i) {
    const AgentRecord& one = session.drafts[static_cast<std::size_t>(i)].agent;
    return one.start + std::max(one.service, SimTime{});
  };
  for (Draft& d : session.drafts) {
    const std::int32_t after = d.request.after;
    d.request.arrival = d.agent.start;
    if (after < 0) continue;
    const AgentRecord& before = session.drafts[static_cast<std::size_t>(after)].agent;
    if (d.think && d.also.empty() && before.subagent == d.agent.subagent) {
      d.request.arrival = *d.think;
      continue;
    }
    SimTime end = end_of(after);
    for (const std::int32_t one : d.also) end = std::max(end, end_of(one));
    d.request.arrival = std::max(SimTime{}, d.agent.start - end);
  }
}

/// Adds sessions to a trace; ids with the same meaning become equal.
class SessionSink {
 public:
  explicit SessionSink(RequestSink& sink) : sink_{sink} {}

  void add(const Session& session) {
    RequestTrace& trace = sink_.trace();
    std::unordered_map<std::uint64_t, std::uint64_t> local;
    auto& numbers = session.global ? global_ : local;
    const auto number = static_cast<std::int32_t>(trace.agent_sessions.size());
    const auto base = static_cast<std::int32_t>(trace.requests.size());
    for (const Draft& d : session.drafts) {
      const bool has_ids = !d.ids.empty() || d.request.prompt_tokens < session.block;
      const bool tail = has_ids && std::ssize(d.ids) * session.block < d.request.prompt_tokens;
      check_prefix_room(trace, d.ids.size() + 1);
      Request r = d.request;
      AgentRecord agent = d.agent;
      r.session = number;
      r.prefix_first = static_cast<std::int32_t>(trace.prefix_ids.size());
      for (const std::uint64_t id : d.ids) {
        const auto [at, is_new] = numbers.try_emplace(id, next_);
        if (is_new) ++next_;
        trace.prefix_ids.push_back(at->second);
      }
      if (tail) trace.prefix_ids.push_back(next_++);
      r.prefix_count = static_cast<std::int32_t>(d.ids.size()) + (tail ? 1 : 0);
      if (agent.subagent >= 0) agent.subagent += subagents_;
      if (r.after >= 0) r.after += base;
      for (const std::int32_t also : d.also) {
        trace.joins.push_back(
            {.request = static_cast<std::int32_t>(trace.requests.size()), .also = also + base});
      }
      trace.agents.push_back(agent);
      sink_.add(r, [&] { return trace.name; });
    }
    subagents_ += session.subagents;
    trace.agent_sessions.push_back({.name = session.name, .subagents = session.subagents});
  }

 private:
  RequestSink& sink_;
  std::unordered_map<std::uint64_t, std::uint64_t> global_{};
  std::uint64_t next_ = 0;
  std::int32_t subagents_ = 0;
};

using TextOf = std::pair<std::string, std::string>;  // name of the file, its text

template <class Next>
RequestTrace read_sessions(std::string name, std::size_t count, Next&& text_of,
                           const ReadOptions& options) {
  ReadOptions unsorted = options;
  unsorted.sort = true;  // sessions are added one after the other
  RequestSink sink{std::move(name), RequestFormat::kWeka, unsorted};
  std::vector<Session> sessions;
  std::set<std::string> unknown;
  std::string first;  // the file that determines the block size
  for (std::size_t i = 0; i < count; ++i) {
    sink.record([&] {
      const auto [file, text] = text_of(i);
      check_text(text, file);
      const Field root = Field::parse(text, file);
      Session session = SessionReader{root, unknown}.read();
      session.name = fs::path{file}.filename().string();
      const std::int32_t block =
          sessions.empty() ? options.prefix_block.value_or(session.block) : sessions.front().block;
      if (session.block != block) {
        root.at("block_size")
            .expected(first.empty() ? fmt::format("{} as \"prefix_block\"", block)
                                    : fmt::format("{} as in {}", block, first));
      }
      if (first.empty()) first = file;
      sessions.push_back(std::move(session));
    });
  }
  RequestTrace& trace = sink.trace();
  if (!sessions.empty()) trace.prefix_block = sessions.front().block;
  if (has_session_times(sessions)) {
    for (Session& session : sessions) use_session_times(session);
    trace.notes.emplace_back("times of sub-agents count from the session's start");
  }
  SessionSink out{sink};
  std::int64_t without_ids = 0;
  for (Session& session : sessions) {
    for (const Draft& d : session.drafts) {
      without_ids += d.ids.empty() && d.request.prompt_tokens >= session.block ? 1 : 0;
    }
    set_pauses(session);
    out.add(session);
    session = {};
  }
  sink.put_in_order();
  if (!unknown.empty()) {
    trace.notes.push_back(fmt::format("unknown keys are skipped: {}", fmt::join(unknown, ", ")));
  }
  if (without_ids > 0) {
    trace.notes.push_back(fmt::format("{} requests have no hash_ids: they share no prefix",
                                      with_commas(without_ids)));
  }
  return sink.finish(false);
}

}  // namespace

RequestTrace read_weka(std::span<const fs::path> paths, const ReadOptions& options) {
  std::string name = paths.front().string();
  if (paths.size() > 1) {
    const fs::path folder = paths.front().parent_path();
    name = folder.empty() ? "sessions" : folder.string();
  }
  return read_sessions(
      std::move(name), paths.size(),
      [&](std::size_t i) {
        constexpr std::size_t kMaxOfSession = 1U << 30U;
        return TextOf{paths[i].string(), read_text_file(paths[i], kMaxOfSession)};
      },
      options);
}

RequestTrace parse_weka(std::string_view text, std::string_view name, const ReadOptions& options) {
  return read_sessions(
      std::string{name}, 1,
      [&](std::size_t) {
        return TextOf{std::string{name}, std::string{text}};
      },
      options);
}

bool looks_like_weka(std::string_view head) {
  head = head.substr(0, kHead);
  if (head.starts_with("\xEF\xBB\xBF")) head.remove_prefix(3);
  const std::size_t begin = head.find_first_not_of(" \t\r\n");
  return begin != std::string_view::npos && head[begin] == '{' &&
         head.find("\"block_size\"") != std::string_view::npos &&
         head.find("\"hash_id_scope\"") != std::string_view::npos &&
         head.find("\"requests\"") != std::string_view::npos;
}

std::vector<fs::path> weka_files(const fs::path& path) {
  const auto looks_so = [](const fs::path& file) {
    std::ifstream in{file, std::ios::binary};
    std::string head(kHead, '\0');
    in.read(head.data(), static_cast<std::streamsize>(head.size()));
    head.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
    return looks_like_weka(head);
  };
  std::error_code status;
  std::vector<fs::path> files;
  if (!fs::is_directory(path, status)) {
    if (fs::is_regular_file(path, status) && looks_so(path)) files.push_back(path);
    return files;
  }
  for (const auto& entry : fs::directory_iterator{path}) {
    if (entry.path().extension() == ".json" && entry.is_regular_file() && looks_so(entry.path())) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace kvsim
