#pragma once

// A small subset of Markdown for tests of documents: fenced blocks, links, headings.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim::test {

/// A line of a document used by a test.
struct DocumentLine {
  std::size_t number = 0;  // from 1
  std::string text;
};

/// The lines of `path`. Errors: std::runtime_error if it cannot be read.
[[nodiscard]] std::vector<DocumentLine> read_document(const std::filesystem::path& path);

/// The commands of its ```sh blocks, in order: comments removed, lines that end in \ joined.
[[nodiscard]] std::vector<DocumentLine> shell_commands(const std::vector<DocumentLine>& lines);

/// A fenced block marked as printed, with `<!-- printed -->` on the line before it: output of a
/// command of the nearest ```sh block above.
struct PrintedBlock {
  std::size_t number = 0;  // of the mark
  std::vector<std::string> text;
  std::size_t shell_from = 0, shell_to = 0;  // lines of that ```sh block; 0: there is none
};

/// The blocks marked this way, in order. Errors: std::runtime_error if no block follows a mark.
[[nodiscard]] std::vector<PrintedBlock> printed_blocks(const std::vector<DocumentLine>& lines);

/// Whether `output` contains `block`: whole lines in sequence; white space at the ends of lines is
/// ignored.
[[nodiscard]] bool is_part_of_output(const std::vector<std::string>& block,
                                     std::string_view output);

/// The targets of its links and pictures, outside fenced blocks and `code`.
[[nodiscard]] std::vector<DocumentLine> link_targets(const std::vector<DocumentLine>& lines);

/// Possible targets of "#…": its headings as GitHub and MkDocs spell them.
[[nodiscard]] std::vector<std::string> heading_anchors(const std::vector<DocumentLine>& lines);

}  // namespace kvsim::test
