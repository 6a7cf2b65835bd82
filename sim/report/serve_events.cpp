#include "sim/report/serve_events.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/report/serve_measures.hpp"
#include "sim/report/text.hpp"

namespace kvsim {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string quoted(const std::string& text) { return nlohmann::json(clean_text(text)).dump(); }

/// With all digits of the clock's picoseconds.
std::string microseconds(SimTime t) {
  constexpr std::int64_t kPerMicrosecond = 1'000'000;
  return fmt::format("{}.{:06}", t.count() / kPerMicrosecond, t.count() % kPerMicrosecond);
}

constexpr const char* kProcess =
    R"({{"ph": "M", "pid": {}, "name": "process_name", "args": {{"name": {}}}}})";
constexpr const char* kThread =
    R"({{"ph": "M", "pid": {}, "tid": 1, "name": "thread_name", "args": {{"name": "iterations"}}}})";
constexpr const char* kSlice =
    R"({{"ph": "X", "pid": {}, "tid": 1, "name": "{}", "ts": {}, "dur": {}, "args": )"
    R"({{"decodes": {}, "prefill_tokens": {}}}}})";
constexpr const char* kRequests =
    R"({{"ph": "C", "pid": {}, "name": "requests", "ts": {}, "args": )"
    R"({{"running": {}, "waiting": {}}}}})";
constexpr const char* kPart = R"({}"{}": {:.6g})";
constexpr const char* kHbm =
    "{{\"ph\": \"C\", \"pid\": {}, \"name\": \"HBM by owner (GiB)\", \"ts\": {}, \"args\": "
    "{{{}}}}}";

class Events {
 public:
  Events() { put("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"); }

  void name_process(std::size_t pid, const std::string& name) {
    fmt::format_to(begin(), kProcess, pid, quoted(name));
    fmt::format_to(begin(), kThread, pid);
  }
  void slice(std::size_t pid, const ServeIteration& it) {
    const char* name = it.prefill_tokens == 0 ? "decode" : it.decodes == 0 ? "prefill" : "mixed";
    fmt::format_to(begin(), kSlice, pid, name, microseconds(it.start),
                   microseconds(it.end - it.start), it.decodes, it.prefill_tokens);
  }
  void counters(std::size_t pid, const ServeResult& result, const ServeSample& s) {
    const std::string at = microseconds(s.at);
    fmt::format_to(begin(), kRequests, pid, at, s.running, s.waiting);
    std::string parts;
    const auto bytes = hbm_parts(result, s);
    for (std::size_t part = 0; part < kHbmParts; ++part) {
      fmt::format_to(std::back_inserter(parts), kPart, part > 0 ? ", " : "",
                     name_of(static_cast<HbmPart>(part)),
                     static_cast<double>(bytes[part].count()) / kGiB);
    }
    fmt::format_to(begin(), kHbm, pid, at, parts);
  }
  std::string take() {
    put("\n]}\n");
    return fmt::to_string(out_);
  }

 private:
  void put(std::string_view text) { out_.append(text.data(), text.data() + text.size()); }
  std::back_insert_iterator<fmt::memory_buffer> begin() {
    if (!first_) put(",\n");
    first_ = false;
    return std::back_inserter(out_);
  }

  fmt::memory_buffer out_;
  bool first_ = true;
};

}  // namespace

std::string serve_events_json(const RunReport& report, std::size_t most_events) {
  constexpr std::size_t kPerSample = 2;  // counters
  std::size_t all = 0;
  for (const ServeResult& result : report.serves) {
    all += result.iteration_samples.size();
    for (const auto& timeline : result.timeline) all += kPerSample * timeline.size();
  }
  const std::size_t stride = std::max<std::size_t>(1, (all + most_events - 1) / most_events);
  Events events;
  std::size_t pid = 0;
  for (std::size_t i = 0; i < report.serves.size(); ++i) {
    const ServeResult& result = report.serves[i];
    std::vector<std::vector<const ServeIteration*>> iterations(result.timeline.size());
    for (const ServeIteration& it : result.iteration_samples) {
      const auto replica = static_cast<std::size_t>(it.replica);
      if (replica >= iterations.size()) iterations.resize(replica + 1);
      iterations[replica].push_back(&it);
    }
    for (std::size_t r = 0; r < iterations.size(); ++r) {
      ++pid;
      std::string name = report.scenario->points.at(i).label;
      if (iterations.size() > 1) name += fmt::format(", replica {}", r);
      events.name_process(pid, name);
      std::stable_sort(iterations[r].begin(), iterations[r].end(),
                       [](const auto* a, const auto* b) { return a->start < b->start; });
      std::size_t at = 0;
      const auto slices_until = [&](SimTime end) {
        for (; at < iterations[r].size() && iterations[r][at]->start <= end; at += stride) {
          events.slice(pid, *iterations[r][at]);
        }
      };
      if (r < result.timeline.size()) {
        const auto& timeline = result.timeline[r];
        for (std::size_t k = 0; k < timeline.size(); k += stride) {
          slices_until(timeline[k].at);
          events.counters(pid, result, timeline[k]);
        }
      }
      if (!iterations[r].empty()) slices_until(iterations[r].back()->start);
    }
  }
  return events.take();
}

}  // namespace kvsim
