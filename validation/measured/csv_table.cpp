#include "validation/measured/csv_table.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "models/units/excerpt.hpp"
#include "models/units/text_file.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kLargest = std::size_t{1} << 30U;

/// Reads one record starting at `at`; false at the end of the text. `line` counts the line ends
/// passed.
class Records {
 public:
  Records(std::string_view text, const std::string& place) : text_{text}, place_{place} {
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
  }

  [[nodiscard]] std::size_t line() const { return begin_; }

  bool next(std::vector<std::string>& fields) {
    do {
      if (at_ >= text_.size()) return false;
      begin_ = line_;
      fields.assign(1, {});
      read(fields);
    } while (fields.size() == 1 && fields[0].empty());
    return true;
  }

 private:
  void read(std::vector<std::string>& fields) {
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"' && fields.back().empty()) {
        quoted(fields.back());
        if (at_ < text_.size() && std::string_view{",\r\n"}.find(text_[at_]) == std::string::npos) {
          throw InputError{fmt::format("{}:{}", place_, line_), "a comma after a closing quote",
                           fmt::format("\"{}\"", text_[at_])};
        }
      } else if (c == ',') {
        fields.emplace_back();
      } else if (c == '\n') {
        ++line_;
        return;
      } else if (c != '\r') {
        fields.back() += c;
      }
    }
  }
  void quoted(std::string& field) {
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '\n') ++line_;
      if (c != '"') {
        field += c;
      } else if (at_ < text_.size() && text_[at_] == '"') {
        field += text_[at_++];
      } else {
        return;
      }
    }
    throw InputError{fmt::format("{}:{}", place_, begin_), "a closing quote",
                     "the end of the file"};
  }

  std::string_view text_;
  const std::string& place_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
  std::size_t begin_ = 1;
};

}  // namespace

CsvTable CsvTable::read_file(const std::filesystem::path& path) {
  return parse(read_text_file(path, kLargest), path.string());
}

CsvTable CsvTable::parse(std::string_view text, std::string place) {
  CsvTable table;
  table.place_ = std::move(place);
  Records records{text, table.place_};
  if (!records.next(table.columns_)) {
    throw InputError{table.place_, "a header line", "an empty file"};
  }
  std::set<std::string> seen;
  for (const std::string& column : table.columns_) {
    if (!seen.insert(column).second) {
      throw InputError{fmt::format("{}:{}", table.place_, records.line()),
                       fmt::format("one column \"{}\"", excerpt(column)), "several"};
    }
  }
  std::vector<std::string> fields;
  while (records.next(fields)) {
    if (fields.size() != table.columns_.size()) {
      throw InputError{fmt::format("{}:{}", table.place_, records.line()),
                       fmt::format("{} cells", table.columns_.size()),
                       fmt::format("{}", fields.size())};
    }
    table.lines_.push_back(records.line());
    for (std::string& field : fields) table.cells_.push_back(std::move(field));
  }
  return table;
}

bool CsvTable::has(std::string_view column) const {
  return std::find(columns_.begin(), columns_.end(), column) != columns_.end();
}

std::size_t CsvTable::index(std::string_view column) const {
  const auto at = std::find(columns_.begin(), columns_.end(), column);
  if (at == columns_.end()) {
    throw InputError{fmt::format("{}: {}", place_, unknown_name("column", column, columns_))};
  }
  return static_cast<std::size_t>(at - columns_.begin());
}

double CsvTable::number(std::size_t row, std::size_t column, double low, double high) const {
  const std::string& word = text(row, column);
  double value = 0;
  const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (failure != std::errc{} || end != word.data() + word.size() || !(value >= low) ||
      !(value <= high)) {
    throw InputError{fmt::format("{}:{}: {}", place_, lines_[row], excerpt(columns_[column])),
                     fmt::format("a number in [{}, {}]", low, high),
                     fmt::format("\"{}\"", excerpt(word))};
  }
  return value;
}

std::int64_t CsvTable::integer(std::size_t row, std::size_t column, std::int64_t low,
                               std::int64_t high) const {
  const double value = number(row, column, static_cast<double>(low), static_cast<double>(high));
  if (value != std::floor(value)) {
    throw InputError{fmt::format("{}:{}: {}", place_, lines_[row], excerpt(columns_[column])),
                     "an integer", fmt::format("\"{}\"", excerpt(text(row, column)))};
  }
  return static_cast<std::int64_t>(value);
}

}  // namespace kvsim
