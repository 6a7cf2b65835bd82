#include "sim/report/service/serve_figures.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "models/units/units_format.hpp"
#include "sim/report/chart/chart.hpp"
#include "sim/report/chart/owner_styles.hpp"
#include "sim/report/service/derived_metrics.hpp"
#include "sim/report/text/point_names.hpp"
#include "sim/report/text/text.hpp"
#include "sim/serve/serve_metrics.hpp"
#include "traces/requests/request_stats.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kMaxFiles = 12;  // per kind of figure
constexpr std::size_t kMaxLines = 8;   // that are easy to distinguish
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kPercent = 100;

double as_double(Bytes bytes) { return static_cast<double>(bytes.count()); }

/// Keys that are equal for all points of one figure.
const std::vector<std::string>& shared_keys() {
  static const std::vector<std::string> keys{
      "model",    "gpu",    "gpu_count", "pipeline_parallel", "stack", "calibration", "dtype",
      "workload", "memory", "engine"};
  return keys;
}
/// Keys that determine the load of a service.
const std::vector<std::string>& load_keys() {
  static const std::vector<std::string> keys{"rate", "rate_scale", "users"};
  return keys;
}

std::vector<PointGroup> groups_by_load(const Scenario& scenario) {
  std::vector<std::string> keys = shared_keys();
  keys.insert(keys.end(), load_keys().begin(), load_keys().end());
  return point_groups(scenario, keys);
}

/// Points that share figures; if there are many, only points of the same load do.
std::vector<PointGroup> groups_of(const Scenario& scenario) {
  std::vector<PointGroup> groups = point_groups(scenario, shared_keys());
  const bool many = std::any_of(groups.begin(), groups.end(), [](const PointGroup& group) {
    return group.points.size() > kMaxLines;
  });
  return many ? groups_by_load(scenario) : groups;
}

/// Draws one figure per group, up to kMaxFiles.
class Files {
 public:
  Files(FigureSet& set, std::string kind) : set_{set}, kind_{std::move(kind)} {}
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  ~Files() = default;

  template <class Chart>
  void add(const Chart& chart) {
    if (files_ == kMaxFiles) {
      ++left_out_;
      return;
    }
    ++files_;
    set_.figures.push_back(draw(chart));
    set_.figures.back().kind = kind_;
  }
  void finish() {
    if (left_out_ == 0) return;
    set_.notes.push_back(fmt::format("{} more figures of {} were left out", left_out_, kind_));
  }

 private:
  FigureSet& set_;
  std::string kind_;
  std::size_t files_ = 0;
  std::size_t left_out_ = 0;
};

bool shows_something(const LineChart& chart) {
  const std::size_t min = chart.steps ? 1 : 2;
  return std::any_of(chart.lines.begin(), chart.lines.end(),
                     [&](const ChartLine& line) { return line.points.size() >= min; });
}

/// The CDF of a sample, with at most about two hundred points.
std::vector<ChartPoint> cdf_of(const std::vector<Weighted>& values) {
  constexpr std::int64_t kSteps = 200;
  constexpr double kMin = 1e-7;  // s; the axis is logarithmic
  std::int64_t n = 0;
  for (const Weighted& value : values) n += value.count;
  std::vector<ChartPoint> points;
  if (n == 0) return points;
  std::int64_t below = 0;
  double next = 0;
  for (const Weighted& value : values) {
    below += value.count;
    const double share = static_cast<double>(below) / static_cast<double>(n);
    if (share < next && below < n) continue;
    points.push_back({std::max(kMin, value.value), kPercent * share});
    next = share + 1.0 / kSteps;
  }
  return points;
}

std::vector<Weighted> values_of(const ServeResult& result,
                                std::optional<double> RequestTimes::*member) {
  std::vector<double> values;
  for (const RequestOutcome& o : result.outcomes) {
    if (o.status != RequestStatus::kCompleted) continue;
    if (const auto value = times_of(o).*member) values.push_back(*value);
  }
  return ascending(std::move(values));
}

struct CdfKind {
  std::string_view name, what, column;
  std::optional<double> RequestTimes::*member;  // null: gaps between tokens
  std::optional<Seconds> SloSpec::*bound;       // null: none
};
constexpr std::array kCdfs{
    CdfKind{"ttft_cdf", "time to first token", "ttft_s", &RequestTimes::ttft, &SloSpec::ttft},
    CdfKind{"tpot_cdf", "time per output token", "tpot_s", &RequestTimes::tpot, &SloSpec::tpot},
    CdfKind{"itl_cdf", "gap between two tokens", "itl_s", nullptr, nullptr},
    CdfKind{"e2e_cdf", "whole request", "e2e_s", &RequestTimes::e2e, &SloSpec::e2e}};

void add_cdfs(const RunReport& report, FigureSet& set) {
  for (const CdfKind& kind : kCdfs) {
    Files files{set, std::string{kind.name}};
    for (const PointGroup& group : groups_of(*report.scenario)) {
      LineChart chart{
          .name = std::string{kind.name} + group.suffix,
          .title = fmt::format("Distribution of the {}: {}",
                               kind.member == &RequestTimes::e2e
                                   ? std::string_view{"time of a whole request"}
                                   : kind.what,
                               group.description),
          .x_label = std::string{kind.what},
          .y_label = kind.member != nullptr ? "requests at or below (%)" : "gaps at or below (%)",
          .x_column = std::string{kind.column},
          .y_column = "percent_at_or_below",
          .integer_x = false,
          .log_seconds_x = true,
          .steps = true};
      std::set<double> bounds;
      for (std::size_t k = 0; k < group.points.size(); ++k) {
        const ServeResult& result = report.serves[group.points[k]];
        ChartLine line{.label = group.labels[k]};
        line.points =
            cdf_of(kind.member != nullptr ? values_of(result, kind.member) : token_gaps(result));
        if (line.points.empty()) line.label += " (none completed)";
        chart.lines.push_back(std::move(line));
        if (kind.bound == nullptr) continue;
        const SloSpec& slo = report.scenario->points[group.points[k]].serve->slo;
        if (const auto bound = slo.*kind.bound) bounds.insert(bound->count());
      }
      for (const double bound : bounds) {
        chart.plumbs.push_back({fmt::format("bound {}", to_text(Seconds{bound})), bound});
      }
      if (shows_something(chart)) files.add(chart);
    }
    files.finish();
  }
}

PartStyle style_of(HbmPart part) {
  switch (part) {
    case HbmPart::kContext:
      return style_of_owner("context");
    case HbmPart::kWeights:
      return style_of_owner("weights");
    case HbmPart::kActivations:
      return style_of_owner("activations");
    case HbmPart::kLogical:
      return {display_name(part), style_of_owner("kv_cache").fill};
    case HbmPart::kSlack:
      return {display_name(part), {"#0072B2", 5, false}};
    case HbmPart::kCached:
      return {display_name(part), {"#56B4E9", 0, false}};
    case HbmPart::kPoolFree:
      return {display_name(part), {"#E8F1F8", 0, false}};
    case HbmPart::kFree:
      return {display_name(part), {"#FFFFFF", 0, false}};
  }
  return style_of_owner("other");
}

/// The replica whose KV blocks reach the largest size.
std::size_t fullest_replica(const ServeResult& result) {
  std::size_t best = 0;
  Bytes max{-1};
  for (std::size_t r = 0; r < result.timeline.size(); ++r) {
    for (const ServeSample& s : result.timeline[r]) {
      if (s.kv_blocks <= max) continue;
      max = s.kv_blocks;
      best = r;
    }
  }
  return best;
}

void add_hbm_timelines(const RunReport& report, FigureSet& set) {
  constexpr std::size_t kBins = 300;
  Files files{set, "hbm_timeline"};
  const std::vector<PointGroup> groups = point_groups(*report.scenario, shared_keys());
  for (const PointGroup& group : groups) {
    for (std::size_t k = 0; k < group.points.size(); ++k) {
      const ServeResult& result = report.serves[group.points[k]];
      const std::size_t replica = fullest_replica(result);
      if (replica >= result.timeline.size() || result.timeline[replica].size() < 2) continue;
      const auto& timeline = result.timeline[replica];
      const double first = seconds_of(timeline.front().at);
      const double width = (seconds_of(timeline.back().at) - first) / kBins;
      if (!(width > 0)) continue;
      std::string name = "hbm_timeline" + group.suffix;
      if (group.points.size() > 1) name += fmt::format("_{}", slug(group.labels[k]));
      AreaChart chart{
          .name = name,
          .title = fmt::format(
              "HBM of one GPU over time: {}, {}{}", group.labels[k], group.description,
              result.timeline.size() > 1 ? fmt::format(", the fullest replica ({})", replica) : ""),
          .x_label = fmt::format("time, peak of each {} (s)", to_text(Seconds{width})),
          .y_label = "HBM (GiB)",
          .x_column = "time_s",
          .y_unit = kGiB};
      // In stacking order: constant parts at the bottom, changing parts above.
      for (std::size_t part = 0; part < kHbmParts; ++part) {
        const auto which = static_cast<HbmPart>(part);
        chart.bands.push_back(
            {.style = style_of(which), .column = std::string{name_of(which)} + "_bytes"});
      }
      const auto put = [&](double x, const ServeSample& s) {
        chart.x.push_back(x);
        const auto parts = hbm_parts(result, s);
        for (std::size_t part = 0; part < kHbmParts; ++part) {
          chart.bands[part].values.push_back(as_double(parts[part]));
        }
      };
      std::size_t at = 0;
      const ServeSample* last = &timeline.front();
      for (std::size_t bin = 0; bin < kBins; ++bin) {
        const double end = first + width * static_cast<double>(bin + 1);
        const ServeSample* fullest = nullptr;
        while (at < timeline.size() && (seconds_of(timeline[at].at) <= end || bin + 1 == kBins)) {
          last = &timeline[at++];
          if (fullest == nullptr || last->kv_blocks > fullest->kv_blocks) fullest = last;
        }
        put(end - width / 2, fullest != nullptr ? *fullest : *last);
      }
      files.add(chart);
    }
  }
  files.finish();
}

/// Sums over replicas at equal time intervals.
std::vector<ChartPoint> over_time(const ServeResult& result, std::int32_t ServeSample::*member) {
  constexpr std::size_t kBins = 240;
  double end = 0;
  for (const auto& timeline : result.timeline) {
    if (!timeline.empty()) end = std::max(end, seconds_of(timeline.back().at));
  }
  std::vector<ChartPoint> points;
  if (!(end > 0)) return points;
  for (std::size_t bin = 0; bin <= kBins; ++bin) {
    points.push_back({end * static_cast<double>(bin) / kBins, 0});
  }
  for (const auto& timeline : result.timeline) {
    std::size_t at = 0;
    for (ChartPoint& p : points) {
      while (at + 1 < timeline.size() && seconds_of(timeline[at + 1].at) <= p.x) ++at;
      if (at < timeline.size() && seconds_of(timeline[at].at) <= p.x) p.y += timeline[at].*member;
    }
  }
  return points;
}

void add_counts(const RunReport& report, FigureSet& set) {
  struct Count {
    std::string_view kind, title, label, column;
    std::int32_t ServeSample::*member;
  };
  constexpr std::array kCounts{Count{"running_timeline", "Requests running", "requests running",
                                     "running", &ServeSample::running},
                               Count{"waiting_timeline", "Requests waiting", "requests waiting",
                                     "waiting", &ServeSample::waiting}};
  for (const Count& count : kCounts) {
    Files files{set, std::string{count.kind}};
    for (const PointGroup& group : groups_of(*report.scenario)) {
      LineChart chart{.name = std::string{count.kind} + group.suffix,
                      .title = fmt::format("{}: {}", count.title, group.description),
                      .x_label = "time (s)",
                      .y_label = std::string{count.label},
                      .x_column = "time_s",
                      .y_column = std::string{count.column}};
      bool any = false;
      for (std::size_t k = 0; k < group.points.size(); ++k) {
        chart.lines.push_back({.label = group.labels[k],
                               .points = over_time(report.serves[group.points[k]], count.member)});
        for (const ChartPoint p : chart.lines.back().points) any = any || p.y > 0;
      }
      if (any && shows_something(chart)) files.add(chart);
    }
    files.finish();
  }
}

double load_of(const ScenarioPoint& point) {
  double load = 1;
  for (const std::string& key : load_keys()) {
    const auto found = point.keys.find(key);
    if (found != point.keys.end() && found->is_number()) load *= found->get<double>();
  }
  return load;
}

/// Latency against throughput: a line through points that differ only in load.
void add_throughput(const RunReport& report, FigureSet& set) {
  struct Latency {
    std::string_view kind, title, label, column;  // "TTFT", "ttft"
    Distribution ServeResult::*member;
  };
  constexpr std::array kLatencies{
      Latency{"throughput_ttft", "Time to first token", "TTFT", "ttft", &ServeResult::ttft},
      Latency{"throughput_tpot", "Time per output token", "TPOT", "tpot", &ServeResult::tpot},
      Latency{"throughput_e2e", "Time of a whole request", "E2E", "e2e", &ServeResult::e2e}};
  const Scenario& scenario = *report.scenario;
  const int percentile = scenario.points.front().serve->slo.percentile.value_or(90);
  for (const Latency& latency : kLatencies) {
    Files files{set, std::string{latency.kind}};
    for (const PointGroup& group : point_groups(scenario, shared_keys())) {
      std::vector<nlohmann::ordered_json> identity;
      std::vector<std::vector<std::size_t>> sweeps;
      for (const std::size_t i : group.points) {
        nlohmann::ordered_json mine = scenario.points[i].keys;
        for (const std::string& key : load_keys()) mine.erase(key);
        const auto found = std::find(identity.begin(), identity.end(), mine);
        const auto at = static_cast<std::size_t>(found - identity.begin());
        if (found == identity.end()) {
          identity.push_back(std::move(mine));
          sweeps.emplace_back();
        }
        sweeps[at].push_back(i);
      }
      std::erase_if(sweeps, [](const auto& sweep) { return sweep.size() < 2; });
      if (sweeps.empty()) continue;
      std::vector<std::size_t> firsts;
      for (auto& sweep : sweeps) {
        std::stable_sort(sweep.begin(), sweep.end(), [&](std::size_t a, std::size_t b) {
          return load_of(scenario.points[a]) < load_of(scenario.points[b]);
        });
        firsts.push_back(sweep.front());
      }
      const std::vector<std::string> labels = labels_within(scenario, firsts);
      LineChart chart{
          .name = std::string{latency.kind} + group.suffix,
          .title = fmt::format("{} against throughput: {}", latency.title, group.description),
          .x_label = "output of the whole service as the load grows (tok/s)",
          .y_label = fmt::format("{}, p{} (s)", latency.label, percentile),
          .x_column = "output_tok_s",
          .y_column = fmt::format("{}_p{}_s", latency.column, percentile),
          .log_y_where_wide = true};
      for (std::size_t k = 0; k < std::min(sweeps.size(), kMaxLines); ++k) {
        ChartLine line{.label = labels[k]};
        for (const std::size_t i : sweeps[k]) {
          const ServeResult& r = report.serves[i];
          if ((r.*latency.member).n == 0) continue;
          line.points.push_back({r.output_tok_s, value_at(r.*latency.member, percentile)});
        }
        chart.lines.push_back(std::move(line));
      }
      if (shows_something(chart)) files.add(chart);
    }
    files.finish();
  }
}

/// Cache bytes per GPU against the tokens of the requests in service.
void add_memory_under_load(const RunReport& report, FigureSet& set) {
  constexpr std::size_t kBins = 12;
  constexpr double kLow = 0.05, kHigh = 0.95;
  Files files{set, "memory_vs_load"};
  for (const PointGroup& group : groups_of(*report.scenario)) {
    LineChart chart{.name = "memory_vs_load" + group.suffix,
                    .title = fmt::format("Cache held under load: {}", group.description),
                    .x_label = "prompts and outputs so far of requests in service (tokens)",
                    .y_label = "KV cache of one GPU (GiB)",
                    .x_column = "tokens_in_service",
                    .y_column = "kv_blocks_bytes",
                    .y_unit = kGiB};
    std::set<std::int64_t> pools;
    for (std::size_t k = 0; k < group.points.size(); ++k) {
      const ServeResult& result = report.serves[group.points[k]];
      std::vector<ServeSample> samples;
      for (const auto& replica : result.timeline) {
        samples.insert(samples.end(), replica.begin(), replica.end());
      }
      std::int64_t max = 0;
      for (const ServeSample& s : samples) max = std::max(max, s.in_service);
      ChartLine line{.label = group.labels[k]};
      std::vector<std::vector<ServeSample>> bins(kBins);
      for (const ServeSample& s : samples) {
        if (s.in_service == 0) continue;
        const double share = static_cast<double>(s.in_service) / static_cast<double>(max);
        bins[std::min(static_cast<std::size_t>(share * kBins), kBins - 1)].push_back(s);
      }
      for (auto& bin : bins) {
        if (bin.empty()) continue;
        ChartPoint mean;
        std::vector<double> held;
        for (const ServeSample& s : bin) {
          mean.x += static_cast<double>(s.in_service);
          mean.y += as_double(s.kv_blocks);
          held.push_back(as_double(s.kv_blocks));
        }
        const auto n = static_cast<double>(bin.size());
        mean.x /= n;
        mean.y /= n;
        line.points.push_back(mean);
        std::sort(held.begin(), held.end());
        const auto at = [&](double share) {
          return held[static_cast<std::size_t>(share * static_cast<double>(held.size() - 1))];
        };
        line.spreads.push_back({mean.x, at(kLow), at(kHigh)});
      }
      chart.lines.push_back(std::move(line));
      if (result.kv_pool > Bytes{}) pools.insert(result.kv_pool.count());
    }
    for (const std::int64_t pool : pools) {
      const auto bytes = static_cast<double>(pool);
      std::string words = fmt::format("KV pool {:.1f} GiB", bytes / kGiB);
      // Pools that differ by a few blocks would be indistinguishable lines.
      if (!chart.levels.empty() && chart.levels.back().label == words) continue;
      chart.levels.push_back({std::move(words), bytes});
    }
    if (shows_something(chart)) files.add(chart);
  }
  files.finish();
}

/// Requests per second of the arrivals; nullopt if some requests wait for others, or all arrive at
/// once.
std::optional<double> own_rate(const ServeSpec& spec) {
  const auto& requests = spec.requests->requests;
  const bool waits =
      std::any_of(requests.begin(), requests.end(), [](const Request& r) { return r.after >= 0; });
  return waits ? std::nullopt : arrival_rate(*spec.requests);
}

void add_goodput(const RunReport& report, FigureSet& set) {
  constexpr PartStyle kGood{"within all bounds", {"#0072B2", 0, true}};
  constexpr PartStyle kLate{"completed, late", {"#E69F00", 4, false}};
  constexpr PartStyle kLost{"rejected or not completed", {"#777777", 2, false}};
  constexpr std::size_t kMaxBars = 24;
  Files files{set, "goodput"};
  BarChart chart{.name = "goodput",
                 .x_label = "rate over the makespan (requests/s)",
                 .column = "request_s",
                 .limit_label = "arrival rate",
                 .styles = {kGood, kLate, kLost}};
  std::string bounds;
  const auto bound = [&](const char* name, const std::optional<Seconds>& value) {
    if (value) bounds += fmt::format("{}{} {}", bounds.empty() ? "" : ", ", name, to_text(*value));
  };
  bool left_out = false;
  for (const PointGroup& group : groups_by_load(*report.scenario)) {
    if (!group.heading.empty()) chart.bars.push_back({.label = group.heading, .heading = true});
    for (std::size_t k = 0; k < group.points.size(); ++k) {
      const ServeResult& r = report.serves[group.points[k]];
      const ServeSpec& spec = *report.scenario->points[group.points[k]].serve;
      if (!r.goodput) continue;
      if (chart.bars.size() >= kMaxBars) {
        left_out = true;
        continue;
      }
      if (bounds.empty()) {
        bound("TTFT", spec.slo.ttft);
        bound("TPOT", spec.slo.tpot);
        bound("whole request", spec.slo.e2e);
      }
      const double time = seconds_of(r.makespan);
      ChartBar bar{.label = group.labels[k], .inside_numbers = false};
      bar.parts.emplace_back(kGood, *r.goodput);
      if (r.request_s > *r.goodput) bar.parts.emplace_back(kLate, r.request_s - *r.goodput);
      if (time > 0 && r.rejected + r.unfinished > 0) {
        bar.parts.emplace_back(kLost, static_cast<double>(r.rejected + r.unfinished) / time);
      }
      bar.limit = own_rate(spec);
      bar.end_text = fmt::format("{:.3g}/s good\n{:.0f} % of requests", *r.goodput,
                                 kPercent * r.slo_attained.value_or(0));
      chart.bars.push_back(std::move(bar));
    }
  }
  const bool any = std::any_of(chart.bars.begin(), chart.bars.end(),
                               [](const ChartBar& bar) { return !bar.heading; });
  if (!any) return;
  chart.title = fmt::format("Requests within {}", bounds);
  files.add(chart);
  if (left_out) set.notes.push_back(fmt::format("goodput shows the first {} bars", kMaxBars));
}

}  // namespace

FigureSet serve_figures(const RunReport& report) {
  FigureSet set;
  add_goodput(report, set);
  add_throughput(report, set);
  add_memory_under_load(report, set);
  add_hbm_timelines(report, set);
  add_counts(report, set);
  add_cdfs(report, set);
  return set;
}

}  // namespace kvsim
