#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/report/figure_style.hpp"
#include "sim/report/run_report.hpp"

namespace kvsim {

/// A figure before it is drawn: data and a gnuplot script that reads it and writes NAME.svg and
/// NAME.png beside it. `gnuplot NAME.gp` in that folder draws it again; `kvsim plot` draws anew
/// from NAME.figure.json.
struct Figure {
  std::string name;                // "memory_vs_length_a800"; a file name without surprises
  std::string title;               // for people
  std::string csv;                 // NAME.csv
  std::string script;              // NAME.gp
  std::string kind{};              // "memory_vs_length", the word that scenarios choose figures by
  nlohmann::ordered_json page{};   // the same chart for a page (figure_page.hpp); null: none
  nlohmann::ordered_json chart{};  // and as a document (figure_document.hpp); null: none
  /// NAME.gp in another style, laid out for its width; empty where `script` is all there is.
  std::function<std::string(const FigureStyle&)> styled{};
};

struct FigureSet {
  std::vector<Figure> figures;
  std::vector<std::string> notes;  // what was left out, and why
};

/// The figures of a run: memory and throughput versus length and, where layers differ, cache size
/// per layer (one line a method, one file for each model, GPU, stack, dtype, batch and length), HBM
/// by owner at the peak (one bar a point), sizes of caches where no point decodes, and those of its
/// replay. Where points differ in length alone, peak and throughput by final length take the place
/// of the first two. A figure that would show nothing (one sample, no point) is left out. Pure.
[[nodiscard]] FigureSet run_figures(const RunReport& report);
/// Those of `all` that the scenario names, or all of them if it names none.
[[nodiscard]] FigureSet wanted_figures(FigureSet all, const Scenario& scenario);

/// Error and bytes held over steps (where the series were kept), cache size per layer (where layers
/// differ), and mean error against bytes, a mark for each method and budget: against bytes held,
/// and against bytes read where some method does not read what it holds.
[[nodiscard]] FigureSet replay_figures(const ReplayResult& replay);

}  // namespace kvsim
