#include "tests/documents/markdown.hpp"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <stdexcept>

namespace kvsim::test {
namespace {

bool is_fence(std::string_view text) {
  const std::size_t start = text.find_first_not_of(' ');
  return start != std::string_view::npos && text.substr(start).starts_with("```");
}

std::string_view without_end(std::string_view text) {
  return text.substr(0, text.find_last_not_of(" \t\r") + 1);
}

/// Up to a # that starts a word outside quotes, like in the shell.
std::string without_comment(std::string_view text) {
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '#' && (i == 0 || text[i - 1] == ' ')) {
      text = text.substr(0, i);
      break;
    }
  }
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return std::string{text};
}

std::string without_code(std::string_view text) {
  std::string out;
  bool code = false;
  for (const char c : text) {
    if (c == '`') {
      code = !code;
    } else if (!code) {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::vector<DocumentLine> read_document(const std::filesystem::path& path) {
  std::ifstream in{path};
  if (!in) throw std::runtime_error{"cannot read " + path.string()};
  std::vector<DocumentLine> lines;
  std::string text;
  while (std::getline(in, text)) lines.push_back({lines.size() + 1, text});
  return lines;
}

std::vector<DocumentLine> shell_commands(const std::vector<DocumentLine>& lines) {
  std::vector<DocumentLine> commands;
  bool fenced = false;
  bool shell = false;
  bool joined = false;  // the line before ended in a backslash
  for (const DocumentLine& line : lines) {
    if (is_fence(line.text)) {
      fenced = !fenced;
      shell = fenced && line.text.ends_with("```sh");
      joined = false;
      continue;
    }
    if (!shell) continue;
    std::string text = without_comment(line.text);
    const bool goes_on = text.ends_with('\\');
    if (goes_on) text.pop_back();
    if (joined) {
      commands.back().text += text;
    } else if (!text.empty()) {
      commands.push_back({line.number, text});
    }
    joined = goes_on;
  }
  return commands;
}

std::vector<PrintedBlock> printed_blocks(const std::vector<DocumentLine>& lines) {
  std::vector<PrintedBlock> blocks;
  std::size_t shell_from = 0;
  std::size_t shell_to = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const bool marked = without_end(lines[i].text) == "<!-- printed -->";
    if (marked && (i + 1 == lines.size() || !is_fence(lines[i + 1].text))) {
      throw std::runtime_error{"line " + std::to_string(lines[i].number) +
                               ": no fenced block follows the mark"};
    }
    if (marked) ++i;
    if (!is_fence(lines[i].text)) continue;
    const std::size_t fence = i;
    for (++i; i < lines.size() && !is_fence(lines[i].text);) ++i;
    if (marked) {
      blocks.push_back({lines[fence - 1].number, {}, shell_from, shell_to});
      for (std::size_t k = fence + 1; k < i; ++k) blocks.back().text.push_back(lines[k].text);
    } else if (lines[fence].text.ends_with("```sh")) {
      shell_from = lines[fence].number;
      shell_to = shell_from + (i - fence);
    }
  }
  return blocks;
}

bool is_part_of_output(const std::vector<std::string>& block, std::string_view output) {
  std::vector<std::string_view> printed;
  while (!output.empty()) {
    const std::size_t end = output.find('\n');
    printed.push_back(without_end(output.substr(0, end)));
    output.remove_prefix(end == std::string_view::npos ? output.size() : end + 1);
  }
  return std::search(printed.begin(), printed.end(), block.begin(), block.end(),
                     [](std::string_view a, const std::string& b) {
                       return a == without_end(b);
                     }) != printed.end() &&
         !block.empty();
}

std::vector<DocumentLine> link_targets(const std::vector<DocumentLine>& lines) {
  std::vector<DocumentLine> targets;
  bool fenced = false;
  for (const DocumentLine& line : lines) {
    if (is_fence(line.text)) fenced = !fenced;
    if (fenced) continue;
    const std::string text = without_code(line.text);
    std::size_t at = 0;
    while ((at = text.find("](", at)) != std::string::npos) {
      at += 2;
      const std::size_t end = text.find(')', at);
      if (end == std::string::npos) break;
      targets.push_back({line.number, text.substr(at, end - at)});
    }
  }
  return targets;
}

std::vector<std::string> heading_anchors(const std::vector<DocumentLine>& lines) {
  std::vector<std::string> anchors;
  bool fenced = false;
  for (const DocumentLine& line : lines) {
    if (is_fence(line.text)) fenced = !fenced;
    if (fenced || !line.text.starts_with('#')) continue;
    const std::size_t start = line.text.find_first_not_of("# ");
    if (start == std::string::npos) continue;
    std::string anchor;
    for (const char c : line.text.substr(start)) {
      const auto byte = static_cast<unsigned char>(c);
      if (std::isalnum(byte) != 0 || c == '-' || c == '_') {
        anchor += static_cast<char>(std::tolower(byte));
      } else if (c == ' ') {
        anchor += '-';
      }
    }
    anchors.push_back(std::move(anchor));
  }
  return anchors;
}

}  // namespace kvsim::test
