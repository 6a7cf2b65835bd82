// Plain English: no comment, message or document contains a word of banned_words.txt.

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/check.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot{KVSIM_SOURCE_DIR};

std::string read(const fs::path& file) {
  std::ifstream in{file, std::ios::binary};
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

constexpr std::array kFolders{"models",     "sim",   "traces",  "kernels",
                              "validation", "tests", "examples"};
constexpr std::array kDocuments{"README.md", "CONTRIBUTING.md", "docs", "scenarios", "tests"};
constexpr std::array kScripts{"CMakeLists.txt", "cmake", "examples",   "tests",  "kv",
                              "models",         "sim",   "validation", "traces", "kernels"};
/// Files with quotations or third-party text: this file has banned words as input.
constexpr std::array kQuotes{"sim/report/html/echarts/echarts.min.js", "tests/test_words.cpp"};

struct BannedWord {
  std::string word, instead;
};

std::vector<BannedWord> banned_words() {
  std::istringstream lines{read(kRoot / "tests/banned_words.txt")};
  std::vector<BannedWord> words;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find(" = ");
    if (line.starts_with('#') || equals == std::string::npos) continue;
    words.push_back({line.substr(0, equals), line.substr(equals + 3)});
  }
  return words;
}

/// Returns `code` with everything blanked except comments and string literals; line numbers are
/// preserved. A literal of one word is a key of a document, not prose.
std::string prose_of_code(std::string_view code) {
  std::string prose(code.size(), ' ');
  const auto keep = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) prose[i] = code[i];
  };
  std::size_t i = 0;
  while (i < code.size()) {
    const std::string_view rest = code.substr(i);
    std::size_t end = i + 1;
    if (rest.starts_with("//")) {
      end = std::min(code.find('\n', i), code.size());
      keep(i, end);
    } else if (rest.starts_with("R\"")) {
      const std::string close = ")" + std::string{rest.substr(2, rest.find('(') - 2)} + "\"";
      end = std::min(code.find(close, i), code.size() - close.size()) + close.size();
      keep(i, end);
    } else if (rest.front() == '"') {
      while (end < code.size() && code[end] != '"') end += code[end] == '\\' ? 2U : 1U;
      end = std::min(end + 1, code.size());
      if (code.substr(i, end - i).find(' ') != std::string_view::npos) keep(i, end);
    } else if (rest.front() == '\'' &&
               (i == 0 || std::isalnum(static_cast<unsigned char>(code[i - 1])) == 0)) {
      end = rest.size() > 1 && rest[1] == '\\' ? i + 4 : i + 3;  // 'x', '\n'
    } else if (rest.front() == '\n') {
      prose[i] = '\n';
    }
    i = end;
  }
  return prose;
}

/// The comments and docstrings of a CMake, shell or Python script; line numbers are preserved.
std::string prose_of_script(std::string_view script) {
  std::string prose(script.size(), ' ');
  std::size_t i = 0;
  while (i < script.size()) {
    const bool begins_word = i == 0 || std::isspace(static_cast<unsigned char>(script[i - 1])) != 0;
    std::size_t end = i + 1;
    bool is_prose = script[i] == '\n';
    if (script[i] == '#' && begins_word) {
      end = std::min(script.find('\n', i), script.size());
      is_prose = true;
    } else if (script.substr(i).starts_with("\"\"\"") && begins_word) {
      end = std::min(script.find("\"\"\"", i + 3), script.size() - 3) + 3;
      is_prose = true;
    }
    for (; i < end; ++i) prose[i] = is_prose ? script[i] : ' ';
  }
  return prose;
}

/// Whether `word` at `at` is not part of a longer word.
bool is_word_at(const std::string& text, std::size_t at, const std::string& word) {
  const auto is_letter = [&](std::size_t i) {
    return i < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[i])) != 0 || text[i] == '_');
  };
  return (at == 0 || !is_letter(at - 1)) && !is_letter(at + word.size());
}

std::vector<std::string> findings(const std::string& path, const std::string& text,
                                  const std::vector<BannedWord>& words) {
  std::string lower = text;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::vector<std::string> out;
  for (const BannedWord& banned : words) {
    for (std::size_t at = lower.find(banned.word); at != std::string::npos;
         at = lower.find(banned.word, at + 1)) {
      if (!is_word_at(lower, at, banned.word)) continue;
      const auto line =
          1 + std::count(lower.begin(), lower.begin() + static_cast<std::ptrdiff_t>(at), '\n');
      out.push_back(
          fmt::format("{}:{}: \"{}\": write {}", path, line, banned.word, banned.instead));
    }
  }
  return out;
}

/// Files below `folder` (from the root) with one of the extensions, or `folder` itself.
std::vector<fs::path> files_of(const fs::path& folder,
                               std::initializer_list<std::string_view> extensions) {
  std::vector<fs::path> files;
  if (fs::is_regular_file(kRoot / folder)) return {kRoot / folder};
  for (const auto& entry : fs::recursive_directory_iterator{kRoot / folder}) {
    const std::string extension = entry.path().extension().string();
    if (std::find(extensions.begin(), extensions.end(), extension) != extensions.end()) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Reports the banned words in the files of `folders`; `prose` selects the checked part of a file.
template <class Folders, class Prose>
void check_files(const Folders& folders, std::initializer_list<std::string_view> extensions,
                 const Prose& prose) {
  const std::vector<BannedWord> words = banned_words();
  REQUIRE(words.size() > 10);
  for (const char* folder : folders) {
    for (const fs::path& file : files_of(folder, extensions)) {
      const std::string path = fs::relative(file, kRoot).generic_string();
      if (std::find(kQuotes.begin(), kQuotes.end(), path) != kQuotes.end()) continue;
      for (const std::string& finding : findings(path, prose(read(file)), words)) {
        FAIL_CHECK(finding);
      }
    }
  }
}

TEST_CASE("comments and messages use no banned word") {
  check_files(kFolders, {".cpp", ".hpp", ".cu"}, prose_of_code);
}

TEST_CASE("comments of scenarios and scripts use no banned word") {
  check_files(std::array{"scenarios"}, {".json"}, prose_of_code);
  check_files(kScripts, {".cmake", ".txt", ".py", ".sh", ".zsh"}, prose_of_script);
  check_files(std::array{"sim/explorer", "sim/report/html"}, {".js", ".css"}, prose_of_code);
}

TEST_CASE("documents use no banned word") {
  check_files(kDocuments, {".md"}, [](const std::string& text) { return text; });
}

TEST_CASE("a banned word is detected in comments and strings, not in names") {
  const std::vector<BannedWord> words{{"anew", "again"}, {"of its own", "separate"}};
  const std::string code =
      "int anew = 1;  // computed Anew\n"
      "const char* text = \"made of its own\";\n"
      "const char quote = '\"'; int renewal_anew_count;  // fine\n";
  const std::vector<std::string> expected{"f.cpp:1: \"anew\": write again",
                                          "f.cpp:2: \"of its own\": write separate"};
  CHECK(findings("f.cpp", prose_of_code(code), words) == expected);
}

TEST_CASE("a banned word is detected in comments and docstrings of scripts and not in their code") {
  const std::vector<BannedWord> words{{"anew", "again"}};
  const std::string script =
      "anew = \"anew\"  # computed anew\n"
      "def f():\n"
      "  \"\"\"Computes it\n"
      "  anew.\"\"\"\n"
      "  return anew#anew\n";
  const std::vector<std::string> expected{"f.py:1: \"anew\": write again",
                                          "f.py:4: \"anew\": write again"};
  CHECK(findings("f.py", prose_of_script(script), words) == expected);
}

}  // namespace
}  // namespace kvsim
