#include "traces/requests/formats/csv_requests.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/check.hpp"
#include "models/units/excerpt.hpp"
#include "models/units/units_format.hpp"

namespace kvsim {
namespace {

using Cells = std::vector<std::string_view>;

struct Column {
  std::string_view name;
  bool required = true;
};

struct Layout {
  RequestFormat format;
  std::span<const Column> columns;
};

constexpr std::array kPlain{Column{"arrival_s"},         Column{"prompt_tokens"},
                            Column{"output_tokens"},     Column{"priority", false},
                            Column{"max_tokens", false}, Column{"session", false},
                            Column{"after", false}};
constexpr std::array kAzure{Column{"TIMESTAMP"}, Column{"ContextTokens"},
                            Column{"GeneratedTokens"}};
constexpr std::array kBurst{Column{"Timestamp"},           Column{"Model", false},
                            Column{"Request tokens"},      Column{"Response tokens"},
                            Column{"Total tokens", false}, Column{"Log Type", false},
                            Column{"Session ID", false},   Column{"Elapsed time", false}};
constexpr std::array kVidur{Column{"arrived_at"}, Column{"num_prefill_tokens"},
                            Column{"num_decode_tokens"}, Column{"num_total_tokens", false},
                            Column{"pd_ratio", false}};
constexpr std::array kSplitwise{
    Column{"request_id", false}, Column{"request_type", false}, Column{"application_id", false},
    Column{"arrival_timestamp"}, Column{"batch_size", false},   Column{"prompt_size"},
    Column{"token_size"}};

constexpr std::array kLayouts{
    Layout{RequestFormat::kPlain, kPlain}, Layout{RequestFormat::kAzure, kAzure},
    Layout{RequestFormat::kBurstGpt, kBurst}, Layout{RequestFormat::kVidur, kVidur},
    Layout{RequestFormat::kSplitwise, kSplitwise}};

/// Returns the layout's word for a column that benchmark clients name differently.
std::string_view plain_name(RequestFormat format, std::string_view name) {
  if (format != RequestFormat::kPlain) return name;
  if (name == "input_tokens" || name == "input_length") return "prompt_tokens";
  if (name == "output_length") return "output_tokens";
  return name;
}

/// Splits a record at its commas into `cells` without surrounding blanks. A cell in double quotes
/// may contain commas and doubled quotes; `scratch` stores the cells that had to be rewritten.
/// Returns false for an unmatched quote.
bool split(std::string_view line, Cells& cells, std::vector<std::string>& scratch) {
  cells.clear();
  scratch.clear();
  if (line.find('"') == std::string_view::npos) {
    for (;;) {
      const std::size_t comma = line.find(',');
      cells.push_back(trimmed(line.substr(0, comma)));
      if (comma == std::string_view::npos) return true;
      line.remove_prefix(comma + 1);
    }
  }
  // Views into scratch must outlive its growth.
  scratch.reserve(static_cast<std::size_t>(std::count(line.begin(), line.end(), ',')) + 1);
  for (;;) {
    std::size_t end = 0;
    std::string cell;
    const std::size_t first = line.find_first_not_of(" \t");
    if (first != std::string_view::npos && line[first] == '"') {
      std::size_t at = first + 1;
      for (;; ++at) {
        if (at >= line.size()) return false;
        if (line[at] == '"') {
          if (at + 1 < line.size() && line[at + 1] == '"')
            ++at;
          else
            break;
        }
        cell += line[at];
      }
      end = std::min(line.find(',', at), line.size());
      if (!trimmed(line.substr(at + 1, end - at - 1)).empty()) return false;
    } else {
      end = std::min(line.find(','), line.size());
      cell = trimmed(line.substr(0, end));
    }
    scratch.push_back(std::move(cell));
    cells.push_back(scratch.back());
    if (end == line.size()) return true;
    line.remove_prefix(end + 1);
  }
}

const Layout& layout_of(RequestFormat format) {
  const auto* found = std::find_if(kLayouts.begin(), kLayouts.end(),
                                   [&](const Layout& l) { return l.format == format; });
  KVSIM_CHECK(found != kLayouts.end(), "format {} has no columns", name_of(format));
  return *found;
}

/// The columns of a layout in a file and one of its records.
class Table {
 public:
  Table(LineReader& lines, const std::string& header, const Layout& layout)
      : lines_{lines}, layout_{layout} {
    const std::string place = lines.place();
    check_text(header, place);
    std::vector<std::string> scratch;
    Cells names;
    if (!split(header, names, scratch)) {
      throw InputError{place, "a header line", "an unmatched quote"};
    }
    std::vector<std::string> known;
    for (const Column& column : layout.columns) known.emplace_back(column.name);
    where_.assign(known.size(), kAbsent);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto found = std::find(known.begin(), known.end(), plain_name(layout.format, names[i]));
      if (found == known.end()) {
        unused_.emplace_back(names[i]);
        continue;
      }
      std::size_t& at = where_[static_cast<std::size_t>(found - known.begin())];
      if (at != kAbsent) {
        throw InputError{fmt::format("{}: column \"{}\" occurs twice", place, excerpt(names[i]))};
      }
      at = i;
    }
    for (std::size_t i = 0; i < known.size(); ++i) {
      if (where_[i] == kAbsent && layout.columns[i].required) {
        throw InputError{fmt::format("{}: expected a column \"{}\" (layout of {}: {}), got {}",
                                     place, known[i], name_of(layout.format), fmt::join(known, ","),
                                     in_quotes(header))};
      }
    }
    columns_ = names.size();
    refuse_misspelt(place, known);
  }

  /// Returns "columns that are not used: ..."; empty if all are used.
  [[nodiscard]] std::string unused_note() const {
    if (unused_.empty()) return "";
    constexpr std::size_t kMaxNamed = 8;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < std::min(unused_.size(), kMaxNamed); ++i) {
      names.push_back(in_quotes(unused_[i]));
    }
    if (unused_.size() > kMaxNamed) {
      names.push_back(fmt::format("and {} more", unused_.size() - kMaxNamed));
    }
    return fmt::format("columns that are not used: {}", fmt::join(names, ", "));
  }

  /// Sets the cells of `line`. Errors: InputError if it is not text, or if their number differs
  /// from the header's.
  void take(std::string_view line) {
    if (std::any_of(line.begin(), line.end(), [](char c) { return (c & 0x80) != 0 || c == 0; })) {
      check_text(line, lines_.place());
    }
    if (!split(line, cells_, scratch_)) {
      throw InputError{lines_.place(), "the end of a quoted cell", "an unmatched quote"};
    }
    if (cells_.size() != columns_) {
      const char* cut =
          !lines_.ended() && cells_.size() < columns_ ? "; the file ends within this record" : "";
      throw InputError{lines_.place(), fmt::format("{} columns", columns_),
                       fmt::format("{}{}", cells_.size(), cut)};
    }
  }
  [[nodiscard]] bool has(std::size_t column) const { return where_[column] != kAbsent; }
  [[nodiscard]] std::string_view text(std::size_t column) const { return cells_[where_[column]]; }
  [[noreturn]] void fail(std::size_t column, std::string_view expected) const {
    throw InputError{fmt::format("{}: {}", lines_.place(), layout_.columns[column].name), expected,
                     in_quotes(text(column))};
  }
  [[nodiscard]] std::int32_t integer(std::size_t column, std::int64_t low,
                                     std::int64_t high) const {
    const auto value = parse_whole(text(column));
    if (!value || *value < low || *value > high) {
      fail(column, fmt::format("an integer in [{}, {}]", low, high));
    }
    return static_cast<std::int32_t>(*value);
  }
  /// Seconds since the workload's start.
  [[nodiscard]] SimTime seconds(std::size_t column) const {
    const auto value = parse_scaled(text(column), 12);
    if (!value || *value < 0 || *value > kLongestTrace * kPicosecondsPerSecond) {
      fail(column, fmt::format("seconds in [0, {}]", kLongestTrace));
    }
    return SimTime{*value};
  }
  [[nodiscard]] LineReader& lines() { return lines_; }

 private:
  static constexpr std::size_t kAbsent = std::numeric_limits<std::size_t>::max();

  /// Columns of other programs are ignored; a near miss of an absent optional column is an error,
  /// because it would change the results.
  void refuse_misspelt(const std::string& place, const std::vector<std::string>& known) const {
    std::vector<std::string> absent;
    for (std::size_t i = 0; i < known.size(); ++i) {
      if (where_[i] == kAbsent) absent.push_back(known[i]);
    }
    for (const std::string& name : unused_) {
      if (nearest(name, absent).empty()) continue;
      throw InputError{fmt::format("{}: {} in the layout of {}", place,
                                   unknown_name("column", name, known), name_of(layout_.format))};
    }
  }

  LineReader& lines_;
  const Layout& layout_;
  std::vector<std::string> unused_;  // columns
  std::vector<std::size_t> where_;
  std::size_t columns_ = 0;
  Cells cells_;
  std::vector<std::string> scratch_;
};

/// Times with any origin, relative to the first record's.
class Since {
 public:
  /// Converts `nanoseconds` of the column. Errors: InputError if it is too far from the first.
  SimTime operator()(const Table& table, std::size_t column, std::int64_t nanoseconds) {
    const std::int64_t first = first_.value_or(nanoseconds);
    constexpr std::int64_t kMax = kLongestTrace * 1'000'000'000;
    // Both fit into 64 bits; their difference may not.
    const double away = static_cast<double>(nanoseconds) - static_cast<double>(first);
    if (away > static_cast<double>(kMax) || away < -static_cast<double>(kMax)) {
      table.fail(column, fmt::format("a time within {} s of the first record's", kLongestTrace));
    }
    if (!first_) first_ = nanoseconds;
    return SimTime{(nanoseconds - first) * 1000};
  }

 private:
  std::optional<std::int64_t> first_;
};

/// Numbers for names of sessions, in order of first occurrence.
class Sessions {
 public:
  std::int32_t operator()(std::string_view word) {
    if (word.empty()) return -1;
    return numbers_.try_emplace(std::string{word}, static_cast<std::int32_t>(numbers_.size()))
        .first->second;
  }

 private:
  std::unordered_map<std::string, std::int32_t> numbers_;
};

struct ReadState {
  /// Largest record number for which a request can wait: the previous record.
  [[nodiscard]] std::int64_t max_after() const { return std::ssize(request_of) - 1; }

  Since since;
  Sessions sessions;
  std::vector<std::int32_t> request_of;  // by record, if the file has "after"; -1: a bad record
  std::int64_t without_prompt = 0;
  std::int64_t without_output = 0;
};

/// Reads one record of the layout; nullopt if no service sees it (counted in `state`).
std::optional<Request> read_record(const Table& table, RequestFormat format, ReadState& state) {
  Request r;
  switch (format) {
    case RequestFormat::kPlain:
      r.arrival = table.seconds(0);
      r.prompt_tokens = table.integer(1, 1, kMaxTokens);
      r.output_tokens = table.integer(2, 0, kMaxTokens);
      if (table.has(3) && !table.text(3).empty()) {
        r.priority = table.integer(3, std::numeric_limits<std::int32_t>::min(),
                                   std::numeric_limits<std::int32_t>::max());
      }
      if (table.has(4) && !table.text(4).empty()) {
        r.declared_tokens = table.integer(4, 0, kMaxTokens);
        if (r.declared_tokens > 0 && r.declared_tokens < r.output_tokens) {
          table.fail(4, fmt::format("0, or at least the {} output tokens", r.output_tokens));
        }
      }
      if (table.has(5)) r.session = state.sessions(table.text(5));
      if (table.has(6) && !table.text(6).empty()) {
        const auto row = static_cast<std::size_t>(table.integer(6, 0, state.max_after()));
        r.after = state.request_of[row];
        if (r.after < 0) table.fail(6, "a valid record");
      }
      return r;
    case RequestFormat::kAzure: {
      const auto time = parse_timestamp(table.text(0));
      if (!time) table.fail(0, "a time such as 2023-11-16 18:17:03.9799600");
      r.prompt_tokens = table.integer(1, 1, kMaxTokens);
      r.output_tokens = table.integer(2, 0, kMaxTokens);
      r.arrival = state.since(table, 0, *time);
      return r;
    }
    case RequestFormat::kBurstGpt: {
      const auto time = parse_scaled(table.text(0), 9);
      if (!time || *time < 0) table.fail(0, "seconds of at least 0");
      const std::int32_t prompt = table.integer(2, 0, kMaxTokens);
      r.output_tokens = table.integer(3, 0, kMaxTokens);
      if (prompt == 0 && r.output_tokens > 0) table.fail(2, "a prompt of at least 1 token");
      if (prompt == 0) {
        ++state.without_prompt;
        return std::nullopt;
      }
      r.prompt_tokens = prompt;
      r.arrival = state.since(table, 0, *time);
      if (r.output_tokens == 0) ++state.without_output;
      if (table.has(6)) r.session = state.sessions(table.text(6));
      return r;
    }
    case RequestFormat::kVidur:
      r.arrival = table.seconds(0);
      r.prompt_tokens = table.integer(1, 1, kMaxTokens);
      r.output_tokens = table.integer(2, 0, kMaxTokens);
      return r;
    case RequestFormat::kSplitwise:
      r.arrival = table.seconds(3);
      if (table.has(4) && table.integer(4, 1, kMaxTokens) != 1) {
        table.fail(4, "1: a record is one request");
      }
      r.prompt_tokens = table.integer(5, 1, kMaxTokens);
      r.output_tokens = table.integer(6, 0, kMaxTokens);
      return r;
    case RequestFormat::kWeka:
    case RequestFormat::kAgentic:
    case RequestFormat::kBailian:
    case RequestFormat::kMooncake:
    case RequestFormat::kShareGpt:
    case RequestFormat::kServeGen:
      break;
  }
  KVSIM_CHECK(false, "format {} has no columns", name_of(format));
  return std::nullopt;
}

/// Returns the days since 1970-01-01 of a date of the Gregorian calendar (Hinnant's
/// days_from_civil).
std::int64_t days_of(std::int64_t year, std::int64_t month, std::int64_t day) {
  year -= month <= 2 ? 1 : 0;
  const std::int64_t era = year / 400;
  const std::int64_t of_era = year - era * 400;
  const std::int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

}  // namespace

std::optional<std::int64_t> parse_timestamp(std::string_view text) {
  bool bad = false;
  const auto number = [&](std::size_t digits, std::int64_t low, std::int64_t high) {
    std::int64_t value = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      if (text.empty() || text.front() < '0' || text.front() > '9') {
        bad = true;
        return low;
      }
      value = value * 10 + (text.front() - '0');
      text.remove_prefix(1);
    }
    bad = bad || value < low || value > high;
    return value;
  };
  const auto mark = [&](std::string_view any) {
    if (text.empty() || any.find(text.front()) == std::string_view::npos) {
      bad = true;
    } else {
      text.remove_prefix(1);
    }
  };
  const std::int64_t year = number(4, 1970, 2200);
  mark("-");
  const std::int64_t month = number(2, 1, 12);
  mark("-");
  const std::int64_t day = number(2, 1, 31);
  mark(" T");
  const std::int64_t hour = number(2, 0, 23);
  mark(":");
  const std::int64_t minute = number(2, 0, 59);
  mark(":");
  const std::int64_t second = number(2, 0, 60);
  if (bad) return std::nullopt;
  const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
  const std::int64_t month_days = month == 2 ? (leap ? 29 : 28) : 30 + ((month + month / 8) % 2);
  if (day > month_days) return std::nullopt;
  std::int64_t fraction = 0;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    std::int64_t unit = 100'000'000;
    if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
    for (; !text.empty() && text.front() >= '0' && text.front() <= '9'; text.remove_prefix(1)) {
      fraction += unit * (text.front() - '0');
      unit /= 10;
    }
  }
  std::int64_t offset = 0;
  if (text == "Z") {
    text.remove_prefix(1);
  } else if (text.starts_with('+') || text.starts_with('-')) {
    const std::int64_t sign = text.front() == '-' ? -1 : 1;
    text.remove_prefix(1);
    offset = number(2, 0, 23) * 3600;
    if (text.starts_with(':')) text.remove_prefix(1);
    if (!text.empty()) offset += number(2, 0, 59) * 60;
    offset *= sign;
  }
  if (bad || !text.empty()) return std::nullopt;
  const std::int64_t seconds =
      days_of(year, month, day) * 86400 + hour * 3600 + minute * 60 + second - offset;
  return seconds * 1'000'000'000 + fraction;
}

std::optional<RequestFormat> csv_format_of(std::string_view header) {
  Cells names;
  std::vector<std::string> scratch;
  if (!split(header, names, scratch)) return std::nullopt;
  for (const Layout& layout : kLayouts) {
    const bool all =
        std::all_of(layout.columns.begin(), layout.columns.end(), [&](const Column& c) {
          return !c.required || std::any_of(names.begin(), names.end(), [&](std::string_view name) {
            return plain_name(layout.format, name) == c.name;
          });
        });
    if (all) return layout.format;
  }
  return std::nullopt;
}

std::string csv_header_complaint(std::string_view header) {
  Cells names;
  std::vector<std::string> scratch;
  const Layout* best = nullptr;
  std::size_t max_shared = 0;
  if (split(header, names, scratch)) {
    for (const Layout& layout : kLayouts) {
      const auto shared = static_cast<std::size_t>(
          std::count_if(layout.columns.begin(), layout.columns.end(), [&](const Column& c) {
            return std::find(names.begin(), names.end(), c.name) != names.end();
          }));
      if (shared > max_shared) {
        max_shared = shared;
        best = &layout;
      }
    }
  }
  if (best == nullptr) {
    std::string all;
    for (const RequestFormatName& row : request_formats()) {
      all += fmt::format("{}{} ({})", all.empty() ? "" : ", ", row.name, row.layout);
    }
    return fmt::format("expected a trace in a known layout, got {}; known: {}", in_quotes(header),
                       all);
  }
  std::vector<std::string_view> missing;
  for (const Column& c : best->columns) {
    if (c.required && std::find(names.begin(), names.end(), c.name) == names.end()) {
      missing.push_back(c.name);
    }
  }
  return fmt::format("expected a column \"{}\" (layout of {}), got {}",
                     fmt::join(missing, "\", \""), name_of(best->format), in_quotes(header));
}

RequestTrace read_csv_requests(LineReader& lines, const std::string& header, RequestFormat format,
                               const ReadOptions& options) {
  Table table{lines, header, layout_of(format)};
  RequestSink sink{lines.name(), format, options};
  ReadState state;
  const bool links = format == RequestFormat::kPlain && table.has(6);
  const auto place = [&] { return lines.place(); };
  std::string_view line;
  while (lines.next(line)) {
    if (trimmed(line).empty()) continue;
    const std::size_t before = sink.trace().requests.size();
    sink.record([&] {
      table.take(line);
      if (const auto request = read_record(table, format, state)) sink.add(*request, place);
    });
    if (links) {
      const bool added = sink.trace().requests.size() > before;
      state.request_of.push_back(added ? static_cast<std::int32_t>(before) : -1);
    }
  }
  if (std::string note = table.unused_note(); !note.empty()) {
    sink.trace().notes.push_back(std::move(note));
  }
  if (state.without_prompt > 0) {
    sink.trace().notes.push_back(fmt::format("{} failed requests without any tokens were left out",
                                             with_commas(state.without_prompt)));
  }
  if (state.without_output > 0) {
    sink.trace().notes.push_back(fmt::format("{} failed requests (0 response tokens) were kept",
                                             with_commas(state.without_output)));
  }
  return sink.finish(format == RequestFormat::kAzure || format == RequestFormat::kBurstGpt);
}

}  // namespace kvsim
