#pragma once

// The parts that summaries share.

#include <cstddef>
#include <string>
#include <vector>

#include "sim/report/folder/results_folder.hpp"

namespace kvsim {

/// A paragraph per note.
[[nodiscard]] std::string notes_block(const std::vector<std::string>& notes, std::size_t width);
/// "Finding: …" after an empty line; empty if there is no finding.
[[nodiscard]] std::string finding_block(const std::string& finding, std::size_t width);
/// The paths of result, page and figures, and the notes of writing; empty if `written` is null.
[[nodiscard]] std::string files_block(const ResultsFolder* written, std::size_t width);
/// The same on one line if the folder's name is short enough, plus how to see more.
[[nodiscard]] std::string brief_files_block(const ResultsFolder* written, std::size_t width);

}  // namespace kvsim
