#pragma once

#include <string>
#include <vector>

#include "sim/cli/options/arguments.hpp"
#include "sim/report/figure/figure_style.hpp"
#include "sim/report/folder/results_folder.hpp"

namespace kvsim {

/// The formats of --formats without duplicates; default: svg and png. Errors: InputError with the
/// nearest format.
[[nodiscard]] std::vector<std::string> read_formats(const Arguments& arguments);

/// The option of commands that write a results folder.
[[nodiscard]] Option formats_option();

/// The contents of the results folder according to --no-figures, --no-report and --formats;
/// `figures`: whether the scenario has any. Errors: InputError, also for --formats with
/// --no-figures.
[[nodiscard]] FolderOptions folder_options(const Arguments& arguments, bool figures = true);

/// Throws InputError if --formats is given and no results folder is written.
void refuse_formats_without_folder(const Arguments& arguments, bool folder);

}  // namespace kvsim
