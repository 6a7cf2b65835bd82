#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "models/quality/quality_model.hpp"
#include "models/quality/quality_rows.hpp"

namespace kvsim {

/// Which measurements count.
struct SavingQuery {
  double max_loss = 0.01;              // of the full score
  std::vector<std::string> models{};   // folded names; empty: all
  std::vector<std::string> methods{};  // empty: all
  std::string task{};                  // beginning of the tasks' names; empty: all
  std::optional<double> context{};     // tokens; the nearest measured one is named
};

enum class SavingBasis : std::uint8_t { kMeasured, kPredicted };

/// A setting of a method over the tasks of one model in one harness.
struct SavingPoint {
  double kept = 1.0;             // bytes over those of a full 16-bit cache
  double retained = 0.0;         // sum of scores over sum of full scores
  double low = 0.0, high = 0.0;  // 90 % interval
  bool has_interval = false;     // else low and high are `retained`: one task of unknown error
  std::string harness, model, setting;
  std::vector<std::string> contexts{};
  std::size_t rows = 0;
};

/// How much of the cache a method saves at a loss of at most max_loss under one protocol.
/// `certain`: every point of that setting stays above the bound with its whole interval;
/// `possible`: one stays above it with some of its interval. nullopt: no setting does.
struct MethodSaving {
  std::string method, protocol;
  SavingBasis basis = SavingBasis::kMeasured;
  std::optional<double> certain{}, possible{};  // shares of the bytes
  std::vector<SavingPoint> points{};            // by kept, descending
  std::size_t rows = 0;
  std::size_t unsized_rows = 0;  // whose kept bytes are not known
  std::set<std::string> models{}, harnesses{}, contexts{};
  std::optional<double> nearest_context{};  // to the query's, of those that are numbers
};

/// Names of harnesses, joined by commas; rows without a source have one without a name.
[[nodiscard]] std::string source_names(const std::set<std::string>& harnesses);

/// Of each method and protocol among `rows`; methods without measurements of the query's models are
/// predicted with `model` for the first of them where it has an interval. In order of the largest
/// certain, then possible saving.
[[nodiscard]] std::vector<MethodSaving> largest_savings(std::span<const QualityRow> rows,
                                                        const QualityModel& model,
                                                        const SavingQuery& query);

}  // namespace kvsim
