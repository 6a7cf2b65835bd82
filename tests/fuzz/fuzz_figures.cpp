// Files in a results folder next to result.json: documents of figures, which `kvsim plot` reads and
// draws for screen and page, and the entries that a replay kept, which `kvsim explain` reads.
#include <set>
#include <string>

#include "models/json/field.hpp"
#include "sim/cli/explain/kept_lines.hpp"
#include "sim/report/chart/figure_document.hpp"
#include "sim/report/figure/figure_style.hpp"
#include "tests/fuzz/target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsim;
  const std::string text{fuzz::text_of(data, size)};
  fuzz::expect_answer([&] {
    std::set<std::string> words;
    const Figure figure = draw(read_figure(Field::parse(text, "input"), words).chart);
    for (const double width : {FigureStyle::kColumn, FigureStyle::kPage}) {
      const FigureStyle style{.formats = {"svg", "png", "pdf"}, .paper = true, .width_in = width};
      (void)figure.styled(style);
    }
  });
  return fuzz::expect_answer([&] { (void)read_kept(fuzz::as_file(text), 0, 0, 0); });
}
