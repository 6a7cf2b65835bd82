#pragma once

// The drawn form of every kind of chart.

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "sim/report/chart/chart.hpp"
#include "sim/report/chart/figure_document.hpp"
#include "sim/report/chart/figure_page.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim::chart {

/// Makes a chart own its texts: views into the maker's strings become views into `texts`.
inline void own_texts(PartStyle& style, std::set<std::string>& texts) {
  for (std::string_view* view : {&style.words, &style.fill.colour}) {
    *view = *texts.emplace(*view).first;
  }
}
inline void own_texts(BarChart& chart, std::set<std::string>& texts) {
  for (PartStyle& style : chart.styles) own_texts(style, texts);
  for (ChartBar& bar : chart.bars) {
    for (auto& [style, value] : bar.parts) own_texts(style, texts);
  }
}
inline void own_texts(AreaChart& chart, std::set<std::string>& texts) {
  for (AreaBand& band : chart.bands) own_texts(band.style, texts);
}

/// The figure of `chart`; `script_of` lays it out for a style.
template <class Chart>
[[nodiscard]] Figure figure_of(const Chart& chart, std::string csv,
                               std::string (*script_of)(const Chart&, const FigureStyle&)) {
  Figure figure{chart.name, clean_text(chart.title), std::move(csv), script_of(chart, {})};
  if constexpr (requires { page_chart(chart); }) figure.page = page_chart(chart);
  figure.chart = chart_json(chart);
  const auto texts = std::make_shared<std::set<std::string>>();
  Chart kept = chart;
  if constexpr (requires { own_texts(kept, *texts); }) own_texts(kept, *texts);
  figure.styled = [kept = std::move(kept), texts, script_of](const FigureStyle& style) {
    return script_of(kept, style);
  };
  return figure;
}

}  // namespace kvsim::chart
