// kvsim explain: a figure of a result term by term, each with its formula, source and interval.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/cli/explain/explain_result.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

/// "12.1 ms", "1.5 GiB", "62.4 tok/s".
std::string amount_text(double value, std::string_view unit) {
  const std::string sign = value < 0 ? "-" : "";
  const double size = std::abs(value);
  if (unit == "B") return sign + to_text(Bytes{std::llround(size)});
  if (unit == "s") return sign + to_text(Seconds{size});
  if (unit == "tokens" || unit == "entries") {
    const bool one = size == 1;
    return fmt::format("{}{} {}", sign, with_commas(std::llround(size)),
                       !one               ? unit
                       : unit == "tokens" ? std::string_view{"token"}
                                          : std::string_view{"entry"});
  }
  if (unit.empty()) return fmt::format("{:.6g}", value);
  return fmt::format("{:.6g} {}", value, unit);
}

/// " (1.2 ms to 1.5 ms)"; only one end if the other is missing; empty without both.
std::string range_text(const std::optional<double>& low, const std::optional<double>& high,
                       std::string_view unit) {
  if (!low && !high) return "";
  const auto end = [&](const std::optional<double>& value) {
    return value ? amount_text(*value, unit) : std::string{"none"};
  };
  return fmt::format(" ({} to {})", end(low), end(high));
}

std::string indented(std::string_view text, std::size_t indent, std::size_t width) {
  constexpr std::size_t kMinText = 24;
  std::string out;
  const std::size_t room = std::max(kMinText, width - std::min(width, indent));
  for (const std::string& line : wrapped(clean_text(text), room)) {
    out += std::string(indent, ' ') + line + "\n";
  }
  return out;
}

std::string explanation_text(const Explanation& e, std::size_t width) {
  constexpr std::size_t kIndent = 11;
  constexpr double kPercent = 100;
  std::string head = fmt::format("{} of {}", e.key, e.point);
  if (e.value) head += fmt::format(" = {}", amount_text(*e.value, e.unit));
  head += range_text(e.low, e.high, e.unit);
  std::string out = indented(head, 0, width);
  if (!e.formula.empty()) out += indented("= " + e.formula, 2, width);
  for (const std::string& note : e.notes) out += indented(note, 2, width);
  if ((e.low || e.high) && !e.basis.empty()) {
    out += indented("in brackets: the 90 % interval, from " + e.basis, 2, width);
  } else if (!e.basis.empty()) {
    out += indented("interval: " + e.basis, 2, width);
  }
  if (!e.terms.empty()) out += "\n";
  for (const ExplainedTerm& term : e.terms) {
    const std::string share =
        e.total != 0 ? fmt::format("{:.1f} %", kPercent * term.value / e.total) : "-";
    out += clean_text(fmt::format("{:>7}  {}  {}{}", share, amount_text(term.value, e.terms_unit),
                                  term.what, range_text(term.low, term.high, e.terms_unit))) +
           "\n";
    if (!term.formula.empty()) out += indented(term.formula, kIndent, width);
    const std::string source = term.basis.empty() ? term.source
                               : term.source.empty()
                                   ? term.basis
                                   : fmt::format("{}: {}", term.basis, term.source);
    if (!source.empty()) out += indented(source, kIndent, width);
  }
  if (!e.terms.empty()) {
    out += fmt::format("{:>7}  {}  {}\n", "100 %", amount_text(e.total, e.terms_unit), e.terms_of);
  }
  for (const ExplainedTable& table : e.tables) {
    out += "\n" + indented(fmt::format("{}:", table.title), 0, width);
    for (const ExplainedRow& row : table.rows) {
      const std::string share =
          row.share ? fmt::format("{:.1f} %", kPercent * *row.share) : std::string{"-"};
      std::string line =
          indented(row.text.empty() ? row.what : fmt::format("{}: {}", row.what, row.text),
                   kIndent - 2, width);
      line.replace(0, kIndent - 2, fmt::format("{:>7}  ", share));
      out += line;
    }
  }
  return out;
}

ordered_json value_json(const std::optional<double>& value, std::string_view unit) {
  if (!value) return nullptr;
  const bool whole = unit == "B" || unit == "tokens" || unit == "entries";
  if (whole) return std::llround(*value);
  return *value;
}
ordered_json text_json(const std::string& text) {
  if (text.empty()) return nullptr;
  return text;
}

ordered_json explanation_json(const Explanation& e) {
  ordered_json out{{"schema", "kvsim.explain/1"},
                   {"key", e.key},
                   {"point", e.point},
                   {"unit", e.unit},
                   {"value", value_json(e.value, e.unit)},
                   {"low", value_json(e.low, e.unit)},
                   {"high", value_json(e.high, e.unit)},
                   {"interval_basis", text_json(e.basis)},
                   {"formula", text_json(e.formula)},
                   {"terms_of", e.terms_of},
                   {"terms_unit", e.terms_unit},
                   {"total", value_json(e.total, e.terms_unit)},
                   {"terms", ordered_json::array()}};
  for (const ExplainedTerm& term : e.terms) {
    out["terms"].push_back({{"what", term.what},
                            {"value", value_json(term.value, e.terms_unit)},
                            {"low", value_json(term.low, e.terms_unit)},
                            {"high", value_json(term.high, e.terms_unit)},
                            {"formula", text_json(term.formula)},
                            {"basis", text_json(term.basis)},
                            {"source", text_json(term.source)}});
  }
  out["notes"] = e.notes;
  out["tables"] = ordered_json::array();
  for (const ExplainedTable& table : e.tables) {
    ordered_json rows = ordered_json::array();
    for (const ExplainedRow& row : table.rows) {
      rows.push_back(
          {{"what", row.what}, {"share", value_json(row.share, "")}, {"text", row.text}});
    }
    out["tables"].push_back({{"title", table.title}, {"rows", std::move(rows)}});
  }
  return out;
}

int run_explain(const Arguments& arguments) {
  arguments.expect_words(2, 2, "a result and a figure's key");
  fs::path path = arguments.words()[0];
  std::error_code status;
  if (fs::is_directory(path, status)) {
    const fs::path folder = path;
    path = folder / "result.json";
    if (!fs::exists(path, status)) path = folder / "plan.json";
    if (!fs::exists(path, status)) {
      throw InputError{
          fmt::format("{}: this folder contains no result.json of kvsim run or replay and no "
                      "plan.json of kvsim "
                      "plan",
                      folder.string())};
    }
  }
  constexpr std::int64_t kMax = 1 << 20;
  const Explanation explanation =
      explain_result(Field::read_file(path), {.key = arguments.words()[1],
                                              .which = arguments.value("point").value_or(""),
                                              .layer = arguments.integer("layer", 0, kMax),
                                              .head = arguments.integer("head", 0, kMax)});
  write_out(arguments.has("json") ? to_file_text(explanation_json(explanation))
                                  : explanation_text(explanation, terminal_width()));
  return kDone;
}

}  // namespace

Command explain_command() {
  static const std::string usage = [] {
    constexpr std::size_t kWidth = 78;  // help is indented by two columns
    constexpr std::size_t kIndent = 10;
    std::string keys =
        paragraph(fmt::format("one of {}, or another metric of a point (docs/results.md)",
                              fmt::join(explained_keys(), ", ")),
                  kWidth, kIndent);
    keys.pop_back();  // the line's end
    return fmt::format(
        "kvsim explain RESULT KEY [--point N|LABEL] [options]\n"
        "  RESULT  a results folder of kvsim run, replay or plan, or its JSON file\n"
        "  KEY     {}",
        keys);
  }();
  return {
      .name = "explain",
      .summary = "explain a figure of a result term by term, with formulas, sources and intervals",
      .usage = usage,
      .examples =
          "kvsim explain kvsim-out/zeromerge-a800 peak_hbm_bytes --point 0\n"
          "kvsim explain kvsim-out/my step_s\n"
          "kvsim explain kvsim-out/serve-azure-code bound --point 0\n"
          "kvsim explain kvsim-out/my-plan longest_context\n"
          "kvsim explain out/all bytes_held_final --point 'h2o 0.2'\n"
          "kvsim explain out/all kept --point 'h2o 0.2' --layer 1 --head 0",
      .options = {{"point", 'p', "N|LABEL", false,
                   "which point, method of a replay or candidate of a plan, by number from 0 or by "
                   "label; required if there are several (the best for a plan with one question)"},
                  {"layer", 0, "N", false, "for \"kept\": the layer (0)"},
                  {"head", 0, "N", false, "for \"kept\": the stored head (0)"},
                  {"json", 0, "", false, "print JSON (schema kvsim.explain/1)"}},
      .run = run_explain};
}

}  // namespace kvsim
