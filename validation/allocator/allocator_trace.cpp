#include "validation/allocator/allocator_trace.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <limits>
#include <system_error>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/json/field.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

constexpr std::string_view kFormat = "kvsim.allocator-trace/1";
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max() >> 4;

struct OpName {
  AllocatorOp op;
  std::string_view name;
};
constexpr std::array<OpName, 10> kOps{{{AllocatorOp::kAlloc, "alloc"},
                                       {AllocatorOp::kFree, "free"},
                                       {AllocatorOp::kFreeRequested, "free_requested"},
                                       {AllocatorOp::kFreeCompleted, "free_completed"},
                                       {AllocatorOp::kEmptyCache, "empty_cache"},
                                       {AllocatorOp::kOom, "oom"},
                                       {AllocatorOp::kSegmentAlloc, "segment_alloc"},
                                       {AllocatorOp::kSegmentFree, "segment_free"},
                                       {AllocatorOp::kSegmentMap, "segment_map"},
                                       {AllocatorOp::kSegmentUnmap, "segment_unmap"}}};

AllocatorOp read_op(const Field& field) {
  static const std::vector<std::string> words = [] {
    std::vector<std::string> out;
    for (const OpName& each : kOps) out.emplace_back(each.name);
    return out;
  }();
  const std::string word = field.choice(words);
  return std::find_if(kOps.begin(), kOps.end(), [&](const OpName& e) { return e.name == word; })
      ->op;
}

bool is_segment(AllocatorOp op) { return op >= AllocatorOp::kSegmentAlloc; }
bool is_free(AllocatorOp op) {
  return op == AllocatorOp::kFree || op == AllocatorOp::kFreeRequested ||
         op == AllocatorOp::kFreeCompleted;
}

/// Tracks live tensors, so that an impossible trace is rejected at its first invalid event.
class Liveness {
 public:
  void check(const AllocatorEvent& event, const Field& field) {
    if (event.op == AllocatorOp::kAlloc) {
      if (!state_.emplace(event.id, false).second) field.at("id").fail("is in use already");
    } else if (is_free(event.op)) {
      const auto found = state_.find(event.id);
      if (found == state_.end()) field.at("id").fail("is not in use");
      const bool completes = event.op == AllocatorOp::kFreeCompleted;
      if (found->second != completes) {
        field.at("id").fail(completes ? "its release was not requested" : "is being released");
      }
      if (event.op == AllocatorOp::kFreeRequested) {
        found->second = true;
      } else {
        state_.erase(found);
      }
    }
  }

 private:
  std::unordered_map<std::int64_t, bool> state_;  // by id: whether its release was requested
};

AllocatorEvent read_event(const Field& field, std::int64_t line) {
  field.allow_only({"op", "id", "size", "stream", "address", "reserved", "allocated", "segments"});
  AllocatorEvent event{.op = read_op(field.at("op")), .line = line};
  if (event.op == AllocatorOp::kAlloc || is_free(event.op)) {
    event.id = field.at("id").integer(0, kMax);
  }
  if (event.op == AllocatorOp::kAlloc || event.op == AllocatorOp::kOom || is_segment(event.op)) {
    event.size = field.at("size").integer(1, kMax);
  }
  if (const auto f = field.find("stream")) {
    event.stream = static_cast<std::int32_t>(f->integer(0, 1 << 20));
  }
  if (const auto f = field.find("address")) {
    event.address = static_cast<std::uint64_t>(f->integer(0, kMax));
  }
  if (const auto f = field.find("reserved")) event.reserved = Bytes{f->integer(0, kMax)};
  if (const auto f = field.find("allocated")) event.allocated = Bytes{f->integer(0, kMax)};
  if (const auto f = field.find("segments")) event.segments = f->integer(0, kMax);
  return event;
}

void read_header(const Field& field, AllocatorTrace& trace) {
  field.allow_only(
      {"format", "source", "device_bytes", "outside_bytes", "alloc_conf", "initial_blocks"});
  const std::string format = field.at("format").string();
  if (format != kFormat) field.at("format").expected(fmt::format("\"{}\"", kFormat));
  if (const auto f = field.find("source")) trace.source = f->string();
  if (const auto f = field.find("device_bytes")) trace.device_bytes = Bytes{f->integer(1, kMax)};
  if (const auto f = field.find("outside_bytes"))
    trace.offloaded_bytes = Bytes{f->integer(0, kMax)};
  if (const auto f = field.find("alloc_conf")) trace.alloc_conf = f->string();
  if (const auto f = field.find("initial_blocks")) trace.initial_blocks = f->integer(0, kMax);
}

}  // namespace

std::string_view name_of(AllocatorOp op) {
  for (const OpName& each : kOps) {
    if (each.op == op) return each.name;
  }
  KVSIM_CHECK(false, "an operation without a name");
  return "";
}

AllocatorTrace parse_allocator_trace(std::string_view text, const std::string& file) {
  AllocatorTrace trace;
  Liveness liveness;
  std::int64_t line = 0;
  bool header = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line;
    if (row.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Field field = Field::parse(row, fmt::format("{}:{}", file, line));
    if (!field.is_object()) field.expected("an object");
    if (!header) {
      read_header(field, trace);
      header = true;
      continue;
    }
    trace.events.push_back(read_event(field, line));
    liveness.check(trace.events.back(), field);
    trace.has_segments = trace.has_segments || is_segment(trace.events.back().op);
  }
  if (!header) {
    throw InputError{file, fmt::format("a header with \"format\": \"{}\"", kFormat),
                     "an empty file"};
  }
  return trace;
}

AllocatorTrace read_allocator_trace(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw InputError{path.string(), "an allocation trace", "no file of that name"};
  }
  std::ifstream in{path, std::ios::binary};
  const std::string text{std::istreambuf_iterator<char>{in}, {}};
  if (!in) throw InputError{fmt::format("{}: cannot be read", path.string())};
  return parse_allocator_trace(text, path.string());
}

}  // namespace kvsim
