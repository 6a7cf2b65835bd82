#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"

namespace kvsim {

/// One part of a figure.
struct ExplainedTerm {
  std::string what;
  double value = 0;  // in the unit of the terms
  std::optional<double> low{}, high{};
  std::string formula{};  // with the numbers filled in; empty if there is none
  std::string basis{};    // of a time: "measured", "stack", …
  std::string source{};
};

/// Lines in addition to a metric's terms, which do not sum to it.
struct ExplainedRow {
  std::string what;
  std::optional<double> share{};  // of a whole that the table's title names
  std::string text{};
};
struct ExplainedTable {
  std::string title;
  std::vector<ExplainedRow> rows;
};

/// A metric of a point of a result, and its terms.
struct Explanation {
  std::string key;
  std::string point{};  // its label
  std::string unit{};   // "B", "s", "tok/s", "tokens", "entries", ""
  std::optional<double> value{};
  std::optional<double> low{}, high{};  // 90 %
  std::string basis{};                  // of the interval
  std::string formula{};   // of the figure from the sum of the terms; empty: the sum itself
  std::string terms_of{};  // the figure that the terms sum to
  std::string terms_unit{};
  double total = 0;  // sum of the terms
  std::vector<ExplainedTerm> terms{};
  std::vector<std::string> notes{};
  std::vector<ExplainedTable> tables{};
};

/// The part of a document to explain.
struct ExplainRequest {
  std::string key;
  std::string which{};  // point or method, by number or label; empty: the only one
  std::optional<std::int64_t> layer{}, head{};  // of "kept"
};

/// Figures that can be explained, as `kvsim explain` names them.
[[nodiscard]] std::vector<std::string> explained_keys();

/// Explains a figure of one point of a run's result.json, of one method of a replay's, or of one
/// candidate of a plan's plan.json. Errors: InputError with file and place for any other document,
/// an unknown key or point, a figure whose terms are not in the document (with the command to run
/// again), or terms that do not sum to their figure.
[[nodiscard]] Explanation explain_result(const Field& result, const ExplainRequest& request);

}  // namespace kvsim
