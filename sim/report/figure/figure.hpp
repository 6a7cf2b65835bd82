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

}  // namespace kvsim
