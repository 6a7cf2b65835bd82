#include "sim/report/run/run_page.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "models/gpu/gpu.hpp"
#include "sim/batch/static_metrics.hpp"
#include "sim/replay/replay_metrics.hpp"
#include "sim/report/batch/static_summary.hpp"
#include "sim/report/folder/page_parts.hpp"
#include "sim/report/replay/replay_page.hpp"
#include "sim/report/run/run_finding.hpp"
#include "sim/report/run/run_summary.hpp"
#include "sim/report/service/serve_summary.hpp"
#include "sim/report/text/point_names.hpp"
#include "sim/report/text/text.hpp"
#include "sim/serve/account/service_metrics.hpp"
#include "sim/serve/serve_metrics.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
using PageTone = PageSentence::Tone;

constexpr std::size_t kMaxSamples = 96;  // per timeline of a point

/// The data sheet roofs of a point, for the chart of its operators.
ordered_json roof_json(const Gpu* gpu, Dtype dtype) {
  if (gpu == nullptr) return nullptr;
  return {{"gpu", gpu->name},
          {"dtype", name_of(dtype)},
          {"peak_flops", peak_flops(*gpu, dtype).count()},
          {"bandwidth", gpu->hbm_bandwidth.count()}};
}

/// Memory of a static run over its length: cache, other held memory, and the peak of a step.
ordered_json memory_timeline(const StaticResult& result) {
  ordered_json out{{"tokens", ordered_json::array()},
                   {"kv", ordered_json::array()},
                   {"held", ordered_json::array()},
                   {"peak", ordered_json::array()},
                   {"step_s", ordered_json::array()}};
  const std::size_t n = result.timeline.size();
  const std::size_t stride = std::max<std::size_t>(1, (n + kMaxSamples - 1) / kMaxSamples);
  for (std::size_t i = 0; i < n; ++i) {
    if (i % stride != 0 && i + 1 != n) continue;
    const StaticSample& sample = result.timeline[i];
    out["tokens"].push_back(sample.tokens);
    out["kv"].push_back(sample.kv.count());
    out["held"].push_back(sample.held.count());
    out["peak"].push_back(sample.peak.count());
    out["step_s"].push_back(sample.step > 0 ? ordered_json(sample.time.count()) : nullptr);
  }
  return out;
}

ordered_json point_extras(const RunReport& report, const std::vector<std::string>& labels) {
  ordered_json out = ordered_json::array();
  const Scenario& scenario = *report.scenario;
  const std::size_t n = std::min(scenario.points.size(), kMaxExplained);
  for (std::size_t i = 0; i < n; ++i) {
    ordered_json one{{"label", labels[i]}};
    if (scenario.kind == "serve") {
      const auto& spec = *scenario.points[i].serve;
      one["roof"] = roof_json(spec.gpu, spec.weight_dtype);
    } else {
      const StaticSpec& spec = scenario.points[i].spec;
      one["roof"] = roof_json(spec.gpu, spec.weight_dtype);
      one["timeline"] = memory_timeline(report.results[i]);
      one["usable_hbm_bytes"] = report.results[i].usable_hbm.count();
    }
    out.push_back(std::move(one));
  }
  return out;
}

std::vector<PageSentence> run_sentences(const RunReport& report,
                                        const std::vector<std::string>& labels) {
  std::vector<PageSentence> out;
  if (!report.scenario->points.empty()) {
    const bool serves = report.scenario->kind == "serve";
    const std::string text =
        serves ? serve_verdict(report, labels, kOneLine) : static_verdict(report, labels, kOneLine);
    bool fails = false;
    for (std::string& line : lines_of(text)) {
      const bool bad = line.find("out of memory") != std::string::npos ||
                       line.find("rejected") != std::string::npos;
      fails = fails || bad;
      out.push_back({std::move(line), bad ? PageTone::kFails : PageTone::kPlain});
    }
    if (!fails && !out.empty()) out.front().tone = PageTone::kFits;
    out.push_back({points_finding(report)});
  }
  if (report.replay) {
    for (PageSentence& one : replay_sentences(*report.replay, report.skipped)) {
      out.push_back(std::move(one));
    }
  }
  return out;
}

}  // namespace

std::string run_page(const RunReport& report, const ordered_json& document,
                     const FigureSet& figures) {
  const Scenario& scenario = *report.scenario;
  std::vector<std::size_t> all(scenario.points.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  const std::vector<std::string> labels = labels_within(scenario, all);
  std::vector<std::string> cuts;
  ordered_json shown = document;
  cut_points(shown, cuts);
  ordered_json extras = ordered_json::object();
  extras["points"] = point_extras(report, labels);
  extras["columns"] = page_columns(scenario.kind == "serve" ? infos_of(service_metrics())
                                                            : infos_of(static_metrics()));
  if (scenario.kind == "serve" && !all.empty()) {
    if (const auto& chosen = scenario.points.front().serve->slo.percentile) {
      extras["percentile"] = *chosen;
    }
  }
  if (report.replay) {
    cut_replay(shown["replay"]);
    extras["kept"] = kept_json(*report.replay, cuts);
    extras["methods"] = page_columns(infos_of(replay_metrics()));
  }
  const std::string common = all.empty() ? std::string{} : clean_text(common_description(scenario));
  const std::string title = title_of(scenario.name, scenario.title);
  const char* kind = all.empty() ? "replay" : scenario.kind == "serve" ? "serve" : "static";
  return page_text({.title = title,
                    .lead = common == title ? clean_text(scenario.description) : common,
                    .sentences = run_sentences(report, labels),
                    .summary = run_summary(report, document, nullptr, kSummaryWidth),
                    .data = data_of(kind, std::move(shown), figures, std::move(extras), cuts)});
}

}  // namespace kvsim
