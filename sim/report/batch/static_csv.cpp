#include "sim/report/batch/static_csv.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/report/text/csv_cells.hpp"

namespace kvsim {

using nlohmann::ordered_json;

std::string points_csv(const ordered_json& document) {
  const ordered_json& points = document.at("points");
  // Columns are the keys of the first point, then keys that only later points have. Nested values
  // are only in result.json, except the OOM's numbers.
  std::vector<std::string> columns;
  for (const ordered_json& point : points) {
    for (const auto& item : point.items()) {
      if (item.key() == "oom" || item.key() == "kv_bytes_per_layer" || item.key() == "notes" ||
          item.key() == "allocator" || item.key() == "peak_owners" || item.key() == "peak_terms" ||
          item.key() == "time_terms" || item.key() == "interval_basis") {
        continue;
      }
      if (std::find(columns.begin(), columns.end(), item.key()) == columns.end()) {
        columns.push_back(item.key());
      }
    }
  }
  constexpr std::array kOom{"step", "tokens", "phase", "requested", "free"};
  std::string out = "point";
  for (const std::string& column : columns) out.append(",").append(csv_field(column));
  out += ",oom_step,oom_tokens,oom_phase,oom_requested_bytes,oom_free_bytes\n";
  for (std::size_t i = 0; i < points.size(); ++i) {
    out += fmt::format("{}", i);
    for (const std::string& column : columns) {
      const auto found = points[i].find(column);
      out += ',';
      if (found != points[i].end()) out += csv_json(*found);
    }
    const ordered_json& oom = points[i].at("oom");
    for (const char* key : kOom) {
      out += ',';
      if (!oom.is_null()) out += csv_json(oom.at(key));
    }
    out += "\n";
  }
  return out;
}

std::string timeline_csv(const RunReport& report) {
  std::string out = "point,label,step,tokens,peak_bytes,held_bytes,kv_bytes,step_s,tok_s\n";
  for (std::size_t i = 0; i < report.results.size(); ++i) {
    const std::string label = csv_field(report.scenario->points.at(i).label);
    for (const StaticSample& s : report.results[i].timeline) {
      out += fmt::format("{},{},{},{},{},{},{},{},{}\n", i, label, s.step, s.tokens, s.peak.count(),
                         s.held.count(), s.kv.count(), csv_number(s.time.count()),
                         csv_number(s.tok_s));
    }
  }
  return out;
}

std::string owners_csv(const RunReport& report) {
  std::string out = "point,label,phase,owner,bytes\n";
  for (std::size_t i = 0; i < report.results.size(); ++i) {
    const StaticResult& result = report.results[i];
    for (const auto& [owner, bytes] : result.peak_owners) {
      out += fmt::format("{},{},{},{},{}\n", i, csv_field(report.scenario->points.at(i).label),
                         csv_field(result.peak_phase), csv_field(owner), bytes.count());
    }
  }
  return out;
}

std::string time_terms_csv(const RunReport& report) {
  std::string out =
      "point,label,step,tokens,what,family,layers,calls,flops,bytes_read,bytes_written,launches,"
      "bound,seconds\n";
  for (std::size_t i = 0; i < report.results.size(); ++i) {
    const std::string label = csv_field(report.scenario->points.at(i).label);
    for (const ExplainedStep& step : report.results[i].explained) {
      for (const TimeTerm& t : step.terms) {
        out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", i, label, step.step,
                           step.tokens, csv_field(t.what), t.family, t.layers, t.calls,
                           csv_number(t.flops), std::llround(t.bytes_read),
                           std::llround(t.bytes_written), t.launches, t.bound,
                           csv_number(t.time.count()));
      }
    }
  }
  return out;
}

std::string layers_csv(const RunReport& report) {
  std::string out = "point,label,layer,kv_bytes\n";
  for (std::size_t i = 0; i < report.results.size(); ++i) {
    const auto& layers = report.results[i].kv_bytes_per_layer;
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      out += fmt::format("{},{},{},{}\n", i, csv_field(report.scenario->points.at(i).label), layer,
                         layers[layer].count());
    }
  }
  return out;
}

}  // namespace kvsim
