#pragma once

// `kvsim compare`: which figures of two results differ, point by point.

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvsim {

/// One point of a result, or a candidate, a method, …: what it is, and what came out.
struct ResultItem {
  nlohmann::ordered_json keys;     // in file units: {"method": "h2o", "budget": 0.2, …}
  nlohmann::ordered_json figures;  // flat: {"prefill_s": 0.4, "peak_owners.weights": …}
};

/// A document of kvsim as a list of distinguishable items.
struct ResultItems {
  std::string place{};        // the file
  std::string schema{};       // "kvsim.run/1"
  std::string version{};      // of the program that wrote it
  std::string calibration{};  // "builtin", …; empty where the document has none
  std::string scenario{};     // its hash; empty where there is none
  std::vector<ResultItem> items{};
};

/// The document of a results folder; of another path itself. Errors: InputError for a folder
/// without one.
[[nodiscard]] std::filesystem::path result_document(const std::filesystem::path& path);
/// Reads a results folder, or a document in one: run, runs, replay, aggregate, sweep,
/// scenario-sweep or plan. Errors: InputError where it is none of these, with file and JSON
/// pointer.
[[nodiscard]] ResultItems read_result_items(const std::filesystem::path& path);

/// A figure that is not the same in both; null where one does not have it.
struct FigureChange {
  std::string figure;
  nlohmann::ordered_json before, after;
  /// (after - before) / |before|; infinite from 0; absent where one is no number.
  std::optional<double> relative{};
};
struct PointChange {
  std::string label;  // by the keys that distinguish points
  std::vector<FigureChange> figures;
};
struct Comparison {
  std::string before, after;         // files
  std::vector<std::string> notes{};  // other versions, calibrations, settings that all points share
  std::size_t points = 0;            // in both
  std::size_t figures = 0;           // of these, compared
  std::vector<PointChange> changed{};
  std::vector<std::string> only_before{}, only_after{};
  [[nodiscard]] bool moved() const {
    return !changed.empty() || !only_before.empty() || !only_after.empty();
  }
};

/// Points are matched by their keys; keys that have one value in all points of a result are left
/// out, so that runs on two GPUs can be compared, and named in a note. Points left over are matched
/// without the parameters of methods, then without budget and trace, where that names one point of
/// each result; a note has what differs. Numbers that differ by less
/// than or exactly `tolerance` of the larger one are the same; 0: equal numbers alone. Errors:
/// InputError where the documents are not of one schema.
[[nodiscard]] Comparison compare_results(const ResultItems& before, const ResultItems& after,
                                         double tolerance);

}  // namespace kvsim
