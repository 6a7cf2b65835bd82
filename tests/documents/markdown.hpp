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

/// The targets of its links and pictures, outside fenced blocks and `code`.
[[nodiscard]] std::vector<DocumentLine> link_targets(const std::vector<DocumentLine>& lines);

/// What "#…" may name: its headings as GitHub and MkDocs spell them.
[[nodiscard]] std::vector<std::string> heading_anchors(const std::vector<DocumentLine>& lines);

}  // namespace kvsim::test
