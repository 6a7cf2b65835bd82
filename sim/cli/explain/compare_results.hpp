#pragma once

// `kvsim compare`: the figures in which two results differ, point by point.

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvsim {

/// One point of a result, or a candidate, a method, …: its inputs and its figures.
struct ResultItem {
  nlohmann::ordered_json keys;     // in file units: {"method": "h2o", "budget": 0.2, …}
  nlohmann::ordered_json figures;  // flat: {"prefill_s": 0.4, "peak_owners.weights": …}
};

/// A document of kvsim as a list of distinguishable items.
struct ResultItems {
  std::string place{};        // the file
  std::string schema{};       // "kvsim.run/1"
  std::string version{};      // of the program that wrote it
  std::string calibration{};  // "builtin", …; empty if the document has none
  std::string scenario{};     // its hash; empty if there is none
  std::vector<ResultItem> items{};
};

/// The document of a results folder; any other path is returned unchanged. Errors: InputError for a
/// folder without a document.
[[nodiscard]] std::filesystem::path result_document(const std::filesystem::path& path);
/// Reads a results folder, or a document in one: run, runs, replay, aggregate, sweep,
/// scenario-sweep or plan. Errors: InputError with file and JSON pointer for any other document.
[[nodiscard]] ResultItems read_result_items(const std::filesystem::path& path);

/// A figure that differs between the results; null in the result that does not have it.
struct FigureChange {
  std::string figure;
  nlohmann::ordered_json before, after;
  /// (after - before) / |before|; infinite if `before` is 0; absent unless both are numbers.
  std::optional<double> relative{};
};
struct PointChange {
  std::string label;  // by the keys that distinguish points
  std::vector<FigureChange> figures;
};
struct Comparison {
  std::string before, after;         // files
  std::vector<std::string> notes{};  // different versions, calibrations, settings of all points
  std::size_t points = 0;            // in both results
  std::size_t figures = 0;           // compared figures of these points
  std::vector<PointChange> changed{};
  std::vector<std::string> only_before{}, only_after{};
  [[nodiscard]] bool moved() const {
    return !changed.empty() || !only_before.empty() || !only_after.empty();
  }
};

/// Matches points by their keys. Keys with the same value in all points of a result are ignored and
/// named in a note, so that runs on two GPUs can be compared. Unmatched points are then matched
/// without method parameters, then without budget and trace, if this identifies one point of each
/// result; a note lists the differences. Numbers are equal if they differ by at most `tolerance`
/// times the larger one; 0: only identical numbers are equal. Errors: InputError if the documents
/// have different schemas.
[[nodiscard]] Comparison compare_results(const ResultItems& before, const ResultItems& after,
                                         double tolerance);

}  // namespace kvsim
