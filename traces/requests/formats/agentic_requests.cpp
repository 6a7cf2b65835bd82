#include "traces/requests/formats/agentic_requests.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "traces/requests/formats/context_ids.hpp"

namespace kvsim {
namespace {

constexpr std::int32_t kBailianBlock = 16;
constexpr std::string_view kAgenticSchema = "dynamo.agentic_mooncake";

Field parse_row(std::string_view line, const LineReader& lines) {
  check_text(line, lines.place());
  return Field::parse(line, lines.place());
}

/// Returns `field` times `unit` picoseconds, rounded to a nanosecond.
SimTime row_time(const Field& field, double unit) {
  const double value = field.number(0, 1.0 * kLongestTrace * 1e12 / unit);
  const double whole = std::floor(value);
  return SimTime{static_cast<std::int64_t>(whole) * static_cast<std::int64_t>(unit) +
                 std::llround((value - whole) * unit / 1000) * 1000};
}

/// Returns the member of a row with either name.
std::optional<Field> either(const Field& row, std::string_view name, std::string_view other) {
  auto found = row.find(name);
  return found ? found : row.find(other);
}

std::int32_t row_tokens(const Field& row, std::string_view name, std::string_view other,
                        std::int64_t low) {
  const auto found = either(row, name, other);
  return static_cast<std::int32_t>((found ? *found : row.at(name)).integer(low, kMaxTokens));
}

/// Appends the ids of a request to the trace's.
void take_ids(const Field& row, RequestTrace& trace, Request& r) {
  auto& all = trace.prefix_ids;
  r.prefix_first = static_cast<std::int32_t>(all.size());
  const auto list = row.find("hash_ids");
  if (!list) return;
  if (!list->is_array()) list->expected("a list of ids");
  check_prefix_room(trace, list->raw().size());
  std::size_t count = 0;
  for (const auto& value : list->raw()) {
    // The place of an item among thousands is computed only when needed.
    if (!value.is_number_unsigned()) {
      (void)list->items()[count].integer(0, std::numeric_limits<std::int64_t>::max());
    }
    all.push_back(value.get<std::uint64_t>());
    ++count;
  }
  r.prefix_count = static_cast<std::int32_t>(count);
}

/// Block sizes that are consistent with prompts and their numbers of ids (one per block, including
/// a partial last one).
class BlockSizes {
 public:
  /// Returns the sizes that are also consistent with a row. Errors: InputError at the row's ids if
  /// no size is left.
  [[nodiscard]] BlockSizes with(const Field& row, const Request& r) const {
    BlockSizes out = *this;
    if (r.prefix_count == 0) return out;
    const std::int32_t ids = r.prefix_count;
    const std::int32_t low = (r.prompt_tokens + ids - 1) / ids;
    const std::int32_t high = ids == 1 ? kMaxTokens : (r.prompt_tokens - 1) / (ids - 1);
    if (std::max(low, low_) > std::min(high, high_)) {
      row.at("hash_ids")
          .fail(fmt::format("expected one id for each block of {}{} tokens, got {} for {} tokens",
                            low_, high_ > low_ ? fmt::format(" to {}", high_) : "", ids,
                            r.prompt_tokens));
    }
    out.low_ = std::max(low, low_);
    out.high_ = std::min(high, high_);
    out.any_ = true;
    return out;
  }
  void fix(std::int32_t block) { low_ = high_ = block; }
  [[nodiscard]] bool any() const { return any_; }
  [[nodiscard]] bool known() const { return low_ == high_; }
  /// Returns the power of two among them, or else the smallest.
  [[nodiscard]] std::int32_t choose() const {
    std::int32_t power = 1;
    while (power < low_) power *= 2;
    return power <= high_ ? power : low_;
  }

 private:
  std::int32_t low_ = 1, high_ = kMaxTokens;
  bool any_ = false;
};

/// Reads a header, which contains the block size. Rows of the second version wait for dispatches of
/// others, which a workload cannot represent.
void read_header(const Field& row, BlockSizes& blocks, const ReadOptions& options) {
  static const std::vector<std::string> schemas{std::string{kAgenticSchema}};
  (void)row.at("schema").choice(schemas);
  if (const auto version = row.find("version"); version && version->integer(0, 1000) != 1) {
    version->expected("version 1 (rows with wait_for), as dynamo-data-gen up to 1.5 writes it");
  }
  const auto block = static_cast<std::int32_t>(row.at("block_size").integer(1, kMaxTokens));
  if (options.prefix_block && *options.prefix_block != block) {
    row.at("block_size").expected(fmt::format("{} as \"prefix_block\"", *options.prefix_block));
  }
  blocks.fix(block);
}

class AgenticReader {
 public:
  explicit AgenticReader(RequestSink& sink) : sink_{sink} {}

  void read(const Field& row, const std::string& place) {
    sink_.note_other_keys(row, {"request_id",
                                "session_id",
                                "input_length",
                                "input_tokens",
                                "output_length",
                                "output_tokens",
                                "output_token_ids",
                                "hash_ids",
                                "timestamp",
                                "created_time",
                                "delay",
                                "delay_ms",
                                "priority",
                                "strict_priority",
                                "policy_class",
                                "routing_constraints",
                                "request_kind",
                                "wait_for",
                                "branches",
                                "prefix_reset",
                                "tool_wait_ms",
                                "tool_events"});
    Request r;
    r.prompt_tokens = row_tokens(row, "input_length", "input_tokens", 1);
    r.output_tokens = row_tokens(row, "output_length", "output_tokens", 0);
    if (const auto priority = row.find("priority")) {
      r.priority = static_cast<std::int32_t>(priority->integer(-(1 << 30), 1 << 30));
    }
    const auto name = row.find("request_id");
    const auto session = row.find("session_id");
    if (session) r.session = number_of(session->string());
    const auto at = either(row, "timestamp", "created_time");
    SimTime pause{};
    const auto delay = either(row, "delay", "delay_ms");
    if (delay) pause += row_time(*delay, kMillisecond);
    if (const auto tool = row.find("tool_wait_ms")) pause += row_time(*tool, kMillisecond);
    std::vector<std::int32_t> waits;
    if (const auto list = row.find("wait_for")) {
      for (const Field& one : list->items()) {
        const auto found = requests_.find(one.string());
        if (found == requests_.end()) one.expected("the request_id of a row before this one");
        waits.push_back(found->second);
      }
    }
    const Turn* before = nullptr;
    if (!name && session && waits.empty()) {
      const auto found = latest_.find(r.session);
      if (found != latest_.end()) before = &found->second;
    }
    if (before != nullptr) {
      r.after = before->request;
      if (!delay) {
        if (!at) row.fail("expected a \"delay\" or a \"timestamp\" of a later turn, got neither");
        const SimTime now = row_time(*at, kMillisecond);
        if (now < before->at) at->expected("a time not before that of the previous turn");
        pause += now - before->at;
      }
      r.arrival = pause;
    } else if (!waits.empty()) {
      std::sort(waits.begin(), waits.end());
      waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
      r.after = waits.front();
      r.arrival = pause;
    } else {
      r.arrival = at ? row_time(*at, kMillisecond) : SimTime{};
    }
    RequestTrace& trace = sink_.trace();
    const auto number = static_cast<std::int32_t>(trace.requests.size());
    if (name && requests_.contains(name->string())) name->expected("a new request_id");
    take_ids(row, trace, r);
    sink_.add(r, [&] { return place; });
    for (std::size_t i = 1; i < waits.size(); ++i) {
      trace.joins.push_back({.request = number, .also = waits[i]});
    }
    if (name) requests_.emplace(name->string(), number);
    if (session && !name) {
      latest_[r.session] = {.request = number, .at = at ? row_time(*at, kMillisecond) : SimTime{}};
    }
  }

 private:
  static constexpr double kMillisecond = 1e9;
  struct Turn {
    std::int32_t request = -1;
    SimTime at{};
  };
  std::int32_t number_of(const std::string& session) {
    const auto next = static_cast<std::int32_t>(sessions_.size());
    return sessions_.try_emplace(session, next).first->second;
  }

  RequestSink& sink_;
  std::unordered_map<std::string, std::int32_t> requests_{}, sessions_{};
  std::unordered_map<std::int32_t, Turn> latest_{};
};

}  // namespace

RequestTrace read_agentic(LineReader& lines, std::string first, const ReadOptions& options) {
  ReadOptions unsorted = options;
  unsorted.sort = true;  // sessions may be written one after another
  RequestSink sink{lines.name(), RequestFormat::kAgentic, unsorted};
  AgenticReader reader{sink};
  BlockSizes blocks;
  if (options.prefix_block) blocks.fix(*options.prefix_block);
  std::string_view line = first;
  bool is_first = true;
  do {
    if (trimmed(line).empty()) continue;
    sink.record([&] {
      const Field row = parse_row(line, lines);
      if (is_first && row.is_object() && row.has("schema")) {
        read_header(row, blocks, options);
        return;
      }
      Request probe;
      probe.prompt_tokens = row_tokens(row, "input_length", "input_tokens", 1);
      if (const auto list = row.find("hash_ids")) {
        probe.prefix_count = static_cast<std::int32_t>(list->raw().size());
      }
      const BlockSizes narrower = blocks.with(row, probe);
      reader.read(row, lines.place());
      blocks = narrower;
    });
    is_first = false;
  } while (lines.next(line));
  if (blocks.any()) {
    sink.trace().prefix_block = blocks.choose();
    if (!blocks.known()) {
      sink.trace().notes.push_back(
          fmt::format("blocks are taken for {} tokens, which agrees with every row; "
                      "\"prefix_block\" sets another",
                      blocks.choose()));
    }
  }
  sink.put_in_order();
  return sink.finish(false);
}

RequestTrace read_bailian(LineReader& lines, std::string first, const ReadOptions& options) {
  RequestSink sink{lines.name(), RequestFormat::kBailian, options};
  const std::int32_t block = options.prefix_block.value_or(kBailianBlock);
  std::unordered_map<std::int64_t, std::int32_t> sessions;  // of chats
  std::int32_t next = 0;
  std::string_view line = first;
  do {
    if (trimmed(line).empty()) continue;
    sink.record([&] {
      const Field row = parse_row(line, lines);
      sink.note_other_keys(row, {"chat_id", "parent_chat_id", "turn", "timestamp", "input_length",
                                 "output_length", "type", "hash_ids"});
      constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
      Request r;
      const std::int64_t chat = row.at("chat_id").integer(0, kMax);
      const std::int64_t parent = row.at("parent_chat_id").integer(-1, kMax);
      r.arrival = row_time(row.at("timestamp"), 1e12);
      r.prompt_tokens = row_tokens(row, "input_length", "input_length", 1);
      r.output_tokens = row_tokens(row, "output_length", "output_length", 0);
      take_ids(row, sink.trace(), r);
      const std::int32_t wanted = (r.prompt_tokens + block - 1) / block;
      if (r.prefix_count != 0 && r.prefix_count != wanted &&
          r.prefix_count != r.prompt_tokens / block) {
        row.at("hash_ids")
            .fail(fmt::format("expected {} ids, one for each block of {} tokens, got {}", wanted,
                              block, r.prefix_count));
      }
      // If the parent has not occurred in the file, it is the root.
      const auto known = sessions.find(parent);
      r.session = known != sessions.end() ? known->second : next++;
      sessions[chat] = r.session;
      sink.add(r, [&] { return lines.place(); });
    });
  } while (lines.next(line));
  if (!sink.trace().prefix_ids.empty()) sink.trace().prefix_block = block;
  return sink.finish(false);
}

}  // namespace kvsim
