#include "models/quality/quality_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "models/units/number_text.hpp"
#include "models/units/text_file.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestTable = 256U << 20U;
constexpr double kFullBits = 16.0;
/// In a row's source, followed by the run's suffixes.
constexpr std::string_view kPressSource = "kvpress:";

std::optional<double> number_of(std::string_view text) {
  double value = 0.0;
  const char* end = text.data() + text.size();
  const auto [at, error] = number_from_chars(text.data(), end, value);
  if (error != std::errc{} || at != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

/// Reads the records of a CSV text.
class QualityRecords {
 public:
  QualityRecords(std::string_view text, std::string_view name) : text_{text}, name_{name} {
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
  }
  /// Reads the next record that is not blank; returns false at the end.
  bool next(std::vector<std::string>& cells) {
    while (at_ < text_.size()) {
      begins_ = line_;
      cells.assign(1, "");
      read(cells);
      if (cells.size() > 1 || !cells.front().empty()) return true;
    }
    return false;
  }
  [[nodiscard]] std::string place() const { return fmt::format("{}:{}", name_, begins_); }

 private:
  void read(std::vector<std::string>& cells) {
    bool quoted = false;
    bool closed = false;  // a quoted cell has ended
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (quoted) {
        if (c != '"') {
          cells.back() += c;
        } else if (at_ + 1 < text_.size() && text_[at_ + 1] == '"') {
          cells.back() += c;
          ++at_;
        } else {
          quoted = false;
          closed = true;
        }
      } else if (c == '"' && cells.back().empty() && !closed) {
        quoted = true;
      } else if (c == ',') {
        cells.emplace_back();
        closed = false;
      } else if (c == '\n') {
        ++at_;
        return;
      } else if (c == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') {
        continue;
      } else if (closed) {
        throw InputError{place(), "a comma after a quoted cell", fmt::format("\"{}\"", c)};
      } else {
        cells.back() += c;
      }
    }
    if (quoted) throw InputError{place(), "a quoted cell that ends", "the end of the file"};
  }

  std::string_view text_;
  std::string name_;
  std::size_t at_ = 0;
  std::size_t line_ = 1, begins_ = 1;
};

enum Column : std::size_t {
  kModel,
  kTask,
  kMethod,
  kScore,
  kScoreFull,
  kSource,
  kMetric,
  kPublished,
  kBudget,
  kBudgetUnit,
  kBits,
  kWhen,
  kContext,
  kSamples,
  kStderr,
  kNote,
  kColumns
};
constexpr std::array<std::string_view, kColumns> kNames{
    "model",          "task",        "method", "score",
    "score_full",     "source",      "metric", "method_as_published",
    "budget",         "budget_unit", "bits",   "when",
    "context_tokens", "n_samples",   "stderr", "note"};
constexpr std::size_t kRequired = 5;
constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

/// Returns the position of each column in the header.
std::array<std::size_t, kColumns> columns_of(const std::vector<std::string>& header,
                                             const std::string& place) {
  std::array<std::size_t, kColumns> at{};
  at.fill(kNowhere);
  for (std::size_t i = 0; i < header.size(); ++i) {
    const auto found = std::find(kNames.begin(), kNames.end(), header[i]);
    if (found == kNames.end()) continue;
    std::size_t& column = at[static_cast<std::size_t>(found - kNames.begin())];
    if (column != kNowhere) {
      throw InputError{place, "each column once", fmt::format("\"{}\" twice", header[i])};
    }
    column = i;
  }
  for (std::size_t column = 0; column < kRequired; ++column) {
    if (at[column] == kNowhere) {
      throw InputError{
          fmt::format("{}: expected a column \"{}\", got none; a table of measured scores has the "
                      "columns model, "
                      "task, method, score and score_full",
                      place, kNames[column])};
    }
  }
  return at;
}

class RowReader {
 public:
  RowReader(const std::vector<std::string>& cells, const std::array<std::size_t, kColumns>& at,
            std::string place)
      : cells_{cells}, at_{at}, place_{std::move(place)} {}

  QualityRow read() const {
    QualityRow row{.place = place_,
                   .source = text(kSource),
                   .model = required(kModel),
                   .task = required(kTask),
                   .metric = text(kMetric),
                   .method = required(kMethod),
                   .setting = text(kPublished),
                   .when = text(kWhen),
                   .context = text(kContext),
                   .note = text(kNote),
                   .budget = number(kBudget, 0.0, 1e12),
                   .budget_unit = text(kBudgetUnit),
                   .bits = number(kBits, 0.0, 64.0)};
    const auto score = number(kScore, -1e9, 1e9);
    if (!score) bad(kScore, "a number");
    row.score = *score;
    row.score_full = number(kScoreFull, -1e9, 1e9);
    row.stderr_points = number(kStderr, 0.0, 1e9);
    row.samples = samples();
    if (row.budget && *row.budget <= 0) bad(kBudget, "a number above 0: nothing is kept");
    if (row.bits && *row.bits <= 0) bad(kBits, "a number above 0");
    static constexpr std::array<std::string_view, 4> kUnits{"", "fraction", "tokens",
                                                            "fraction of bytes"};
    if (std::find(kUnits.begin(), kUnits.end(), row.budget_unit) == kUnits.end()) {
      bad(kBudgetUnit, "fraction, tokens, fraction of bytes or nothing");
    }
    if (row.budget && row.budget_unit.starts_with("fraction") && *row.budget > 1.0) {
      bad(kBudget, "a fraction in (0, 1]");
    }
    return row;
  }

 private:
  [[nodiscard]] std::string text(Column column) const {
    return at_[column] == kNowhere ? "" : cells_[at_[column]];
  }
  [[noreturn]] void bad(Column column, std::string_view expected) const {
    throw InputError{fmt::format("{}: {}", place_, kNames[column]), expected,
                     fmt::format("\"{}\"", text(column))};
  }
  [[nodiscard]] std::string required(Column column) const {
    std::string value = text(column);
    if (value.empty()) bad(column, "a name");
    return value;
  }
  /// Returns nullopt for an empty cell.
  [[nodiscard]] std::optional<double> number(Column column, double low, double high) const {
    const std::string cell = text(column);
    if (cell.empty()) return std::nullopt;
    const auto value = number_of(cell);
    if (!value || *value < low || *value > high) {
      bad(column, fmt::format("a number in [{:g}, {:g}] or nothing", low, high));
    }
    return value;
  }
  /// Parses "200", or "~50" for a computed number.
  [[nodiscard]] std::optional<double> samples() const {
    std::string cell = text(kSamples);
    if (cell.empty()) return std::nullopt;
    if (cell.front() == '~') cell.erase(0, 1);
    const auto value = number_of(cell);
    if (!value || *value < 0.0)
      bad(kSamples, "a number of samples, with or without a leading \"~\"");
    return value;
  }

  const std::vector<std::string>& cells_;
  const std::array<std::size_t, kColumns>& at_;
  std::string place_;
};

/// Splits "a__b__c" at "__".
std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts(1);
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name.compare(i, 2, "__") == 0) {
      parts.emplace_back();
      ++i;
    } else {
      parts.back() += name[i];
    }
  }
  return parts;
}

/// Maps kvpress' method names to the catalogue's; other names are unchanged.
std::string method_of(const std::string& press) {
  static const std::map<std::string, std::string, std::less<>> names{
      {"no_press", "full"},
      {"expected_attention", "expected-attention"},
      {"streaming_llm", "streaming-llm"},
      {"observed_attention", "h2o"},
      {"adakv_snapkv", "adakv"},
      {"adasnapkv", "adakv"},
      {"adakv_expected_attention", "adakv-expected-attention"},
      {"chunkkv", "chunkkv"}};
  const auto found = names.find(press);
  return found != names.end() ? found->second : press;
}

/// Adds the scores of one kvpress run: a number, or tasks with a number or a number per metric.
void add_metrics(const Field& field, const QualityRow& like, const std::string& task,
                 std::vector<QualityRow>& rows) {
  constexpr double kMax = 1e9;
  const auto add = [&](std::string name, std::string metric, const Field& score) {
    QualityRow row = like;
    row.task = std::move(name);
    row.metric = std::move(metric);
    row.score = score.number(-kMax, kMax);
    rows.push_back(std::move(row));
  };
  if (field.is_number()) {
    add(task, "", field);
    return;
  }
  if (!field.is_object()) field.expected("a score, or an object of scores");
  for (const auto& [name, value] : field.members()) {
    if (value.is_number()) {
      add(fmt::format("{}/{}", task, name), "", value);
      continue;
    }
    if (!value.is_object()) value.expected("a score, or an object of scores");
    for (const auto& [metric, score] : value.members()) {
      add(fmt::format("{}/{}", task, name), metric, score);
    }
  }
}

/// Sets max_score of rows. A source has one scale per metric: a score above 1 shows that the scale
/// is percent, so that a score of 1 % next to others is not read as 100 %.
void set_scales(std::vector<QualityRow>& rows) {
  std::map<std::pair<std::string, std::string>, double> largest;
  const auto key = [](const QualityRow& row) { return std::pair{row.harness(), row.metric}; };
  for (const QualityRow& row : rows) {
    double& most = largest[key(row)];
    most = std::max({most, row.score, row.score_full.value_or(0.0)});
  }
  for (QualityRow& row : rows) row.max_score = largest.at(key(row)) <= 1.0 ? 1.0 : 100.0;
}

/// Whether part of a run's name indicates that the question was known at compression time.
bool says_question(std::string_view part) {
  return part.find("query_aware") != std::string_view::npos ||
         part.find("compressed_questions") != std::string_view::npos;
}

/// Copies full scores from runs of the same data and model. Full-cache scores do not depend on
/// whether the question is known, so runs with a known question may use those of other runs.
void add_full_scores(std::vector<QualityRow>& rows) {
  const auto key = [](const QualityRow& row, std::string_view source) {
    return fmt::format("{}\n{}\n{}\n{}", source, row.model, row.task, row.metric);
  };
  const auto without_question = [](const std::string& source) {
    std::string out;
    for (const std::string& part : parts_of(source.substr(kPressSource.size()))) {
      if (!part.empty() && !says_question(part)) out += part + "\n";
    }
    return out;
  };
  std::map<std::string, double> full;
  std::map<std::string, double> full_without_question;
  for (const QualityRow& row : rows) {
    if (!row.is_full()) continue;
    full.emplace(key(row, row.source), row.score);
    full_without_question.emplace(key(row, without_question(row.source)), row.score);
  }
  for (QualityRow& row : rows) {
    if (const auto same = full.find(key(row, row.source)); same != full.end()) {
      row.score_full = same->second;
      continue;
    }
    const auto other = full_without_question.find(key(row, without_question(row.source)));
    if (other != full_without_question.end()) row.score_full = other->second;
  }
}

std::vector<QualityRow> read_kvpress(const fs::path& folder) {
  std::vector<std::pair<std::string, fs::path>> runs;  // name, metrics file
  for (const auto& entry : fs::directory_iterator{folder}) {
    const fs::path& path = entry.path();
    const bool is_folder = entry.is_directory();
    if (is_folder && fs::is_regular_file(path / "metrics.json")) {
      runs.emplace_back(path.filename().string(), path / "metrics.json");
    } else if (!is_folder && path.extension() == ".json" &&
               parts_of(path.stem().string()).size() >= 5) {
      runs.emplace_back(path.filename().string().substr(0, path.filename().string().size() - 5),
                        path);
    }
  }
  std::sort(runs.begin(), runs.end());
  std::vector<QualityRow> rows;
  for (const auto& [name, file] : runs) {
    const std::vector<std::string> parts = parts_of(name);
    const auto ratio = parts.size() >= 5 ? number_of(parts[4]) : std::nullopt;
    if (!ratio || *ratio < 0.0 || *ratio > 1.0) {
      throw InputError{file.string(),
                       "a run called DATASET__DATA__MODEL__PRESS__RATIO with a ratio in [0, 1]",
                       fmt::format("\"{}\"", name)};
    }
    std::string model = parts[2];
    if (const std::size_t owner = model.find("--"); owner != std::string::npos) {
      model = model.substr(owner + 2);
    }
    const bool full = parts[3] == "no_press" || *ratio == 0.0;
    std::string variant;
    for (std::size_t i = 5; i < parts.size(); ++i) variant += (i > 5 ? "__" : "") + parts[i];
    const bool aware = says_question(variant);
    QualityRow like{.place = file.string(),
                    .source = fmt::format("{}{}", kPressSource, variant),
                    .model = std::move(model),
                    .method = full ? "full" : method_of(parts[3]),
                    .setting = parts[3],
                    .when = full    ? "none"
                            : aware ? "prefill-only;question-aware"
                                    : "prefill-only;question-agnostic",
                    .context = number_of(parts[1]) ? parts[1] : "",
                    .budget = full ? 1.0 : 1.0 - *ratio,
                    .budget_unit = "fraction",
                    .bits = kFullBits};
    const std::string task = parts[1].empty() ? parts[0] : fmt::format("{}-{}", parts[0], parts[1]);
    add_metrics(Field::read_python_file(file), like, task, rows);
  }
  if (rows.empty()) {
    throw InputError{folder.string(),
                     "kvpress results (DATASET__DATA__MODEL__PRESS__RATIO with metrics.json)",
                     "none"};
  }
  add_full_scores(rows);
  set_scales(rows);
  return rows;
}

}  // namespace

std::optional<double> QualityRow::retained() const {
  if (!score_full || *score_full <= 0.0) return std::nullopt;
  if (metric != "perplexity") return score / *score_full;
  if (score <= 0.0) return std::nullopt;
  return *score_full / score;
}

std::optional<double> QualityRow::retained_stderr() const {
  const auto value = retained();
  if (!value) return std::nullopt;
  std::optional<double> points = stderr_points;
  static constexpr std::array<std::string_view, 5> kShares{"accuracy", "acc", "exact_match", "em",
                                                           "acc_norm"};
  const bool share = std::find(kShares.begin(), kShares.end(), metric) != kShares.end();
  if (!points && share && samples && *samples >= 1.0 && score >= 0.0 && score <= max_score) {
    points = std::sqrt(score * (max_score - score) / *samples);
  }
  if (!points) return std::nullopt;
  return metric == "perplexity" ? *points / score * *value : *points / *score_full;
}

std::optional<double> QualityRow::kept_bytes() const {
  if (is_full()) return 1.0;
  if (!budget) return std::nullopt;
  if (budget_unit == "fraction of bytes") return budget;
  const double width = bits.value_or(kFullBits) / kFullBits;
  if (budget_unit == "fraction") {
    // A format of unstated width has an unknown share.
    if (*budget == 1.0 && !bits) return std::nullopt;
    return *budget * width;
  }
  const auto tokens = number_of(context);
  if (budget_unit != "tokens" || !tokens || *tokens <= 0.0) return std::nullopt;
  return std::min(1.0, *budget / *tokens) * width;
}

std::string QualityRow::harness() const { return source.substr(0, source.find_first_of(" @")); }

std::vector<QualityRow> parse_quality_csv(std::string_view text, std::string_view name) {
  QualityRecords records{text, name};
  std::vector<std::string> cells;
  if (!records.next(cells)) {
    throw InputError{std::string{name}, "a table of measured scores", "an empty file"};
  }
  const auto columns = columns_of(cells, records.place());
  const std::size_t width = cells.size();
  std::vector<QualityRow> rows;
  while (records.next(cells)) {
    if (cells.size() != width) {
      throw InputError{records.place(), fmt::format("{} cells as in the header", width),
                       fmt::format("{}", cells.size())};
    }
    rows.push_back(RowReader{cells, columns, records.place()}.read());
  }
  if (rows.empty()) {
    throw InputError{std::string{name}, "at least one row after the header", "none"};
  }
  set_scales(rows);
  return rows;
}

std::vector<QualityRow> read_quality(const fs::path& path) {
  std::error_code status;
  if (fs::is_directory(path, status)) return read_kvpress(path);
  return parse_quality_csv(read_text_file(path, kLargestTable), path.string());
}

}  // namespace kvsim
