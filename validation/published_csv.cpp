#include "validation/published_csv.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <optional>

#include <fmt/format.h>

#include "models/units/error.hpp"

namespace kvsim {
namespace {

struct Column {
  std::string_view name;
  std::string PublishedRow::*cell;
};

constexpr std::array kColumns{
    Column{"id", &PublishedRow::id},
    Column{"source", &PublishedRow::source},
    Column{"gpu", &PublishedRow::gpu},
    Column{"gpu_count", &PublishedRow::gpu_count},
    Column{"model", &PublishedRow::model},
    Column{"dtype", &PublishedRow::dtype},
    Column{"kv_dtype", &PublishedRow::kv_dtype},
    Column{"framework", &PublishedRow::framework},
    Column{"method", &PublishedRow::method},
    Column{"method_params", &PublishedRow::method_params},
    Column{"batch", &PublishedRow::batch},
    Column{"prompt_len", &PublishedRow::prompt_len},
    Column{"output_len", &PublishedRow::output_len},
    Column{"metric", &PublishedRow::metric},
    Column{"value", &PublishedRow::value},
    Column{"unit", &PublishedRow::unit},
    Column{"note", &PublishedRow::note},
};

/// One record of the file: its cells and the line it begins on.
struct Record {
  std::size_t line = 1;
  std::vector<std::string> cells;
};

/// Reads records one after the other.
class Reader {
 public:
  Reader(std::string_view text, std::string_view name) : text_{text}, name_{name} {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;  // a byte order mark
  }

  [[nodiscard]] std::optional<Record> next() {
    skip_blank_lines();
    if (at_ == text_.size()) return std::nullopt;
    Record record{.line = line_, .cells = {}};
    for (;;) {
      record.cells.push_back(cell(record.line));
      if (at_ == text_.size()) return record;
      const char c = text_[at_++];
      if (c == ',') continue;
      if (c == '\r' && at_ < text_.size() && text_[at_] == '\n') ++at_;
      ++line_;
      return record;
    }
  }

 private:
  void skip_blank_lines() {
    while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) {
      if (text_[at_++] == '\n') ++line_;
    }
  }

  [[nodiscard]] bool at_end_of_cell() const {
    return at_ == text_.size() || text_[at_] == ',' || text_[at_] == '\n' || text_[at_] == '\r';
  }

  std::string cell(std::size_t record_line) {
    std::string out;
    if (at_ == text_.size() || text_[at_] != '"') {
      while (!at_end_of_cell()) out += text_[at_++];
      return out;
    }
    for (++at_;;) {
      if (at_ == text_.size()) {
        throw InputError{fmt::format("{}:{}", name_, record_line), "a closing quote",
                         "the end of the file"};
      }
      const char c = text_[at_++];
      if (c == '\n') ++line_;
      if (c != '"') {
        out += c;
      } else if (at_ < text_.size() && text_[at_] == '"') {
        out += '"';
        ++at_;
      } else {
        break;
      }
    }
    if (!at_end_of_cell()) {
      throw InputError{fmt::format("{}:{}", name_, line_), "a comma after a closing quote",
                       fmt::format("\"{}\"", text_[at_])};
    }
    return out;
  }

  std::string_view text_;
  std::string_view name_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
};

}  // namespace

std::vector<PublishedRow> parse_published_csv(std::string_view text, std::string_view name) {
  Reader reader{text, name};
  const auto header = reader.next();
  if (!header) throw InputError{std::string{name}, "a line of column names", "an empty file"};
  std::array<std::size_t, kColumns.size()> place{};
  for (std::size_t c = 0; c < kColumns.size(); ++c) {
    const auto& names = header->cells;
    const auto found = std::find(names.begin(), names.end(), kColumns[c].name);
    const std::string where = fmt::format("{}:{}", name, header->line);
    if (found == names.end()) {
      throw InputError{where, fmt::format("a column \"{}\"", kColumns[c].name),
                       fmt::format("{} columns without it", names.size())};
    }
    if (std::find(found + 1, names.end(), kColumns[c].name) != names.end()) {
      throw InputError{where, fmt::format("one column \"{}\"", kColumns[c].name), "several"};
    }
    place[c] = static_cast<std::size_t>(found - names.begin());
  }
  std::vector<PublishedRow> rows;
  while (auto record = reader.next()) {
    if (record->cells.size() != header->cells.size()) {
      throw InputError{fmt::format("{}:{}", name, record->line),
                       fmt::format("{} cells", header->cells.size()),
                       fmt::format("{}", record->cells.size())};
    }
    PublishedRow row;
    row.line = record->line;
    for (std::size_t c = 0; c < kColumns.size(); ++c) {
      row.*kColumns[c].cell = std::move(record->cells[place[c]]);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<PublishedRow> read_published_csv(const std::filesystem::path& path) {
  std::ifstream in{path, std::ios::binary};
  std::error_code status;
  if (!in || std::filesystem::is_directory(path, status)) {
    throw InputError{fmt::format("{}: cannot be read", path.string())};
  }
  const std::string text{std::istreambuf_iterator<char>{in}, std::istreambuf_iterator<char>{}};
  return parse_published_csv(text, path.string());
}

}  // namespace kvsim
