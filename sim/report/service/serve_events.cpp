#include "sim/report/service/serve_events.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/compile.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/report/service/derived_metrics.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string quoted(const std::string& text) { return nlohmann::json(clean_text(text)).dump(); }

// Compiled formats: a service of one minute has about ten thousand events.
constexpr char kProcess[] =
    R"({{"ph": "M", "pid": {}, "name": "process_name", "args": {{"name": {}}}}})";
constexpr char kThread[] =
    R"({{"ph": "M", "pid": {}, "tid": 1, "name": "thread_name", "args": {{"name": "iterations"}}}})";
constexpr char kSlice[] = R"({{"ph": "X", "pid": {}, "tid": 1, "name": "{}", "ts": )";
constexpr char kSliceOf[] = R"(, "args": {{"decodes": {}, "prefill_tokens": {}}}}})";
constexpr char kRequests[] = R"({{"ph": "C", "pid": {}, "name": "requests", "ts": )";
constexpr char kRequestsOf[] = R"(, "args": {{"running": {}, "waiting": {}}}}})";
constexpr char kAllocator[] = R"~({{"ph": "C", "pid": {}, "name": "allocator (GiB)", "ts": )~";
constexpr char kAllocatorOf[] = R"(, "args": {{"reserved": {:.6g}}}}})";
constexpr char kHbm[] = R"~({{"ph": "C", "pid": {}, "name": "HBM by owner (GiB)", "ts": )~";

class Events {
 public:
  Events() { put("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"); }

  void name_process(std::size_t pid, const std::string& name) {
    fmt::format_to(begin(), kProcess, pid, quoted(name));
    fmt::format_to(begin(), kThread, pid);
  }
  void slice(std::size_t pid, const ServeIteration& it) {
    const std::string_view name = it.prefill_tokens == 0 ? "decode"
                                  : it.decodes == 0      ? "prefill"
                                                         : "mixed";
    fmt::format_to(begin(), FMT_COMPILE(kSlice), pid, name);
    put_microseconds(it.start);
    put(", \"dur\": ");
    put_microseconds(it.end - it.start);
    fmt::format_to(end(), FMT_COMPILE(kSliceOf), it.decodes, it.prefill_tokens);
  }
  void counters(std::size_t pid, const ServeResult& result, const ServeSample& s) {
    fmt::format_to(begin(), FMT_COMPILE(kRequests), pid);
    put_microseconds(s.at);
    fmt::format_to(end(), FMT_COMPILE(kRequestsOf), s.running, s.waiting);
    fmt::format_to(begin(), FMT_COMPILE(kHbm), pid);
    put_microseconds(s.at);
    put(", \"args\": {");
    const auto bytes = hbm_parts(result, s);
    for (std::size_t part = 0; part < kHbmParts; ++part) {
      if (part > 0) put(", ");
      put(text_of(part, bytes[part]));
    }
    put("}}");
    if (!result.allocator) return;
    fmt::format_to(begin(), FMT_COMPILE(kAllocator), pid);
    put_microseconds(s.at);
    fmt::format_to(end(), FMT_COMPILE(kAllocatorOf),
                   static_cast<double>(s.reserved.count()) / kGiB);
  }
  std::string take() {
    put("\n]}\n");
    return fmt::to_string(out_);
  }

 private:
  struct PartText {
    Bytes bytes;
    std::string text;
  };
  void put(std::string_view text) { out_.append(text.data(), text.data() + text.size()); }
  /// With all digits of the picosecond clock.
  void put_microseconds(SimTime t) {
    constexpr std::int64_t kPerMicrosecond = 1'000'000;
    fmt::format_to(end(), FMT_COMPILE("{}.{:06}"), t.count() / kPerMicrosecond,
                   t.count() % kPerMicrosecond);
  }
  /// An HBM part with its name; cached, because most parts equal those of the previous sample.
  const std::string& text_of(std::size_t part, Bytes bytes) {
    PartText& known = parts_[part];
    if (known.text.empty() || known.bytes != bytes) {
      known = {.bytes = bytes,
               .text = fmt::format("\"{}\": {:.6g}", name_of(static_cast<HbmPart>(part)),
                                   static_cast<double>(bytes.count()) / kGiB)};
    }
    return known.text;
  }
  std::back_insert_iterator<fmt::memory_buffer> end() { return std::back_inserter(out_); }
  std::back_insert_iterator<fmt::memory_buffer> begin() {
    if (!first_) put(",\n");
    first_ = false;
    return end();
  }

  fmt::memory_buffer out_;
  std::array<PartText, kHbmParts> parts_;
  bool first_ = true;
};

}  // namespace

std::string serve_events_json(const RunReport& report, std::size_t max_events) {
  std::size_t all = 0;
  for (const ServeResult& result : report.serves) {
    const std::size_t counters = result.allocator ? 3 : 2;  // per sample
    all += result.iteration_samples.size();
    for (const auto& timeline : result.timeline) all += counters * timeline.size();
  }
  const std::size_t stride = std::max<std::size_t>(1, (all + max_events - 1) / max_events);
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
