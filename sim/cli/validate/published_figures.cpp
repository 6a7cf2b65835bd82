// Figures of `kvsim validate published`.

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "sim/cli/validate/published_report.hpp"
#include "sim/report/chart/chart.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kMaxDocuments = 10;  // with distinct marks; others are faint

struct Parity {
  std::string name, title, quantity, column;
  std::vector<PublishedKind> kinds;
};

/// One figure with a mark per row, grouped by document, documents with the most rows first.
std::optional<Figure> parity_figure(const PublishedScore& score, const Parity& parity) {
  std::map<std::string, std::vector<ChartPoint>> by_document;
  std::size_t n = 0;
  for (const ScoredRow& row : score.rows) {
    if (!row.kind ||
        std::find(parity.kinds.begin(), parity.kinds.end(), *row.kind) == parity.kinds.end()) {
      continue;
    }
    if (!row.error() || *row.value <= 0 || *row.prediction.value <= 0) continue;
    by_document[row.document].push_back({*row.value, *row.prediction.value});
    ++n;
  }
  if (n == 0) return std::nullopt;
  std::vector<std::pair<std::string, std::vector<ChartPoint>>> documents{by_document.begin(),
                                                                         by_document.end()};
  std::stable_sort(documents.begin(), documents.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  ParityChart chart;
  chart.name = parity.name;
  chart.title = fmt::format("{}: predicted against published, {} rows", parity.title, n);
  chart.x_label = fmt::format("published {}", parity.quantity);
  chart.y_label = fmt::format("predicted {}", parity.quantity);
  chart.x_column = "published_" + parity.column;
  chart.y_column = "predicted_" + parity.column;
  chart.band = 0.15;
  chart.band_label = "within 15 %";
  for (std::size_t i = 0; i < documents.size(); ++i) {
    chart.groups.push_back({.label = documents[i].first,
                            .points = std::move(documents[i].second),
                            .reference = true,
                            .faint = i >= kMaxDocuments});
  }
  return draw(chart);
}

BarChart coverage(const PublishedScore& score) {
  BarChart chart;
  chart.name = "coverage";
  chart.title = "published rows by kind: expressed and not expressed";
  chart.x_label = "rows (count)";
  chart.column = "rows";
  const PartStyle in{"expressed", {"#0072B2", 0, true}};
  const PartStyle missing{"in scope, not expressed", {"#D55E00", 2, false}};
  const PartStyle out{"out of scope, not expressed", {"#b0b0b0", 0, false}};
  chart.styles = {in, missing, out};
  std::map<std::string, std::array<double, 3>> kinds;
  for (const ScoredRow& row : score.rows) {
    const std::string kind = row.kind ? std::string{name_of(*row.kind)} : "no rule";
    const std::size_t part = row.prediction.expressed() ? 0 : row.in_scope ? 1 : 2;
    kinds[kind][part] += 1;
  }
  for (const auto& [kind, parts] : kinds) {
    ChartBar bar;
    bar.label = kind;
    bar.parts = {{in, parts[0]}, {missing, parts[1]}, {out, parts[2]}};
    const double all = parts[0] + parts[1] + parts[2];
    bar.end_text = fmt::format("{:.0f} %", 100 * parts[0] / all);
    bar.inside_numbers = false;
    chart.bars.push_back(std::move(bar));
  }
  return chart;
}

}  // namespace

std::vector<Figure> published_figures(const PublishedScore& score) {
  const std::vector<Parity> parities{
      {"published_time",
       "throughputs, latencies",
       "figure (tok/s, s or ms as in the row)",
       "figure",
       {PublishedKind::kTime}},
      {"published_memory",
       "memory",
       "memory (GB or GiB, as in the row)",
       "gb",
       {PublishedKind::kPeakMemory, PublishedKind::kEngineMemory}},
      {"published_cache",
       "caches and capacities",
       "cache or capacity (GB, tokens or sequences, as in the row)",
       "figure",
       {PublishedKind::kCacheSize, PublishedKind::kCapacity, PublishedKind::kEngineCache}},
      {"published_other",
       "ratios and kernels",
       "figure (unit as in the row)",
       "figure",
       {PublishedKind::kRelative, PublishedKind::kKernel}}};
  std::vector<Figure> figures;
  for (const Parity& parity : parities) {
    if (auto figure = parity_figure(score, parity)) figures.push_back(std::move(*figure));
  }
  if (!score.rows.empty()) figures.push_back(draw(coverage(score)));
  return figures;
}

}  // namespace kvsim
