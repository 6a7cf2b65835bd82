#include "sim/report/service/serve_csv.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/compile.h>
#include <fmt/format.h>

#include "sim/report/service/derived_metrics.hpp"
#include "sim/report/text/csv_cells.hpp"
#include "sim/serve/serve_metrics.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view word_of(RequestStatus status) {
  switch (status) {
    case RequestStatus::kCompleted:
      return "completed";
    case RequestStatus::kRejected:
      return "rejected";
    case RequestStatus::kUnfinished:
      return "unfinished";
  }
  return "";
}

/// A simulated time in seconds with all digits; nothing if the event never happened.
void put_time(fmt::memory_buffer& out, SimTime at) {
  constexpr std::int64_t kPerSecond = 1'000'000'000'000;
  if (at < SimTime{}) return;
  fmt::format_to(std::back_inserter(out), FMT_COMPILE("{}.{:012}"), at.count() / kPerSecond,
                 at.count() % kPerSecond);
}

void put_optional(fmt::memory_buffer& out, const std::optional<double>& value) {
  if (value) fmt::format_to(std::back_inserter(out), FMT_COMPILE("{:.9g}"), *value);
}

void put(fmt::memory_buffer& out, std::string_view text) {
  out.append(text.data(), text.data() + text.size());
}

}  // namespace

std::string requests_csv(const RunReport& report) {
  fmt::memory_buffer out;
  put(out,
      "point,label,request,status,replica,arrival_s,scheduled_s,first_token_s,finish_s,queue_s,"
      "ttft_s,tpot_s,e2e_s,prompt_tokens,output_tokens,cached_tokens,preemptions,within_slo\n");
  for (std::size_t i = 0; i < report.serves.size(); ++i) {
    const ScenarioPoint& point = report.scenario->points.at(i);
    const SloSpec& slo = point.serve->slo;
    const std::string head = fmt::format("{},{},", i, csv_field(point.label));
    const auto& outcomes = report.serves[i].outcomes;
    for (std::size_t k = 0; k < outcomes.size(); ++k) {
      const RequestOutcome& o = outcomes[k];
      put(out, head);
      fmt::format_to(std::back_inserter(out), FMT_COMPILE("{},{},{},"), k, word_of(o.status),
                     o.replica);
      for (const SimTime at : {o.arrival, o.scheduled, o.first_token, o.finish}) {
        put_time(out, at);
        out.push_back(',');
      }
      const RequestTimes times = times_of(o);
      for (const auto& time : {times.queue, times.ttft, times.tpot, times.e2e}) {
        put_optional(out, time);
        out.push_back(',');
      }
      fmt::format_to(std::back_inserter(out), FMT_COMPILE("{},{},{},{},{}\n"), o.prompt_tokens,
                     o.output_tokens, o.cached_tokens, o.preemptions,
                     slo.empty()     ? std::string_view{}
                     : keeps(slo, o) ? std::string_view{"1"}
                                     : std::string_view{"0"});
    }
  }
  return fmt::to_string(out);
}

std::string serve_timeline_csv(const RunReport& report) {
  fmt::memory_buffer out;
  put(out, "point,label,replica,time_s,running,waiting,output_tokens,prompt_tokens,held_bytes");
  for (std::size_t part = 0; part < kHbmParts; ++part) {
    fmt::format_to(std::back_inserter(out), ",{}_bytes", name_of(static_cast<HbmPart>(part)));
  }
  const bool simulated = std::any_of(report.serves.begin(), report.serves.end(),
                                     [](const ServeResult& r) { return r.allocator.has_value(); });
  if (simulated) put(out, ",reserved_bytes");
  put(out, "\n");
  for (std::size_t i = 0; i < report.serves.size(); ++i) {
    const ServeResult& result = report.serves[i];
    const std::string head =
        fmt::format("{},{},", i, csv_field(report.scenario->points.at(i).label));
    for (std::size_t r = 0; r < result.timeline.size(); ++r) {
      for (const ServeSample& s : result.timeline[r]) {
        put(out, head);
        fmt::format_to(std::back_inserter(out), FMT_COMPILE("{},"), r);
        put_time(out, s.at);
        fmt::format_to(std::back_inserter(out), FMT_COMPILE(",{},{},{},{},{}"), s.running,
                       s.waiting, s.tokens, s.prompt_tokens, s.held.count());
        for (const Bytes bytes : hbm_parts(result, s)) {
          fmt::format_to(std::back_inserter(out), FMT_COMPILE(",{}"), bytes.count());
        }
        if (simulated) {
          out.push_back(',');
          if (result.allocator) put(out, std::to_string(s.reserved.count()));
        }
        out.push_back('\n');
      }
    }
  }
  return fmt::to_string(out);
}

std::string serve_points_csv(const ordered_json& document) {
  const ordered_json& points = document.at("points");
  // Objects become columns of their members; deeper nesting is only in result.json.
  std::vector<ordered_json> rows;
  std::vector<std::string> columns;
  for (const ordered_json& point : points) {
    ordered_json& row = rows.emplace_back(ordered_json::object());
    for (const auto& item : point.items()) {
      const ordered_json& value = item.value();
      if (item.key() == "engine" || item.key() == "memory" || item.key() == "allocator" ||
          value.is_array()) {
        continue;
      }
      if (!value.is_object()) {
        row[item.key()] = value;
        continue;
      }
      for (const auto& member : value.items()) {
        row[item.key() + "_" + member.key()] = member.value();
      }
    }
    for (const auto& item : row.items()) {
      if (std::find(columns.begin(), columns.end(), item.key()) == columns.end()) {
        columns.push_back(item.key());
      }
    }
  }
  std::string out = "point";
  for (const std::string& column : columns) out += "," + csv_field(column);
  out += "\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out += fmt::format("{}", i);
    for (const std::string& column : columns) {
      const auto found = rows[i].find(column);
      out += "," + (found == rows[i].end() ? std::string{} : csv_json(*found));
    }
    out += "\n";
  }
  return out;
}

}  // namespace kvsim
