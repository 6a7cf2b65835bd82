#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "models/quality/quality_model.hpp"
#include "models/quality/quality_rows.hpp"

namespace kvsim {

/// Selects measurements.
struct SavingQuery {
  double max_loss = 0.01;              // fraction of the full score
  std::vector<std::string> models{};   // folded names; empty: all
  std::vector<std::string> methods{};  // empty: all
  std::string task{};                  // prefix of task names; empty: all
  std::optional<double> context{};     // tokens; the result reports the nearest measured one
};

enum class SavingBasis : std::uint8_t { kMeasured, kPredicted };

/// One setting of a method, over the tasks of one model in one harness.
struct SavingPoint {
  double kept = 1.0;             // bytes over those of a full 16-bit cache
  double retained = 0.0;         // sum of scores over sum of full scores
  double low = 0.0, high = 0.0;  // 90 % interval
  bool has_interval = false;     // else low and high equal `retained`: one task of unknown error
  std::string harness, model, setting;
  std::vector<std::string> contexts{};
  std::size_t rows = 0;
};

/// Share of the cache that a method saves at a loss of at most max_loss under one protocol.
/// `certain`: for every point of the setting, the whole interval is above the bound; `possible`:
/// for at least one point, part of the interval is above it. nullopt if no setting qualifies.
struct MethodSaving {
  std::string method, protocol;
  SavingBasis basis = SavingBasis::kMeasured;
  std::optional<double> certain{}, possible{};  // shares of the bytes
  std::vector<SavingPoint> points{};            // by kept, descending
  std::size_t rows = 0;
  std::size_t unsized_rows = 0;  // rows with unknown kept bytes
  std::set<std::string> models{}, harnesses{}, contexts{};
  std::optional<double> nearest_context{};  // nearest numeric context to the query's
};

/// Joins names of harnesses with commas; rows without a source have a harness without a name.
[[nodiscard]] std::string source_names(const std::set<std::string>& harnesses);

/// Computes the savings of each method and protocol in `rows`. Methods without measurements of the
/// query's models are predicted with `model` for the first of them, if it has an interval. In order
/// of the largest certain, then possible saving.
[[nodiscard]] std::vector<MethodSaving> largest_savings(std::span<const QualityRow> rows,
                                                        const QualityModel& model,
                                                        const SavingQuery& query);

}  // namespace kvsim
