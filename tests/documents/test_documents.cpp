// Consistency of documents: link targets exist, and command blocks contain commands.

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/documents/markdown.hpp"

namespace {

namespace fs = std::filesystem;
using namespace kvsim::test;

const fs::path root{KVSIM_SOURCE_DIR};

std::vector<fs::path> documents() {
  std::vector<fs::path> found;
  for (const char* name : {"README.md", "CHANGELOG.md", "CONTRIBUTING.md"})
    found.push_back(root / name);
  for (const char* folder : {"docs", "scenarios", "traces", "sim", "validation"}) {
    for (const auto& entry : fs::recursive_directory_iterator{root / folder}) {
      if (entry.path().extension() == ".md") found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

TEST_CASE("every relative link of a document points to an existing file and heading") {
  std::size_t followed = 0;
  for (const fs::path& document : documents()) {
    const auto lines = read_document(document);
    for (const DocumentLine& link : link_targets(lines)) {
      if (link.text.find("://") != std::string::npos || link.text.starts_with("mailto:")) continue;
      INFO(document.string(), ":", link.number, ": ", link.text);
      const std::size_t hash = link.text.find('#');
      const std::string name = link.text.substr(0, hash);
      const fs::path target = name.empty() ? document : document.parent_path() / name;
      CHECK(fs::exists(target));
      ++followed;
      if (hash == std::string::npos || target.extension() != ".md" || !fs::exists(target)) continue;
      const auto anchors = heading_anchors(read_document(target));
      CHECK(std::find(anchors.begin(), anchors.end(), link.text.substr(hash + 1)) != anchors.end());
    }
  }
  CHECK(followed > 50);
}

TEST_CASE("README lists exactly the allowed reasons for skipping a test") {
  std::vector<std::string> allowed;
  for (const DocumentLine& line : read_document(root / "tests/allowed_skips.txt")) {
    if (!line.text.empty() && !line.text.starts_with("#")) allowed.push_back(line.text);
  }
  std::vector<std::string> listed;
  bool is_inside = false;
  for (const DocumentLine& line : read_document(root / "README.md")) {
    if (line.text.starts_with("## ")) is_inside = line.text == "## Skipped tests";
    if (is_inside && line.text.starts_with("| `")) {
      listed.push_back(line.text.substr(3, line.text.find('`', 3) - 3));
    }
  }
  CHECK(allowed.size() > 5);
  CHECK(listed == allowed);
}

TEST_CASE("the site's table of contents lists exactly the pages under docs") {
  const auto lines = read_document(root / "mkdocs.yml");
  std::vector<std::string> listed;
  for (const DocumentLine& line : lines) {
    const std::size_t end = line.text.rfind(".md");
    if (end == std::string::npos || end + 3 != line.text.size()) continue;
    const std::size_t start = line.text.rfind(' ', end) + 1;
    listed.push_back(line.text.substr(start));
  }
  std::vector<std::string> there;
  for (const auto& entry : fs::recursive_directory_iterator{root / "docs"}) {
    if (entry.path().extension() != ".md") continue;
    const std::string name = fs::relative(entry.path(), root / "docs").generic_string();
    // The head of a generated page.
    if (name != "accuracy-head.md") there.push_back(name);
  }
  std::sort(listed.begin(), listed.end());
  std::sort(there.begin(), there.end());
  CHECK(listed == there);
}

TEST_CASE("commands are parsed as in the shell") {
  const std::vector<DocumentLine> lines{{1, "```sh"},
                                        {2, "kvsim run a.json  # a remark"},
                                        {3, "# nothing but a remark"},
                                        {4, "kvsim run b.json \\"},
                                        {5, "    --set '/title=a # b'"},
                                        {6, "```"},
                                        {7, "```json"},
                                        {8, "kvsim is no command here"},
                                        {9, "```"}};
  const auto commands = shell_commands(lines);
  REQUIRE(commands.size() == 2);
  CHECK(commands[0].number == 2);
  CHECK(commands[0].text == "kvsim run a.json");
  CHECK(commands[1].number == 4);
  CHECK(commands[1].text == "kvsim run b.json     --set '/title=a # b'");
}

TEST_CASE("a printed block belongs to the commands above it and has whole lines of their output") {
  const std::vector<DocumentLine> lines{{1, "```sh"}, {2, "kvsim list gpus"},  {3, "```"},
                                        {4, "```"},   {5, "a picture"},        {6, "```"},
                                        {7, "and"},   {8, "<!-- printed -->"}, {9, "```"},
                                        {10, "GPU"},  {11, "H100  80"},        {12, "```"}};
  const auto blocks = printed_blocks(lines);
  REQUIRE(blocks.size() == 1);
  CHECK(blocks[0].number == 8);
  CHECK(blocks[0].shell_from == 1);
  CHECK(blocks[0].shell_to == 3);
  CHECK(blocks[0].text == std::vector<std::string>{"GPU", "H100  80"});
  CHECK(is_part_of_output(blocks[0].text, "two\nGPU  \nH100  80\nmore\n"));
  CHECK_FALSE(is_part_of_output(blocks[0].text, "GPU\nH100  81\n"));   // a changed number
  CHECK_FALSE(is_part_of_output(blocks[0].text, "GPU\nH100  802\n"));  // not a part of a line
  CHECK_FALSE(is_part_of_output(blocks[0].text, "GPU\n\nH100  80\n"));
  CHECK_FALSE(is_part_of_output({}, "anything\n"));
  CHECK_THROWS((void)printed_blocks({{1, "<!-- printed -->"}, {2, "no block"}}));
}

TEST_CASE("every block marked as printed is below commands and the first screen's is marked") {
  for (const fs::path& document : documents()) {
    const auto blocks = printed_blocks(read_document(document));
    for (const PrintedBlock& block : blocks) {
      INFO(document.string(), ":", block.number);
      CHECK(block.shell_from > 0);
    }
    if (document == root / "README.md") CHECK_FALSE(blocks.empty());
  }
}

}  // namespace
