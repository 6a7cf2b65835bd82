#pragma once

// Just enough of Markdown to hold documents to what they say: fenced blocks, links, headings.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim::test {

/// A line of a document that means something to a test.
struct DocumentLine {
  std::size_t number = 0;  // from 1
  std::string text;
};

/// The lines of `path`. Throws std::runtime_error where it cannot be read.
[[nodiscard]] std::vector<DocumentLine> read_document(const std::filesystem::path& path);

/// The commands of its ```sh blocks, in order: comments taken off, lines that end in \ joined.
[[nodiscard]] std::vector<DocumentLine> shell_commands(const std::vector<DocumentLine>& lines);

/// A fenced block that a page marks as printed, with `<!-- printed -->` on the line before it: by a
/// command of the ```sh block nearest above.
struct PrintedBlock {
  std::size_t number = 0;  // of the mark
  std::vector<std::string> text;
  std::size_t shell_from = 0, shell_to = 0;  // lines of that ```sh block; 0: there is none
};

/// The blocks marked so, in order. Throws std::runtime_error where no block follows a mark.
[[nodiscard]] std::vector<PrintedBlock> printed_blocks(const std::vector<DocumentLine>& lines);

/// Whether `block` stands in `output`, its lines one after another, whole; white space at the ends
/// of lines does not count.
[[nodiscard]] bool stands_in(const std::vector<std::string>& block, std::string_view output);

/// The targets of its links and pictures, outside fenced blocks and `code`.
[[nodiscard]] std::vector<DocumentLine> link_targets(const std::vector<DocumentLine>& lines);

/// What "#…" may name: its headings as GitHub and MkDocs spell them.
[[nodiscard]] std::vector<std::string> heading_anchors(const std::vector<DocumentLine>& lines);

}  // namespace kvsim::test
