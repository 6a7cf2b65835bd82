// kvsim validate measured: compares the kernels' cost model with other projects' timings.

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/cli/validate/command_validate.hpp"
#include "sim/cli/validate/measured_report.hpp"
#include "sim/report/chart/gnuplot.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/json_text.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

Unseen unseen_of(const Arguments& arguments) {
  const auto word = arguments.value("unseen");
  if (!word) return Unseen::kNothing;
  if (*word == "pair") return Unseen::kPair;
  if (*word == "gpu") return Unseen::kGpu;
  throw InputError{"--unseen", "pair or gpu", fmt::format("\"{}\"", *word)};
}

MeasuredScore score_measured(std::vector<MeasuredFile> files, const KernelLibrary& library,
                             Unseen unseen) {
  constexpr std::array<std::string_view, 3> kWords{"nothing", "pair", "gpu"};
  MeasuredScore score{.files = std::move(files),
                      .unseen = std::string{kWords[static_cast<std::size_t>(unseen)]}};
  score.rows = predict(score.files, library, unseen);
  score.groups = group_rows(score.rows);
  return score;
}

/// The tables of docs/accuracy.md: rows not used in any fit, and all rows with the calibrations of
/// their GPU and stack, or of their GPU, hidden.
std::string accuracy_sections(std::vector<MeasuredFile> files, const KernelLibrary& library) {
  std::string out;
  std::vector<MeasuredFile> held = files;
  for (MeasuredFile& file : held) {
    std::erase_if(file.rows, [](const MeasuredRow& row) { return !is_held_out(row); });
  }
  out += measured_markdown(score_measured(std::move(held), library, Unseen::kNothing),
                           "Shapes that no fit has seen");
  out += measured_markdown(score_measured(files, library, Unseen::kPair),
                           "The pair of GPU and stack hidden");
  out +=
      measured_markdown(score_measured(std::move(files), library, Unseen::kGpu), "The GPU hidden");
  return out;
}

/// Throws InputError with the most frequent reason if no row can be scored.
void refuse_without_rows(const std::vector<MeasuredFile>& files, const std::string& place) {
  std::string reason = "none";
  std::int64_t max = 0;
  for (const MeasuredFile& file : files) {
    if (!file.rows.empty()) return;
    for (const auto& [why, count] : file.left_out) {
      if (count <= max) continue;
      max = count;
      reason = fmt::format("none: {} rows are of an unknown {}", count, why);
    }
  }
  throw InputError{place, "at least one row to predict", reason};
}

}  // namespace

int run_validate_measured(const Arguments& arguments) {
  arguments.expect_words(1, 1, "a CSV file, or a folder of them");
  const Unseen unseen = unseen_of(arguments);
  std::vector<MeasuredFile> files = read_all_measured(arguments.words().front());
  refuse_without_rows(files, arguments.words().front());
  std::optional<KernelLibrary> own;
  if (const auto folder = arguments.value("calibration")) own.emplace(read_calibrations(*folder));
  if (arguments.has("held-out")) {
    for (MeasuredFile& file : files) {
      std::erase_if(file.rows, [](const MeasuredRow& row) { return !is_held_out(row); });
    }
  }
  std::optional<AtomicFolder> folder;
  if (const auto out = arguments.value("out")) folder.emplace(fs::path{*out});
  const KernelLibrary& library = own ? *own : KernelLibrary::builtin();
  if (arguments.has("markdown")) {
    write_out(accuracy_sections(std::move(files), library));
    return kDone;
  }
  const MeasuredScore score = score_measured(std::move(files), library, unseen);
  std::string written;
  if (folder) {
    folder->write("result.json", to_file_text(measured_json(score, false)));
    folder->write("rows.csv", measured_csv(score));
    const DrawnFigures drawn =
        draw_figures(measured_figures(score), folder->make_folder("figures"));
    for (const std::string& note : drawn.notes) written += fmt::format("note: {}\n", note);
    folder->commit();
    written += fmt::format("wrote {}: result.json, rows.csv, {} files of figures\n",
                           *arguments.value("out"), drawn.files.size());
  }
  if (arguments.has("json")) {
    write_out(to_file_text(measured_json(score, arguments.has("rows"))));
  } else {
    write_out(measured_text(score, terminal_width()) + written);
  }
  return kDone;
}

}  // namespace kvsim
