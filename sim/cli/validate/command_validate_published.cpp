// kvsim validate published: compares every value of a table of published results that kvsim can
// express with its prediction.

#include <filesystem>

#include <fmt/format.h>

#include "sim/cli/process/terminal.hpp"
#include "sim/cli/validate/command_validate.hpp"
#include "sim/cli/validate/published_report.hpp"
#include "sim/report/chart/gnuplot.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/progress.hpp"
#include "validation/published/published_csv.hpp"
#include "validation/published/published_score.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

}  // namespace

int run_validate_published(const Arguments& arguments) {
  arguments.expect_words(1, 1, "a table of published figures (CSV)");
  const fs::path file{arguments.words().front()};
  std::vector<PublishedRow> rows = read_published_csv(file);
  std::optional<AtomicFolder> folder;
  if (const auto out = arguments.value("out")) folder.emplace(fs::path{*out});

  Progress progress{"predicting", static_cast<double>(rows.size()), "rows"};
  const PublishedScore score =
      score_published(std::move(rows), [&](double done) { progress.update(done); });
  progress.finish();

  const bool with_rows = arguments.has("rows");
  // Results contain no paths.
  const auto json = published_json(score, file.filename().string(), with_rows || folder);
  std::string written;
  if (folder) {
    folder->write("result.json", to_file_text(json));
    folder->write("rows.csv", published_csv(score));
    const DrawnFigures drawn =
        draw_figures(published_figures(score), folder->make_folder("figures"));
    for (const std::string& note : drawn.notes) written += fmt::format("note: {}\n", note);
    folder->commit();
    written += fmt::format("wrote {}: result.json, rows.csv, {} files of figures\n",
                           *arguments.value("out"), drawn.files.size());
  }
  if (arguments.has("markdown")) {
    // A fixed width, so that the page does not depend on the terminal.
    constexpr std::size_t kPage = 110;
    write_out(fmt::format("```text\n{}```\n", published_text(score, false, kPage)));
  } else if (arguments.has("json")) {
    write_out(
        to_file_text(with_rows ? json : published_json(score, file.filename().string(), false)));
  } else {
    write_out(published_text(score, with_rows, terminal_width()) + written);
  }
  return kDone;
}

}  // namespace kvsim
