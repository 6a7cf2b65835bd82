// Files of results folders beside result.json: figures' data and scripts, as `kvsim plot` reads
// them, and the entries that a replay kept, as `kvsim explain` does.
#include <string>

#include "sim/cli/figure_lines.hpp"
#include "sim/cli/kept_lines.hpp"
#include "sim/report/figure_style.hpp"
#include "tests/fuzz/target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsim;
  const std::string text{fuzz::text_of(data, size)};
  fuzz::expect_answer([&] {
    (void)read_lines({.name = "figure", .title = "", .csv = text, .script = ""}, "a: ", "input");
  });
  for (const double width : {FigureStyle::kColumn, FigureStyle::kPage}) {
    fuzz::expect_answer([&] {
      const FigureStyle style{.formats = {"svg", "png", "pdf"}, .paper = true, .width_in = width};
      (void)styled_script(text, style);
    });
  }
  return fuzz::expect_answer([&] { (void)read_kept(fuzz::as_file(text), 0, 0, 0); });
}
