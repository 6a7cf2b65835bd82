#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/report/figure/figure_style.hpp"

namespace kvsim {

/// A figure before it is drawn: data and a gnuplot script that reads it and writes NAME.svg and
/// NAME.png next to it. `gnuplot NAME.gp` in that folder draws it again; `kvsim plot` draws from
/// NAME.figure.json.
struct Figure {
  std::string name;                // "memory_vs_length_a800"; a safe file name
  std::string title;               // human-readable
  std::string csv;                 // NAME.csv
  std::string script;              // NAME.gp
  std::string kind{};              // "memory_vs_length", the name by which scenarios select figures
  nlohmann::ordered_json page{};   // the same chart for a page (figure_page.hpp); null if there is
                                   // none
  nlohmann::ordered_json chart{};  // as a document (figure_document.hpp); null if there is none
  /// NAME.gp in another style, laid out for its width; empty if only `script` exists.
  std::function<std::string(const FigureStyle&)> styled{};
};

struct FigureSet {
  std::vector<Figure> figures;
  std::vector<std::string> notes;  // omitted figures, with the reason
};

}  // namespace kvsim
